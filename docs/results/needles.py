"""Needles in real prose, sparse presets beside dense attention: the check behind the choice of the "cpu" preset.

    python docs/results/needles.py BOOK.txt --context 6144 --context 16384 --preset default --preset cpu --books 3

Plants 24 sentences "The magic number for KEY is NUMBER." evenly over a stretch of BOOK and asks for each on one prefill.
Question and expected answer are run in one pass; an answer is right when the argmax agrees at every digit. One JSON line
an (attention, context, stretch) on standard output.
"""

import argparse
import json
import random

import torch

from hipcli import config
from hipcli.devices import choose_device
from hipcli.engine import Engine
from hipcli.model import load_model
from hipcli.models import obtain_model
from hipcli.settings import AttentionSettings
from hipcli.tokens import load_tokenizer

KEYS = (
    "amber basalt cedar dagger ember falcon garnet harbor indigo jasper kettle lantern marble nectar orchid pebble quartz ribbon "
    "saddle thistle umbrella velvet walnut yonder"
).split()
TOKENS_PER_NEEDLE = 14
DIGITS = 5


def haystack(tokenizer, text: str, tokens: int, seed: int) -> tuple[str, list[tuple[str, str]]]:
    """A stretch of text with every needle in it, and the needles."""
    draw = random.Random(seed)
    needles = [(key, str(number)) for key, number in zip(draw.sample(KEYS, len(KEYS)), draw.sample(range(10_000, 99_999), len(KEYS)))]
    begin = draw.randrange(max(1, len(text) - 6 * tokens))
    ids = tokenizer.encode(text[begin : begin + 6 * tokens])[: tokens - TOKENS_PER_NEEDLE * len(KEYS)]
    lines = tokenizer.decode(ids).split("\n")
    for at, (key, number) in reversed(list(enumerate(needles))):
        lines.insert(round((at + 0.5) / len(needles) * len(lines)), f"The magic number for {key} is {number}.")
    return "\n".join(lines), needles


@torch.inference_mode()
def is_found(engine: Engine, tokenizer, prompt, key: str, number: str) -> bool:
    """Whether every digit is the argmax given the question and the digits before it."""
    question = prompt.suffix_ids(f"What is the magic number for {key}?")
    answer = tokenizer.encode(f"The magic number for {key} is {number}")
    hidden = engine.peek([*question, *answer])
    guesses = engine.model.network.lm_head(hidden[len(question) - 1 : -1]).argmax(-1).tolist()
    return guesses[-DIGITS:] == answer[-DIGITS:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("book")
    parser.add_argument("--context", type=int, action="append", required=True)
    parser.add_argument("--preset", action="append", required=True, help='a preset, or "dense"')
    parser.add_argument("--books", type=int, default=2, help="stretches of the book per context")
    parser.add_argument("--model")
    given = parser.parse_args()
    files = obtain_model(given.model or config.default_model(), data_dir=config.data_dir())
    model, tokenizer = load_model(files.path, device=choose_device()), load_tokenizer(files.path)
    prompt, text = tokenizer.prompt(), open(given.book, encoding="utf-8", errors="replace").read()
    for context in given.context:
        for seed in range(given.books):
            story, needles = haystack(tokenizer, text, context, seed)
            ids = [*prompt.prefix_ids, *tokenizer.encode(story)]
            for name in given.preset:
                below = 0 if context <= model.trained_window else None
                settings = AttentionSettings(mode="dense") if name == "dense" else AttentionSettings(preset=name, dense_below=below)
                engine = Engine(model, settings)
                engine.prefill(ids)
                found = sum(is_found(engine, tokenizer, prompt, *needle) for needle in needles)
                print(json.dumps({"attention": name, "tokens": len(ids), "book": seed, "found": found, "of": len(needles)}), flush=True)
                engine.close()


main()
