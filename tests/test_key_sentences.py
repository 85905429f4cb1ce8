"""Key sentences stand word for word on their page, cover the samples' facts, and are the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hipcli.console import Terminal
from hipcli.document import Document, Page, Source
from hipcli.input import read
from hipcli.key_sentences import key_sentences
from hipcli.options import RunOptions
from hipcli.outline import make_parts, part_count, settle_division
from hipcli.questions import load_questions
from hipcli.summarize import LENGTHS

SAMPLES = Path(__file__).parent.parent / "samples"
HIP = Path(sys.executable).with_name("hip")
FACTS_WANTED = 12


def book(*texts: str) -> Document:
    pages = tuple(Page(number, text) for number, text in enumerate(texts, 1))
    return Document((Source("book.txt", "text", 1, "0" * 64),), pages)


def pick(document: Document, most: int = 99, words: int = 5, focus: str | None = None) -> list[list]:
    tokens = [len(page.text) // 4 for page in document.pages]
    parts = make_parts(document, tokens, "pages", len(document.pages))
    return key_sentences(document, parts, words, most, focus)


def quotes(document: Document, **more) -> list[str]:
    return [found.quote for keys in pick(document, **more) for found in keys]


@pytest.mark.parametrize("name", ["lighthouse.pdf", "handbook.pdf", "lighthouse.md"])
@pytest.mark.parametrize("division", ["auto", "pages"])
def test_the_samples_facts_are_there(name, division):
    """At least 12 of the facts fixed in the questions file, in under a third of the text, in the default length."""
    document = read(RunOptions((str(SAMPLES / name),)), Terminal(quiet=True))
    tokens = [len(page.text) // 4 for page in document.pages]
    parts = make_parts(document, tokens, settle_division(document, division), part_count(sum(tokens)))
    length = LENGTHS["medium"]
    keys = [found for keys in key_sentences(document, parts, length.words_per_sentence, length.most_sentences) for found in keys]
    text = "\n".join(found.quote for found in keys)
    questions = load_questions(str(SAMPLES / f"{name.split('.')[0]}.questions.jsonl"))
    assert len(questions) >= 15 and sum(bool(question.mark(text)) for question in questions) >= FACTS_WANTED
    assert len(text) < document.chars / 3
    for found in keys:
        assert " ".join(document.pages[found.page].text[found.start : found.end].split()) == found.quote


def test_a_whole_run_holds_the_facts_of_the_sample(tiny_model, tmp_path):
    """A model that says nothing of use, so that what is found is what the key sentences hold; twice, the same."""
    env = os.environ | {"HIP_MODEL": str(tiny_model), "HIP_OFFLINE": "1", "HIP_DATA_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    outs = []
    for seed in ("1", "2"):
        command = [HIP, "summarize", SAMPLES / "lighthouse.pdf", "--quiet", "--max-tokens", "4"]
        run = subprocess.run(command, env=env | {"PYTHONHASHSEED": seed}, capture_output=True, timeout=200)
        assert (run.returncode, run.stderr) == (0, b"")
        outs.append(run.stdout.decode())
    assert outs[0] == outs[1] and "Coverage: 15 of 15 pages" in outs[0]
    questions = load_questions(str(SAMPLES / "lighthouse.questions.jsonl"))
    assert sum(bool(question.mark(outs[0])) for question in questions) >= FACTS_WANTED


def test_a_sentence_with_facts_comes_before_one_without():
    plain = "It was as it had always been and nobody thought that it would be otherwise."
    fact = "The bridge at Dunmere was opened by Ada Stone on 4 May 1931."
    assert quotes(book(f"{plain} {fact} {plain}"), most=1) == [fact]


def test_the_focus_moves_the_choice():
    money = "The bridge cost 4,000 crowns in all, and the council paid."
    birds = "The gannets nest below the arches from April to September."
    assert {tuple(quotes(book(f"{money} {birds}"), most=1, focus=focus)) for focus in ("gannets nest", "council paid")} == {
        (birds,),
        (money,),
    }


def test_what_was_said_is_not_said_again_and_every_page_has_its_turn():
    fact = "The bridge at Dunmere was opened by Ada Stone on 4 May 1931."
    assert quotes(book(f"{fact} {fact} {fact}")) == [fact]
    many = " ".join(f"Keeper {name} came in {1900 + at} from {name}holm." for at, name in enumerate(("Ada", "Bo", "Cy", "Di", "Ed", "Flo")))
    document = book(many, "Nothing was heard of them for a while, and the light went out.")
    parts = make_parts(document, [100, 20], "pages", 1)
    assert {found.page for found in key_sentences(document, parts, 10, 5)[0]} == {0, 1}


def test_sentences_end_where_readers_would_say():
    text = "A heading\nDr. Stone, who\nlived in St. Ives (see e.g. his letters), paid £2.50. “Why?” she asked.\nBicycle 1.50\nCar 19.00\n- an item"
    want = {"A heading", "Dr. Stone, who lived in St. Ives (see e.g. his letters), paid £2.50.", "Bicycle 1.50", "Car 19.00", "- an item"}
    assert want <= set(quotes(book(text), words=1))


@pytest.mark.parametrize("text", ["x" * 5000, "word " * 3000, "灯台は一九一一年に建てられた。" * 3, "\n \n", "?!", "1\n" * 500, "a\n\n\nb"])
def test_odd_texts_lose_nothing_and_end(text):
    document = book(text, "The bridge at Dunmere was opened by Ada Stone on 4 May 1931.")
    for found in (found for keys in pick(document) for found in keys):
        assert 0 < len(found.quote) <= 400
        assert " ".join(document.pages[found.page].text[found.start : found.end].split()) == found.quote
