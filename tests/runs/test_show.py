"""What is shown of a step is what the step reads."""

from pathlib import Path
from typing import Any

import pytest

from heddle.config import RunConfig
from heddle.errors import HeddleError
from heddle.runs import open_session, prepare, show_step
from tests.running import Begin

pytestmark = pytest.mark.usefixtures("roomy")

WINDOW = {"decoder": {"overrides": [{"layers": "1", "block": {"mixer": {"window": 3}}}]}, "depth": 2}


def test_a_step_is_shown_as_it_is_read(begin: Begin) -> None:
    """Ids, targets and masks are those of the batch that the trainer would read, and the run is not locked."""
    run = begin(steps=4, model=WINDOW)
    session = open_session(run)  # holds the lock
    session.step = 2
    batch = session.batch()
    view = show_step(run, step=3, rows=2, length=6)
    assert (view.step, view.steps, view.places, view.targets) == (3, 4, 64, 64)
    for number, row in enumerate(view.rows):
        assert row.tokens == batch.tokens[number, :6].tolist()
        assert row.targets == batch.targets[number, :6].tolist()
        assert row.predicts[:-1] == row.pieces[1:]
        assert (row.positions, row.segments, row.weights) == ([0, 1, 2, 3, 4, 5], [0] * 6, [1.0] * 6)
    whole, window = view.masks
    assert (whole.stack, whole.layers, whole.rule) == ("decoder", [0], "Causal()")
    assert whole.seen == [[key <= query for key in range(6)] for query in range(6)]
    assert (window.layers, window.seen[4]) == ([1], [False, False, True, True, True, False])


def test_hidden_tokens_are_the_only_targets(config: Any, quick: None, tmp_path: Path) -> None:
    run_config = RunConfig.of({**config(steps=2).to_dict(), "task": "masked"})
    prepare(run_config, tmp_path / "run")
    view = show_step(tmp_path / "run", length=16)
    (row,) = view.rows
    assert view.targets == 4 * 2  # 15 % of 16, rounded
    assert [weight > 0 for weight in row.weights] == [target is not None for target in row.targets]
    assert all(all(query) for query in view.masks[0].seen)


def test_a_row_is_shown_from_its_first_target(config: Any, quick: None, tmp_path: Path) -> None:
    """If the places that would be shown have none; `start` says another place, for the mask too."""
    run_config = RunConfig.of({**config(steps=2).to_dict(), "task": {"kind": "masked", "share": 0.07}})
    prepare(run_config, tmp_path / "run")
    whole = show_step(tmp_path / "run", rows=4, length=16)
    assert [row.first for row in whole.rows] == [0] * 4
    firsts = [next(place for place, target in enumerate(row.targets) if target is not None) for row in whole.rows]
    assert max(firsts) > 3
    some = show_step(tmp_path / "run", rows=4, length=3)
    for row, every, first in zip(some.rows, whole.rows, firsts, strict=True):
        assert row.first == (first if first > 2 else 0)
        assert row.tokens == every.tokens[row.first : row.first + 3]
        assert (row.positions, row.targets) == (every.positions[row.first :][:3], every.targets[row.first :][:3])
        assert any(target is not None for target in row.targets)
    last = show_step(tmp_path / "run", length=8, start=12)
    assert (last.rows[0].first, last.rows[0].tokens) == (12, whole.rows[0].tokens[12:])
    assert last.masks[0].seen == [[True] * 4] * 4
    with pytest.raises(HeddleError, match=r"start = 16: the rows of step 1 have 16 places, counted from 0"):
        show_step(tmp_path / "run", start=16)


def test_what_cannot_be_shown_is_refused(begin: Begin, tmp_path: Path) -> None:
    with pytest.raises(HeddleError, match=r"step = 9: .* has 4 steps"):
        show_step(begin(steps=4), step=9)
    with pytest.raises(HeddleError, match=r"none"):
        show_step(tmp_path / "none")
