"""What a session costs and saves on a GPU: reading anew beside loading, against what the disk reads, and the same logits bit for bit.

    python docs/results/session_restore.py --shape qwen2.5-7b --context 1M --kv-dtype fp8 --folder /somewhere --out rows.jsonl

Weights are random and the same in every process: speed, sizes and logits are real, what is said is not. Each step is a process
of its own, and before each the session's files are dropped from the page cache: reading anew, reading the files and doing
nothing with them, loading them.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from hipcli import pipeline
from hipcli.bench import parse_context
from hipcli.console import Terminal
from hipcli.decoding import last_logits
from hipcli.engine import Engine
from hipcli.reuse import ending
from hipcli.sessions import Fingerprint, Library, SessionKeeper
from hipcli.settings import AttentionSettings, KvSettings
from hipcli.shapes import random_model

ROOM_TOKENS = 256
SUFFIX = list(range(100, 132))
BLOCK_BYTES = 16 << 20


def ask(given: argparse.Namespace) -> dict:
    """Read the text, or load what is there of it, and ask once."""
    model = random_model(given.shape, "cuda", torch.bfloat16, torch.cuda.mem_get_info()[0])
    ids = torch.randint(0, model.vocab, (parse_context(given.context),), generator=torch.Generator().manual_seed(1)).tolist()
    engine = Engine(model, AttentionSettings(), kv=KvSettings("gpu", given.kv_dtype))
    texts = {"document": ["a"], "source types": [], "encoding": [], "file names": [], "readers": {}}
    said, about = [], {"model": given.shape, "sources": ["random"]}
    session = SessionKeeper(Library(given.folder, 1 << 40), Fingerprint({}, texts), ids, about=about, note=said.append, warn=said.append)
    began = time.monotonic()
    with ending(session, Terminal(quiet=True)):
        pipeline._prefill(engine, ids, ROOM_TOKENS, session, Terminal(quiet=True))
        torch.cuda.synchronize()
        row = {"ready_seconds": time.monotonic() - began, "load_seconds": session.load_seconds}
        row |= {"reused_tokens": session.reused, "prefilled_tokens": engine.prefilled_tokens}
        began = time.monotonic()
        engine._read_suffix(SUFFIX)
        logits = last_logits(engine.model, engine._hidden).cpu()
        row["question_seconds"] = time.monotonic() - began
        began = time.monotonic()
    row |= {"saved_after_seconds": time.monotonic() - began, "said": said}
    if (path := given.folder / "logits.pt").exists():
        row["same_logits"] = torch.equal(torch.load(path), logits)
    else:
        torch.save(logits, path)
    return row


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("sessions/*/*.safetensors"))


def read_files(given: argparse.Namespace) -> dict:
    """Read every file of the session once, and keep nothing of it: what the disk gives."""

    def read(path: Path) -> int:
        block, size = bytearray(BLOCK_BYTES), 0
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(block):
                size += count
        return size

    began = time.monotonic()
    with ThreadPoolExecutor(given.threads) as pool:
        size = sum(pool.map(read, files_of(given.folder)))
    seconds = time.monotonic() - began
    return {"threads": given.threads, "size_bytes": size, "seconds": seconds, "gb_per_second": size / seconds / 1e9}


def drop(folder: Path) -> None:
    """Take the session's files out of the page cache."""
    for path in files_of(folder):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True)
    parser.add_argument("--context", required=True)
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder on the disk to measure")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--step", choices=("ask", "files"), help="one step alone, in this process")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.step:
        row = (ask if given.step == "ask" else read_files)(given)
        about = {"step": given.step, "shape": given.shape, "context": given.context, "kv_dtype": given.kv_dtype}
        with open(given.out, "a", encoding="utf-8") as out:
            print(json.dumps(about | row), file=out)
        print(json.dumps(about | row), flush=True)
        return
    # the last one finds the files in the page cache
    for step, threads, cold in (
        ("ask", 4, True),
        ("files", 1, True),
        ("files", 4, True),
        ("files", 16, True),
        ("ask", 4, True),
        ("ask", 4, False),
    ):
        if cold:
            drop(given.folder)
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--step", step, "--threads", str(threads)], check=True)


if __name__ == "__main__":
    main()
