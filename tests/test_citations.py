"""Citations: the right page, a passage that stands there word for word, and silence when nothing does."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from hipcli.citations import cite
from hipcli.document import Document, Page, Source
from hipcli.extraction import page_mark
from hipcli.readers import read_document

PAGES = [
    "The library was founded in 1911 by Maria Lindqvist, a printer. She gave it 4,000 books.\nIt stands by the river.",
    "Opening hours are nine to five. The library closes on Sundays. On 3 May the tower is\nopen until ten at night.",
    "The fee for a lost card is 12 crowns. Cards are renewed each year at the front desk of the library.",
    "",
    "第一章 开始。图书馆于一九一一年由林女士创立。她捐了书。",
]


def document(*texts: str, labels=None, sources=("book.pdf",), source_of=lambda index: 0) -> Document:
    made = tuple(Source(name, "pdf", 1, "0" * 64) for name in sources)
    pages = tuple(Page(n + 1, text, labels[n] if labels else None, source_of(n)) for n, text in enumerate(texts))
    return Document(made, pages)


BOOK = document(*PAGES, labels=["i", "ii", "1", "2", "5"])


@pytest.mark.parametrize(
    ("question", "answer", "page", "passage"),
    [
        ("Who founded the library?", "The library was founded by Maria Lindqvist.", 1, "founded in 1911 by Maria Lindqvist"),
        ("When was it founded?", "1911", 1, "in 1911 by"),
        ("How late?", "It is open until ten at night.", 2, "open until ten at night"),
        ("What does a lost card cost?", "12 crowns", 3, "The fee for a lost card is 12 crowns."),
        ("谁创立了图书馆？", "图书馆由林女士创立", 5, "由林女士创立"),
        ("Who?", "LINDQVIST, MARIA", 1, "Maria Lindqvist"),
    ],
)
def test_the_page_that_holds_the_answer_comes_first(question, answer, page, passage):
    first = cite(answer, question, BOOK)[0]
    assert first.page == page
    assert passage in first.quote


@pytest.mark.parametrize("answer", ["", "?!", "I do not know.", "Nobody can say that.", "Robert Zimmerman", "of the and a"])
def test_no_page_is_named_without_its_words(answer):
    assert cite(answer, "Who founded the library?", BOOK) == []


def test_quotes_are_verbatim_and_short():
    long = document("No sentence ends here " * 400 + "until Maria Lindqvist came along " + "and then it went on " * 400, *PAGES)
    for book in (BOOK, long):
        for citation in cite("Maria Lindqvist came in 1911 and the tower is open until ten at night for 12 crowns", "When?", book):
            text = book.pages[citation.page - 1].text
            assert citation.quote == " ".join(text[citation.start : citation.end].split())
            assert 0 < len(citation.quote) <= 260


def test_at_most_three_pages_and_only_good_ones():
    repeated = document(*["The tower opens at noon on Fridays."] * 9, "Nothing here but the tower.")
    pages = [citation.page for citation in cite("The tower opens at noon on Fridays.", "When?", repeated)]
    assert pages == [1, 2, 3]
    # a page that shares a lone common word with the answer is not evidence
    assert [c.page for c in cite("The fee for a lost card is 12 crowns.", "What is the fee?", BOOK)] == [3]


def test_both_page_numbers_are_shown_where_they_differ():
    founded, card, same = (cite(answer, "", BOOK)[0] for answer in ("Maria Lindqvist", "12 crowns for a lost card", "由林女士创立"))
    assert founded.place == 'p. 1 (printed "i")'
    assert card.place == 'p. 3 (printed "1")'
    assert same.place == "p. 5"


def test_the_source_is_named():
    two = document("Alpha says nothing.", "The beacon was lit by Torvald Reksten.", sources=("a.pdf", "b.pdf"), source_of=lambda n: n)
    assert cite("Torvald Reksten lit it", "Who?", two)[0].source == "b.pdf"


def test_the_first_sentence_of_the_answer_leads():
    answer = "A lost card is 12 crowns.\nThe tower is open until ten at night on 3 May. It stands by the river. She gave it 4,000 books."
    first = cite(answer, "What is the fee?", BOOK)[0]
    assert first.page == 3
    # a run of words does not go on into the answer's next sentence
    assert first.quote == "The fee for a lost card is 12 crowns."


def test_the_question_breaks_a_tie():
    book = document("In spring 40 boats arrive.", "In autumn the museum counts 40 visitors.", "Nothing else is known about anything.")
    assert cite("40", "How many visitors does the museum count?", book)[0].page == 2


def test_time_grows_with_the_document_only():
    def seconds(copies: int) -> float:
        book = document(*PAGES * copies)
        began = time.perf_counter()
        cite("the library of the library is the tower of the front desk at night " * 8, "the library?", book)
        return time.perf_counter() - began

    seconds(20)
    small, large = min(seconds(100) for _ in range(3)), min(seconds(400) for _ in range(3))
    assert large < 12 * small + 0.05


@pytest.mark.parametrize("name", ["lighthouse", "handbook"])
def test_the_samples_facts_are_cited(name):
    folder = Path(__file__).parent.parent / "samples"
    book = read_document([str(folder / f"{name}.pdf")])
    facts = [json.loads(line) for line in (folder / f"{name}.questions.jsonl").read_text("utf-8").splitlines()]
    found = [fact["page"] in {citation.page for citation in cite(fact["answer"], fact["question"], book)} for fact in facts]
    assert sum(found) >= 0.95 * len(facts) >= 15


def test_sections_and_times_are_named():
    words = "The harbour was frozen in February 1902."
    for page, place in [
        (Page(3, words, title="The Lamp"), "p. 3, The Lamp"),
        (Page(3, words, "iv", title="The Lamp"), 'p. 3 (printed "iv"), The Lamp'),
        (Page(3, words, "0:12:31"), "p. 3, at 0:12:31"),
        (Page(3, words, "3"), "p. 3"),
    ]:
        named = Document((Source("a", "text", 1, "0"),), (page,))
        (citation,) = cite("It was frozen in February 1902.", "When was the harbour frozen?", named)
        assert citation.place == place and citation.title == page.title
        assert page_mark(page, named) == f"--- a, page {place.removeprefix('p. ')} ---"
