"""Tables over the rows of `hip bench --suite … --scoring pass`: within the trained window, against context, passkeys one at a time.

    python docs/results/suite_tables.py docs/results/suite-h200-all-tasks.jsonl --window 32K

An answer counts as right when every one of its tokens is the likeliest, given the tokens before it. Intervals are Wilson's
at 95 %; p is McNemar's exact test over the questions that both ways of attending were asked.
"""

import argparse
import json
from collections import defaultdict
from math import comb, sqrt

from hipcli.bench import parse_context

WAYS = ("default", "dense", "paper-3k")


def load(path: str) -> dict:
    """(task, context, pack, way) → question → whether it is right."""
    found = defaultdict(dict)
    for line in open(path):
        row = json.loads(line)
        if row["row"] == "answer":
            key = row["task"], row["context"], row["pack"], row["attention"]
            found[key][row["seed"], row["sample"], row["question"]] = bool(row["pass_right"])
    return found


def wilson(right: int, count: int) -> tuple[float, float]:
    z, share = 1.96, right / count
    centre, spread = share + z * z / (2 * count), z * sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (centre - spread) / (1 + z * z / count), (centre + spread) / (1 + z * z / count)


def mcnemar(mine: dict, theirs: dict) -> tuple[int, int, float]:
    """Questions right with one only, with the other only, and the two-sided p."""
    both = mine.keys() & theirs.keys()
    a, b = sum(mine[q] > theirs[q] for q in both), sum(mine[q] < theirs[q] for q in both)
    p = sum(comb(a + b, i) for i in range(min(a, b) + 1)) / 2 ** (a + b) * 2 if a + b else 1.0
    return a, b, min(1.0, p)


def cell(answers: dict) -> str:
    if not answers:
        return ""
    right, count = sum(answers.values()), len(answers)
    low, high = wilson(right, count)
    return f"{right} of {count} ({100 * low:.0f}–{100 * high:.0f})"


def share(answers: dict) -> float:
    return 100 * sum(answers.values()) / len(answers)


def within(found: dict, context: int) -> None:
    print(
        f"\n### {context:,} tokens\n\n| task | default | dense | `paper-3k` | default only / dense only | p |\n| --- | --- | --- | --- | --- | --- |"
    )
    tasks = sorted({key[0] for key in found if key[1] == context and key[2] > 1})
    means, total = defaultdict(list), [0, 0]
    for task in tasks:
        mine, dense, paper = (found.get((task, context, 50, way), {}) for way in WAYS)
        a, b, p = mcnemar(mine, dense)
        total[0], total[1] = total[0] + a, total[1] + b
        print(
            f"| {task} | {cell(mine)} | {cell(dense)} | {cell(paper)} | {f'{a} / {b}' if dense else ''} | {f'{p:.2g}' if dense else ''} |"
        )
        for way, answers in zip(WAYS, (mine, dense, paper)):
            if answers:
                means[way].append(share(answers))
    n = min(total)
    p = min(1.0, 2 * sum(comb(sum(total), i) for i in range(n + 1)) / 2 ** sum(total))
    mean = {way: f"{sum(values) / len(values):.1f} % of {len(values)} tasks" for way, values in means.items()}
    print(f"| **mean of tasks** | {' | '.join(mean.get(way, '') for way in WAYS)} | {total[0]} / {total[1]} | {p:.2g} |")


def curve(found: dict, contexts: list[int]) -> None:
    print("\n### Against context: default / `paper-3k` / dense, right of 50 (of 10 or 12 where it says so)\n")
    print("| task | " + " | ".join(f"{context // 1024}K" for context in contexts) + " |\n| --- |" + " --- |" * len(contexts))
    tasks = [task for task in sorted({key[0] for key in found}) if sum((task, c, 50, "paper-3k") in found for c in contexts) > 2]
    sums: dict = {context: [[], []] for context in contexts}
    for task in tasks:
        row = []
        for context in contexts:
            ways = [found.get((task, context, 50, way), {}) for way in ("default", "paper-3k", "dense")]
            numbers = [f"{share(w):.0f}" if w else "–" for w in ways]
            row.append(" / ".join(numbers) if any(ways) else "")
            if ways[0] and ways[1]:
                sums[context][0].append(share(ways[0])), sums[context][1].append(share(ways[1]))
        print(f"| {task} | " + " | ".join(row) + " |")
    means = [f"{sum(a) / len(a):.1f} / {sum(b) / len(b):.1f}" if a else "" for a, b in sums.values()]
    print("| **mean of those with both** | " + " | ".join(means) + " |")


def single(found: dict) -> None:
    print("\n### One passkey in the text\n\n| context | default | `paper-3k` | dense |\n| --- | --- | --- | --- |")
    for context in sorted({key[1] for key in found if key[2] == 1}):
        cells = [cell(found.get(("passkey", context, 1, way), {})) for way in ("default", "paper-3k", "dense")]
        print(f"| {context // 1024}K | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows")
    parser.add_argument("--window", default="32K")
    given = parser.parse_args()
    found, window = load(given.rows), parse_context(given.window)
    contexts = sorted({key[1] for key in found if key[2] > 1})
    for context in contexts:
        if any(key[3] == "dense" for key in found if key[1] == context and key[2] > 1):
            within(found, context)
    curve(found, [context for context in contexts if context >= window])
    single(found)


if __name__ == "__main__":
    main()
