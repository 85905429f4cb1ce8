"""Ways to prune, judged on the same prompts: by one pass over question and expected answer, many questions to a prefill.

    python docs/results/pruners.py --text book.txt --context 32K --context 128K --document default --question default:question-rounds=0

A document preset is prefilled with; on that prefix each question preset (its own among them) reads the questions. "NAME+fair"
reads them with scores that are shares of a row's attention, "+mass" with shares summed over a chunk; both are kept to what
torch can do, for comparison only.
"""

import argparse
import json
import time

import torch

from hipcli import config
from hipcli.attention import AttentionRuntime
from hipcli.bench import parse_context
from hipcli.devices import choose_device
from hipcli.engine import Engine
from hipcli.kernels import torch_prune, torch_scan
from hipcli.kernels.backends import TorchBackend
from hipcli.kernels.presets import preset
from hipcli.models import obtain_model
from hipcli.model import load_model
from hipcli.settings import AttentionSettings
from hipcli.suite.catalogue import TASKS
from hipcli.suite.prompt import build_cell, longest
from hipcli.suite.prose import load_prose
from hipcli.suite.scoring import one_pass
from hipcli.tokens import load_tokenizer


def share_scan(mass: bool):
    """A scan of every key whose scores are shares: logits less the log of their row's sum over all candidates."""

    def scan(q, k, starts, stop, first, index, plan, layer, rope):
        if plan.is_special(layer):
            return torch_scan.scan(q, k, starts, stop, first, index, plan, layer, rope)
        pickers = torch_scan.make_pickers(q, (starts < stop[None, :, None]).sum(-1), first, index, plan, layer, rope)
        length, scale = plan.stages[index].chunk_len, q.shape[-1] ** -0.5
        scores = torch.empty(starts.shape, dtype=torch.float32, device=k.device)
        for h in range(k.shape[0]):
            for b in range(starts.shape[1]):
                tokens = starts[h, b, :, None] + torch.arange(length, device=k.device)
                keys = k[h, tokens.clamp(max=k.shape[1] - 1).flatten()]
                logits = (pickers.left[h, b, 0] @ keys.transpose(0, 1)).float() * scale
                logits = logits.masked_fill(tokens.flatten() >= stop[b], torch_scan.NEVER)
                shares = (logits - logits.logsumexp(-1, keepdim=True)).unflatten(-1, (-1, length))
                scores[h, b] = (shares.logsumexp(-1) if mass else shares.amax(-1)).amax(0)
        return scores

    return scan


def use_question_plan(runtime: AttentionRuntime, name: str) -> None:
    text, _, way = name.partition("+")
    plan = preset(text)
    torch_prune.scan = share_scan(way == "mass") if way else torch_scan.scan
    backend = TorchBackend if way else type(runtime.backend)
    runtime.question_backend = backend(plan.question, runtime.backend.rope, runtime.backend.dense_below)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("text", "context", "document", "question", "task"):
        parser.add_argument(f"--{name}", action="append", default=[])
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--pack", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--model")
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    files = obtain_model(given.model or config.default_model(), data_dir=config.data_dir())
    model, tokenizer, prose = load_model(files.path, device=choose_device()), load_tokenizer(files.path), load_prose(given.text)
    began = time.monotonic()
    for sample in range(given.samples):
        for context in map(parse_context, given.context):
            for task in (task for task in TASKS if task.name in given.task):
                cell = build_cell(task, context, sample, 0, given.pack, prose, tokenizer)
                for document in given.document:
                    if time.monotonic() - began > given.seconds:
                        return
                    ask_all(
                        model,
                        cell,
                        document,
                        given.question if document == given.document[0] else [],
                        task.name,
                        context,
                        sample,
                        given.out,
                    )


def ask_all(model, cell, document: str, questions: list[str], task: str, context: int, sample: int, out: str) -> None:
    settings = AttentionSettings(mode="dense") if document == "dense" else AttentionSettings(preset=document)
    engine, clock = Engine(model, settings), time.monotonic()
    engine.prefill(cell.ids, room=longest(cell.asked))
    prefill = time.monotonic() - clock
    for question in [document, *questions]:
        if document != "dense":
            use_question_plan(engine.runtime, question)
        clock = time.monotonic()
        scores = [one_pass(engine, asked) for asked in cell.asked if asked.question.ordered]
        row = {"task": task, "context": context, "sample": sample, "document": document, "question": question, "n": len(scores)}
        row |= {"right": sum(score.right for score in scores), "score": sum(score.score for score in scores)}
        row |= {"prefill_seconds": round(prefill, 3), "question_seconds": round((time.monotonic() - clock) / len(scores), 4)}
        with open(out, "a") as file:
            print(json.dumps(row), file=file)
        print(json.dumps(row), flush=True)
    engine.close()


if __name__ == "__main__":
    main()
