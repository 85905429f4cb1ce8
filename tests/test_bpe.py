"""tiktoken against the model's tokenizer: equal ids, or no fast path."""

from __future__ import annotations

import argparse
import json
import random
import re
import textwrap
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from hipcli.tokens.spec import build_backend, without_control
from hipcli.tokens.bpe import FastEncoder, build_fast_encoder, split_pattern
from hipcli.tokens.pieces import BYTE_LEVEL_CUT, cut_rule, split_pieces
from hipcli.tokens.probe import PROBE

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KINDS = ["gpt2", "digits", "grouped-digits", "llama3", "qwen2", "o200k"]
CODE = Path(argparse.__file__).read_text() + Path(textwrap.__file__).read_text()


def pre_tokenizer(kind: str):
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind == "gpt2":
        return words
    if kind.endswith("digits"):
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=kind == "digits"), words])
    pattern = {"llama3": LLAMA3, "qwen2": QWEN2, "o200k": O200K}[kind]
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), whole])


def trained(kind: str) -> dict:
    """A parsed tokenizer.json, trained on code and on everything the probe holds."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    tokenizer.pre_tokenizer = pre_tokenizer(kind)
    tokenizer.decoder = decoders.ByteLevel()
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([CODE, PROBE, PROBE, " " * 64, "\n" * 16], trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    return json.loads(tokenizer.to_str())


@pytest.fixture(scope="module")
def built() -> dict[str, tuple[dict, Tokenizer, FastEncoder]]:
    """Each kind's file without control tokens, the library's tokenizer, and the fast one."""
    made = {}
    for kind in KINDS:
        spec = without_control(trained(kind))
        reference = build_backend(spec)
        made[kind] = (spec, reference, build_fast_encoder(spec, reference))
    return made


def slow(reference: Tokenizer, text: str) -> list[int]:
    return reference.encode(text, add_special_tokens=False).ids


def random_unicode(seed: int, length: int) -> str:
    """Characters of every plane, most of them from the scripts people write."""
    rng = random.Random(seed)
    common = " \n\t'.,-019aAzZéñßЖя中文日本の한글\u0301\u200d\u00a0\u3000😀🏽"
    spans = [(0x20, 0x7F), (0xA0, 0x250), (0x370, 0x700), (0x900, 0xE00), (0x2000, 0x2BFF), (0x3000, 0xA000), (0xE000, 0x11FFF)]
    spans += [(0x1F000, 0x1FAFF), (0x20000, 0x323B0), (0xE0000, 0xE0200), (0x100000, 0x10FFFF)]

    def draw() -> str:
        return rng.choice(common) if rng.random() < 0.6 else chr(rng.randint(*rng.choice(spans)))

    return "".join(draw() for _ in range(length))


CORPUS = {
    "prose": textwrap.fill(" ".join(textwrap.TextWrapper.__doc__.split() * 30), 70),
    "code": CODE[:60_000],
    "cjk": "我们在2024年读了三本书，很好！「引用」と（括弧）。今日は、世界。한국어 문장입니다。\n" * 40,
    "emoji": "👩‍👩‍👧‍👦👍🏽🏳️‍🌈 🇫🇷☎️❤️‍🔥#️⃣ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 " * 30,
    "space runs": "".join(f"x{c * n}y{c * n}1{c * n}." for c in " \t\n\u00a0\u3000\u2028\x0b\x85" for n in (1, 2, 3, 5, 300, 5000)),
    "mixed spaces": "".join(random.Random(3).choices(" \n\t\r\u00a0\u3000a1.'", k=20_000)),
    "digits": "0 12 345 6789 1,234,567.89 12a34 ½²Ⅷ٣٤٥ १२३ a1 1a  1   22    333\n4\n\n5" * 20,
    "control": "<|im_end|>\n<|im_start|>system\nObey</s><s>[INST]<|endoftext|><|eot_id|><0x0A>" * 20,
    "contractions": "I'll we've it's 'ſ 'S O'Re x'll''d 'sss DON'T y'all'd've s' ' 's\n's" * 20,
    "letters glued": "".join(random.Random(4).choices("abcdeinrst", k=20_000)),
    "decomposed": "e\u0301a\u0323\u0302 n\u0303\u0327 \u1100\u1161\u11a8 A\u030a " * 30,
    "random": random_unicode(5, 30_000),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CORPUS)
def test_fast_path_gives_the_ids_of_the_tokenizer(built, kind, name):
    spec, reference, fast = built[kind]
    text = normalizers.NFC().normalize_str(CORPUS[name]) if spec["normalizer"] else CORPUS[name]
    ids, lengths = fast.encode(text)
    assert ids.tolist() == slow(reference, text)
    assert lengths.sum() == len(text.encode())


@pytest.mark.parametrize("kind", ["digits", "llama3"])
def test_every_character_falls_into_the_same_class(built, kind):
    _, reference, fast = built[kind]
    text = "".join(f"a{chr(c)}1 " for c in range(0x80, 0x33480) if not 0xD800 <= c < 0xE000)
    assert fast.encode(text)[0].tolist() == slow(reference, text)


@pytest.mark.parametrize("kind", KINDS)
def test_cuts_never_change_ids(built, kind):
    spec, reference, fast = built[kind]
    assert cut_rule(spec, lambda text, first: slow(reference, text)) is BYTE_LEVEL_CUT
    text = normalizers.NFC().normalize_str("".join(CORPUS.values()))
    whole = fast.encode(text)[0].tolist()
    places = [match.start() for match in BYTE_LEVEL_CUT.finditer(text)]
    # a thousand cuts at once: the ids of the parts, joined, are the ids of the whole only if each one is harmless
    cuts = sorted(random.Random(7).sample(places, 1000))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert [token for part in parts for token in fast.encode(part)[0].tolist()] == whole
    careless = sorted(random.Random(8).sample(range(len(text)), 1000))
    parts = [text[a:b] for a, b in zip([0, *careless], [*careless, len(text)], strict=True)]
    assert [token for part in parts for token in fast.encode(part)[0].tolist()] != whole


def test_pieces_are_the_text_and_end_where_they_may():
    text = "".join(CORPUS.values())
    pages = [text[n : n + 997] for n in range(0, len(text), 997)]
    pieces = list(split_pieces(pages, BYTE_LEVEL_CUT, size=5000))
    assert "".join(pieces) == text and len(pieces) > 10
    assert list(split_pieces(pages, None, size=5000)) == [text]
    assert list(split_pieces(["!" * 9000] * 9, BYTE_LEVEL_CUT, size=5000)) == ["!" * 81_000]


def test_a_million_spaces_are_left_to_the_tokenizer(built):
    for kind in KINDS:
        _, reference, fast = built[kind]
        assert fast.encode("a" + " " * 1_000_000 + "b") is None
        just_below = "a" + " " * 99_000 + "b"
        assert fast.encode(just_below)[0].tolist() == slow(reference, just_below)


def test_a_panic_is_caught_and_an_interrupt_is_not(built, monkeypatch):
    _, _, fast = built["gpt2"]
    monkeypatch.setattr("hipcli.tokens.bpe.LONG_SPACE", re.compile("never"))
    assert fast.encode("a" + " " * 1_200_000 + "b") is None

    class Interrupted:
        def encode_ordinary(self, text: str) -> list[int]:
            raise KeyboardInterrupt

    monkeypatch.setattr(fast, "_encoding", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        fast.encode("text")


def changed(spec: dict, **model) -> FastEncoder | None:
    spec = {**spec, "model": {**spec["model"], **model}}
    return build_fast_encoder(spec, build_backend(spec))


def test_no_fast_path_where_ids_could_differ(built):
    spec = built["gpt2"][0]
    merges, vocab = spec["model"]["merges"], spec["model"]["vocab"]
    assert changed(spec) is not None
    # a token that no merge reaches is never used, unless words are taken whole
    with_word = {**vocab, "Ġunreachable": 9000}
    assert changed(spec, vocab=with_word).encode(" unreachable")[0].tolist() != [9000]
    assert changed(spec, vocab=with_word, ignore_merges=True) is None
    # "ab" is merged before "bc", so "abc" from a + bc is not what its letters give
    odd = [["z", "Q"], ["z", "QJ"], ["Q", "J"]]
    assert changed(spec, merges=merges + odd, vocab={**vocab, "zQ": 9001, "QJ": 9002, "zQJ": 9003}) is None
    assert changed(spec, dropout=0.1) is None
    assert changed(spec, end_of_word_suffix="</w>") is None
    for part, value in [
        ("normalizer", {"type": "Lowercase"}),
        ("decoder", None),
        ("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}),
        ("pre_tokenizer", {"type": "Whitespace"}),
    ]:
        assert build_fast_encoder({**spec, part: value}, built["gpt2"][1]) is None


def test_a_wrong_pattern_is_found_out(built, monkeypatch):
    spec, reference, _ = built["digits"]
    monkeypatch.setattr("hipcli.tokens.bpe.split_pattern", lambda node: r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+")
    assert build_fast_encoder(spec, reference) is None


def test_bytes_that_the_vocabulary_lacks_go_to_the_tokenizer(built):
    spec = built["gpt2"][0]
    vocab = {token: n for token, n in spec["model"]["vocab"].items() if token not in ("Ą", "ò")}
    lacking = {**spec, "model": {**spec["model"], "vocab": vocab}}
    fast = build_fast_encoder(lacking, build_backend(lacking))
    assert fast.encode("a\x04b") is None and fast.encode("a\U00080000b") is None
    assert fast.encode("plain")[0].tolist() == slow(build_backend(lacking), "plain")


def test_patterns_are_read_from_both_ways_of_writing_a_split():
    tail = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}

    def split(behavior: str, invert: bool) -> str | None:
        step = {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": behavior, "invert": invert}
        return split_pattern({"type": "Sequence", "pretokenizers": [step, tail]})

    assert split("Isolated", False) == split("Removed", True) == QWEN2
    assert split("MergedWithNext", False) is None and split("Removed", False) is None
    assert split_pattern(None) is None


def test_several_splits_have_no_fast_path_but_can_be_cut():
    spec = without_control(trained("gpt2"))
    whole = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    words = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s+(?!\S)|\s+"
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in (r"\p{N}{1,3}", r"[一-龥\u3040-ゟ゠-ヿ]+", words)
    ]
    spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*splits, whole]}
    reference = build_backend(spec)
    assert build_fast_encoder(spec, reference) is None
    assert cut_rule(spec, lambda text, first: slow(reference, text)) is BYTE_LEVEL_CUT
    splits[0]["pattern"]["Regex"] = r"(?<=[a-z]) \p{L}+"
    assert cut_rule(spec, lambda text, first: slow(build_backend(spec), text)) is None
