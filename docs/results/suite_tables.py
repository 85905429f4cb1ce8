"""Tables over rows of `hip bench --suite`: within the trained window, against context, passkeys one at a time, one pass beside decoding.

    cd docs/results; python suite_tables.py suite-h200-qwen2.5-coder-0.5b.jsonl suite-h200-all-tasks.jsonl --window 32K

An answer counts as right when every one of its tokens is the likeliest, given the tokens before it; credit counts parts of
answers. Intervals are Wilson's at 95 %; p is McNemar's exact test over the questions that both ways of attending were asked.
"""

import argparse
import json
from collections import Counter, defaultdict

from hipcli.bench import parse_context
from hipcli.suite.stats import Paired, paired, wilson

WAYS = ("default", "dense", "paper-3k")
PACK = 50  # of the tables that put many questions to a text
Cells = dict[tuple, dict[tuple, tuple[bool, float]]]


def load(rows: list[dict]) -> Cells:
    """(task, context, pack, way) → question → whether it is right, and its credit. A later row replaces an earlier one."""
    found: Cells = defaultdict(dict)
    for row in rows:
        scoring = "pass" if row.get("pass_right") is not None else "greedy"
        if row["row"] == "answer" and row.get(f"{scoring}_right") is not None:
            verdict = bool(row[f"{scoring}_right"]), float(row[f"{scoring}_score"])
            found[row["task"], row["context"], row["pack"], row["attention"]][row["seed"], row["sample"], row["question"]] = verdict
    return found


def against(mine: dict, theirs: dict) -> Paired:
    both = sorted(mine.keys() & theirs.keys())
    return paired([mine[q][0] for q in both], [theirs[q][0] for q in both])


def right(answers: dict) -> float:
    return 100 * sum(verdict for verdict, _ in answers.values()) / len(answers)


def credit(answers: dict) -> float:
    return 100 * sum(part for _, part in answers.values()) / len(answers)


def cell(answers: dict) -> str:
    if not answers:
        return ""
    count = sum(verdict for verdict, _ in answers.values())
    low, high = wilson(count, len(answers))
    parts = f"; credit {credit(answers):.0f} %" if abs(credit(answers) - right(answers)) >= 0.05 else ""
    return f"{count} of {len(answers)} ({100 * low:.0f}–{100 * high:.0f}){parts}"


def within(found: Cells, context: int) -> None:
    print(
        f"\n### {context:,} tokens\n\n| task | default | dense | `paper-3k` | default only / dense only | p |\n| --- | --- | --- | --- | --- | --- |"
    )
    cells = {}
    for task in sorted({key[0] for key in found if key[1] == context and key[2] == PACK}):
        ways = cells[task] = [found.get((task, context, PACK, way), {}) for way in WAYS]
        split = against(ways[0], ways[1]) if ways[1] else None
        compared = f"{split.only_first} / {split.only_second} | {split.p:.2g}" if split else " | "
        print(f"| {task} | {' | '.join(map(cell, ways))} | {compared} |")
    shared = [ways for ways in cells.values() if ways[0] and ways[1]]
    # only tasks that both were asked: a mean over others could not be compared
    splits = [against(ways[0], ways[1]) for ways in shared]
    if len(shared) < 2:
        return
    total = Paired(0, sum(s.only_first for s in splits), sum(s.only_second for s in splits), 0)
    for name, figure in (("right", right), ("credit", credit)):
        means = [f"{sum(map(figure, own)) / len(own):.1f} %" if all(own := [ways[i] for ways in shared]) else "" for i in range(len(WAYS))]
        compared = f"{total.only_first} / {total.only_second} | {total.p:.2g}" if figure is right else " | "
        print(f"| **mean of {len(shared)} tasks, {name}** | {' | '.join(means)} | {compared} |")


def curve(found: Cells, contexts: list[int]) -> None:
    print("\n### Against context: credit in percent, default / `paper-3k` / dense\n")
    print("| task | " + " | ".join(f"{context // 1024}K" for context in contexts) + " |\n| --- |" + " --- |" * len(contexts))
    order = ("default", "paper-3k", "dense")
    cells = {
        task: {context: [found.get((task, context, PACK, way), {}) for way in order] for context in contexts}
        for task in sorted({key[0] for key in found if key[1] in contexts})
    }
    compared = {task: {context for context in contexts if all(own[context][:2])} for task, own in cells.items()}
    cells = {task: own for task, own in cells.items() if len(compared[task]) > 2}
    for task, own in cells.items():
        texts = [" / ".join(f"{credit(answers):.0f}" if answers else "–" for answers in own[c]) if any(own[c]) else "" for c in contexts]
        print(f"| {task} | {' | '.join(texts)} |")
    # a mean against context holds the same tasks at every length, so those of the shortest and the longest
    common = [task for task in cells if {contexts[0], contexts[-1]} <= compared[task]]
    means = []
    for context in contexts:
        all_there = all(context in compared[task] for task in common)
        ours, paper = ([credit(cells[task][context][i]) for task in common] if all_there else [] for i in (0, 1))
        means.append(f"{sum(ours) / len(ours):.1f} / {sum(paper) / len(paper):.1f}" if ours else "")
    print(f"| **mean of the {len(common)} that are at both ends** | {' | '.join(means)} |")


def single(found: Cells) -> None:
    print("\n### One passkey in the text\n\n| context | default | `paper-3k` | dense |\n| --- | --- | --- | --- |")
    for context in sorted({key[1] for key in found if key[2] == 1}):
        cells = [cell(found.get(("passkey", context, 1, way), {})) for way in ("default", "paper-3k", "dense")]
        print(f"| {context // 1024}K | " + " | ".join(cells) + " |")


def scorings(rows: list[dict]) -> None:
    print(
        "\n### One pass beside free decoding\n\n| task | context | | asked | one pass | decoded | pass only / decoded only | p |\n"
        + "| --- " * 8
        + "|"
    )
    cells: dict[tuple, Counter] = defaultdict(Counter)
    for row in rows:
        if row["row"] == "answer" and row.get("pass_right") is not None and row.get("greedy_right") is not None:
            cells[row["task"], row["context"], row["attention"]][row["pass_right"], row["greedy_right"]] += 1
    for (task, context, way), counts in cells.items():
        both, once, free, neither = (counts[case] for case in ((True, True), (True, False), (False, True), (False, False)))
        head = f"| {task} | {context // 1024}K | {way} | {counts.total()} | {both + once} | {both + free} |"
        print(f"{head} {once} / {free} | {Paired(both, once, free, neither).p:.2g} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="+")
    parser.add_argument("--window", default="32K")
    given = parser.parse_args()
    rows = [json.loads(line) for path in given.rows for line in open(path, encoding="utf-8")]
    found, window = load(rows), parse_context(given.window)
    contexts = sorted({key[1] for key in found if key[2] == PACK})
    for context in contexts:
        if any(key[3] == "dense" for key in found if key[1] == context and key[2] == PACK):
            within(found, context)
    curve(found, [context for context in contexts if context >= window])
    single(found)
    scorings(rows)


if __name__ == "__main__":
    main()
