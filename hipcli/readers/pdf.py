"""PDF to pages: two engines, each in its own process, and one verdict for each page.

pdfium reads everything. pypdf surveys the document meanwhile (printed page numbers, damaged streams) and then reads
again what pdfium could not read, found empty or garbled. A page that neither can read is reported, never dropped.
Knows nothing of the engines' interfaces.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from hipcli.errors import InputError
from hipcli.readers.content import Content, Format, OnPage, RawPage, ReadOptions, check_pages
from hipcli.readers.glued import is_glued
from hipcli.readers.pdf_process import Limits, WorkerRefused, read_pages
from hipcli.readers.pdf_worker import WRONG_SUM
from hipcli.readers.sniff import is_pdf
from hipcli.readers.source import RawSource

_GARBLED = re.compile("[\x00\x01\x03-\x08\x0e-\x1f\x7f\ufffd\ue000-\uf8ff]")
_GARBLED_SHARE = 0.005
_TAIL_BYTES = 2048
_MOST_CHOSEN = 100_000


@dataclass
class _Survey:
    """What pypdf says about the document apart from its text."""

    labels: list[str] | None = None
    bookmarks: list[tuple[int, str]] = field(default_factory=list)
    damage: dict[int, str] = field(default_factory=dict)
    logged: int = 0
    refused: bool = False
    cancelled: bool = False

    def take(self, answer: dict[str, Any]) -> None:
        if self.cancelled:
            raise _Cancelled
        self.logged += answer.get("logged", 0)
        self.labels = answer.get("labels", self.labels)
        if "bookmarks" in answer:
            self.bookmarks = sorted(((index, title) for index, title in answer["bookmarks"]), key=lambda bookmark: bookmark[0])
        if answer.get("damage"):
            self.damage[answer["page"]] = answer["damage"]

    def title(self, index: int) -> str | None:
        """The first bookmark on a page, else the last one before it."""
        at = bisect_left(self.bookmarks, index, key=lambda bookmark: bookmark[0])
        on_page = at < len(self.bookmarks) and self.bookmarks[at][0] == index
        return self.bookmarks[at][1] if on_page else self.bookmarks[at - 1][1] if at else None

    def excuse_sums(self, pages: int) -> int:
        """Wrong check sums on most pages are the producer's habit, on few they are damage. Returns how many were excused."""
        wrong = [index for index, damage in self.damage.items() if damage == WRONG_SUM]
        if 2 * len(wrong) <= pages:
            return 0
        for index in wrong:
            del self.damage[index]
        return len(wrong)


class _Cancelled(Exception):
    """Nobody waits for the survey any more."""


def read_pdf(source: RawSource, options: ReadOptions, limits: Limits = Limits()) -> Content:
    """All pages in order, failed ones among them. Raises InputError if the document cannot be opened, or if no page has any text."""
    password = options.password
    with source.on_disk() as path:
        size = source.size_bytes
        wanted = options.pages.indices(_MOST_CHOSEN) if options.pages else None
        job = {
            "path": path,
            "password": password or "",
            "memory_bytes": limits.memory_bytes + 2 * size,
            "pages": wanted,
            "hidden": options.hidden,
        }
        with _surveying(job, limits) as finish_survey:
            try:
                total, first, second = _read_twice(source.name, job, limits, options)
            except WorkerRefused as refusal:
                raise _cannot_open(source, refusal, password) from None
            survey = finish_survey()
    excused = survey.excuse_sums(len(first))
    wanted = [index for index in sorted(first) if not options.pages or index + 1 in options.pages]
    pages = [_verdict(index, first[index], second.get(index), survey) for index in wanted]
    pages = [replace(page, number=index + 1, title=survey.title(index)) for index, page in zip(wanted, pages)]
    _require_text(source.name, pages)
    logged = survey.logged + sum(answer.get("logged", 0) for answer in second.values())
    return Content(pages, _warnings(pages, survey, excused, logged), total_pages=total)


def _read_twice(name: str, job: dict[str, Any], limits: Limits, options: ReadOptions) -> tuple[int, dict[int, Any], dict[int, Any]]:
    """How many pages there are, every wanted page's answer from pdfium, and pypdf's for those in doubt."""
    first: dict[int, Any] = {}
    second: dict[int, Any] = {}

    def on_count(pages: int) -> None:
        check_pages(pages)
        if options.pages:
            options.pages.check(pages, name)

    try:
        total = _read(job, "pdfium", limits, first, options.on_page, on_count)
    except WorkerRefused as refusal:
        if refusal.kind in ("password", "security"):
            raise
        try:
            total = _read(job, "pypdf", limits, first, options.on_page, on_count)
        except WorkerRefused as again:
            raise (again if again.kind == "password" else refusal) from None
        return total, first, second
    doubtful = sorted(index for index, answer in first.items() if _is_doubtful(answer))
    if doubtful:
        try:
            _read({**job, "pages": doubtful}, "pypdf", limits, second)
        except WorkerRefused as refusal:
            second.update({index: {"error": refusal.reason, "refused": True} for index in doubtful})
    return total, first, second


def _read(
    job: dict[str, Any],
    engine: str,
    limits: Limits,
    answers: dict[int, Any],
    on_page: OnPage | None = None,
    on_count: Callable[[int], None] = lambda pages: None,
) -> int:
    """Fill `answers` by page index; returns how many pages the document has, of which on_count hears before the first."""

    def take(answer: dict[str, Any]) -> None:
        nonlocal total
        if "count" in answer:
            on_count(answer["count"])
            total = answer["count"] if total is None else total
        if "page" in answer:
            answers[answer["page"]] = answer
            if on_page:
                on_page(len(answers), total)

    total = None if job["pages"] is None else len(job["pages"])
    return read_pages({**job, "engine": engine, "task": "text"}, limits, take)


def _is_doubtful(answer: dict[str, Any]) -> bool:
    return "error" in answer or not answer["text"].strip() or _garbled(answer["text"]) > _GARBLED_SHARE


def _garbled(text: str) -> float:
    """Share of characters that no page shows: broken fonts give them."""
    return len(_GARBLED.findall(text)) / max(1, len(text))


def _verdict(index: int, first: dict[str, Any], second: dict[str, Any] | None, survey: _Survey) -> RawPage:
    """One page from what both engines say. Emptiness is believed only if neither has a reason to doubt it."""
    label = survey.labels[index] if survey.labels and index < len(survey.labels) else None
    if index in survey.damage:
        return RawPage(label=label, error=f"its content is damaged ({survey.damage[index]})")
    best = first
    if second is not None and second.get("text", "").strip():
        text = first.get("text", "")
        if not text.strip() or _garbled(second["text"]) < _garbled(text) / 2:
            best = second
    text = best.get("text", "")
    if text.strip():
        hidden = tuple((kind, words) for kind, words in first.get("hidden", ()))
        return RawPage(text, label, longest=None, hidden=hidden)
    error = first.get("error") or _why_empty(second or {})
    if error:
        return RawPage(label=label, error=error)
    pictures = any(answer.get("images") for answer in (first, second or {}))
    return RawPage(text, label, image_only=pictures, longest=None)


def _why_empty(second: dict[str, Any]) -> str | None:
    if second.get("refused"):
        return None  # it could not open the document: no word on this page
    return second.get("error") or second.get("log_error")


@contextmanager
def _surveying(job: dict[str, Any], limits: Limits) -> Iterator[Callable[[], _Survey]]:
    """Run the survey beside the reading; the function given waits for its end."""
    survey = _Survey()

    def work() -> None:
        try:
            read_pages({**job, "engine": "pypdf", "task": "survey"}, limits, survey.take)
        except WorkerRefused:
            survey.refused = True
        except _Cancelled:
            pass

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def finish() -> _Survey:
        thread.join()
        return survey

    try:
        yield finish
    finally:
        survey.cancelled = True


def _cannot_open(source: RawSource, refusal: WorkerRefused, password: str | None) -> InputError:
    name = source.name
    if refusal.kind == "password":
        if password:
            return InputError(f"cannot read {name}: the password is wrong")
        hint = "Give it with --password-file FILE, or take it off: qpdf --decrypt --password-file=pw.txt in.pdf out.pdf"
        return InputError(f"cannot read {name}: it is encrypted and needs a password", hint)
    if refusal.kind == "security":
        return InputError(f"cannot read {name}: it is encrypted in a way that is not supported ({refusal.reason})")
    if refusal.kind == "damaged" and b"%%EOF" not in source.tail(_TAIL_BYTES):
        return InputError(f"cannot read {name}: it is cut off, its end is missing", "Download or copy it again.")
    return InputError(f"cannot read {name}: it is damaged ({refusal.reason})", "Try: qpdf in.pdf repaired.pdf")


def _require_text(name: str, pages: list[RawPage]) -> None:
    if any(page.text.strip() for page in pages):
        return
    failed = [(page.number, page.error) for page in pages if page.error]
    if not pages:
        raise InputError(f"cannot read {name}: it has no pages")
    if len(failed) == len(pages):
        first = f"page {failed[0][0]}: {failed[0][1]}"
        raise InputError(f"cannot read {name}: none of its {len(pages)} pages can be read ({first})")
    hint = "Recognise its text first: ocrmypdf in.pdf out.pdf"
    if any(page.image_only for page in pages):
        raise InputError(f"cannot read {name}: it is a scan, its {len(pages)} pages are pictures without text", hint)
    raise InputError(f"cannot read {name}: there is no text on any of its {len(pages)} pages", hint)


def _warnings(pages: list[RawPage], survey: _Survey, excused: int, logged: int) -> list[str]:
    warnings = []
    if excused:
        warnings.append(f"the content of {excused} of {len(pages)} pages has a wrong check sum; their text may be wrong")
    scans = [page.number for page in pages if page.image_only]
    if scans:
        noun = "page" if len(scans) == 1 else "pages"
        which = f"{noun} {ranges(scans)} ({len(scans)} of {len(pages)})"
        warnings.append(f"pictures without text, as in a scan: {which}; to read them: ocrmypdf --skip-text in.pdf out.pdf")
    glued = [page.number for page in pages if is_glued(page.text)]
    if glued:
        noun = "page" if len(glued) == 1 else "pages"
        warnings.append(f"words run together on {noun} {ranges(glued)}: the file has no spaces between them, so words may not be found")
    if survey.refused:
        warnings.append("its structure is damaged; the text was read, but printed page numbers and damage inside pages are unknown")
    elif logged:
        warnings.append(f"pypdf had {logged} remarks on its structure")
    return warnings


def ranges(numbers: list[int]) -> str:
    """Ascending numbers as "3–5, 8"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


PDF = Format(
    "pdf", "a PDF", read_pdf, (".pdf",), lambda source, promised: is_pdf(source.head, anywhere=promised), binary=True, own_workers=True
)
