"""The documents of a part as one stream: each id by hand, and where the stream is a ring."""

from itertools import product

import numpy as np
import pytest

from heddle.data.corpus import Part
from heddle.data.stream import Stream, ids_at, marks_of

DOCUMENTS = [[11, 12, 13], [21], [31, 32]]
END = 1


def part_of(separator: int | None, begins: bool, ends: bool) -> Part:
    ids, starts = list[int](), [0]
    for number, document in enumerate(DOCUMENTS):
        ids += document if separator is None or number == len(DOCUMENTS) - 1 else [*document, separator]
        starts.append(len(ids))
    sizes = np.array([len(document) for document in DOCUMENTS])
    return Part(np.array(ids), 6, 3, 1, np.array(starts), sizes, separator, None, begins, ends)


def by_hand(separator: int | None, start: tuple[int, ...], begins: bool, ends: bool) -> list[int]:
    """Every document with what starts and ends it; what does both stands between two documents, or in front, once."""
    ids, both, last = list[int](), start == (separator,), len(DOCUMENTS) - 1
    for number, document in enumerate(DOCUMENTS):
        if number == 0:
            ids += start if begins else ()
        elif not both:
            ids += start
        ids += document
        closed = bool(start) and ends and not (both and begins)
        if separator is not None and (number < last or closed):
            ids.append(separator)
    return ids


@pytest.mark.parametrize("start", [(), (7,), (END,), (7, 8)], ids=str)
@pytest.mark.parametrize("separator", [None, END])
@pytest.mark.parametrize(("begins", "ends"), [*product((True, False), repeat=2)])
def test_every_id_is_where_it_belongs(start: tuple[int, ...], separator: int | None, begins: bool, ends: bool) -> None:
    stream = Stream(part_of(separator, begins, ends), start)
    expected = by_hand(separator, start, begins, ends)
    assert stream.length == len(expected)
    assert stream.at(np.arange(stream.length)).tolist() == expected
    assert stream.ring == (bool(start) and begins)
    assert stream.closes == (stream.ring and ends and start == (separator,))
    if stream.ring:
        assert stream.at(np.arange(3) + stream.length - 1).tolist() == [expected[-1], *expected[:2]]
        assert stream.at(np.arange(4).reshape(2, 2) + stream.length).tolist() == [expected[:2], expected[2:4]]


def test_ids_around_a_text_have_places_below_zero_and_behind() -> None:
    """Of the last document: its two ids that start it, its own, and its end."""
    part = part_of(END, begins=False, ends=True)
    ids = ids_at(part, np.array([6]), np.arange(-2, 3), np.array([7, 8]))
    assert ids.tolist() == [7, 8, 31, 32, END]
    assert marks_of(part, (7, 8)).tolist() == [0, 2, 2]
    assert marks_of(part_of(END, begins=True, ends=True), (7, 8)).tolist() == [2, 2, 2]
