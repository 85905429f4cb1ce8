"""How much of a decode step's list of kept keys was in the list before: what a cache of the last list would hit.

    python docs/results/overlap.py --model DIR --text refman.txt --context 128K --steps 256 --out overlap.jsonl

Three runs a context: the model goes on by itself ("greedy"), it is given the text's own next tokens ("text"), and greedily
once more with every stored key replaced by noise of the same deviation ("noise"). A row for each kind of refresh (the first
stage that is run again): chunks of the last stage that were in the layer's list before, and in any list so far.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import torch

from hipcli.attention import bind
from hipcli.bench import parse_context
from hipcli.decoding import EagerDecoder, last_logits
from hipcli.engine import Engine
from hipcli.model import load_model
from hipcli.sampling import Sampler, Sampling
from hipcli.settings import AttentionSettings
from hipcli.suite.prose import load_prose
from hipcli.tokens import load_tokenizer

RUNS = ("greedy", "text", "noise")


def chunks_of(state, stop: int) -> list[set[int]]:
    """Starts of the kept chunks of each KV head, without padding."""
    starts = state.selection.inputs[-1].starts[:, 0].cpu()
    return [set(row[row < stop].tolist()) for row in starts]


def make_noise(engine: Engine) -> None:
    """Replace the stored keys by noise of each layer's deviation."""
    torch.manual_seed(0)
    for layer in range(engine.model.layers):
        keys, _ = engine.store.view(layer)
        keys.normal_(0.0, float(keys.float().std()))


@torch.inference_mode()
def follow(engine: Engine, steps: int, given: list[int] | None) -> dict[int, dict[str, float]]:
    """Decode step by step; by refresh stage: lists compared, and the mean shares of their chunks that were known."""
    runtime, layers = engine.runtime, engine.model.layers
    decoder, sampler = EagerDecoder(engine.model, runtime), Sampler(Sampling(), engine.model.device)
    last: dict[int, list[set[int]]] = {}
    ever: dict[int, list[set[int]]] = {}
    sums = defaultdict(lambda: [0, 0.0, 0.0])
    bind(engine.model.network, runtime)
    decoder.begin(last_logits(engine.model, engine._hidden).argmax())
    for step in range(steps):
        if given is not None:
            decoder.begin(torch.tensor(given[step], device=engine.model.device))
        decoder.step(step, sampler)
        for layer in range(layers):
            stage = runtime.backend.plan.refresh_stage(step, layer, layers)
            if stage is None:
                continue
            now = chunks_of(runtime.states[layer], engine.store.length)
            if step > 0:
                for head, chunks in enumerate(now):
                    found = sums[stage]
                    found[0] += 1
                    found[1] += len(chunks & last[layer][head]) / max(1, len(chunks))
                    found[2] += len(chunks & ever[layer][head]) / max(1, len(chunks))
            last[layer] = now
            ever[layer] = [a | b for a, b in zip(now, ever.get(layer, now))]
    return {stage: {"lists": n, "in_last": a / n, "in_any": b / n} for stage, (n, a, b) in sorted(sums.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", action="append", required=True)
    parser.add_argument("--context", action="append", required=True)
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--dense-below", type=int)
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    model, tokenizer = load_model(Path(given.model), device=given.device), load_tokenizer(Path(given.model))
    text = load_prose(given.text).text
    for context in map(parse_context, given.context):
        ids = tokenizer.encode(text[: 8 * (context + given.steps)])[: context + given.steps]
        settings = AttentionSettings(backend=given.backend, dense_below=given.dense_below)
        engine = Engine(model, settings)
        engine.prefill(ids[:context], room=given.steps)
        hidden = engine._hidden
        for run in RUNS:
            if run == "noise":
                make_noise(engine)
            engine._hidden = hidden
            found = follow(engine, given.steps, ids[context:] if run == "text" else None)
            engine.runtime.decode_step = None
            engine.rewind(context)
            with open(given.out, "a") as file:
                for stage, figures in found.items():
                    row = {"model": model.name, "context": context, "keys": run, "steps": given.steps, "stage": stage, **figures}
                    print(json.dumps(row), file=file)
                    print(json.dumps(row), flush=True)
        engine.close()


if __name__ == "__main__":
    main()
