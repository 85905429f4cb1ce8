"""`hip inspect`: what was read of a document and whether it fits, before anything is spent on it.

Owns the JSON record of a document. Uses a model only when its files are already here; never the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from hipcli import __version__
from hipcli.console import Terminal, amount, duration, visible, write_json, write_stdout
from hipcli.document import Document, Page, PageFault
from hipcli.errors import IncompleteError, ModelError
from hipcli.input import read
from hipcli.options import RunOptions
from hipcli.loading import find_model, open_engine
from hipcli.pipeline import encode
from hipcli.suspicions import Suspicion, suspicions

if TYPE_CHECKING:
    from hipcli.tokens import EncodedDocument

_CHARS_PER_TOKEN = 4
_MANY_SOURCES = 12
_MOST_SUSPICIONS = 1000


@dataclass(frozen=True)
class Fit:
    """What a model would need. tokens: counted when counted is true, else estimated from characters."""

    tokens: int
    counted: bool
    source_tokens: tuple[int, ...]
    model: str | None = None
    device: str | None = None
    kv_bytes: int | None = None
    kv_dtype: str | None = None
    device_key_layers: int | None = None
    device_value_layers: int | None = None
    host_bytes: int | None = None
    host_available_bytes: int | None = None
    working_bytes: int | None = None
    chunk_tokens: int | None = None
    peak_bytes: int | None = None
    available_bytes: int | None = None
    fits: bool | None = None
    seconds: float | None = None
    missing: str | None = None


def inspect(options: RunOptions, terminal: Terminal, warnings: bool = False) -> None:
    """Print pages, faults, sizes, tokens, memory and time on stdout; with `warnings` also passages that seem written for a model."""
    document = read(options, terminal, hidden=warnings)
    fit = _fit(document, options, terminal)
    found = list(islice(suspicions(document.pages), _MOST_SUSPICIONS + 1)) if warnings else None
    if terminal.as_json:
        write_json(_record(document, fit) | _suspicion_record(document, found))
    else:
        lines = [*_sources_lines(document, fit), *_fit_lines(document, fit), *_suspicion_lines(document, found)]
        write_stdout(visible("\n".join(lines)) + "\n")
    check_complete(document, options)


def document_record(document: Document, encoded: EncodedDocument | None = None) -> dict[str, Any]:
    """A document as JSON; path, sha256 and format are those of the only source, null where there are several."""
    names = {
        "path": "name",
        "sha256": "sha256",
        "format": "format",
        "size_bytes": "size_bytes",
        "encoding": "encoding",
        "pages": "total_pages",
    }
    sources = [{key: getattr(source, name) for key, name in names.items()} for source in document.sources]
    only = sources[0] if len(sources) == 1 else {}
    return {
        **{name: only.get(name) for name in ("path", "sha256", "format")},
        "sources": sources,
        "pages": len(document.pages) + len(document.failed),
        "pages_chosen": document.pages_chosen,
        "pages_empty": [_page_record(page, document) | {"image_only": page.image_only} for page in document.empty_pages],
        "pages_failed": [
            {"source": document.sources[fault.source].name, "page": fault.number, "reason": fault.reason} for fault in document.failed
        ],
        "chars": document.chars,
        "tokens": len(encoded.ids) if encoded is not None else None,
        "truncated": False,
    }


def _page_record(page: Page, document: Document) -> dict[str, Any]:
    return {"source": document.sources[page.source].name, "page": page.number, "label": page.label, "title": page.title}


def missing_pages(document: Document) -> list[str]:
    """Names of the pages whose text is not there although it should be: failed ones and scans."""
    several = len(document.sources) > 1
    lost = [(fault.source, fault.number) for fault in document.failed]
    lost += [(page.source, page.number) for page in document.empty_pages if page.image_only]
    return [f"{document.sources[source].name} p. {number}" if several else f"p. {number}" for source, number in sorted(lost)]


def check_complete(document: Document, options: RunOptions) -> None:
    """Under --strict, raise IncompleteError when pages could not be read."""
    missing = missing_pages(document)
    if options.strict and missing:
        named = ", ".join(missing[:12]) + (f" and {len(missing) - 12} more" if len(missing) > 12 else "")
        raise IncompleteError(f"finished without {len(missing)} pages that hold no readable text: {named}", "hip inspect lists the reasons")


def page_ranges(numbers: Iterable[int]) -> str:
    """1, 4-6, 9"""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in ranges)


def tokens_by_source(document: Document, encoded: EncodedDocument) -> tuple[int, ...]:
    """Tokens of each source."""
    bounds = [*encoded.page_starts.tolist(), len(encoded.ids)]
    counts = [0] * len(document.sources)
    for index, page in enumerate(document.pages):
        counts[page.source] += bounds[index + 1] - bounds[index]
    return tuple(counts)


def _fit(document: Document, options: RunOptions, terminal: Terminal) -> Fit:
    try:
        files = find_model(options, terminal, local_only=True)
    except ModelError as fault:
        # inspect never dials, whatever the user allows
        chars = [sum(len(page.text) for page in document.pages if page.source == index) for index in range(len(document.sources))]
        guesses = tuple(count // _CHARS_PER_TOKEN for count in chars)
        return Fit(sum(guesses), False, guesses, missing=fault.message.removesuffix(" and hip is offline"))
    tokenizer, encoded = encode(document, files, terminal)
    prefix = len(tokenizer.prompt(options.system).prefix_ids)
    with open_engine(files, options, terminal) as (model, engine):
        plan = engine.plan(prefix + len(encoded.ids) + options.max_tokens)
        return Fit(
            tokens=len(encoded.ids),
            counted=True,
            source_tokens=tokens_by_source(document, encoded),
            model=files.name,
            device=f"{model.dtype_name} on {model.device}",
            kv_bytes=plan.kv_bytes,
            kv_dtype=engine.kv_dtype,
            device_key_layers=plan.device_parts[0],
            device_value_layers=plan.device_parts[1],
            host_bytes=plan.host_bytes,
            host_available_bytes=plan.host_available_bytes if plan.on_host else None,
            working_bytes=plan.working_bytes,
            chunk_tokens=plan.chunk_tokens,
            peak_bytes=plan.peak_bytes,
            available_bytes=plan.available_bytes,
            fits=plan.fits,
            seconds=plan.seconds,
        )


def _sources_lines(document: Document, fit: Fit) -> list[str]:
    pages: list[list[Page]] = [[] for _ in document.sources]
    failed: list[list[PageFault]] = [[] for _ in document.sources]
    for page in document.pages:
        pages[page.source].append(page)
    for fault in document.failed:
        failed[fault.source].append(fault)
    lines = _short_lines if len(document.sources) > _MANY_SOURCES else _source_lines
    return [line for index in range(len(document.sources)) for line in lines(document, index, fit, pages[index], failed[index])]


def _source_lines(document: Document, index: int, fit: Fit, pages: Sequence[Page], failed: Sequence[PageFault]) -> list[str]:
    source = document.sources[index]
    encoding = f", {source.encoding}" if source.encoding else ""
    about = "" if fit.counted else "about "
    chosen = f" of {source.total_pages:,}, by --pages {document.pages_chosen}" if document.pages_chosen else ""
    lines = [
        f"{source.name}: {source.format}, {amount(source.size_bytes, 'bytes')}{encoding}",
        f"  pages       {len(pages) + len(failed):,}{chosen}{_page_faults(pages, [fault.number for fault in failed])}",
        f"  characters  {sum(len(page.text) for page in pages):,}",
        f"  words       {sum(len(page.text.split()) for page in pages):,}",
        f"  tokens      {about}{fit.source_tokens[index]:,}",
    ]
    return lines + [f"  page {fault.number} could not be read: {fault.reason}" for fault in failed]


def _short_lines(document: Document, index: int, fit: Fit, pages: Sequence[Page], failed: Sequence[PageFault]) -> list[str]:
    """One line for a source among many."""
    source = document.sources[index]
    words = sum(len(page.text.split()) for page in pages)
    counted = f"{amount(len(pages) + len(failed), 'pages')}{_page_faults(pages, [fault.number for fault in failed])}, {words:,} words"
    line = f"{source.name}: {source.format}, {counted}, {'' if fit.counted else 'about '}{fit.source_tokens[index]:,} tokens"
    return [line] + [f"  page {fault.number} could not be read: {fault.reason}" for fault in failed]


def _page_faults(pages: Sequence[Page], failed: Sequence[int]) -> str:
    empty = [page for page in pages if not page.text.strip()]
    kinds = {
        "empty": [page.number for page in empty if not page.image_only],
        "scanned, without text": [page.number for page in empty if page.image_only],
        "failed": failed,
    }
    parts = [f"{len(numbers)} {kind}: {page_ranges(numbers)}" for kind, numbers in kinds.items() if numbers]
    return f" ({'; '.join(parts)})" if parts else ""


def _fit_lines(document: Document, fit: Fit) -> list[str]:
    total = [f"together: {fit.tokens:,} tokens"] if len(document.sources) > 1 else []
    if not fit.counted:
        return [*total, f"tokens are estimated from characters: {fit.missing}", "to count them: hip models get"]
    verdict = "fits" if fit.fits else "does not fit"
    return [
        *total,
        f"with {fit.model} ({fit.device}): {verdict}",
        f"  KV memory   {amount(fit.kv_bytes, 'bytes')}, {fit.kv_dtype}{_place(fit)}",
        f"  peak        {amount(fit.peak_bytes, 'bytes')} of {amount(fit.available_bytes, 'bytes')} available",
        f"  time        about {duration(fit.seconds or 0.0)} to read",
    ]


def _place(fit: Fit) -> str:
    """Where keys and values would lie, where that is not one place."""
    if fit.host_bytes is None:
        return ""
    there = f"{amount(fit.host_bytes, 'bytes')} of it on the host, of {amount(fit.host_available_bytes, 'bytes')} available"
    return f"; {there}; on the GPU keys of {fit.device_key_layers} layers and values of {fit.device_value_layers}"


def _suspicion_lines(document: Document, found: list[Suspicion] | None) -> list[str]:
    if found is None:
        return []
    if not found:
        return ["suspicious passages: none found"]
    shown, several = found[:_MOST_SUSPICIONS], len(document.sources) > 1
    more = "the first " if len(found) > len(shown) else ""
    lines = [f"suspicious passages: {more}{len(shown):,}; for your eyes, hip acts on none of them"]
    for one in shown:
        page = document.pages[one.page]
        name = f"{document.sources[page.source].name} " if several else ""
        lines.append(f"  {name}p. {page.number}{page.place} {one.kind}: “{one.quote}”")
    return lines


def _suspicion_record(document: Document, found: list[Suspicion] | None) -> dict[str, Any]:
    if found is None:
        return {"suspicions": None, "suspicions_complete": None}
    rows = [_page_record(document.pages[one.page], document) | {"kind": one.kind, "quote": one.quote} for one in found]
    return {"suspicions": rows[:_MOST_SUSPICIONS], "suspicions_complete": len(found) <= _MOST_SUSPICIONS}


def _record(document: Document, fit: Fit) -> dict[str, Any]:
    words = sum(len(page.text.split()) for page in document.pages)
    sizes = ("device", "kv_bytes", "kv_dtype", "device_key_layers", "device_value_layers", "host_bytes", "host_available_bytes")
    sizes += ("working_bytes", "chunk_tokens", "peak_bytes", "available_bytes", "fits", "seconds")
    plan = {name: getattr(fit, name) for name in sizes}
    return {
        "schema_version": 1,
        "document": document_record(document) | {"words": words, "tokens": fit.tokens, "tokens_estimated": not fit.counted},
        "model": {"name": fit.model, "missing": fit.missing},
        "plan": plan if fit.counted else None,
        "warnings": list(document.warnings),
        "hip_version": __version__,
    }
