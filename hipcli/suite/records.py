"""Rows of answers: what tells one cell from another, and which cells a file of earlier rows holds complete."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hipcli.errors import DiskError, InputError

Row = dict[str, Any]
# dtype, device, pack, text and dense_below change answers too: rows that differ in them are of different runs
KEY = ("task", "context", "seed", "sample", "attention", "model", "device", "dtype", "dense_below", "pack", "text")
VERDICTS = ("pass_right", "greedy_right")
_NEEDED = {"pass": ("pass_right",), "greedy": ("greedy_right",), "both": ("pass_right", "greedy_right")}


def key_of(row: Row) -> tuple:
    """What a row's cell is known by."""
    return tuple(row.get(name) for name in KEY)


class Records:
    """The answers known so far, of earlier runs and of this one; a later row of the same question replaces the earlier one."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._answers: dict[tuple, dict[int, Row]] = {}
        self.haystacks: dict[tuple, Row] = {}
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        if row.get("row") == "answer":
            self._answers.setdefault(key_of(row), {})[row["question"]] = row
        elif row.get("row") == "haystack":
            self.haystacks[key_of(row)] = row

    def complete(self, key: tuple, scoring: str, check: bool = False) -> bool:
        """Whether every question of a cell has been judged in every way that `scoring` and `check` ask for."""
        needed = (*_NEEDED[scoring], "agreement") if check else _NEEDED[scoring]
        rows = self._answers.get(key, {})
        return bool(rows) and all(len(rows) == row["of"] and all(name in row for name in needed) for row in rows.values())

    def answers(self, keys: Iterable[tuple]) -> list[Row]:
        """The rows of these cells."""
        return [row for key in keys for _, row in sorted(self._answers.get(key, {}).items())]


def is_stream(path: Path) -> bool:
    """Whether a path is a device or a pipe: it can be written to, and holds no earlier rows to read, or has no end."""
    return path.exists() and not (path.is_file() or path.is_dir())


def read_records(path: Path) -> Records:
    """Rows of an earlier run, none where there is no such file or it is a stream. A last line that was cut short is left out. Raises InputError."""
    if is_stream(path):
        return Records()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return Records()
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError(
            f"cannot read {path}: {getattr(fault, 'strerror', None) or 'it is not UTF-8'}", "name another file by --out"
        ) from fault
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            rows.append(row if isinstance(row, dict) else {})
        except ValueError:
            if number < len(lines):
                raise InputError(f"line {number} of {path} is not JSON", "name another file by --out") from None
    return Records(rows)


def mend(path: Path) -> None:
    """Let a file's next row start a line of its own: a last line that was cut short goes. Raises DiskError."""
    if is_stream(path):
        return
    try:
        data = path.read_bytes() if path.exists() else b""
        if not data or data.endswith(b"\n"):
            return
        last = data.rfind(b"\n") + 1
        try:
            json.loads(data[last:])
            path.write_bytes(data + b"\n")
        except ValueError:
            path.write_bytes(data[:last])
    except OSError as error:
        raise DiskError(f"cannot write {path}: {error.strerror}", "choose another place for --out") from error
