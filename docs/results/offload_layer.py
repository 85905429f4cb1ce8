"""One layer's decode with keys and values in different places: each refresh case, and the mean of a refresh cycle.

    python docs/results/offload_layer.py --shape llama-3.1-8b --context 256K --context 512K --context 1M --out offload-layer.jsonl

Places: both on the GPU; keys on the GPU and values on the host; both on the host, with the keys of a full refresh brought to the
GPU before (as an answer's steps do) and read in place (as its first step does). Random keys and values, in eight bits.
"""

import argparse
import json

import torch

from hipcli.attention import open_backend
from hipcli.bench import parse_context
from hipcli.bench_layer_cuda import Copy, decode_cases
from hipcli.cache.pinned import PinnedSegment
from hipcli.kernels.coding import CODE, Coding
from hipcli.settings import AttentionSettings
from hipcli.shapes import random_model

PLACES = {"gpu": (False, False), "values on the host": (False, True), "host": (True, True), "host, keys not brought ahead": (True, True)}
COPIES = 4  # layers read in turn, so that no list is read from the GPU's cache


def part(model, context: int, on_host: bool):
    """Random codes [KV, T, D], and the segment that holds them where they lie on the host."""
    sizes = (model.kv_heads, context, model.head_dim)
    codes = torch.randn(sizes, device="cuda", dtype=torch.bfloat16).to(CODE)
    if not on_host:
        return codes, None
    segment = PinnedSegment(sizes, CODE)
    segment.tensor.copy_(codes)
    return segment.tensor, segment


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", required=True)
    parser.add_argument("--context", action="append", required=True)
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    model = random_model(given.shape, "cuda", torch.bfloat16, torch.cuda.mem_get_info()[0])
    model.network.to("meta")
    ones = torch.ones(model.kv_heads, model.head_dim, device="cuda")
    coding = Coding(torch.stack((ones, 0 * ones, ones, 0 * ones), dim=1).contiguous())
    backend = open_backend(AttentionSettings(dense_below=0), model.rope, model.trained_window, "cuda", [coding] * model.layers)
    for context in map(parse_context, given.context):
        for name, places in PLACES.items():
            made = [[part(model, context, on_host) for on_host in places] for _ in range(COPIES)]
            # one room for all: what it holds is not what is timed
            room = made[0][0][0].to("cuda") if name == "host" else None
            copies = [Copy(keys[0], values[0], far=places, scanned=room) for keys, values in made]
            row = {"model": model.name, "context": context, "place": name, "copies": COPIES}
            row |= {kind: decode_cases(backend, model, layer, copies) for kind, layer in (("special", 0), ("ordinary", 5))}
            with open(given.out, "a") as file:
                print(json.dumps(row), file=file)
            print(json.dumps(row), flush=True)
            del copies, room
            for _, segment in (part for parts in made for part in parts):
                if segment is not None:
                    segment.close()
            del made


if __name__ == "__main__":
    main()
