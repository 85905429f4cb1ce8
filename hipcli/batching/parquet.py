"""Rows as a Parquet file: JSON lines while a batch runs, columns when it is done.

A Parquet file cannot be added to row by row, so it is written anew as a whole; its column "record" holds each row as it
was, from which a later batch goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hipcli.answers_file import AnswersFile
from hipcli.errors import DiskError, InputError, UsageError

_GROUP_ROWS = 2000


def require_pyarrow() -> None:
    """Raise UsageError where pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise UsageError(
            "a .parquet file needs pyarrow, which is not installed", "pip install 'hipcli[parquet]', or --out rows.jsonl"
        ) from None


@contextmanager
def parquet_rows(path: str) -> Iterator[AnswersFile]:
    """The rows of `path` as a file of JSON lines beside it; when the block ends, they are `path`; when it is broken off, they stay.

    Raises InputError when the file is something else, DiskError when it cannot be written.
    """
    lines, before = path + ".rows", None
    if os.path.lexists(path) and not os.path.lexists(lines):
        with _disk_faults(path, lines):
            _write_lines(path, lines)
            before = os.path.getsize(lines)
    rows = AnswersFile(lines)
    try:
        yield rows
        with _disk_faults(path, lines):
            if os.path.getsize(lines) != before:
                _write_parquet(lines, path)
            os.unlink(lines)
    finally:
        rows.close()


@contextmanager
def _disk_faults(path: str, lines: str) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        raise DiskError(f"cannot write {path}: {fault.strerror or fault}", f"rows so far are in {lines}") from None


def _write_lines(path: str, lines: str) -> None:
    """The rows of a Parquet file as lines, all of them or none."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        file = parquet.ParquetFile(path)
        if "record" not in file.schema_arrow.names:
            raise InputError(f"{path} is not a file of hip's rows", "give another --out file")
        with _whole(lines) as out:
            for group in file.iter_batches(columns=["record"]):
                out.write("".join(f"{record}\n" for record in group.column(0).to_pylist()).encode())
    except arrow.ArrowInvalid:
        raise InputError(f"{path} is not a Parquet file", "give another --out file") from None


def _write_parquet(lines: str, path: str) -> None:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    schema = _schema()
    with _whole(path) as out, parquet.ParquetWriter(out, schema) as writer, open(lines, "rb") as rows:
        while group := [json.loads(line) | {"record": line.decode().rstrip("\n")} for _, line in zip(range(_GROUP_ROWS), rows)]:
            writer.write_table(arrow.Table.from_pylist([_without_surrogates(_columns(row)) for row in group], schema))


@contextmanager
def _whole(path: str) -> Iterator[Any]:
    """A file to write that takes its place when it is whole and on the disk."""
    with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        yield out
        out.flush()
        os.fsync(out.fileno())
    os.replace(path + ".new", path)


def _schema() -> Any:
    import pyarrow as arrow

    text, count, number = arrow.string(), arrow.int64(), arrow.float64()
    quote = [("source", text), ("page", count), ("label", text), ("title", text), ("quote", text), ("start", count), ("end", count)]
    return arrow.schema(
        [
            ("path", text),
            ("sha256", text),
            ("format", text),
            ("pages", count),
            ("tokens", count),
            ("question", text),
            ("answer", text),
            ("finish_reason", text),
            ("answer_tokens", count),
            ("right", arrow.bool_()),
            ("accept", arrow.list_(text)),
            ("citations", arrow.list_(arrow.struct(quote))),
            ("model", text),
            ("prefill_seconds", number),
            ("answer_seconds", number),
            ("warnings", arrow.list_(text)),
            ("run", text),
            ("record", text),
        ]
    )


def _without_surrogates(value: Any) -> Any:
    """Texts that Parquet can hold: a lone half of a character, which JSON may name, as JSON names it."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {name: _without_surrogates(inner) for name, inner in value.items()}
    return [_without_surrogates(inner) for inner in value] if isinstance(value, list) else value


def _columns(row: dict[str, Any]) -> dict[str, Any]:
    """A row's fields by column; "path", "sha256" and "format" as for a document of one source."""
    document, timing = row["document"], row["timing"]
    flat = {name: row.get(name) for name in ("question", "answer", "finish_reason", "answer_tokens", "right", "accept", "citations")}
    flat |= {name: document[name] for name in ("path", "sha256", "format", "pages", "tokens")}
    flat |= {"model": row["model"]["name"], "prefill_seconds": timing["prefill_seconds"], "answer_seconds": timing["answer_seconds"]}
    return flat | {"warnings": row["warnings"], "run": row["run"], "record": row["record"]}
