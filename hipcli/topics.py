"""What `hip help TOPIC` prints and the documentation shows: exit codes, environment and formats, each said once, here."""

from __future__ import annotations

from dataclasses import dataclass

from hipcli.config_keys import SETTINGS, Setting


@dataclass(frozen=True)
class Table:
    """A heading, names of columns, and rows of Markdown text without line breaks."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def as_markdown(self) -> str:
        """A Markdown table, without the heading."""
        lines = [self.columns, ("---",) * len(self.columns), *self.rows]
        return "".join("|".join(("", *(f" {cell} ".replace("  ", " ") for cell in line), "")) + "\n" for line in lines)

    def as_text(self) -> str:
        """For a terminal: a line for each row, or a paragraph where a row is long."""
        rows = [tuple(cell.replace("`", "") for cell in row) for row in self.rows]
        heading = self.heading.replace("`", "")
        widths = [max(map(len, column)) for column in zip(*rows)]
        if sum(widths) > 150:
            parts = [row[0] + "".join(f"\n  {name}: {cell}" for name, cell in zip(self.columns[1:], row[1:]) if cell) for row in rows]
            return f"{heading}\n\n" + "\n\n".join(parts) + "\n"
        aligned = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in rows]
        return f"{heading}\n\n" + "\n".join(aligned) + "\n"


EXIT_CODES = Table(
    "Exit codes. An error is the last line of standard error; with --json it is one JSON object there.",
    ("code", "meaning", "what next"),
    (
        ("0", "done; also when the reader of a pipe has gone", ""),
        ("1", "unexpected; or `doctor`, `sessions verify` or `bench` found something wrong", "`HIP_DEBUG=1` shows the traceback"),
        ("2", "the command line or a setting is wrong", "`hip COMMAND --help`, `hip config show`"),
        ("3", "a document cannot be used, or not be fetched", "`hip inspect SRC`"),
        ("4", "more memory or context than there is; nothing was cut", "`hip inspect SRC` shows the need"),
        ("5", "model or tokenizer missing, damaged, unsupported, or not to be fetched offline", "`hip models ls`, `hip models get`"),
        (
            "6",
            "finished under `--strict`, but pages could not be read; or `batch` finished and files failed",
            "`hip inspect SRC`; `OUT.failed`",
        ),
        ("7", "a write failed where it mattered", "free some space, or another folder"),
        ("130", "interrupted (Ctrl-C)", "the same command goes on where it was"),
        ("143", "terminated", "the same command goes on where it was"),
    ),
)


def _row(setting: Setting) -> tuple[str, ...]:
    default = setting.shown or str(setting.default).lower()
    return (f"`{setting.variable}`", f"`{setting.key}`", setting.help, default)


ENVIRONMENT = Table(
    "Environment variables, and the keys of `hip config set`. A flag wins over a variable, a variable over the file.",
    ("variable", "key", "what it sets", "default"),
    (
        *map(_row, SETTINGS.values()),
        ("`HIP_CONFIG`", "", "the file of settings", "`hip config path`"),
        ("`HIP_SERVE_TOKEN`", "", "a token of `hip serve`, beside those of `--token-file`", ""),
        ("`HIP_DEBUG`", "", "shows tracebacks and warnings of libraries", "false"),
        ("`HF_HUB_OFFLINE`", "", "the same as `HIP_OFFLINE`", "false"),
        ("`RAY_ADDRESS`", "", "the cluster that `batch --engine ray` runs on", "Ray is started here"),
        ("`NO_COLOR`", "", "no escape codes on standard error unless it is empty", ""),
        ("`TERM`", "", "`dumb`: no escape codes either", ""),
    ),
)

FORMATS = Table(
    "Formats, found by content, then by name; `--type` forces one.",
    ("`--type`", "files", "read with", "a page is", "beside its number", "what is lost"),
    (
        (
            "`pdf`",
            "PDF",
            "pdfium, pypdf for what it cannot read, in processes under caps",
            "a page",
            "printed number, bookmark",
            "pictures, layout; scans are found and named",
        ),
        (
            "`epub`",
            "EPUB 2 and 3",
            "standard library",
            "a section of the table of contents, or a printed page where the book marks them",
            "title, printed number",
            "pictures, styles, files outside the reading order",
        ),
        (
            "`docx`",
            "Word (`.docx`, `.docm`)",
            "standard library",
            "a section under a heading; headers and footers are the last page",
            "title",
            "deletions, comments, charts, list numbers, styles; notes follow the paragraph that refers to them",
        ),
        (
            "`html`",
            "HTML, XHTML",
            "standard library",
            "a section under a heading of level 1 to 3",
            "title",
            "scripts, styles, templates, closed `<nav>` menus (with a warning)",
        ),
        ("`markdown`", "`.md`", "as written", "a section under a heading of level 1 to 3", "title", "nothing"),
        (
            "`rst`",
            "reStructuredText",
            "as written",
            "a section of the three highest levels",
            "title",
            "nothing; included files are documents of their own",
        ),
        (
            "`latex`",
            "LaTeX",
            "as written",
            "a part, chapter, section or subsection",
            "title",
            "comments; included files are documents of their own",
        ),
        (
            "`srt`, `vtt`",
            "subtitles",
            "standard library",
            "some minutes of speech",
            "the time at which it begins",
            "cue numbers, positions, styling, notes",
        ),
        (
            "`jsonl`",
            "JSON lines",
            "standard library",
            "as many records as fit, as `key: value` lines",
            "line numbers",
            "quotes and braces; lines that are not JSON are kept, with a warning",
        ),
        (
            "`eml`, `mbox`",
            "mail",
            "standard library",
            "a message: its headers, plain text, else HTML",
            "subject",
            "attachments (named in the text and counted), other headers",
        ),
        ("`rtf`", "Rich Text Format", "standard library", "about 3,000 characters", "", "pictures, styles, fields"),
        (
            "`text`",
            "anything else that is text",
            "chardet for old encodings",
            "a stretch between form feeds, else about 3,000 characters",
            "",
            "nothing",
        ),
    ),
)
TOPICS = {"environment": ENVIRONMENT, "exit-codes": EXIT_CODES, "formats": FORMATS}
