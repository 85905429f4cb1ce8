"""How many words of real files `hip` reads, held against an independent extractor.

    python docs/results/words.py FILE.pdf book.epub=book.txt … --out rows.jsonl

A PDF is held against pdftotext, another file or folder against the text named behind "=" (made by lynx -dump, pandoc -t plain or cat). found: share of the reference's words (as a multiset of
runs of letters and digits, line-end hyphens joined) that hip has too; extra: share of hip's that the reference lacks.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")


def words(text: str) -> Counter[str]:
    """Words in lower case; a CJK character is one."""
    return Counter(_WORD.findall(re.sub(r"(?<=\w)[-\u00ad]\n\s*(?=\w)", "", text).casefold()))


def extract(path: Path) -> tuple[bytes, float, int]:
    """The record of `hip extract`, the seconds it took, and the most memory that one of its processes held."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen([sys.executable, "-m", "hipcli", "extract", "--json", path], stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{path} cannot be read")
        out.seek(0)
        return out.read(), time.monotonic() - began, usage.ru_maxrss * 1024


def row(path: Path, reference: str | None) -> dict[str, object]:
    """One file's figures."""
    if reference is None:
        told = subprocess.run(["pdftotext", "-enc", "UTF-8", path, "-"], capture_output=True, check=True).stdout.decode("utf-8", "replace")
    else:
        told = Path(reference).read_text("utf-8", "replace")
    out, seconds, peak_bytes = extract(path)
    record = json.loads(out)
    ours, theirs = words("\n".join(page["text"] for page in record["pages"])), words(told)
    shared = (ours & theirs).total()
    return {
        "file": path.name,
        "format": record["document"]["format"],
        "pages": record["document"]["pages"],
        "titled": sum(page["title"] is not None for page in record["pages"]),
        "failed": len(record["document"]["pages_failed"]),
        "words": ours.total(),
        "reference_words": theirs.total(),
        "found": round(shared / max(1, theirs.total()), 4),
        "extra": round(1 - shared / max(1, ours.total()), 4),
        "seconds": round(seconds, 2),
        "peak_mib": peak_bytes >> 20,
        "warnings": len(record["warnings"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", help="FILE.pdf, or FILE=REFERENCE.txt")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    with open(options.out, "a") as out:
        for name in options.files:
            path, _, reference = name.partition("=")
            made = row(Path(path), reference or None)
            print(json.dumps(made), file=out, flush=True)
            print(f"{made['found']:.4f} found, {made['extra']:.4f} extra, {made['pages']:,} pages, {made['seconds']} s: {made['file']}")


if __name__ == "__main__":
    main()
