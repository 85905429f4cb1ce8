"""The metrics of LongBench, InfiniteBench's other tasks and RULER's questions, as their authors publish them. Knows texts only.

A question's parts are its references, of which the best counts; labels are the classes or letters to choose from.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher

from hipcli.suite.tasks import Question

Metric = Callable[[str, Question], float]
_NOISE = str.maketrans(dict.fromkeys("\n\"'.,?!{}", " "))


def best(score: Callable[[str, str], float]) -> Metric:
    """The best score over all references."""
    return lambda answer, question: max((score(answer, reference) for reference in question.parts), default=0.0)


def first_line(metric: Metric) -> Metric:
    """The metric of the answer's first line, for tasks that show examples and whose answers run on into the next one."""
    return lambda answer, question: metric(answer.lstrip("\n").split("\n")[0], question)


def any_part(answer: str, question: Question) -> float:
    """RULER's question answering: one of the references is in the answer."""
    return float(any(part.lower() in answer.lower() for part in question.parts))


def plain_words(text: str) -> list[str]:
    """Words without case, punctuation and articles."""
    bare = "".join(sign for sign in text.lower() if sign not in string.punctuation)
    return [word for word in bare.split() if word not in ("a", "an", "the")]


def f1(answer: str, reference: str) -> float:
    """Harmonic mean of precision and recall of words."""
    given, wanted = plain_words(answer), plain_words(reference)
    return _harmonic(sum((Counter(given) & Counter(wanted)).values()), len(given), len(wanted))


def _harmonic(hits: int, given: int, wanted: int) -> float:
    return 2 * hits / (given + wanted) if hits else 0.0


def edit_similarity(answer: str, reference: str) -> float:
    """LongBench's code: likeness of the first line that is no comment, in whole per cents."""
    lines = answer.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    return round(100 * SequenceMatcher(None, line, reference).ratio()) / 100


def share_of_numbers(answer: str, reference: str) -> float:
    """LongBench's counts and paragraph numbers: the share of the answer's numbers that are the reference's first."""
    wanted, numbers = re.search(r"\d+", reference), re.findall(r"\d+", answer)
    return numbers.count(wanted[0]) / len(numbers) if wanted and numbers else 0.0


def one_class(answer: str, question: Question) -> float:
    """LongBench's classes: one over the number of classes in the answer where the right one is among them.

    A class whose name is part of the right one's does not count.
    """
    truth = question.parts[0]
    found = [name for name in question.labels if name in answer and (name == truth or name not in truth)]
    return 1 / len(found) if truth in found else 0.0


def common(reference: Sequence[str], given: Sequence[str]) -> list[int]:
    """Places in the reference of a longest common subsequence."""
    lengths = [[0] * (len(given) + 1) for _ in range(len(reference) + 1)]
    for i, left in enumerate(reference, 1):
        above, row = lengths[i - 1], lengths[i]
        for j, right in enumerate(given, 1):
            row[j] = above[j - 1] + 1 if left == right else max(above[j], row[j - 1])
    places, i, j = [], len(reference), len(given)
    while i and j:
        if reference[i - 1] == given[j - 1]:
            places.append(i - 1)
            i, j = i - 1, j - 1
        elif lengths[i][j - 1] > lengths[i - 1][j]:
            j -= 1
        else:
            i -= 1
    return places[::-1]


def rouge_l(answer: str, reference: str) -> float:
    """ROUGE-L as LongBench's package has it: different words in common subsequences of sentences, over different words of each."""
    given, wanted = ([part.split() for part in text.split(".") if part.strip()] for text in (answer, reference))
    hits = {sentence[place] for sentence in wanted for other in given for place in common(sentence, other)}
    return _harmonic(len(hits), len({word for part in given for word in part}), len({word for part in wanted for word in part}))


def rouge_lsum(answer: str, reference: str) -> float:
    """ROUGE-Lsum as InfiniteBench's package has it: lines as sentences, each word counted as often as both texts hold it."""
    given, wanted = (
        [words for line in text.split("\n") if (words := re.findall(r"[a-z0-9]+", line.lower()))] for text in (answer, reference)
    )
    left, right = (Counter(word for line in lines for word in line) for lines in (given, wanted))
    joined = Counter(line[place] for line in wanted for place in {place for other in given for place in common(line, other)})
    return _harmonic(sum((joined & left & right).values()), sum(left.values()), sum(right.values()))


def last_number(answer: str, question: Question) -> float:
    """InfiniteBench's Code.Run: the last word is the number."""
    words = re.sub(r"[\n.`'\":]", " ", answer).split()
    return float(bool(words) and re.fullmatch(r"[+-]?\d+", words[-1]) is not None and int(words[-1]) == int(question.parts[0]))


def first_value(answer: str, question: Question) -> float:
    """InfiniteBench's Math.Find: the first number is the value."""
    found = re.search(r"\d+\.\d+|\d+", answer)
    return float(found is not None and float(found[0]) == float(question.parts[0]))


def running_values(answer: str, question: Question) -> float:
    """InfiniteBench's Math.Calc: the share of the values that are right before the first wrong one."""
    right = 0
    for given, wanted in zip(re.findall(r"\d+", answer), question.parts):
        if int(given) != int(wanted):
            break
        right += 1
    return right / len(question.parts)


def speaker(answer: str, question: Question) -> float:
    """InfiniteBench's dialogues: the name is one of the answer's words in capitals."""
    return float(question.parts[0] in answer.translate(_NOISE).replace(":", " ").upper().split())


def letter(answer: str, question: Question) -> float:
    """InfiniteBench's choices: the first letter, else what follows "answer is" and the like, else the first word that is a letter.

    parts: the option's text and its letter.
    """
    if answer[:1] in question.labels:
        return float(answer[0] == question.parts[1])
    bare = " ".join(answer.translate(_NOISE).split())
    for lead in ("answer is:", "answer:", "answer is", "option is"):
        if lead in bare:
            return float(bare.split(lead, 1)[1][1:].startswith(question.parts))
    return float(next((word for word in bare.split() if word in question.labels), "") == question.parts[1])


def debugged(answer: str, question: Question) -> float:
    """InfiniteBench's Code.Debug: begins with the letter, or names letter or function after "answer is:" and the like."""
    if answer.startswith((f"{question.parts[1]}.", f"{question.parts[1]}:")):
        return 1.0
    bare = " ".join(re.sub(r"[\n`'\"*-]|[Oo]ption", " ", answer).split())
    for lead in ("answer is:", "is:", "answer:"):
        if lead in bare:
            return float(bare.split(lead, 1)[1][1:].startswith(question.parts))
    return 0.0


def chosen(answer: str, question: Question) -> float:
    """LongBench v2: the letter after "The correct answer is", in brackets or not."""
    bare = answer.replace("*", "")
    found = re.search(r"The correct answer is \(([A-D])\)", bare) or re.search(r"The correct answer is ([A-D])", bare)
    return float(found is not None and found[1] == question.parts[0])
