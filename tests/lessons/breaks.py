"""What breaks in each lesson, over three seeds: the right numbers, the broken ones, and how far they are apart.

    python -m tests.lessons.breaks [N ...]      # all lessons, or some of them

Each page runs three times, with other seeds for its models and its data. `breaks.md` then has the mean and the spread (the
standard deviation over seeds) of both numbers. Right and broken must be `APART` spreads apart, the larger spread of the two.
"""

import argparse
import math
import statistics
from dataclasses import dataclass
from typing import Any

from tests.lessons.pages import PAGES, Page, pages, run, sections

BREAKS = PAGES / "breaks.md"
SEEDS = (0, 10, 20)  # a page that has three seeds of its own gets three others
APART = 5


@dataclass(frozen=True)
class Break:
    """A mistake of a lesson: the guarded numbers, or a number, with and without it."""

    lesson: int
    mistake: str
    right: str | float
    broken: str | float
    which: int = 0  # of several numbers under one name


TRIO = "spread, largest weight, slope"

TABLE = (
    Break(0, "target the input itself: loss on next tokens", "the first on next tokens", "the second on next tokens"),
    Break(0, "target two ahead: loss on next tokens", "the first on next tokens", "the third on next tokens"),
    Break(1, "a vocabulary of words: unknown words", 0, "words: unknown ones"),
    Break(2, "no places, which comes first: accuracy", "with learned places", "which comes first, without places"),
    Break(2, "no places, reversing: accuracy", "digits reversed with learned places", "digits reversed without places"),
    *(
        Break(3, f"no scale: {what}", f"with the scale: {TRIO}", f"without: {TRIO}", which)
        for which, what in enumerate(TRIO.split(", "))
    ),
    Break(4, "scores over √d: difference", "right code differs by", "scores over √d differ by"),
    Break(4, "heads interleaved: difference", "right code differs by", "heads interleaved differ by"),
    Break(4, "no W_O: difference", "right code differs by", "no W_O differs by"),
    *(
        Break(5, f"{mistake}: loss", "loss with the right mask", f"loss with{name}")
        for mistake, name in (
            ("no mask", "out a mask"),
            ("mask upside down", " the mask upside down"),
            ("one token too many", " one token too many"),
            ("mask multiplied", " the mask multiplied"),
            ("mask after the softmax", " the mask after the softmax"),
            ("softmax over the queries", " the softmax over the queries"),
        )
    ),
    Break(6, "no norm, no skip: gradient as a power of 10", "both", "no norm, no skip: gradient as a power of 10"),
    Break(6, "skips without norms: gradient as a power of 10", "both", "skips without norms"),
    Break(6, "no skips: loss", "loss with skips", "loss without skips"),
    Break(6, "no activation: facts", "facts with a feed-forward", "with one without activation"),
    Break(6, "no feed-forward: facts", "facts with a feed-forward", "without one"),
    Break(
        7,
        "dropout left on: difference of two passes",
        "two passes in evaluation, three seeds: largest difference",
        "two passes in training, three seeds: mean of the largest",
    ),
    Break(7, "both scale: prediction over training", 1, "both scale: prediction over training, one layer"),
    Break(7, "neither scales: prediction over training", 1, "neither scales: prediction over training, one layer"),
    Break(
        7,
        "another mask in the backward",
        "recomputed with the same mask: relative difference",
        "recomputed with another: relative difference",
    ),
    Break(
        8,
        "the end left out by id: texts of 10 that end",
        "texts of 10 that end: padding left out by length",
        "texts of 10 that end: padding is the end, left out by id",
    ),
    Break(8, "padding counted: loss", "loss with padding left out", "loss with padding counted"),
    Break(8, "two softmaxes: the least loss", 0, "the best loss with two softmaxes, V = 5"),
    Break(9, "the rule for Falcon 40B", "exact, tied", "Falcon 40B: the rule"),
    Break(
        10,
        "sums that are not rescaled: share of queries",
        "share of queries that are right with the factor",
        "share of queries that stay right without it",
    ),
    Break(
        11,
        "another's source: accuracy",
        "tokens that encoder and decoder translate",
        "tokens with another row's source, mean of three",
    ),
    Break(
        11,
        "its own inputs as the source: accuracy",
        "tokens that encoder and decoder translate",
        "tokens with its own inputs as the source, mean of three",
    ),
    Break(
        12,
        "gates that sum to 1: gradient of the router",
        "with the deck's gates",
        "gradient of the router, renormalised, three seeds",
    ),
    Break(12, "both skips: size over Z's", 1, "both, without a norm: size over Z's"),
    Break(12, "experts chosen by comparing", "experts kept by topk, K = 2", "experts kept by comparing, K = 2"),
    Break(13, "one layer: accuracy", "signs that two layers predict", "signs that one layer predicts"),
    Break(13, "no heads in the first layer: accuracy", "with all heads", "without the first layer's heads"),
    Break(13, "no heads in the second layer: accuracy", "with all heads", "without the second layer's heads"),
    Break(14, "norms after the sums: difference", 0, "both distances", 0),
    Break(14, "skip from the normed tensor: difference", 0, "both distances", 1),
    Break(14, "no looking back: accuracy", "digits, looking at all states", "digits, seeing the last digit alone"),
)


def values(results: list[dict[str, Any]], name: str | float, which: int) -> list[float]:
    """A number over the seeds."""
    if isinstance(name, str):
        return [result["values"][name][which] for result in results]
    return [name] * len(results)


def spreads_apart(right: list[float], broken: list[float]) -> float:
    """The distance of the means in spreads; infinite where no seed matters."""
    spread = max(statistics.stdev(right), statistics.stdev(broken))
    distance = abs(statistics.mean(right) - statistics.mean(broken))
    return math.inf if distance and not spread else distance / max(spread, 1e-300)


def cell(numbers: list[float]) -> str:
    spread = statistics.stdev(numbers)
    return f"{statistics.mean(numbers):.4g}" + (f" ± {spread:.2g}" if spread else "")


def section(page: Page, results: list[dict[str, Any]]) -> str:
    """A page's part of breaks.md."""
    lines = [f"## {page.front['lesson']}. [{page.title}]({page.path.name})\n"]
    lines += ["| mistake | right | with the mistake | spreads apart |", "|---|---|---|---|"]
    for row in TABLE:
        if row.lesson == page.front["lesson"]:
            right, broken = (values(results, name, row.which) for name in (row.right, row.broken))
            apart = spreads_apart(right, broken)
            far = "no spread" if math.isinf(apart) else f"{apart:,.0f}"
            lines.append(f"| {row.mistake} | {cell(right)} | {cell(broken)} | {far} |")
            if apart < APART:
                print(f"{page.path.name}: {row.mistake}: only {apart:.1f} spreads apart")
    return "\n".join(lines) + "\n"


TITLE = f"""# What breaks

Each *break it* of the lessons, run with three seeds: the mean ± the standard deviation. Right and broken are at least
{APART} of the larger standard deviation apart. Numbers without a deviation do not depend on a seed.
`python -m tests.lessons.breaks` writes this page.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lessons", nargs="*", type=int)
    options = parser.parse_args()
    parts = sections(BREAKS.read_text()) if BREAKS.exists() else {}
    for page in pages():
        if options.lessons and page.front["lesson"] not in options.lessons:
            continue
        results = [run(page, seed) for seed in SEEDS]
        seconds = ", ".join(f"{result['seconds']:.0f}" for result in results)
        print(f"{page.path.name}: {seconds} seconds of processor time")
        for seed, result in zip(SEEDS, results, strict=True):
            for line in result["outside"]:
                print(f"  seed {seed}: {line}")
        parts[page.front["lesson"]] = section(page, results)
        BREAKS.write_text("\n".join([TITLE, *(parts[number] for number in sorted(parts))]))


if __name__ == "__main__":
    main()
