"""Rows of the benchmark for a person: aligned lines as they come in a pipe, tables of each part on a terminal.

Knows the rows' fields; measures nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hipcli.console import amount, duration, write_stdout

Row = dict[str, Any]
WIDEST = 500  # room to draw a table in, so that no number is folded; a table takes what it needs


@dataclass(frozen=True)
class Column:
    """title and width of a column, and the text of a row in it."""

    title: str
    width: int
    text: Callable[[Row], str]


def _number(key: str, digits: int = 2) -> Callable[[Row], str]:
    return lambda row: "-" if row.get(key) is None else f"{row[key]:,.{digits}f}"


def _share(key: str) -> Callable[[Row], str]:
    return lambda row: "-" if row.get(key) is None else f"{row[key]:.0%}"


def _bytes(key: str) -> Callable[[Row], str]:
    return lambda row: amount(row[key], "bytes")


CONTEXT = Column("context", 10, lambda row: f"{row['context']:,}")
MODE = Column("mode", 7, lambda row: row["mode"])
PREFILL = (
    Column("prefill tokens/s", 16, _number("prefill_tokens_per_second", 0)),
    Column("prefill", 12, lambda row: duration(row["prefill_seconds"])),
    Column("method", 14, lambda row: row["method"]),
    Column("first token", 12, lambda row: duration(row["time_to_first_token_seconds"])),
    Column("matmul", 7, _share("prefill_share_of_matmul")),
)
DECODE = (
    Column("decode tokens/s", 15, _number("decode_tokens_per_second", 1)),
    Column("p50 ms", 8, _number("decode_p50_ms")),
    Column("p99 ms", 8, _number("decode_p99_ms")),
    Column("max ms", 8, _number("decode_max_ms")),
    Column("bandwidth", 9, _share("decode_share_of_bandwidth")),
    Column("peak memory", 11, _bytes("peak_bytes")),
)
LAYER_PREFILL = (
    Column("queries", 8, lambda row: f"{row['prefill_queries']:,}"),
    Column("prefill ms", 10, _number("sparse_prefill_ms")),
    Column("dense ms", 9, _number("dense_prefill_ms")),
    Column("times", 6, _number("prefill_speedup", 1)),
)
LAYER_DECODE = (
    Column("decode ms", 9, _number("sparse_decode_ms", 4)),
    Column("dense ms", 9, _number("dense_decode_ms", 4)),
    Column("times", 6, _number("decode_speedup", 1)),
)
COLUMNS = {
    "one layer": (CONTEXT, *LAYER_PREFILL, *LAYER_DECODE),
    "decode step of one layer, by what it refreshes (ms)": (
        CONTEXT,
        Column("layers", 9, lambda row: row["layers"]),
        Column("refreshed", 11, lambda row: row["case"]),
        Column("ms", 9, _number("ms", 4)),
    ),
    "where one layer's time goes": (
        CONTEXT,
        Column("call", 17, lambda row: row["call"]),
        Column("part", 10, lambda row: row["part"]),
        Column("ms", 9, _number("ms", 4)),
        Column("floor ms", 9, _number("floor_ms", 4)),
        Column("gap", 6, _number("gap", 1)),
    ),
    "whole model": (CONTEXT, MODE, *PREFILL, *DECODE),
}
# a line may be as long as it likes, a table should fit a screen
HALVES = {
    "one layer": {"one layer: prefill": (CONTEXT, *LAYER_PREFILL), "one layer: decode": (CONTEXT, *LAYER_DECODE)},
    "whole model": {"whole model: prefill": (CONTEXT, MODE, *PREFILL), "whole model: decode": (CONTEXT, MODE, *DECODE)},
}


def expand(row: Row) -> Iterator[tuple[str, Row]]:
    """The tables a row appears in, each with its line there; what was not run belongs to none."""
    if row["row"] == "model":
        yield "whole model", row
    if row["row"] != "layer":
        return
    yield "one layer", row
    context = {"context": row["context"]}
    for layers, cases in row.get("decode_cases_ms", {}).items():
        for case, value in cases.items():
            yield "decode step of one layer, by what it refreshes (ms)", context | {"layers": layers, "case": case, "ms": value}
    for call, parts in row.get("split", {}).items():
        for part, times in parts.items():
            yield "where one layer's time goes", context | {"call": call, "part": part, **times}


def machine_lines(row: Row) -> str:
    """What the figures were measured on, and its ceilings."""
    versions = [f"{name} {row[name]}" for name in ("torch", "triton", "transformers") if row.get(name)]
    host = f"{row['processor']}, {row['threads']} threads, {amount(row['memory_bytes'], 'bytes')}"
    if row["device"] != "cpu":
        host = f"{row['device']}, {amount(row['device_memory_bytes'], 'bytes')}; {host}"
    weights = f"{row['model']} in {row['dtype']}" + (", random weights: speed only" if row["weights"] == "random" else "")
    rates = f"matrix products at {row['matmul_gflops']:,} GFLOP/s (fp32: {row['matmul_fp32_gflops']:,})"
    return f"{host}\n{', '.join(versions)}\n{weights}; {rates}; memory read at {row['read_gbytes_per_second']:,} GB/s\n"


def extras(row: Row) -> str:
    """What a row says that no column holds, one line; empty when there is nothing."""
    if row.get("last_chunk_shares"):
        return "  last chunk: " + ", ".join(f"{name} {share:.0%}" for name, share in row["last_chunk_shares"].items()) + "\n"
    notes = []
    if row.get("decode_method", "generated") != "generated":
        notes.append(f"decode: {row['decode_method']}")
    if row.get("dense_prefill_kernel", "torch") != "torch":
        notes.append(f"dense kernels: {row['dense_prefill_kernel']} (prefill), {row['dense_decode_kernel']} (decode)")
    for mode in ("sparse", "dense"):
        floors = [f"{what} {row[key]:,.4f} ms" for what in ("prefill", "decode") if (key := f"{mode}_{what}_floor_ms") in row]
        notes += [f"{mode} floors: {', '.join(floors)}"] if floors else []
    return f"  {'; '.join(notes)}\n" if notes else ""


class Lines:
    """Each row as aligned lines, at once; a table's titles come before its first line, and again after another table."""

    def __init__(self) -> None:
        self._last: str | None = None

    def add(self, row: Row) -> None:
        write_stdout(self._lines(row))

    def _lines(self, row: Row) -> str:
        if row["row"] == "machine":
            return machine_lines(row)
        if "skipped" in row:
            return skipped_line(row)
        text = ""
        for table, line in expand(row):
            columns = COLUMNS[table]
            if table != self._last:
                text += f"\n{table}\n" + aligned(columns, [column.title for column in columns])
                self._last = table
            text += aligned(columns, [column.text(line) for column in columns])
        return text + extras(row)

    def close(self) -> None:
        """Nothing is held back."""


def skipped_line(row: Row) -> str:
    return f"{row['row']}: {row['skipped']}\n" if row.get("reason") == "failed" else f"{row['row']}: not run: {row['skipped']}\n"


def aligned(columns: tuple[Column, ...], texts: list[str]) -> str:
    return "  ".join(text.rjust(column.width) for column, text in zip(columns, texts)).rstrip() + "\n"


class Tables:
    """Rows gathered into one table per part, shown when a part is over."""

    def __init__(self) -> None:
        self._part: str | None = None
        self._lines: dict[str, list[Row]] = {}
        self._notes = ""

    def add(self, row: Row) -> None:
        if row["row"] == "machine":
            write_stdout(machine_lines(row) + "\n")
            return
        part = row.get("part", row["row"])
        if part != self._part:
            self.close()
            self._part = part
        if "skipped" in row:
            self._notes += skipped_line(row)
        for table, line in expand(row):
            self._lines.setdefault(table, []).append(line)
        self._notes += f"{row['context']:,} {row.get('mode', '')}{note}" if (note := extras(row)) else ""

    def close(self) -> None:
        """Show what has been gathered, also when the work was interrupted."""
        for table, lines in self._lines.items():
            for title, columns in HALVES.get(table, {table: COLUMNS[table]}).items():
                write_stdout(drawn(title, columns, lines))
        if self._notes:
            write_stdout(self._notes + "\n")
        self._lines, self._notes = {}, ""


def drawn(title: str, columns: tuple[Column, ...], lines: list[Row]) -> str:
    """One table with its lines, as text with the terminal's colours."""
    from rich.console import Console
    from rich.table import Table

    from hipcli.config import plain_terminal

    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column.title, justify="right")
    for line in lines:
        table.add_row(*(column.text(line) for column in columns))
    plain = plain_terminal()
    canvas = Console(width=WIDEST, force_terminal=not plain, no_color=plain, emoji=False, markup=False, highlight=False)
    with canvas.capture() as text:
        canvas.print(table)
    return text.get() + "\n"


def open_report() -> Lines | Tables:
    """Tables where a person looks on, lines where a file or another program does."""
    return Tables() if sys.stdout is not None and sys.stdout.isatty() else Lines()
