"""`hip batch` over 50 real files, killed half-way and resumed, then on two workers of Ray: the rows are compared.

    python docs/results/batch_run.py --work FOLDER --out rows.jsonl

Files are the samples and small ones of Debian packages, which apt-get downloads and dpkg-deb unpacks into the folder (nothing is
installed); four that cannot be read are made from them. The default model answers. Of each file the first page is read (PDFs are
whole books, EPUBs too): `--pages 1`. The result is one row of figures, added to --out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).resolve().parent.parent.parent / "samples"
HIP = Path(sys.executable).with_name("hip")
PACKAGES = ["doc-debian", "debian-policy", "developers-reference", "r-doc-pdf", "maint-guide", "docutils-doc", "zstd", "procps"]
PACKAGES += ["libjs-underscore"]
WANTED = {".pdf": 13, ".epub": 2, ".md": 5, ".html": 15, ".txt": 15}
# books are cut by --pages; of texts, whose page is the whole, only small ones are taken
MOST_BYTES = {".pdf": 8_000_000, ".epub": 8_000_000, ".md": 9_000, ".html": 6_000, ".txt": 4_000}
LEAST_BYTES = 400
PROMPT = "What is this text about?"
COMPARED = ("question", "answer", "finish_reason", "answer_tokens", "citations")


def collect(work: Path) -> None:
    """Fifty real files in work/files, and four that cannot be read."""
    unpacked, files = work / "unpacked", work / "files"
    if not unpacked.exists():
        subprocess.run(["apt-get", "download", *PACKAGES], cwd=work, check=True)
        for package in sorted(work.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", package, unpacked], check=True)
    shutil.rmtree(files, ignore_errors=True)
    files.mkdir()
    taken: Counter[str] = Counter()
    names: set[str] = set()
    for path in [*sorted(SAMPLES.iterdir()), *sorted(unpacked.rglob("*"))]:
        kind = path.suffix.lower()
        if kind not in WANTED or path.is_symlink() or not path.is_file() or path.name in names or taken[kind] == WANTED[kind]:
            continue
        most = MOST_BYTES[kind] if path.parent != SAMPLES else 10**9
        if LEAST_BYTES <= path.stat().st_size <= most:
            shutil.copyfile(path, files / path.name)
            taken[kind] += 1
            names.add(path.name)
    if sum(taken.values()) != 50:
        sys.exit(f"found {dict(taken)} instead of {WANTED}")
    some_pdf, some_book = next(files.glob("*.pdf")), next(files.glob("*.epub"))
    (files / "torn.pdf").write_bytes(some_pdf.read_bytes()[:2000])
    (files / "torn.epub").write_bytes(some_book.read_bytes()[:2000])
    (files / "page.epub").write_bytes(next(files.glob("*.html")).read_bytes())
    (files / "empty.pdf").write_bytes(b"")


def command(work: Path, out: str, *more: str) -> list[str]:
    sources = [*sorted(str(path.relative_to(work)) for path in (work / "files").iterdir())]
    return [str(HIP), "batch", *sources, "--pages", "1", "--prompt", PROMPT, "--max-tokens", "24", "--out", out, "--json", *more]


def start(work: Path, arguments: list[str]) -> subprocess.Popen:
    # workers of Ray have one thread each; so has the single process, for sums in the same order
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=work, env=env)


def finish(run: subprocess.Popen) -> dict[str, Any]:
    out, err = run.communicate()
    if run.returncode not in (0, 6):
        sys.exit(f"hip batch ended with {run.returncode}: {err}")
    return json.loads(out)


def kill_half_way(work: Path, arguments: list[str], rows: Path) -> int:
    """Start a run, end it by SIGKILL after 25 rows; the rows there are."""
    run = start(work, arguments)
    while run.poll() is None and (not rows.exists() or rows.read_bytes().count(b"\n") < 25):
        time.sleep(0.02)
    run.kill()
    run.communicate()
    return rows.read_bytes().count(b"\n")


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Rows by file; exits when a file is there twice."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = {row["document"]["path"]: row for row in rows}
    if len(found) != len(rows):
        sys.exit(f"a file is twice in {path}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    work = chosen.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    collect(work)
    for old in work.glob("*.jsonl*"):
        old.unlink()
    began = time.monotonic()
    before = kill_half_way(work, command(work, "local.jsonl"), work / "local.jsonl")
    killed = (work / "local.jsonl").read_bytes()
    resumed = finish(start(work, command(work, "local.jsonl")))
    local_seconds = time.monotonic() - began
    ray_before = kill_half_way(work, command(work, "ray.jsonl", "--engine", "ray", "--workers", "2"), work / "ray.jsonl")
    began = time.monotonic()
    on_ray = finish(start(work, command(work, "ray.jsonl", "--engine", "ray", "--workers", "2")))
    ray_seconds = time.monotonic() - began
    local, ray = read_rows(work / "local.jsonl"), read_rows(work / "ray.jsonl")
    same = sum(all(local[path][name] == ray[path][name] for name in COMPARED) for path in local if path in ray)
    kinds = Counter(row["document"]["format"] for row in local.values())
    row = {
        "files": resumed["files"],
        "formats": dict(sorted(kinds.items())),
        "tokens": sum(row["document"]["tokens"] for row in local.values()),
        "rows_when_killed": before,
        "rows_kept": (work / "local.jsonl").read_bytes().startswith(killed),
        "rows_after": len(local),
        "failed": {entry["path"]: entry["message"] for entry in resumed["failed"]},
        "seconds_both_runs": round(local_seconds, 1),
        "ray_rows_when_killed": ray_before,
        "ray_rows_after": len(ray),
        "ray_failed": sorted(entry["path"] for entry in on_ray["failed"]),
        "ray_seconds_second_run": round(ray_seconds, 1),
        "same_rows": same,
    }
    with open(chosen.out, "a", encoding="utf-8") as out:
        out.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(json.dumps(row, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
