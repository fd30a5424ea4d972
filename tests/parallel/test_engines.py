"""Every engine on 2 and 4 processes: what one process trains. `python -m tests.parallel.full` tries all cases."""

from pathlib import Path

import pytest
import torch

from tests.parallel import cases

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")


@pytest.mark.parametrize("processes", cases.SOME)
def test_several_processes_train_what_one_trains(processes: int, tmp_path: Path) -> None:
    problems = {
        str(each): gap.problem
        for each, gap in zip(cases.SOME[processes], cases.gaps(processes, cases.SOME[processes], tmp_path), strict=True)
    }
    assert not {each: problem for each, problem in problems.items() if problem}
