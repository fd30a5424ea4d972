"""Tables and scores divided by rows: those of one process, for sizes that do not divide, padding, caps, biases and every term.

`python -m tests.parallel.full` tries all cases.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.config.presets import sized
from heddle.errors import HeddleError
from heddle.model.build import build
from heddle.parallel.vocabulary import OwnRows, check_tables
from tests.parallel import cases
from tests.thorough import thorough

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")


class Axis:
    """An axis of a mesh, seen by one of its processes."""

    def __init__(self, count: int, rank: int) -> None:
        self.count, self.rank = count, rank

    def size(self) -> int:
        return self.count

    def get_local_rank(self) -> int:
        return self.rank


@pytest.mark.parametrize("processes", [2, *thorough(4)])
def test_divided_tables_are_whole_ones(processes: int, tmp_path: Path) -> None:
    cases.launch(processes, "tests.parallel.vocabulary", str(tmp_path), "some")
    gaps = json.loads((tmp_path / "gaps.json").read_text())
    assert len(gaps) == 32
    assert {each: gap for each, gap in gaps.items() if not gap <= cases.TABLES} == {}


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_each_row_is_of_one_process(processes: int) -> None:
    for rows in range(processes, 40):
        for real in range(1, rows + 1):
            axes: list[Any] = [Axis(processes, rank) for rank in range(processes)]
            own = [OwnRows(axis, rows, real) for axis in axes]
            ids = torch.arange(rows)
            assert torch.stack([each.places(ids)[1] for each in own]).sum(0).eq(1).all()
            assert sum(each.size for each in own) == rows
            assert sum(each.real for each in own) == real
            assert all(int(each.places(ids)[0].max()) < max(1, each.size) for each in own)


def test_a_table_with_too_few_rows_is_refused() -> None:
    model = build(sized(vocab_size=5, depth=1).override({"pad_vocab_to": 1}), "meta", 0)
    with pytest.raises(HeddleError, match="parallel: tensor = 4 cannot divide embedding: it has 5 rows only"):
        check_tables(model, 4)
