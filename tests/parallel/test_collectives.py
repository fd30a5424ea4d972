"""How long collectives run: the union of their times, in one step of a hundred."""

import pytest

from heddle.parallel.collectives import EVERY, Collectives, covered


@pytest.mark.parametrize(
    ("spans", "length"),
    [
        ([], 0),
        ([(2, 5)], 3),
        ([(2, 5), (4, 9)], 7),
        ([(2, 9), (3, 4)], 7),
        ([(6, 7), (1, 2), (1, 3)], 3),
        ([(0, 2), (2, 3)], 3),
    ],
)
def test_what_runs_twice_at_once_counts_once(spans: list[tuple[int, int]], length: int) -> None:
    assert covered(spans) == length


def test_one_step_of_a_hundred_is_looked_at() -> None:
    collectives, looked_at = Collectives(), []
    for number in range(1, 2 * EVERY + 1):
        with collectives.step():
            pass
        if collectives.seconds is not None:
            assert collectives.seconds == 0  # there was none
            looked_at.append(number)
    assert looked_at == [3, 103]
