"""Load on one `hip serve`: many clients at once, what became of every request, memory meanwhile, and a kill -9 at the end.

    python docs/results/serve_load.py --requests 200 --clients 32 --backlog 16 --out docs/results/serve-load.jsonl

Each client sends its share one after the other, a few of them streamed, and waits as long as a 429 says before it goes on
(at most --pause seconds). Asks the questions of the sample in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import httpx

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "samples/lighthouse.pdf"


def start(cache: str, backlog: int) -> tuple[subprocess.Popen, str]:
    """A server on a free port, and its address."""
    command = [Path(sys.executable).with_name("hip"), "serve", "--port", "0", "--backlog", str(backlog), "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"HIP_CACHE_DIR": cache})
    return process, process.stdout.readline().strip().rstrip("/")


def questions() -> list[str]:
    return [json.loads(line)["question"] for line in SAMPLE.with_suffix(".questions.jsonl").read_text().splitlines()]


def ask(client: httpx.Client, document: str, question: str, user: str, stream: bool, max_tokens: int) -> httpx.Response:
    body = {
        "model": document,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "user": user,
        "stream": stream,
    }
    return client.post("/v1/chat/completions", json=body)


def is_answered(answer: httpx.Response, stream: bool) -> bool:
    if answer.status_code != 200:
        return False
    return answer.text.endswith("data: [DONE]\n\n") if stream else bool(answer.json()["choices"][0]["message"]["content"])


def client_run(url: str, document: str, number: int, wanted: list[str], args: argparse.Namespace, rows: list[dict]) -> None:
    """One client's requests; a row for each."""
    with httpx.Client(base_url=url, timeout=600, trust_env=False) as client:
        for turn, question in enumerate(wanted):
            stream, began = (number + turn) % 4 == 0, time.monotonic()
            try:
                answer = ask(client, document, question, f"client-{number}", stream, args.max_tokens)
            except httpx.HTTPError as fault:
                rows.append({"end": type(fault).__name__, "seconds": time.monotonic() - began})
                continue
            end = "answered" if is_answered(answer, stream) else "refused" if answer.status_code == 429 else f"status {answer.status_code}"
            rows.append({"end": end, "seconds": time.monotonic() - began})
            if end == "refused":
                time.sleep(min(args.pause, int(answer.headers["retry-after"])))


def figure(client: httpx.Client, name: str) -> float:
    return float(re.search(rf"^{name} (\S+)$", client.get("/metrics").text, re.M)[1])


def load(url: str, document: str, args: argparse.Namespace, memory: list[tuple[float, float]]) -> tuple[list[dict], float]:
    """All clients at once; rows, and seconds in all. memory: gets (requests done, resident bytes)."""
    known, rows = questions(), []
    shares = [[known[at % len(known)] for at in range(number, args.requests, args.clients)] for number in range(args.clients)]
    threads = [threading.Thread(target=client_run, args=(url, document, n, share, args, rows)) for n, share in enumerate(shares)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        while any(thread.is_alive() for thread in threads):
            memory.append((len(rows), figure(client, "process_resident_memory_bytes")))
            time.sleep(1)
    return rows, time.monotonic() - began


def percentile(values: list[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("requests", 200), ("clients", 32), ("backlog", 16), ("max-tokens", 12), ("pause", 10)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hip-load-") as cache:
        process, url = start(cache, args.backlog)
        try:
            with httpx.Client(base_url=url, trust_env=False, timeout=600) as client:
                document = client.post("/v1/files", params={"filename": SAMPLE.name}, content=SAMPLE.read_bytes()).json()["id"]
                first = ask(client, document, questions()[0], "first", False, args.max_tokens).json()
                time.sleep(5)
            memory: list[tuple[float, float]] = []
            rows, seconds = load(url, document, args, memory)
        finally:
            process.kill()
            process.wait()
        again, url = start(cache, args.backlog)
        try:
            with httpx.Client(base_url=url, trust_env=False, timeout=600) as client:
                state = client.get(f"/v1/files/{document}").json()["hip"]["state"]
                after = ask(client, document, questions()[0], "first", False, args.max_tokens).json()
        finally:
            again.kill()
            again.wait()
    report(rows, seconds, memory, first, state, after, args)


def report(rows, seconds, memory, first, state, after, args) -> None:
    """A table, and a row for the file."""
    answered = [row["seconds"] for row in rows if row["end"] == "answered"]
    refused = [row["seconds"] for row in rows if row["end"] == "refused"]
    quarter = max(1, len(memory) // 4)
    session = after["hip"]["session"]
    record = {
        "requests": args.requests,
        "clients": args.clients,
        "backlog": args.backlog,
        "max_tokens": args.max_tokens,
        "answered": len(answered),
        "refused": len(refused),
        "lost": args.requests - len(answered) - len(refused),
        "other": sorted({row["end"] for row in rows} - {"answered", "refused"}),
        "seconds": round(seconds, 1),
        "answered_p50": round(median(answered), 2),
        "answered_p99": round(percentile(answered, 0.99), 2),
        "refused_p50": round(median(refused), 3) if refused else None,
        "refused_p99": round(percentile(refused, 0.99), 3) if refused else None,
        "memory_first_quarter_mb": round(median(size for _, size in memory[:quarter]) / 1e6, 1),
        "memory_last_quarter_mb": round(median(size for _, size in memory[-quarter:]) / 1e6, 1),
        "memory_peak_mb": round(max(size for _, size in memory) / 1e6, 1),
        "after_kill_state": state,
        "after_kill_reused_tokens": session["reused_tokens"],
        "after_kill_tokens": session["tokens"],
        "after_kill_same_answer": after["choices"] == first["choices"],
    }
    print("".join(f"| {name.replace('_', ' ')} | {value} |\n" for name, value in record.items()))
    if args.out:
        with open(args.out, "a") as out:
            out.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
