"""How often the pages cited hold the fact: attention alone, words alone, joined; and answers that no page supports.

    python docs/results/citations.py run lighthouse handbook planted --out docs/results/citations.jsonl
    python docs/results/citations.py run planted --book BOOK.txt --tokens 8000 --dense-below 0 --out docs/results/citations.jsonl
    python docs/results/citations.py report docs/results/citations.jsonl

`run` asks every question of a document on one prefill and writes one JSON line a question: the answer, the pages that are
right, and what each witness gives every page. `planted` puts 24 sentences of citations-facts.jsonl at even distances into the
samples' prose (--book: into that text); the other 24 questions have no answer there, and neither have those of
citations-absent.jsonl in the samples. `report` makes the tables from the lines alone.
"""

import argparse
import json
import random
import re
import time
from pathlib import Path

import numpy as np

from hipcli.citations import match_pages
from hipcli.citing import Citer, CiteOptions
from hipcli.console import Terminal
from hipcli.document import Document, Source
from hipcli.evidence import LEAST_SHARE, TRUSTED_SUPPORT, QuestionWords, combine, gather
from hipcli.options import RunOptions
from hipcli.pipeline import open_reading, room_for
from hipcli.questions import Question
from hipcli.readers import read_document
from hipcli.readers.cutting import number_pages
from hipcli.readers.text import text_pages
from hipcli.suite.prose import load_prose
from hipcli.words import words_of

HERE = Path(__file__).resolve().parent
SAMPLES = HERE.parents[1] / "samples"
CHARS_PER_TOKEN = 4.4
DIGITS = 5


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def folded(text: str) -> str:
    return " ".join(text.split())


def sample(name: str, most: int) -> tuple[Document, list[dict]]:
    """A sample and its questions, `most` of them evenly; right pages hold the fact's sentence, or are the one named."""
    document = read_document([str(SAMPLES / f"{name}.pdf")])
    asked = lines_of(SAMPLES / f"{name}.questions.jsonl")
    asked = [asked[at * len(asked) // min(most, len(asked))] for at in range(min(most, len(asked)))]
    for row in asked:
        quote = folded(row["quote"])
        row["right"] = [i for i, page in enumerate(document.pages) if page.number == row["page"] or quote in folded(page.text)]
    absent = [{**row, "right": []} for row in lines_of(HERE / "citations-absent.jsonl") if row["document"] == name]
    return document, asked + absent


def paraphrased(facts: list[dict]) -> list[dict]:
    """The questions that ask in other words, which the fact's sentence has next to none of."""
    return [{**fact, "question": fact["paraphrase"]} for fact in facts if "paraphrase" in fact]


def planted(book: str | None, tokens: int, seed: int) -> tuple[Document, list[dict]]:
    """A stretch of real text with 24 facts in it, and all 48 questions."""
    text, half = (Path(book).read_text("utf-8", "replace"), 1) if book else (load_prose([]).text, 0)
    draw, facts = random.Random(seed), lines_of(HERE / "citations-facts.jsonl")
    paragraphs = [folded(part) for part in re.split(r"\n\s*\n", text) if part.strip()]
    begin, size, kept = draw.randrange(len(paragraphs) // 2), 0, []
    for paragraph in paragraphs[begin:]:
        kept.append(paragraph)
        size += len(paragraph)
        if size > tokens * CHARS_PER_TOKEN:
            break
    mine = draw.sample([fact["fact"] for fact in facts if fact["text"] == half], 24)
    for number, fact in enumerate(mine):
        at = round((number + 0.5) / len(mine) * (len(kept) - 1))
        kept[at] = f"{kept[at]} {fact}"
    pages = number_pages(text_pages("\n\n".join(kept)), 0)[0]
    for fact in facts:
        fact["right"] = [i for i, page in enumerate(pages) if fact["fact"] in folded(page.text)]
        # the half that was planted has its page, the other half none
        assert bool(fact["right"]) == (fact["text"] == half), fact
    return Document((Source("planted.txt", "text", size, "0" * 64),), tuple(pages)), facts


def run(given: argparse.Namespace) -> None:
    for name in given.documents:
        document, asked = planted(given.book, given.tokens, given.seed) if name == "planted" else sample(name, given.questions)
        if given.paraphrased:
            asked = paraphrased(asked)
        title = f"planted in {Path(given.book).name if given.book else 'the samples'}" if name == "planted" else name
        title += ", in other words" if given.paraphrased else ""
        options = RunOptions(("-",), model=given.model, max_tokens=given.max_tokens, dense_below=given.dense_below)
        terminal = Terminal()
        with open_reading(document, options, terminal, room_for([row["question"] for row in asked])) as reading:
            citer = Citer(reading, CiteOptions())
            for row in asked:
                began = time.monotonic()
                answer, evidence = citer.cited(row["question"], reading.ask)
                said = np.zeros(len(document.pages))
                for match in match_pages(answer.text, row["question"], document):
                    said[match.index] = match.score
                words = QuestionWords(row["question"], document)
                known = {
                    "document": title,
                    "tokens": reading.engine.cached_len,
                    "question": row["question"],
                    "answer": answer.text,
                    "answer_right": Question("", tuple(row.get("accept", ()))).mark(answer.text) if row["right"] else None,
                    "right": row["right"],
                    "said": rounded(said),
                    "counted": plain_counts(row["question"], document),
                    "asked": rounded(words.by_page),
                    "passage": round(words.passage, DIGITS),
                    "drawn": rounded(evidence.gaze.by_page),
                    "cited": list(evidence.cited),
                    "cited_by_words": list(gather(answer.text, row["question"], document).cited),
                    "quotes_hold": quotes_hold(evidence, row),
                    "verbatim": all(is_verbatim(citation, document) for citation in evidence.citations),
                    "answer_seconds": round(answer.seconds, 2),
                    "trace_seconds": round(citer.seconds, 3),
                    "seconds": round(time.monotonic() - began, 2),
                }
                with open(given.out, "a", encoding="utf-8") as out:
                    out.write(json.dumps(known, ensure_ascii=False) + "\n")


def rounded(scores) -> list[float]:
    return [round(float(score), DIGITS) for score in scores]


def plain_counts(question: str, document: Document) -> list[int]:
    """The plain baseline: how many of the question's different words stand on each page."""
    words = set(words_of(question))
    return [len(words.intersection(words_of(page.text))) for page in document.pages]


def quotes_hold(evidence, row: dict) -> bool | None:
    """Whether a quote from a right page holds an accepted answer, None where the question has none."""
    if not row["right"]:
        return None
    quotes = [citation.quote for citation, index in zip(evidence.citations, evidence.cited) if index in row["right"]]
    return any(Question("", tuple(row["accept"])).mark(quote) for quote in quotes)


def is_verbatim(citation, document: Document) -> bool:
    """Whether a quote stands, white space aside, on the page that the citation names by both its numbers."""
    pages = [page for page in document.pages if page.number == citation.page and page.label == citation.label]
    return any(citation.quote and citation.quote in folded(page.text) for page in pages)


def ways(row: dict) -> dict[str, np.ndarray]:
    """[pages] scores of a question by each way to rank pages."""
    said, asked, drawn = (np.array(row[name], dtype=float) for name in ("said", "asked", "drawn"))
    return {
        "pages with most question words": np.array(row["counted"], dtype=float),
        "question words by rarity": asked,
        "answer's words (as before)": said,
        "words of both": combine(asked, said),
        "attention alone": drawn,
        "attention and question words": combine(asked, 0 * said, drawn),
        "all joined (shipped)": combine(asked, said, drawn),
    }


def best_of(scores: np.ndarray, least: float) -> list[int]:
    order = np.argsort(-scores, kind="stable")[:3]
    return [int(index) for index in order if scores[index] > 0 and scores[index] >= least * scores[order[0]]]


def tally(rows: list[dict], way: str) -> tuple[float, float, float, float]:
    """Of answerable questions: a right page first, a right page among three; of pages cited: right; pages cited a question."""
    first = third = hits = cited = 0
    for row in rows:
        scores, right = ways(row)[way], set(row["right"])
        three, named = best_of(scores, 0.0), best_of(scores, LEAST_SHARE)
        first += bool(right.intersection(three[:1]))
        third += bool(right.intersection(three))
        hits, cited = hits + len(right.intersection(named)), cited + len(named)
    return first / len(rows), third / len(rows), hits / max(1, cited), cited / len(rows)


def report(given: argparse.Namespace) -> None:
    rows = lines_of(Path(given.file))
    titles = list(dict.fromkeys(row["document"] for row in rows))
    groups = [(title, [row for row in rows if row["document"] == title]) for title in titles]
    groups.append(("all but those in other words", [row for row in rows if "in other words" not in row["document"]]))
    for title, group in groups:
        known, absent = [row for row in group if row["right"]], [row for row in group if not row["right"]]
        right = sum(bool(row["answer_right"]) for row in known)
        print(f"\n{title}: {len(group[0]['drawn'])} pages, {group[0]['tokens']} tokens, {right} of {len(known)} answers right")
        print("| way | recall@1 | recall@3 | precision | pages cited |\n| --- | --- | --- | --- | --- |")
        for way in ways(group[0]):
            print(f"| {way} | " + " | ".join(f"{value:.2f}" for value in tally(known, way)) + " |")
        held = sum(bool(row["quotes_hold"]) for row in known)
        spent = sum(row["trace_seconds"] for row in group) / sum(row["answer_seconds"] for row in group)
        print(f"quotes that hold the fact: {held} of {len(known)}; verbatim: {all(row['verbatim'] for row in group)}; tracing {spent:.1%}")
        verdicts(known, absent)


def verdicts(known: list[dict], absent: list[dict]) -> None:
    """False alarms both ways, at several thresholds; beside the verdict shipped, one to which attention adds its best page's share."""
    kinds = {"words (shipped)": lambda row: row["passage"], "words and attention": with_attention}
    for name, value in kinds.items():
        parts = []
        for limit in sorted({0.3, 0.4, 0.5, 0.6, 0.7, TRUSTED_SUPPORT}):
            missed, believed = sum(value(row) < limit for row in known), sum(value(row) >= limit for row in absent)
            parts.append(f"{limit}: {missed}/{len(known)}, {believed}/{len(absent)}")
        print(f"support by {name}, threshold: there but held to be missing, missing but held to be there: " + "; ".join(parts))


def with_attention(row: dict) -> float:
    drawn = np.array(row["drawn"])
    return (2 * row["passage"] + float(drawn.max() / max(drawn.sum(), 1e-12))) / 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    made = commands.add_parser("run")
    made.add_argument("documents", nargs="+", choices=("lighthouse", "handbook", "planted"))
    made.add_argument("--book", help="text to plant in, in place of the samples' prose")
    made.add_argument("--tokens", type=int, default=6000, help="length of that text, about")
    made.add_argument("--paraphrased", action="store_true", help="ask of the planted facts in other words")
    made.add_argument("--questions", type=int, default=24, help="of a sample's questions, at most")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--max-tokens", type=int, default=24)
    made.add_argument("--dense-below", type=int)
    made.add_argument("--model")
    made.add_argument("--out", required=True)
    made.set_defaults(work=run)
    told = commands.add_parser("report")
    told.add_argument("file")
    told.set_defaults(work=report)
    given = parser.parse_args()
    given.work(given)


main()
