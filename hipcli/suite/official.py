"""Data files of LongBench (v1 and v2), InfiniteBench and RULER, recognised by their fields, as tasks with their published metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from hipcli.errors import InputError
from hipcli.suite import metrics, published
from hipcli.suite.published import best, first_line
from hipcli.suite.tasks import Example, Question, Task, no_draft

Record = dict[str, Any]
_SHORT = "Answer the question from the text above in a few words and write nothing else. "
_F1, _ROUGE, _CODE = best(published.f1), best(published.rouge_l), best(published.edit_similarity)
_COUNT = best(published.share_of_numbers)
# dataset: metric, tokens of the answer, instruction before the input
LONGBENCH = {
    **{name: (_F1, 128, _SHORT) for name in ("narrativeqa", "qasper")},
    "multifieldqa_en": (_F1, 64, _SHORT),
    **{name: (_F1, 32, _SHORT) for name in ("hotpotqa", "2wikimqa", "musique")},
    "triviaqa": (first_line(_F1), 32, "Answer as in the examples above. "),
    "gov_report": (_ROUGE, 512, "Summarise the report above on one page. "),
    "qmsum": (_ROUGE, 512, "Answer the question about the meeting above in a few sentences. "),
    "multi_news": (_ROUGE, 512, "Summarise all the news above on one page. "),
    "samsum": (first_line(_ROUGE), 128, "Summarise the dialogue as in the examples above. "),
    "trec": (first_line(published.one_class), 64, "Name the type of the question as in the examples above. "),
    "passage_count": (_COUNT, 32, "How many different paragraphs are there above, repeated ones counted once? Give the number only. "),
    "passage_retrieval_en": (_COUNT, 32, 'Which paragraph above does this summary belong to? Answer such as "Paragraph 1". '),
    **{name: (_CODE, 64, "Write the next line of the code above. ") for name in ("lcc", "repobench-p")},
}
INFINITE = {
    "passkey": (metrics.first_number, 6, ""),
    "number_string": (metrics.first_number, 12, ""),
    "kv_retrieval": (metrics.whole_word, 50, ""),
    "longbook_qa_eng": (_F1, 40, _SHORT),
    "longbook_sum_eng": (best(published.rouge_lsum), 1200, "Summarise the book above. "),
    "longbook_choice_eng": (published.letter, 40, "Answer with the letter of the right option only. "),
    "longdialogue_qa_eng": (published.speaker, 40, "Which name does $$MASK$$ stand for in the dialogue above? Give the name only. "),
    "math_find": (published.first_value, 3, ""),
    "math_calc": (published.running_values, 30000, "Give the value after each step, separated by commas. "),
    "code_run": (published.last_number, 5, "Give the number that is returned only. "),
    "code_debug": (published.debugged, 5, "One function above has an error put in on purpose. Answer with the letter of its option only. "),
}
RULER_TOKENS = {"niah": 128, "vt": 30, "cwe": 120, "fwe": 50, "qa": 32}


def load_data(folder: Path) -> tuple[tuple[Task, ...], list[str]]:
    """Tasks of all data files in a folder and below it, and a sentence for each file that is left out. Raises InputError."""
    if not folder.is_dir():
        raise InputError(f"--data needs a folder with data files, and {str(folder)!r} is none")
    found: dict[tuple[str, str], list[Example]] = {}
    measured: dict[tuple[str, str], published.Metric] = {}
    left_out = []
    for path in sorted(path for kind in ("*.jsonl", "*.json") for path in folder.rglob(kind)):
        try:
            for suite, task, metric, example in _examples(path):
                found.setdefault((suite, task), []).append(example)
                measured[suite, task] = metric
        except (KeyError, IndexError, TypeError, ValueError, OSError) as fault:
            left_out.append(f"{path} is left out: {_reason(fault)}")
    tasks = tuple(Task(name, suite, no_draft, measured[suite, name], examples=tuple(rows)) for (suite, name), rows in found.items())
    return tasks, left_out


def _reason(fault: Exception) -> str:
    return f"a row lacks the field {fault}" if isinstance(fault, KeyError) else f"it is no data file of a benchmark known here ({fault})"


def _examples(path: Path) -> Iterator[tuple[str, str, published.Metric, Example]]:
    text = path.read_text(encoding="utf-8")
    rows = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines() if line.strip()]
    read = _reader(rows[0], path)
    # nothing of a file is taken before all of it could be read
    yield from [read(row) for row in rows]


def _reader(row: Record, path: Path) -> Callable[[Record], tuple[str, str, published.Metric, Example]]:
    """What reads the rows of a file, by the fields of its first. Raises ValueError for what no metric is known for."""
    if "choice_A" in row:
        return _longbench_v2
    if "answers" in row and "dataset" in row:
        return _longbench
    if "outputs" in row:
        return partial(_ruler, path.parent.name if path.stem in ("validation", "test") else path.stem)
    if "answer" in row and "context" in row:
        return partial(_infinite, path.stem)
    raise ValueError("its fields are those of none")


def _known(table: dict, name: str):
    if name not in table:
        raise ValueError(f"the task {name} is not supported")
    return table[name]


def _longbench(row: Record):
    name = row["dataset"].removesuffix("_e")
    metric, tokens, instruction = _known(LONGBENCH, name)
    question = Question(instruction + row["input"], tuple(row["answers"]), labels=tuple(row.get("all_classes") or ()))
    return "longbench", name, metric, Example(row["context"], question, tokens)


def _longbench_v2(row: Record):
    choices = "\n".join(f"({letter}) {row[f'choice_{letter}'].strip()}" for letter in "ABCD")
    form = 'Answer in this form: "The correct answer is (letter)".'
    question = Question(f"{row['question'].strip()}\n{choices}\n{form}", (row["answer"],), labels=tuple("ABCD"))
    return "longbench-v2", f"v2_{row['length']}", published.chosen, Example(row["context"], question, 128)


def _infinite(name: str, row: Record):
    metric, tokens, instruction = _known(INFINITE, name)
    answer, options = row["answer"], row.get("options") or []
    parts, text = tuple(str(part) for part in (answer if isinstance(answer, list) else [answer])), instruction + row["input"]
    letters = tuple("ABCDEFGHIJ"[: len(options)])
    if name in ("longbook_choice_eng", "code_debug"):
        parts = (parts[0], letters[options.index(parts[0])])
        text += "".join(f"\n{letter}. {option}" for letter, option in zip(letters, options))
    return "infinitebench", name, metric, Example(row["context"], Question(text, parts, labels=letters), tokens)


def _ruler(name: str, row: Record):
    tokens = _known(RULER_TOKENS, name.split("_")[0])
    # the question is the last paragraph of the one text there is
    text, _, asked = row["input"].strip().rpartition("\n")
    metric = published.any_part if name.startswith("qa") else metrics.recall
    question = Question(asked, tuple(str(part) for part in row["outputs"]), lead=row.get("answer_prefix", "").strip())
    return "ruler-data", name, metric, Example(text, question, tokens)
