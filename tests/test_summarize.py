"""Summaries: every page belongs to a part, the table tells the truth about the rest, and what was finished is never lost."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hipcli.document import Document, Page, PageFault, Source
from hipcli.errors import UsageError
from hipcli.inspection import missing_pages, page_ranges
from hipcli.outline import Part, Piece, make_parts, part_count, settle_division
from hipcli.pipeline import Answer
from hipcli.summarize import Summary, SummaryChoice, _repeats, _tidy
from hipcli.summary_output import as_markdown, coverage_lines
from hipcli.unfinished import digest

HIP = Path(sys.executable).with_name("hip")


def document(texts: list[str], failed: tuple[PageFault, ...] = (), scans: tuple[int, ...] = (), titles: list | None = None) -> Document:
    """Pages are numbered in order, past those that failed."""
    lost = {fault.number for fault in failed}
    numbers = [number for number in range(1, len(texts) + len(lost) + 1) if number not in lost]
    names = titles or [None] * len(texts)
    pages = tuple(Page(number, text, image_only=number in scans, title=name) for number, text, name in zip(numbers, texts, names))
    return Document((Source("book.pdf", "pdf", 1, "0" * 64),), pages, failed)


def said(text: str, reason: str = "stop") -> Answer:
    return Answer(text, reason, 1, 1.0, 0.5)


def part(*pages: int, tokens: int = 10) -> Part:
    return Part(tuple(Piece(page, "text", tokens / len(pages)) for page in pages))


@pytest.mark.parametrize("sizes", [[10], [10] * 7, [1, 500, 1], [0, 10, 0, 0, 10, 0], [3, 1, 4, 1, 5, 9, 2, 6], [5000]])
@pytest.mark.parametrize("count", [1, 2, 3, 16])
@pytest.mark.parametrize("division", ["pages", "joined", "section"])
def test_every_page_with_text_is_in_a_part(sizes, count, division):
    titles = [f"Section {index // 2}" for index in range(len(sizes))]
    book = document(["word " * size for size in sizes], titles=titles)
    parts = make_parts(book, sizes, division, count)
    covered = [page for part in parts for page in part.pages]
    assert sorted(set(covered)) == [index for index, size in enumerate(sizes) if size]
    assert covered == sorted(covered) and 1 <= len(parts) and (division == "section" or len(parts) <= count)
    assert abs(sum(part.tokens for part in parts) - sum(sizes)) <= len(parts)
    # no text is left out or said twice, also where a page was cut
    for index, page in enumerate(book.pages):
        pieces = [piece for part in parts for piece in part.pieces if piece.page == index]
        assert "".join(piece.text for piece in pieces).rstrip() == page.text.rstrip()
        assert all(page.text.startswith(piece.text, piece.start) for piece in pieces)


def test_even_parts_are_even():
    sizes = [100 + 30 * (index % 5) for index in range(60)]
    parts = make_parts(document(["word " * size for size in sizes]), sizes, "pages", 8)
    assert len(parts) == 8
    assert max(part.tokens for part in parts) - min(part.tokens for part in parts) <= 2 * max(sizes)


def test_one_long_page_is_cut_inside():
    text = " ".join(f"line{number}\n" for number in range(5000))
    parts = make_parts(document([text]), [20_000], "pages", 5)
    assert len(parts) == 5 and all(part.pages == (0,) for part in parts)
    openings = [part.opening.split()[0] for part in parts]
    assert openings[0] == "line0" and len(set(openings)) == 5
    # a page without white space cannot be cut, and is not lost
    assert len(make_parts(document(["x" * 9000]), [3000], "pages", 4)) == 1


def test_sections_are_kept_whole_and_named():
    titles = [None, "One", "One", "Two", "Two", "Two", "Three", "Four"]
    book = document(["text"] * 8, titles=titles)
    whole = make_parts(book, [150] * 8, "section", 2)
    assert [(part.title, part.pages) for part in whole] == [
        (None, (0,)),
        ("One", (1, 2)),
        ("Two", (3, 4, 5)),
        ("Three", (6,)),
        ("Four", (7,)),
    ]
    joined = make_parts(book, [150] * 8, "joined", 2)
    assert [(part.title, part.pages) for part in joined] == [("One", (0, 1, 2)), ("Two … Four", (3, 4, 5, 6, 7))]
    # a bare heading goes with what follows, the last one with what is before
    short = make_parts(document(["text"] * 4, titles=["A", "B", "C", "D"]), [5, 150, 150, 5], "section", 2)
    assert [part.pages for part in short] == [(0, 1), (2, 3)]
    # one section that is most of the document does not become most of its summary
    long = make_parts(document(["text"] * 12, titles=["A"] * 10 + ["B", "C"]), [100] * 12, "joined", 4)
    assert [part.pages for part in long] == [(0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11)]


def test_sections_are_used_where_the_document_names_them():
    plain, titled = document(["text"] * 3), document(["text"] * 3, titles=[None, "One", "Two"])
    assert [settle_division(plain, by) for by in ("auto", "pages")] == ["pages", "pages"]
    assert [settle_division(titled, by) for by in ("auto", "section", "pages")] == ["joined", "section", "pages"]
    # one title on a small part of the text is no outline
    assert settle_division(document(["text " * 100, "x"], titles=[None, "Colophon"]), "auto") == "pages"
    with pytest.raises(UsageError, match="neither bookmarks nor headings"):
        settle_division(plain, "section")


def test_the_number_of_parts_grows_with_the_document_and_ends():
    assert [part_count(tokens) for tokens in (0, 1, 500, 501, 5000, 10**6)] == [1, 1, 1, 2, 10, 16]


def test_the_table_names_what_is_missing():
    book = document(["text", "", "", "text", "text"], failed=(PageFault(4, "damaged"),), scans=(3,))
    parts, answers = [part(0), part(3), part(4)], [said("It begins."), said("")]
    table = "\n".join(coverage_lines(book, parts, answers))
    assert "Coverage: 1 of 6 pages" in table
    assert "yes" in table and "no: the model said nothing" in table and "no: not reached" in table
    assert "not summarised: 5-6" in table
    assert "empty: 2" in table and "scanned, without text: 3" in table and "not read: 4 (damaged)" in table
    assert missing_pages(book) == ["p. 3", "p. 4"]


def test_a_page_in_two_parts_is_covered_when_both_are_summarised():
    book = document(["text", "text"])
    parts = [part(0), part(0, 1)]
    assert coverage_lines(book, parts, [said("It begins.")])[0] == "Coverage: 0 of 2 pages"
    assert coverage_lines(book, parts, [said("It begins."), said("It ends.")])[0] == "Coverage: 2 of 2 pages"


def test_markdown_holds_no_markup_of_the_document():
    book = document(["text"] * 2, titles=["# [x](y) | <b>", "Two"])
    parts = make_parts(book, [150, 150], "section", 2)
    summary = Summary(SummaryChoice(), "section", parts, [[], []], [said("a | b"), said("*c*")], said("<script> `d`"))
    text = as_markdown(book, summary)
    assert "## \\# \\[x\\](y) \\| \\<b\\> (page 1)" in text and "\\<script\\> \\`d\\`" in text and "\\*c\\*" in text
    assert text.count("\n| ") == 4  # the table's head, its rule and a row for each part


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([4], "4"), ([3, 1, 2], "1-3"), ([1, 3, 4, 9], "1, 3-4, 9")])
def test_page_ranges(numbers, text):
    assert page_ranges(numbers) == text


def test_a_loop_ends_the_answer_and_is_left_out():
    assert _repeats("It is cold. It is cold.") and not _repeats("The sea is wide and the sea is cold.")
    looping = 'It is far. It says "the island" is' + ' "the island" is' * 5
    assert _repeats(looping) and _tidy(said(looping)).text == "It is far."
    assert _tidy(said("One is said. And the oth", "length")).text == "One is said."


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"spans": 2, "by": "section"}, "give one of them"),
        ({"focus": "  "}, "--focus is empty"),
        ({"markdown": True, "as_json": True}, "not both"),
        ({"spans": 1001}, "within 1 and 1000"),
    ],
)
def test_choices_that_cannot_be(given, complaint):
    with pytest.raises(UsageError, match=complaint):
        SummaryChoice(**given)


@pytest.fixture
def start(tiny_model, tmp_path, pdf):
    """Starts `hip summarize` on a book of six pages and an empty one."""
    (tmp_path / "book.pdf").write_bytes(pdf.book(*(f"Page {number} tells of boats" for number in range(1, 7)), ""))
    env = os.environ | {
        "HIP_MODEL": str(tiny_model),
        "HIP_OFFLINE": "1",
        "HIP_DATA_DIR": str(tmp_path / "data"),
        "HIP_CACHE_DIR": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    env = {name: value for name, value in env.items() if name != "NO_COLOR"} | {"TERM": "xterm", "COLUMNS": "120"}

    def begin(*arguments: str, stderr: int = subprocess.PIPE) -> subprocess.Popen:
        command = [HIP, "summarize", "book.pdf", *arguments]
        return subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=stderr)

    return begin


SAMPLED = ("--temperature", "1", "--seed", "1", "--length", "long")


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out.decode(), err.decode()


def test_a_whole_run(start):
    code, text, err = finish(start("--spans", "3", "--max-tokens", "8", "--quiet"))
    assert (code, err) == (0, "")
    assert text.index("Pages 1 to 2") < text.index("Pages 3 to 4") < text.index("Pages 5 to 6") < text.index("Coverage: 6 of 7 pages")
    assert "empty: 7" in text and "p. 1: “Page 1 tells of boats”" in text
    record = json.loads(finish(start("--spans", "3", "--max-tokens", "8", "--json"))[1])
    assert len(record["parts"]) == 3 and record["summary"] and record["complete"] and record["by"] == "pages"
    assert [(row["page"], row["parts"], row["reason"]) for row in record["coverage"]] == [
        *((number, [(number + 1) // 2], None) for number in range(1, 7)),
        (7, [], "empty"),
    ]
    assert all(row["summarised"] for row in record["coverage"][:6])


def test_many_parts_are_merged_group_by_group(start):
    """More notes than are merged at once, in every length and format."""
    for more in (["--length", "short"], ["--length", "long", "--focus", "boats " * 300], ["--markdown"]):
        code, text, err = finish(start("--spans", "40", "--max-tokens", "4", "--quiet", *more))
        assert (code, err) == (0, "") and "6 of 7 pages" in text


def test_same_seed_same_output(start):
    sampled = ("--spans", "2", "--max-tokens", "12", "--quiet", "--temperature", "1", "--no-session", "--seed")
    first, again, other = (finish(start(*sampled, seed))[1] for seed in ("7", "7", "8"))
    assert first == again != other


def stopped(start, parts: str, how: signal.Signals, *arguments: str) -> tuple[int, str]:
    """A run that gets a signal once the bar on its terminal says that so many parts are done; its exit code and output."""
    terminal, side = os.openpty()
    process = start(*arguments, stderr=side)
    os.close(side)
    shown = b""
    while f"{parts} parts".encode() not in shown:
        shown += os.read(terminal, 4096)
    process.send_signal(how)
    # a terminal that nobody reads would hold the process up
    with os.fdopen(terminal, "rb", buffering=0) as rest:
        try:
            while rest.read(4096):
                pass
        except OSError:  # the other side is closed
            pass
    out = process.communicate(timeout=60)[0].decode()
    return process.returncode, out


@pytest.mark.parametrize("form", ["--markdown", "--json"])
def test_an_interruption_keeps_what_is_done(start, form):
    """Ctrl-C once the first of six parts is done."""
    code, out = stopped(start, "1/6", signal.SIGINT, "--spans", "6", *SAMPLED, form)
    assert code == 130
    if form == "--json":
        record = json.loads(out)
        done = [bool(part["summary"]) for part in record["parts"]]
        assert not record["complete"] and record["summary"] is None
        assert done[0] and not done[-1] and done == sorted(done, reverse=True)
        assert [row["summarised"] for row in record["coverage"]] == [*done, False]
        assert record["coverage"][5]["reason"] == "not reached"
    else:
        done = int(re.search(r"Unfinished: (\d) of 6 parts", out)[1])
        assert 1 <= done < 6 and out.count("\n## Page") == done and f"{done} of 7 pages" in out
        assert out.count("| no: not reached |") == 6 - done and "- not summarised: " in out


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_was_stopped_goes_on(start, tmp_path, how):
    arguments = ("--spans", "6", *SAMPLED)
    whole = finish(start(*arguments, "--no-session"))[1]
    stopped(start, "2/6", how, *arguments)
    (kept,) = (tmp_path / "cache").glob("sessions/*/unfinished-*")
    assert kept.stat().st_mode & 0o777 == 0o600
    if how == signal.SIGKILL:
        # half a row, as a kill in the middle of writing leaves it
        kept.write_bytes(kept.read_bytes() + b'\n["half')
    count = len([line for line in kept.read_bytes().split(b"\n") if line.endswith(b"]")])
    other = finish(start("--spans", "5", *SAMPLED))
    assert "interrupted run" not in other[2] and kept.exists()
    code, text, said = finish(start(*arguments))
    assert code == 0 and count >= 2 and f"going on behind an interrupted run: {count} answers kept" in said
    assert text == whole and not kept.exists()
    assert "interrupted run" not in finish(start(*arguments))[2]


def test_an_answer_that_was_kept_is_not_made_again(start, tmp_path):
    arguments = ("--spans", "6", *SAMPLED)
    stopped(start, "2/6", signal.SIGKILL, *arguments)
    (path,) = (tmp_path / "cache").glob("sessions/*/unfinished-*")
    rows = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
    rows = [(key, record | {"text": "Marked by the test."}) for key, record, _ in rows]
    path.write_text("\n".join(json.dumps([key, record, digest(key, record)]) for key, record in rows))
    parts = json.loads(finish(start(*arguments, "--json"))[1])["parts"]
    assert [part["summary"] == "Marked by the test." for part in parts] == [True] * len(rows) + [False] * (6 - len(rows))
