"""Pages by words and by where a question looked, silence when neither points anywhere, and the map of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from hipcli.citing import CiteOptions, evidence_record
from hipcli.console import Terminal
from hipcli.document import Document, Page, Source
from hipcli.errors import DiskError, UsageError
from hipcli.evidence import gather
from hipcli.gaze import Gaze
from hipcli.gaze_map import draw, map_lines, show_map, write_map

HIP = Path(sys.executable).with_name("hip")
PAGES = [
    "The library was founded in 1911 by Maria Lindqvist, a printer. She gave it 4,000 books.\nIt stands by the river.",
    "Opening hours are nine to five. The library closes on Sundays. On 3 May the tower is\nopen until ten at night.",
    "",
    "The fee for a lost card is 12 crowns. Cards are renewed each year at the front desk of the library.",
    "A poem about nothing in particular. It goes on. And on.",
]
LABELS = ["i", "ii", "iii", "1", "2"]
BOOK = Document((Source("book.pdf", "pdf", 1, "0" * 64),), tuple(Page(n + 1, text, LABELS[n]) for n, text in enumerate(PAGES)))
# tokens of each page, the empty third among them, behind a prompt of five tokens; blocks of four
STARTS, FIRST, TOKENS, BLOCK = np.array([0, 40, 80, 80, 120]), 5, 160, 4


def gaze_at(*places: int, weight: float = 0.3) -> Gaze:
    """Two layers of two heads that weigh all tokens alike, but for the blocks of some document tokens when asked."""
    blocks = -(-(FIRST + TOKENS) // BLOCK)
    idle = np.full((2, 2, blocks), 1 / blocks, dtype=np.float32)
    asked = idle.copy()
    for place in places:
        asked[:, :, (FIRST + place) // BLOCK] += weight
    return Gaze.of(asked / asked.sum(-1, keepdims=True), idle, STARTS, FIRST, TOKENS, BLOCK)


def test_what_is_drawn_lies_on_the_page_that_was_looked_at():
    for place, page in ((2, 0), (38, 0), (41, 1), (81, 3), (118, 3), (159, 4)):
        gaze = gaze_at(place)
        assert gaze.shares().argmax() == page and gaze.shares()[page] > 0.99
        start, stop = gaze.peak(page)
        assert start <= place < stop
    assert gaze_at(2).shares()[2] == 0 and gaze_at(2).peak(2) is None
    assert gaze_at(10, 90).shares()[[0, 3]] == pytest.approx([0.5, 0.5])


def test_what_every_question_draws_counts_for_nothing():
    blocks = -(-(FIRST + TOKENS) // BLOCK)
    same = np.random.default_rng(0).random((2, 2, blocks))
    gaze = Gaze.of(same, same, STARTS, FIRST, TOKENS, BLOCK)
    assert gaze.total == 0 and not gaze.shares().any() and not gaze.columns(9).any()
    # nor does what is drawn from the prompt before the document
    prompt = same.copy()
    prompt[:, :, 0] += 50
    assert Gaze.of(prompt, same, STARTS, FIRST, TOKENS, BLOCK).total == 0


def test_columns_keep_the_order_and_the_whole():
    columns = gaze_at(2, 158).columns(16)
    assert columns.sum() == pytest.approx(1) and columns[0] == pytest.approx(0.5, abs=0.01) == columns[-1]
    assert len(gaze_at(2).columns(500)) == 500


@pytest.mark.parametrize("gaze", [None, gaze_at(85)])
def test_a_wrong_answer_does_not_hide_the_page(gaze):
    evidence = gather("It costs a great deal.", "What is the fee for a lost card?", BOOK, gaze, lambda page, start, stop: (0, 10))
    assert evidence.cited[0] == 3 and evidence.is_supported
    assert evidence.citations[0].quote == "The fee for a lost card is 12 crowns."
    assert evidence.citations[0].place == 'p. 4 (printed "1")'


def test_where_the_question_looked_counts_beside_words():
    """No word of question or answer stands on the last page; the model looked there alone."""
    without = gather("Verses.", "Which verses?", BOOK)
    assert 4 not in without.cited
    evidence = gather("Verses.", "Which verses?", BOOK, gaze_at(125), lambda page, start, stop: (0, 12))
    assert evidence.cited[0] == 4 and evidence.citations[0].quote == "A poem about nothing in particular."


def test_quotes_stand_on_their_page():
    questions = ["Who founded the library?", "When is the tower open?", "What is a card?", "Which poem?"]
    for question in questions:
        for place in (3, 50, 90, 130):
            evidence = gather(
                "Maria, 12 crowns at night", question, BOOK, gaze_at(place), lambda page, start, stop: (start % 30, start % 30 + 9)
            )
            assert 1 <= len(evidence.citations) <= 3 and len(evidence.citations) == len(evidence.cited)
            for index, citation in zip(evidence.cited, evidence.citations):
                page = BOOK.pages[index]
                assert (citation.page, citation.label) == (page.number, page.label)
                assert citation.quote and citation.quote == " ".join(page.text[citation.start : citation.end].split())


@pytest.mark.parametrize("question", ["Which dragon guards the treasure of Zanzibar?", "Who painted the helicopter green?"])
def test_what_the_document_does_not_say_is_told(question, capsys):
    from hipcli.citing import show_sources

    evidence = gather("The dragon guards Zanzibar.", question, BOOK)
    assert not evidence.is_supported
    show_sources(evidence, BOOK, Terminal())
    assert "does not seem to say this" in capsys.readouterr().err
    record = evidence_record(evidence, CiteOptions())
    assert record["supported"] is False and 0 <= record["support"] < 1
    supported = gather("Maria Lindqvist", "Who founded the library in 1911?", BOOK)
    show_sources(supported, BOOK, Terminal())
    assert capsys.readouterr().err.startswith('Sources\n  p. 1 (printed "i"): “The library was founded')


def test_the_bar_marks_the_pages_cited(capsys):
    evidence = gather("12 crowns", "What is the fee?", BOOK, gaze_at(85), lambda page, start, stop: (0, 10))
    bar, marks, most = map_lines(evidence, BOOK, width=40)
    assert len(bar) == len("  ||") + 40 and bar.count("█") >= 1
    # 85 of 160 tokens
    assert bar.index("█") - 3 == pytest.approx(21, abs=2)
    assert marks.strip()[0] == "1" and 20 <= marks.index("1") - 3 <= 30
    assert most.startswith('  most: p. 4 (printed "1")')
    bar.encode("utf-8"), map_lines(evidence, BOOK, " .:-=+*#@")[0].encode("ascii")
    show_map(gather("?", "?", BOOK), BOOK, Terminal())
    assert "drew nothing" in capsys.readouterr().err


def test_drawings_are_well_formed_whatever_they_show(tmp_path):
    hostile = 'Who <script>alert("1")</script> & \x1b[31m\ufffe\ud800 "?"'
    evidence = gather("12 crowns", "What is the fee?", BOOK, gaze_at(85), lambda page, start, stop: (0, 10))
    for name in ("map.svg", "map.html"):
        write_map(str(tmp_path / name), evidence, BOOK, hostile)
    svg, page = ((tmp_path / name).read_text("utf-8") for name in ("map.svg", "map.html"))
    tree = ElementTree.fromstring(svg)
    bars = [node for node in tree.iter() if node.get("fill") == "#2b6cb0"]
    assert bars and max(float(bar.get("height")) for bar in bars) > 50
    assert "<script" not in svg + page and "\x1b" not in svg + page
    assert "12 crowns" in page and page.count("<tr>") == 1 + len(PAGES)
    assert ElementTree.fromstring(draw(evidence, BOOK, hostile.replace("\ud800", ""))) is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map.html", "map.svg"]


def test_a_map_that_cannot_be_written_is_refused_first(tmp_path):
    with pytest.raises(UsageError, match="must end in .svg or .html"):
        CiteOptions(map_file=str(tmp_path / "map.png"))
    with pytest.raises(DiskError, match="no folder"):
        CiteOptions(map_file=str(tmp_path / "none" / "map.svg"))
    (tmp_path / "dir.svg").mkdir()
    with pytest.raises(DiskError, match="it is a folder"):
        CiteOptions(map_file=str(tmp_path / "dir.svg"))
    with pytest.raises(UsageError, match="--cite off"):
        CiteOptions("off", map=True)


@pytest.fixture
def ask(tmp_path, tiny_model):
    """`hip ask` on a book of two form-feed pages with the tiny model."""
    (tmp_path / "book.txt").write_text("The library was founded in 1911 by Maria Lindqvist.\f" + "A page of a book. " * 30)
    env = {"HIP_DATA_DIR": str(tmp_path / "data"), "HIP_OFFLINE": "1", "HIP_MODEL": str(tiny_model), "PATH": "", "OMP_NUM_THREADS": "1"}

    def run(*more: str) -> subprocess.CompletedProcess:
        command = [HIP, "ask", "book.txt", *more, "--max-tokens", "4", "--device", "cpu"]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)

    return run


def test_the_options_of_the_command(ask, tmp_path):
    plain = ask("Who founded the library?", "--map", "--map-file", "map.svg")
    assert plain.returncode == 0, plain.stderr
    assert "Sources\n  p. 1: “The library was founded in 1911 by Maria Lindqvist.”" in plain.stderr and "Map of 2 pages" in plain.stderr
    assert ElementTree.parse(tmp_path / "map.svg")
    as_line = ask("Who founded the library?", "--cite", "json", "--quiet")
    line = json.loads(as_line.stderr)
    assert as_line.stdout == plain.stdout and line["citations"][0]["page"] == 1 and line["supported"] is True and "map" not in line
    off = ask("Who founded the library?", "--cite", "off")
    assert off.stdout == plain.stdout and "Sources" not in off.stderr
    record = json.loads(ask("Who founded the library?", "--json", "--map").stdout)
    assert record["citations"][0]["quote"].startswith("The library was founded") and record["supported"] is True
    assert len(record["map"]) == 2 and sum(record["map"]) == pytest.approx(1, abs=0.01)
    (tmp_path / "q.txt").write_text("Who founded the library?\nWhich dragon?\n")
    many = [json.loads(row) for row in ask("--questions", "q.txt", "--json").stdout.splitlines()]
    assert [row["supported"] for row in many] == [True, False]
    refused = ask("--questions", "q.txt", "--map-file", "map.svg")
    assert refused.returncode == 2 and "--map-file draws one question" in refused.stderr


def test_every_process_finds_the_same():
    """Words of a set come in another order in every process; no sum over them may depend on it."""
    sample = Path(__file__).resolve().parent.parent / "samples/lighthouse.pdf"
    lines = ["from hipcli.evidence import gather", "from hipcli.readers import read_document"]
    lines.append("print(gather('The lamp was first lit on 3 March 1874.', 'When was the lamp first lit?', read_document([sys.argv[1]])))")
    command = [sys.executable, "-c", "; ".join(["import sys", *lines]), str(sample)]
    runs = [
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, timeout=60) for seed in "0459"
    ]
    assert runs[0].stdout and len({run.stdout for run in runs}) == 1, runs[0].stderr
