"""The same greedy answers on a CPU and a GPU? With the sparse path forced, answers token by token and how close each choice was.

    python docs/results/agreement.py run SAMPLE.md QUESTIONS.jsonl --device cpu --dtype float32 --out cpu.jsonl
    python docs/results/agreement.py run SAMPLE.md QUESTIONS.jsonl --device cuda --dtype float32 --out gpu.jsonl
    python docs/results/agreement.py compare cpu.jsonl gpu.jsonl

`run` writes a JSON line a question: the ids, the gap between the two best logits at each, and whether the answer is right.
`compare` shows where answers part, and the gap there on both sides: rounding may decide only between near equals.
"""

import argparse
import json
from itertools import zip_longest
from pathlib import Path

import torch

from hipcli import engine as engine_module
from hipcli.console import Terminal
from hipcli.input import read
from hipcli.options import RunOptions
from hipcli.pipeline import as_question, open_reading
from hipcli.questions import load_questions
from hipcli.sampling import Sampler, Sampling


class WatchedSampler(Sampler):
    """Greedy, and keeps the gap between the best two logits of every draw."""

    gaps: list[torch.Tensor] = []

    def __init__(self, sampling: Sampling, device: str) -> None:
        # above zero the captured steps, too, leave the choice to `draw`
        super().__init__(Sampling(temperature=1.0), device)

    def draw(self, logits: torch.Tensor) -> torch.Tensor:
        best = logits.topk(2)
        self.gaps.append(best.values[0] - best.values[1])
        return best.indices[0]


def run(given: argparse.Namespace) -> None:
    options = RunOptions(
        (given.sample,), max_tokens=given.max_tokens, dense_below=0, preset="default", device=given.device, dtype=given.dtype, offline=True
    )
    terminal, questions = Terminal(as_json=True), load_questions(given.questions)[: given.limit]
    engine_module.Sampler = WatchedSampler
    with (
        open_reading(read(options, terminal), options, terminal, lambda prompt, encoded: 256) as reading,
        Path(given.out).open("a", encoding="utf-8") as out,
    ):
        for question in questions:
            WatchedSampler.gaps.clear()
            suffix, stops = reading.prompt.suffix_ids(as_question(question.text)), reading.tokenizer.stop_ids
            ids = list(reading.engine.generate(suffix, max_tokens=given.max_tokens, stop_ids=stops))
            text = reading.tokenizer.decode(ids)
            gaps = [round(float(gap), 5) for gap in WatchedSampler.gaps[: len(ids) + 1]]
            row = {"sample": given.sample, "device": given.device, "dtype": given.dtype, "question": question.text}
            row |= {"right": question.mark(text), "ids": ids, "gaps": gaps, "text": text}
            out.write(json.dumps(row) + "\n")
            out.flush()


def compare(given: argparse.Namespace) -> None:
    left, right = ([json.loads(line) for line in Path(path).read_text().splitlines()] for path in (given.left, given.right))
    by_question = {(row["sample"], row["question"]): row for row in right}
    same, both = 0, [0, 0, 0]
    for row in left:
        other = by_question[row["sample"], row["question"]]
        both = [both[0] + row["right"], both[1] + other["right"], both[2] + (row["right"] == other["right"])]
        if row["ids"] == other["ids"]:
            same += 1
            continue
        at = next(i for i, (a, b) in enumerate(zip_longest(row["ids"], other["ids"])) if a != b)
        print(f"token {at + 1} of {len(row['ids'])}: gaps {row['gaps'][at]:.4f} and {other['gaps'][at]:.4f}: {row['question']}")
    print(f"{same} of {len(left)} answers equal; right {both[0]} and {both[1]}, the same verdict on {both[2]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(required=True)
    one = parts.add_parser("run")
    one.add_argument("sample")
    one.add_argument("questions")
    one.add_argument("--device", required=True)
    one.add_argument("--dtype", required=True)
    one.add_argument("--out", required=True)
    one.add_argument("--limit", type=int, default=24)
    one.add_argument("--max-tokens", type=int, default=24)
    one.set_defaults(work=run)
    two = parts.add_parser("compare")
    two.add_argument("left")
    two.add_argument("right")
    two.set_defaults(work=compare)
    given = parser.parse_args()
    given.work(given)


main()
