"""How many words of real files `hip` reads, held against an independent extractor.

    python docs/results/words.py FILE.pdf book.epub=book.txt … --out rows.jsonl

A PDF is held against pdftotext, another file against the text named behind "=". found: share of the reference's words (as a multiset of
runs of letters and digits, line-end hyphens joined) that hip has too; extra: share of hip's that the reference lacks.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")


def words(text: str) -> Counter[str]:
    """Words in lower case; a CJK character is one."""
    return Counter(_WORD.findall(re.sub(r"(?<=\w)[-\u00ad]\n\s*(?=\w)", "", text).casefold()))


def row(path: Path, reference: str | None) -> dict[str, object]:
    """One file's figures."""
    if reference is None:
        told = subprocess.run(["pdftotext", "-enc", "UTF-8", path, "-"], capture_output=True, check=True).stdout.decode("utf-8", "replace")
    else:
        told = Path(reference).read_text("utf-8", "replace")
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "hipcli", "extract", "--json", path], capture_output=True, check=True)
    seconds = time.monotonic() - began
    record = json.loads(done.stdout)
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
        "peak_mib_so_far": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,
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
