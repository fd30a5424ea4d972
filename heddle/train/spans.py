"""Spans of tags such as B-PER I-PER O: where they are, and how many of them are found (Ramshaw and Marcus 1995)."""

from collections.abc import Mapping, Sequence

Span = tuple[int, int, str]
"""First place, place after the last, and the type."""

OUTSIDE = "O"


def are_spans(names: Sequence[str]) -> bool:
    """Whether all names are O, or begin with B- or I-."""
    return len(names) > 1 and all(name == OUTSIDE or name[:2] in ("B-", "I-") for name in names)


def spans(tags: Sequence[str]) -> set[Span]:
    """The spans of a row of tags. As in CoNLL's evaluation, an I- that continues nothing of its type begins a span."""
    found: set[Span] = set()
    start, kind = 0, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        inside = kind and tag == f"I-{kind}"
        if kind and not inside:
            found.add((start, place, kind))
        if not inside:
            start, kind = place, tag[2:] if tag != OUTSIDE else ""
    return found


def span_f1(means: Mapping[str, float]) -> float:
    """F1 of spans: twice those that are right, over those found and those there; 0 if there are none at all."""
    size = means["spans found"] + means["spans there"]
    return 2 * means["spans right"] / size if size else 0.0
