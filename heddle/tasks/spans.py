"""Spans of tags such as B-PER I-PER O: where they are, and how many of them are found (Ramshaw and Marcus 1995).

Schemes differ in how they write a span's last word, and a span of one word: IOB has no letters for these, IOBES has E and S, BILOU
L and U, BMES M for I, and BMEWO M and W. They are read as CoNLL's evaluation reads IOBES: by what each letter says of its word.
"""

from collections.abc import Mapping, Sequence

Span = tuple[int, int, str]
"""First place, place after the last, and the type."""

OUTSIDE = "O"
SCHEMES = tuple(map(frozenset, ("BI", "BIES", "BILU", "BMES", "BMEW")))
FIRST, LAST = "BSUW", "ESULW"  # letters of a word that begins a span, and of one that ends it


def are_spans(names: Sequence[str]) -> bool:
    """Whether all names are O, or a letter of one scheme and a type: B-PER; B alone if there is an O."""
    marks = {name[:1] for name in names if name != OUTSIDE}
    typed = all(name == OUTSIDE or name[1:2] in ("-", "_") or (len(name) == 1 and OUTSIDE in names) for name in names)
    return len(names) > 1 and typed and any(marks <= scheme for scheme in SCHEMES) and bool(marks)


def spans(tags: Sequence[str]) -> set[Span]:
    """The spans of a row of tags. As in CoNLL's evaluation, what continues nothing of its type begins a span."""
    found: set[Span] = set()
    start, kind, ended = 0, "", True
    for place, tag in enumerate([*tags, OUTSIDE]):
        mark, its = ("", "") if tag == OUTSIDE else (tag[0], tag[2:])
        continues = not ended and mark and mark not in FIRST and its == kind
        if not ended and not continues:
            found.add((start, place, kind))
        if not continues:
            start, kind = place, its
        ended = not mark or mark in LAST
        if mark and ended:
            found.add((start, place + 1, kind))
    return found


def span_f1(means: Mapping[str, float]) -> float:
    """F1 of spans: twice those that are right, over those found and those there; 0 if there are none at all."""
    size = means["spans found"] + means["spans there"]
    return 2 * means["spans right"] / size if size else 0.0
