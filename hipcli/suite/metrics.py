"""How a free answer is judged against a question, 0 to 1, as each benchmark publishes it. Knows texts only."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

from hipcli.suite.tasks import Question

_PUNCTUATION = str.maketrans(dict.fromkeys("\n:\"'.,?!{}", " "))


def recall(answer: str, question: Question) -> float:
    """RULER: the share of the parts that the answer holds, in whatever case."""
    lower = answer.lower()
    return sum(part.lower() in lower for part in question.parts) / len(question.parts)


def first_number(answer: str, question: Question) -> float:
    """InfiniteBench's passkey and number: the first run of digits is the part."""
    found = re.search(r"[0-9]+", answer)
    return float(found is not None and found[0] == question.parts[0])


def whole_word(answer: str, question: Question) -> float:
    """InfiniteBench's KV: the part is one of the answer's words."""
    return float(question.parts[0] in answer.translate(_PUNCTUATION).split())


def one_label(answer: str, question: Question) -> float:
    """BABILong: of the labels that the question does not name, the first sentence holds exactly the right one."""
    sentence = re.split(r"[.\n]", answer.strip().lower(), maxsplit=1)[0]
    asked = question.text.lower()
    found = {label for label in question.labels if _holds(sentence, label) and not _holds(asked, label)}
    return float(found == set(question.parts))


def _holds(text: str, word: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", text) is not None


def same_writing(answer: str, question: Question) -> float:
    """MRCR: 0 without the mark it must begin with, else how alike the rest and the writing are (difflib's ratio)."""
    answer = answer.strip()
    if not answer.startswith(question.opening):
        return 0.0
    rest = answer[len(question.opening) :].strip()
    return SequenceMatcher(None, rest, question.parts[0], autojunk=False).ratio()
