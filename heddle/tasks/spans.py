"""Spans of tags such as B-PER I-PER O, and their F1 score (Ramshaw and Marcus 1995).

Schemes differ in how they mark a span's last word, and a span of one word: IOB has no letters for these, IOBES has E and S, BILOU
L and U, BMES M for I, and BMEWO M and W. They are read as CoNLL's evaluation reads IOBES: by the meaning of each letter.
"""

from collections.abc import Mapping, Sequence

Span = tuple[int, int, str]
"""First place, place after the last, and the type."""

OUTSIDE = "O"
SCHEMES = tuple(map(frozenset, ("BI", "BIES", "BILU", "BMES", "BMEW")))
FIRST, LAST = "BSUW", "ESULW"  # letters of words that begin a span, and of words that end one


def are_spans(names: Sequence[str]) -> bool:
    """Whether the names are O and tags of one scheme, such as B-PER, or B without a type if there is an O."""
    marks = {name[:1] for name in names if name != OUTSIDE}
    typed = all(name == OUTSIDE or name[1:2] in ("-", "_") or (len(name) == 1 and OUTSIDE in names) for name in names)
    return len(names) > 1 and typed and any(marks <= scheme for scheme in SCHEMES) and bool(marks)


def spans(tags: Sequence[str]) -> set[Span]:
    """The spans of a row of tags. As in CoNLL's evaluation, a tag that does not continue a span of its type begins one."""
    result: set[Span] = set()
    start, kind, ended = 0, "", True
    for place, tag in enumerate([*tags, OUTSIDE]):
        mark, tag_kind = ("", "") if tag == OUTSIDE else (tag[0], tag[2:])
        continues = not ended and mark and mark not in FIRST and tag_kind == kind
        if not ended and not continues:
            result.add((start, place, kind))
        if not continues:
            start, kind = place, tag_kind
        ended = not mark or mark in LAST
        if mark and ended:
            result.add((start, place + 1, kind))
    return result


def span_f1(means: Mapping[str, float]) -> float:
    """F1 of spans: 2 · correct / (predicted + actual); 0 without any spans."""
    total = means["spans predicted"] + means["spans actual"]
    return 2 * means["spans correct"] / total if total else 0.0
