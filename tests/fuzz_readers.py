"""Broken files by the thousand through `hip extract` and `hip inspect`: every one must end in exit 0, 3 or 6, in time and memory.

    python tests/fuzz_readers.py --minutes 10 --seed 1 --out found/ --rows rows.jsonl

The files are made here, broken by a seeded generator, and read in a forked process each, under caps. What ends otherwise is kept in
--out with its report; --rows gets a line of counts a minute. Not a test that pytest collects; inputs it found are tests elsewhere.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import io
import json
import os
import random
import re
import resource
import select
import signal
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path

MEMORY_BYTES = 6 << 30
SECONDS = 90.0
GOOD = (0, 3, 6)
COMMANDS = (["extract"], ["extract", "--json"], ["extract", "--strict", "--no-marks"], ["inspect"], ["inspect", "--json"])
WORDS = [
    "The lamp was first lit on 3 March 1874. ",
    "Größe ",
    "第一章 ",
    "مرحبا ",
    "Привет ",
    "exam-\nple ",
    "\n\n",
    "\t",
    "a\u00adb ",
    "😀 ",
]
PIECES = [
    b"<", b">", b"</p>", b"<!--", b"-->", b"<nav>", b"</nav>", b"<td>", b"<script>", b"<![CDATA[", b"]]>", b"&#x110000;", b"&#0;", b"&a;", b'"', b"'",
    b"<!DOCTYPE x [<!ENTITY a 'b'>]>", b"<w:p>", b"</w:p>", b"<w:tbl>", b"<w:del>", b"<w:outlineLvl w:val='1'/>", b"\0", b"\xff\xfe", b"\xef\xbb\xbf",
    b"\xed\xa0\x80", b"\x1b]0;x\x07", b"\r", b"\f", b"obj", b"endobj", b"stream\n", b"endstream", b"<<", b">>", b"/Kids [1 0 R]", b"/Length 99999999",
    b"/Count -1", b"4294967295", b"-1", b"99999999999999999999", b"PK\3\4", b"PK\1\2", b"PK\5\6", b"%PDF-", b"%%EOF", b"\\begin{", b"{", b"}", b"# ", b"---\n",
    b"From a Mon Nov 30 10:00:00 2026\nTo: b\n", b"Content-Type: multipart/mixed; boundary=b\n\n--b\n", b"charset=utf-7", b"charset=idna", b"00:00:01 --> ",
    b"{\\rtf", b"\\bin99", b"\\u-1", b"[" * 500, b"\xe2\x80\xae", b" " * 20_000,
]  # fmt: skip


@functools.cache
def makers():
    """The builders that tests use, from conftest.py beside this file."""
    spec = importlib.util.spec_from_file_location("makers", Path(__file__).with_name("conftest.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seeds(rng: random.Random) -> dict[str, bytes]:
    """Whole files of each kind, by suffix."""
    made = makers()
    pdf, zips = made.PdfMaker, made.ZipMaker

    def prose(count: int = 60) -> str:
        return "".join(rng.choices(WORDS, weights=[8, *[1] * (len(WORDS) - 1)], k=count))

    def paragraph(style: str = "") -> str:
        properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
        return f"<w:p>{properties}<w:r><w:t>{prose(3)}</w:t><w:tab/><w:footnoteReference w:id='2'/></w:r><w:ins><w:r><w:t>x</w:t></w:r></w:ins></w:p>"

    styles = '<w:styles SPACE><w:style w:styleId="H"><w:name w:val="heading 1"/></w:style></w:styles>'
    notes = f'<w:footnotes SPACE><w:footnote w:id="2">{paragraph()}</w:footnote></w:footnotes>'
    body = paragraph("H") + f"<w:tbl><w:tr><w:tc>{paragraph()}</w:tc><w:tc>{paragraph()}</w:tc></w:tr></w:tbl><w:sdt>{paragraph()}</w:sdt>"
    table = "<table><tr><th>A<td>B<tr><td><p>1</p><td></table><ol start=3><li>a<ul><li>b</ul></ol><pre> x\n</pre><ruby>a<rt>b</rt></ruby>"
    html = f"<!DOCTYPE html><html><head><title>T</title><meta charset=utf-8></head><body><nav>m</nav><h1 id=s>A</h1><p>{prose()}</p>{table}</body></html>"
    chapters = {"a.xhtml": f"<h1>A</h1><p>{prose()}</p>{table}", "b.xhtml": f"<span epub:type='pagebreak' id='p2'/><p id='s'>{prose()}</p>"}
    content = [pdf.packed(pdf.lines(b"line one", b"exam-", b"ple")), pdf.stream(pdf.lines(b"plain stream")), pdf.stream(b"")]
    outline = [b"<< /Type /Outlines /First 5 0 R /Last 5 0 R >>", b"<< /Title (Part) /Parent 4 0 R /Dest [7 0 R /Fit] >>"]
    mail = f"From: A <a@x>\nTo: b@x\nSubject: =?utf-8?q?caf=C3=A9?=\nContent-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/html\n\n{html}\n--b--\n"
    texts = {
        "html": html,
        "txt": prose(200) + "\f" + prose(40),
        "md": f"# A\n\n{prose()}\n\nB\n---\n\n```\n# x\n```\n{prose()}",
        "rst": f"A\n=\n\n{prose()}\n\nBcd\n---\n\n{prose()}",
        "tex": f"\\documentclass{{x}}\n% c\n\\section{{A \\emph{{b}}}}\n{prose()}\n\\begin{{verbatim}}\n%\n\\end{{verbatim}}\n",
        "srt": "".join(f"{n}\n00:0{n}:01,000 --> 00:0{n}:02,000\n{prose(5)}\n\n" for n in range(1, 8)),
        "vtt": "WEBVTT\n\nNOTE x\n\n" + "".join(f"0{n}:01.000 --> 0{n}:02.000\n<v A>{prose(5)}\n\n" for n in range(1, 8)),
        "jsonl": "".join(f'{{"a": {n}, "b": [1, {{"c": null}}], "t": "{n}"}}\n' for n in range(40)),
        "eml": mail,
        "mbox": f"From a Mon Nov 30 10:00:00 2026\n{mail}\n" * 3,
        "rtf": "{\\rtf1\\ansi\\ansicpg1252{\\fonttbl x;}caf\\'e9 \\u8211?{\\b b}\\par\\trowd a\\cell b\\cell\\row}",
    }
    return {
        "pdf": pdf.build(content, extra=outline, root=b"/PageLabels << /Nums [0 << /S /r >>] >> /Outlines 4 0 R"),
        "epub": zips.epub(chapters, '<li><a href="a.xhtml">One</a></li><li><a href="b.xhtml#s">Two</a></li>'),
        "docx": zips.docx(body * 4, **{"styles.xml": styles, "footnotes.xml": notes, "header1.xml": f"<w:hdr SPACE>{paragraph()}</w:hdr>"}),
        "zip": zips.zip({"a.txt": prose(), "b/c.html": html, "d.pdf": pdf.book("x"), ".h": "x", "e.png": b"\x89PNG\0"}),
        **{suffix: text.encode("utf-16" if rng.random() < 0.05 else "utf-8") for suffix, text in texts.items()},
    }


def broken(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """`data` after a few random accidents; of a ZIP file, sometimes one of its members."""
    if data.startswith(b"PK\3\4") and rng.random() < 0.7:
        return _broken_member(data, others, rng)
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 5, 20))):
        start = rng.randrange(len(out) + 1)
        end = min(len(out), start + rng.choice((1, 2, 8, 64, 1000)))
        kind = rng.randrange(8)
        if kind == 0 and start < len(out):
            out[start] ^= 1 << rng.randrange(8)
        elif kind == 1 and start < len(out):
            out[start] = rng.randrange(256)
        elif kind == 2:
            out[start:start] = rng.choice(PIECES) * rng.choice((1, 1, 1, 2, 50, 3000))
        elif kind == 3:
            del out[start:end]
        elif kind == 4:
            out[start:start] = out[start:end] * rng.choice((1, 2, 20))
        elif kind == 5:
            out[start:end] = rng.randbytes(end - start)
        elif kind == 6 and rng.random() < 0.3:
            del out[start:]
        elif kind == 7:
            other = rng.choice(others)
            cut = rng.randrange(len(other) + 1)
            out[start:end] = other[cut : cut + rng.choice((8, 200, 5000))]
        del out[2_000_000:]
    return bytes(out)


def _broken_member(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        unlucky = rng.choice(old.namelist())
        for name in old.namelist():
            member = old.read(name)
            if name == unlucky:
                well_formed = name.endswith(("xml", "opf", "xhtml")) and rng.random() < 0.6
                member = _renamed(member, rng) if well_formed else broken(member, others, rng)
            new.writestr(name, member)
    return out.getvalue()


def _renamed(data: bytes, rng: random.Random) -> bytes:
    """XML that stays well-formed: tags that become others, values that become extreme."""
    for _ in range(rng.choice((1, 2, 5))):
        tags = sorted(set(re.findall(rb"<([A-Za-z:]+)", data)))
        values = sorted(set(re.findall(rb"=(['\"][^'\"<>]*['\"])", data)))
        if values and rng.random() < 0.4:
            data = data.replace(
                rng.choice(values), rng.choice((b"''", b"'-1'", b"'99999999999'", b"'../../x'", b"'%00'", b"'\xff'", *values))
            )
        elif tags:
            old, new = rng.choice(tags), rng.choice(tags)
            data = re.sub(rb"<(/?)%s(?=[ />])" % re.escape(old), rb"<\1" + new, data)
    return data


def run(arguments: list[str], errors: Path) -> tuple[int, float, int]:
    """`hip` with these arguments in a forked process: exit code (negative for a signal, -1000 for too slow), seconds, peak bytes."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        for number, path in ((1, os.devnull), (2, errors)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        sys.argv = ["hip", *arguments]
        from hipcli.cli import main

        try:
            main()
        finally:
            os._exit(99)
    watch = os.pidfd_open(child)
    late = not select.select([watch], [], [], SECONDS)[0]
    if late:
        os.killpg(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    os.close(watch)
    code = -1000 if late else os.waitstatus_to_exitcode(status)
    return code, time.monotonic() - began, usage.ru_maxrss * 1024


class Tally:
    """What became of the inputs, as a whole and since the last row."""

    def __init__(self, rows: Path | None, seed: int) -> None:
        self.rows, self.seed = rows, seed
        self.codes: dict[str, Counter[int]] = {}
        self.slowest, self.largest, self.bad, self.inputs = (0.0, ""), (0, ""), 0, 0
        self._since: Counter[str] = Counter()
        self._began = time.monotonic()
        self._peaks = (0.0, 0)

    def add(self, kind: str, number: int, code: int, seconds: float, memory: int, bad: bool) -> None:
        self.codes.setdefault(kind, Counter())[code] += 1
        self.slowest = max(self.slowest, (seconds, f"{kind} {number}"))
        self.largest = max(self.largest, (memory, f"{kind} {number}"))
        self.bad, self.inputs = self.bad + bad, number
        self._since.update([kind, f"exit {code}", *["bad"] * bad])
        self._peaks = max(self._peaks[0], seconds), max(self._peaks[1], memory)
        if time.monotonic() - self._began >= 60:
            self.row()

    def row(self) -> None:
        """Append what happened since the last row."""
        if not self._since:
            return
        seconds, memory = self._peaks
        row = {
            "seed": self.seed,
            "inputs_to": self.inputs,
            "seconds": round(time.monotonic() - self._began, 1),
            **sorted_counts(self._since),
        }
        row |= {"slowest_s": round(seconds, 2), "most_memory_mib": memory >> 20}
        if self.rows:
            with open(self.rows, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        self._since, self._began, self._peaks = Counter(), time.monotonic(), (0.0, 0)

    def print(self) -> None:
        for kind, codes in sorted(self.codes.items()):
            print(
                f"{kind:6} {sum(codes.values()):6,} inputs: " + ", ".join(f"exit {code} {count:,}" for code, count in sorted(codes.items()))
            )
        slowest, largest = self.slowest, self.largest
        print(
            f"{self.inputs:,} inputs, {self.bad} bad; slowest {slowest[0]:.1f} s ({slowest[1]}), most memory {largest[0] >> 20:,} MiB ({largest[1]})"
        )


def sorted_counts(counts: Counter[str]) -> dict[str, int]:
    return {"bad": 0, **{name: counts[name] for name in sorted(counts)}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", action="append", help="only this suffix; may be repeated")
    parser.add_argument("--out", type=Path, default=Path("found"))
    parser.add_argument("--rows", type=Path, help="a JSON Lines file to which counts are added each minute")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ.update(HIP_OFFLINE="1", HIP_DATA_DIR=str(options.out / "no-models"))
    import hipcli.cli  # noqa: F401  loaded once, before the forks

    import hipcli.extraction  # noqa: F401
    import hipcli.inspection  # noqa: F401
    import hipcli.readers  # noqa: F401

    tally = Tally(options.rows, options.seed)
    ends = time.monotonic() + 60 * options.minutes
    while time.monotonic() < ends:
        one_input(options, tally)
    tally.row()
    tally.print()
    return 1 if tally.bad else 0


def one_input(options: argparse.Namespace, tally: Tally) -> None:
    """Make, break and read one file; keep it if it does not end well."""
    number = tally.inputs + 1
    rng = random.Random(f"{options.seed}/{number}")
    files = seeds(rng)
    kind = rng.choice(options.kind or list(files))
    data = broken(files[kind], list(files.values()), rng)
    path = options.out / (f"input.{kind}" if rng.random() < 0.8 else "input")
    path.write_bytes(data)
    errors = options.out / "errors"
    command = rng.choice(COMMANDS)
    code, seconds, memory = run([*command, str(path)], errors)
    said = errors.read_bytes()
    bad = code not in GOOD or b"Traceback" in said or b"\x1b" in said
    tally.add(kind, number, code, seconds, memory, bad)
    if bad:
        (options.out / f"{options.seed}-{number}{path.suffix or '.' + kind}").write_bytes(data)
        report = said[-300:].decode("utf-8", "replace")
        print(f"{kind} {number}: {' '.join(command)}: exit {code} after {seconds:.1f} s: {report}", flush=True)
    path.unlink()


if __name__ == "__main__":
    raise SystemExit(main())
