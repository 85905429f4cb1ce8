"""Keys and values on the host beside a GPU: prefill, question and decode, next to the same with everything on the GPU.

    python docs/results/offload.py --shape qwen2.5-7b --context 128K --kv gpu --kv host --out offload.jsonl
    python docs/results/offload.py --shape qwen2.5-0.5b --context 3M --kv auto --gpu-memory 48GiB --out offload.jsonl

Weights are random: speed and memory are real, what is said is not. A short run before each measurement compiles the kernels.
"""

import argparse
import json
import time
from itertools import pairwise

import psutil
import torch

from hipcli.bench import parse_context
from hipcli.bench_model import random_ids
from hipcli.config_keys import parse_size
from hipcli.devices import keep_within
from hipcli.engine import Engine
from hipcli.settings import AttentionSettings, KvSettings
from hipcli.shapes import random_model

ROOM_TOKENS = 512
SUFFIX_TOKENS = 40


def seconds(work) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(model, context: int, kv: KvSettings, steps: int) -> dict:
    engine = Engine(model, AttentionSettings(), kv=kv)
    torch.cuda.reset_peak_memory_stats()
    plan = engine.plan(context + ROOM_TOKENS)
    row = {
        "model": model.name,
        "context": context,
        "kv": "host" if plan.on_host else "gpu",
        "kv_dtype": kv.dtype,
        "gpu_limit": kv.gpu_bytes,
    }
    row |= {"layers": model.layers, "device_parts": plan.device_parts, "chunk_tokens": plan.chunk_tokens}
    row |= {"kv_bytes": plan.kv_bytes, "planned_peak_bytes": plan.planned_peak_bytes}
    row["room_seconds"] = seconds(lambda: engine.make_room(context + ROOM_TOKENS))
    row["prefill_seconds"] = seconds(lambda: engine.prefill(random_ids(model, context), room=ROOM_TOKENS))
    row["capture_seconds"] = seconds(lambda: engine.warm_up(context + ROOM_TOKENS))
    marks = [time.perf_counter()]
    for _ in engine.generate(random_ids(model, SUFFIX_TOKENS), max_tokens=steps + 2):
        marks.append(time.perf_counter())
    gaps = [after - before for before, after in pairwise(marks)]
    answer = sorted(gaps[2:])
    row |= {"question_seconds": gaps[0], "first_step_seconds": gaps[1], "decode_tokens_per_second": len(answer) / sum(answer)}
    row |= {f"step_p{share}_ms": 1e3 * answer[min(len(answer) - 1, len(answer) * share // 100)] for share in (50, 99)}
    row |= {"step_max_ms": 1e3 * answer[-1], "bus_bytes": engine.store.bus_bytes, "kv_host_bytes": engine.store.host_bytes}
    row |= {"peak_gpu_bytes": torch.cuda.max_memory_allocated(), "host_bytes": psutil.Process().memory_info().rss}
    engine.store.check_integrity()
    engine.close()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", required=True)
    parser.add_argument("--context", action="append", required=True)
    parser.add_argument("--kv", action="append", required=True)
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--gpu-memory")
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    limit = parse_size(given.gpu_memory, "--gpu-memory") if given.gpu_memory else None
    keep_within("cuda", limit)
    model = random_model(given.shape, "cuda", torch.bfloat16, torch.cuda.mem_get_info()[0])
    for context in map(parse_context, given.context):
        for kv in given.kv:
            # compiles the kernels
            measure(model, 20_000, KvSettings("gpu" if kv == "gpu" else "host", given.kv_dtype, limit), 70)
            row = measure(model, context, KvSettings(kv, given.kv_dtype, limit), given.steps)
            with open(given.out, "a") as file:
                print(json.dumps(row), file=file)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
