"""The process that opens a PDF: one engine, one job, one JSON line per page on standard output.

PDF engines hang, crash and swallow memory on hostile or broken files. Here that costs a process which the parent
(`pdf_process.py`) restarts behind the page. Run as `main()` in a fresh interpreter; the job is one JSON line: path,
engine ("pdfium" or "pypdf"), task ("text" or "survey"), pages (indices, or null for all), password ("" for none),
memory_bytes (cap on the address space), hidden (whether pdfium also looks for text that nobody sees).

Lines out: {"count": n}, then {"page": i, ...} in order, then {"done": true}; or {"refused": kind, "reason": text}
with kind "password", "security", "damaged" or "engine". A page holds "text", "images" and "hidden", or "error". Knows nothing of fallbacks.
"""

from __future__ import annotations

import logging
import os
import signal
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from hipcli.readers.worker_side import Answers, jobs, limited_memory

WRONG_SUM = "wrong check sum"
_SLICE_BYTES = 1 << 16  # unpacks to 64 MiB at most
ASIDE_SECONDS = 10.0  # for labels and for bookmarks
_SAMPLED_OBJECTS = 300
MAX_BOOKMARKS = 20_000
MAX_TITLE_CHARS = 300
MAX_PAGE_CHARS = 20_000_000  # a page that says more is a bomb, not a page


def main() -> None:
    """Do one job and exit."""
    answers = Answers()
    job, _ = next(jobs())
    with limited_memory(job["memory_bytes"]):
        for answer in run(job):
            answers.say(answer)
        answers.say({"done": True})
        os._exit(0)  # an engine's own clean-up has crashed before


def run(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The answers to one job, less the last."""
    logged = _LogCount()
    logging.getLogger("pypdf").addHandler(logged)
    logging.getLogger("pypdf").propagate = False
    try:
        document = _ENGINES[job["engine"]](job["path"], job["password"], job.get("hidden", False))
    except Refused as refusal:
        yield {"refused": refusal.kind, "reason": refusal.reason}
        return
    yield {"count": document.count, "logged": logged.count}
    if job["task"] == "survey":
        yield {"labels": _in_time(document.labels), "bookmarks": _in_time(document.bookmarks) or []}
    read: Callable[[int], dict[str, Any]] = document.survey if job["task"] == "survey" else document.page
    for index in range(document.count) if job["pages"] is None else job["pages"]:
        logged.clear()
        try:
            answer = read(index)
            if len(answer.get("text", "")) > MAX_PAGE_CHARS:
                answer = {"error": f"it holds more than {MAX_PAGE_CHARS:,} characters"}
        except MemoryError:
            answer = {"error": "it needs too much memory"}
        except Exception as fault:  # any engine fault costs this page only
            answer = {"error": f"{type(fault).__name__}: {fault}"[:300]}
        yield {"page": index, "logged": logged.count, "log_error": logged.error, **answer}


class _TooLate(BaseException):
    """Not an Exception, which engines catch."""


def _in_time(work: Callable[[], Any]) -> Any:
    """What `work` returns, None if it takes more than ASIDE_SECONDS: what is beside the text must not cost it."""

    def late(*_: object) -> None:
        raise _TooLate

    if not hasattr(signal, "setitimer"):
        return work()
    signal.signal(signal.SIGALRM, late)
    try:
        signal.setitimer(signal.ITIMER_REAL, ASIDE_SECONDS)
        return work()
    except _TooLate:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Refused(Exception):
    """The document as a whole cannot be opened."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class PdfiumDocument:
    """pdfium: fast, tolerant of broken structure, silent about broken streams."""

    def __init__(self, path: str, password: str, hidden: bool) -> None:
        self._hidden = hidden
        try:
            import pypdfium2
            import pypdfium2.raw as raw
        except Exception as fault:
            raise Refused("engine", f"pypdfium2 cannot be loaded: {fault}") from None
        self._image, self._text = raw.FPDF_PAGEOBJ_IMAGE, raw.FPDF_PAGEOBJ_TEXT
        try:
            self._document = pypdfium2.PdfDocument(open(path, "rb"), password or None, autoclose=True)
            self.count = len(self._document)
        except pypdfium2.PdfiumError as fault:
            kind = next((kind for kind in ("password", "security") if kind in str(fault).lower()), "damaged")
            raise Refused(kind, str(fault)) from None

    def page(self, index: int) -> dict[str, Any]:
        page = self._document[index]
        try:
            self._set_upright(page)
            textpage = page.get_textpage()
            try:
                # lone surrogates are the normaliser's to see; the default drops them
                text = textpage.get_text_range(errors="surrogatepass")
                hidden = self._hidden_text(page, textpage)
            finally:
                textpage.close()
            images = not text.strip() and any(True for _ in page.get_objects(filter=[self._image], max_depth=3))
            return {"text": text, "images": images, "hidden": hidden}
        finally:
            page.close()

    def _set_upright(self, page: Any) -> None:
        """Turn a page so that most of its text is level: pdfium gives the lines of sideways text in reverse order."""
        first = islice(page.get_objects(max_depth=1), _SAMPLED_OBJECTS)
        angles = Counter(_quarter_turns(item.get_matrix()) for item in first if item.type == self._text)
        if angles and (turns := angles.most_common(1)[0][0]) * 90 != page.get_rotation():
            page.set_rotation(turns * 90)

    def _hidden_text(self, page: Any, textpage: Any) -> list[tuple[str, str]]:
        if not self._hidden:
            return []
        from hipcli.readers.pdf_hidden import hidden_text

        try:
            return hidden_text(page, textpage)
        except Exception:  # a hint must not cost the text
            return []


def _quarter_turns(matrix: Any) -> int:
    """How often a page must be turned to the right by 90 degrees for text under this matrix to be level."""
    if abs(matrix.a) >= abs(matrix.b):
        return 0 if matrix.a >= 0 else 2
    return 1 if matrix.b > 0 else 3


class PypdfDocument:
    """pypdf: slower, pure Python; knows labels, and says what is damaged."""

    def __init__(self, path: str, password: str, hidden: bool) -> None:
        import pypdf

        try:
            self._reader = pypdf.PdfReader(path)
            if self._reader.is_encrypted and not self._reader.decrypt(password):
                raise Refused("password", "a password is needed")
            self.count = len(self._reader.pages)
        except Refused:
            raise
        except pypdf.errors.FileNotDecryptedError as fault:
            raise Refused("password", str(fault)) from None
        except Exception as fault:  # a broken file makes pypdf raise nearly anything
            raise Refused("damaged", f"{type(fault).__name__}: {fault}"[:300]) from None

    def labels(self) -> list[str] | None:
        """Printed page numbers; None where the document has none."""
        try:
            return list(self._reader.page_labels) if "/PageLabels" in self._reader.root_object else None
        except Exception:  # a broken label tree must not cost the text
            return None

    def bookmarks(self) -> list[tuple[int, str]]:
        """Page index and title of the outline's entries of two levels, in its order; none where it is broken."""
        found: list[tuple[int, str]] = []
        try:
            for entry in self._reader.outline[:MAX_BOOKMARKS]:
                entries = [child for child in entry if not isinstance(child, list)] if isinstance(entry, list) else [entry]
                found += filter(None, map(self._bookmark, entries))
        except Exception:  # a broken outline must not cost the text
            pass
        return found[:MAX_BOOKMARKS]

    def _bookmark(self, entry: Any) -> tuple[int, str] | None:
        index = self._reader.get_destination_page_number(entry)
        title = str(entry.title).strip()[:MAX_TITLE_CHARS]
        return (index, title) if index is not None and index >= 0 and title else None

    def page(self, index: int) -> dict[str, Any]:
        page = self._reader.pages[index]
        text = page.extract_text()
        return {"text": text, "images": not text.strip() and self._shows_images(page)}

    def survey(self, index: int) -> dict[str, Any]:
        """Whether the page's content can be unpacked to its end; pdfium shows what comes before the damage and says nothing."""
        contents = self._reader.pages[index].get("/Contents")
        contents = contents.get_object() if contents is not None else None
        for part in contents if isinstance(contents, list) else [contents]:
            stream = part.get_object() if part is not None else None
            if stream is not None and stream.get("/Filter") in ("/FlateDecode", ["/FlateDecode"]):
                damage = flate_damage(stream._data)
                if damage:
                    return {"damage": damage}
        return {}

    def _shows_images(self, page: Any) -> bool:
        resources = page.get("/Resources")
        objects = (resources.get_object().get("/XObject") if resources is not None else None) or {}
        kinds = {item.get_object().get("/Subtype") for item in objects.get_object().values()} if objects else set()
        return "/Image" in kinds


_ENGINES = {"pdfium": PdfiumDocument, "pypdf": PypdfDocument}


def flate_damage(data: bytes) -> str | None:
    """Why packed `data` cannot be unpacked to its end, WRONG_SUM where only its check sum is wrong, None where nothing is."""
    unpacker = zlib.decompressobj()
    try:
        for start in range(0, len(data), _SLICE_BYTES):
            unpacker.decompress(data[start : start + _SLICE_BYTES])
            if unpacker.eof:
                break
    except zlib.error as fault:
        return WRONG_SUM if "incorrect data check" in str(fault) else str(fault).split(": ")[-1]
    return None


class _LogCount(logging.Handler):
    """Counts a library's log lines, and keeps the first error, in place of letting them reach the terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def clear(self) -> None:
        self.count = 0
        self.error: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        if record.levelno >= logging.ERROR and self.error is None:
            self.error = record.getMessage()[:300]
