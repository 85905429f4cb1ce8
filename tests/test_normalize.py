"""The normaliser: what leaves it, what it keeps, and that its map leads back."""

from __future__ import annotations

import random
import unicodedata

import pytest

from hipcli.readers.normalize import LONGEST_RUN, normalize, normalize_pages

HOSTILE = "abZ9 -\n\r\t\x00\x01\x02\x1b\x85\u00ad\ufffe\ufb03\u2028\u200b\ufeff\u202e\ue000é第\ud835\udc00\U0001f600"


def is_origin(raw: str, start: int, character: str) -> bool:
    """Whether `character` can have come from the raw text at `start`, judged without the normaliser's tables."""
    found = raw[start]
    if "\ud800" <= found <= "\udfff":
        pair = raw[start : start + 2].encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return character in (pair, "\ufffd")
    if found in "\x02\ufffe\u00ad":
        return character in "- \t\n"
    if found in "\r\x85\u2028":
        return character == "\n"
    return character in unicodedata.normalize("NFKC", found)


@pytest.mark.parametrize(
    "raw, clean",
    [
        ("a\r\nb\rc\nd", "a\nb\nc\nd"),
        ("\ufeff\u200b# Title", "# Title"),
        ("man\u200d woman", "man\u200d woman"),
        ("o\x00\ufb03ce \ufb01n\ufb02at", "office finflat"),
        ("x\ud835y", "x\ufffdy"),
        ("x\ud835\udc00y", "x\U0001d400y"),
        ("\x1b]52;c;aGk=\x07ok\x08", "]52;c;aGk=ok"),
        ("a\u2028b\u2029c\x85d", "a\nb\nc\nd"),
        ("x\u00b2 \uff21 \u2460", "x\u00b2 \uff21 \u2460"),
        ("tab\tkept", "tab\tkept"),
    ],
    ids=["line ends", "mark at start", "joiner kept", "nul, ligatures", "lone", "pair", "escapes", "separators", "no folding", "tab"],
)
def test_rules(raw: str, clean: str) -> None:
    assert normalize(raw).text == clean


@pytest.mark.parametrize(
    "raw, clean",
    [
        ("Poli\u00ad\ntik", "Politik"),
        ("Po\u00adli\u00adtik", "Politik"),
        ("exam\x02ple", "example"),
        ("exam\ufffeple", "example"),
        ("well\x02known, a well-known man", "well-known, a well-known man"),
        ("well-\nknown", "well-\nknown"),
        ("exam-\nple and example", "example and example"),
        ("1914\ufffe1918", "1914-1918"),
        ("Anglo\ufffeSaxon", "Anglo-Saxon"),
        ("the end\ufffe", "the end-"),
        ("- item\n- item", "- item\n- item"),
        ("wait--\nhe said", "wait--\nhe said"),
    ],
)
def test_hyphens(raw: str, clean: str) -> None:
    assert normalize(raw).text == clean


def test_another_page_decides_over_a_hyphen() -> None:
    pages = normalize_pages(["long-\ndistance and exam-\r\nple", "An Example, long-distance."])
    assert pages[0].text == "long-\ndistance and example"


def test_long_runs_are_capped() -> None:
    text = normalize("a" + "\r\n" * 20_000 + "b" + "\u3000" * LONGEST_RUN + "c").text
    assert text == "a" + "\n" * LONGEST_RUN + "b" + "\u3000" * LONGEST_RUN + "c"


def test_counts() -> None:
    counts = normalize("\ue000\ue001\ufffd\u202e\x00\ud800").counts
    assert counts == {"private use": 2, "replacement": 2, "bidi control": 1, "nul": 1, "lone surrogate": 1}


def test_map_leads_back_for_every_character() -> None:
    for _ in range(3000):
        raw = "".join(random.choices(HOSTILE, k=random.randint(0, 40)))
        result = normalize(raw)
        origins = [result.offsets.origin(i) for i in range(len(result.text))]
        assert origins == sorted(origins)
        for character, start in zip(result.text, origins):
            assert is_origin(raw, start, character), (raw, result.text, start, character)


def test_map_leads_back_through_a_capped_run() -> None:
    raw = "\x00a" + "\r\n" * (LONGEST_RUN + 5) + "exam\ufffeple"
    result = normalize(raw)
    assert result.offsets.origin(result.text.index("e")) == raw.index("e")
    assert result.offsets.origin(result.text.index("ple")) == raw.index("ple")


def test_nothing_forbidden_leaves() -> None:
    for _ in range(2000):
        text = normalize("".join(random.choices(HOSTILE, k=50))).text
        text.encode("utf-8")
        assert not [c for c in text if unicodedata.category(c) == "Cc" and c not in "\t\n"]
        assert "\u00ad" not in text and "\ufffe" not in text


def test_map_of_clean_text_is_one_run() -> None:
    assert len(normalize("A clean line.\n" * 10_000).offsets) == 1


def test_time_grows_in_proportion() -> None:
    import time

    def seconds(size: int) -> float:
        raw = ("exam-\r\nple \ufb01 " + "word " * 20 + " " * 9000) * size
        start = time.process_time()
        normalize(raw)
        return time.process_time() - start

    seconds(10)
    assert seconds(200) < 12 * max(seconds(40), 0.01)
