"""Keys and values in eight bits beside the model's own format: how often both choose the same next token of a real text.

    python docs/results/kv_codes_agreement.py --model DIR --text refman.txt --context 32K --context 128K --out kv-codes.jsonl

The next 512 tokens of the text are read behind the same prefix, once a format. `nll` is the mean surprise, in nats, of the
text's own next token.
"""

import argparse
import json
from pathlib import Path

import torch

from hipcli.bench import parse_context
from hipcli.engine import Engine
from hipcli.model import load_model
from hipcli.settings import AttentionSettings, KvSettings
from hipcli.suite.prose import load_prose
from hipcli.tokens import load_tokenizer

PEEKED = 512


@torch.inference_mode()
def logits_of(model, ids: list[int], context: int, dtype: str) -> torch.Tensor:
    """Logits behind each of the tokens after the prefix, [PEEKED, vocab] fp32."""
    engine = Engine(model, AttentionSettings(), kv=KvSettings(dtype=dtype))
    engine.prefill(ids[:context], room=PEEKED)
    logits = model.network.lm_head(engine.peek(ids[context : context + PEEKED])).float()
    engine.close()
    return logits


def compare(own: torch.Tensor, coded: torch.Tensor, after: torch.Tensor) -> dict[str, float]:
    """after: [PEEKED] the text's tokens that follow."""
    top = own.topk(2, -1).values
    same = own.argmax(-1) == coded.argmax(-1)
    figures = {"same_argmax": same.float().mean(), "mean_difference": (own - coded).abs().mean()}
    figures["largest_gap_where_parted"] = (top[:, 0] - top[:, 1])[~same].max() if (~same).any() else torch.tensor(0.0)
    figures |= {f"nll_{name}": torch.nn.functional.cross_entropy(x, after) for name, x in (("own", own), ("fp8", coded))}
    return {name: round(float(value), 5) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", action="append", required=True)
    parser.add_argument("--context", action="append", required=True)
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    model, tokenizer = load_model(Path(given.model), device="cuda"), load_tokenizer(Path(given.model))
    text = load_prose(given.text).text
    for context in map(parse_context, given.context):
        ids = tokenizer.encode(text[: 8 * (context + PEEKED)])[: context + PEEKED + 1]
        own, coded = (logits_of(model, ids, context, dtype) for dtype in ("bf16", "fp8"))
        after = torch.tensor(ids[context + 1 :], device=own.device)
        row = {"model": model.name, "context": context, "tokens": PEEKED, **compare(own, coded, after)}
        with open(given.out, "a") as file:
            print(json.dumps(row), file=file)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
