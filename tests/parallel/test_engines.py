"""Every engine on 2 and 4 processes: what one process trains. `python -m tests.parallel.full` tries all cases."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.config.train import LoRAConfig
from heddle.errors import HeddleError
from heddle.model import build
from heddle.model.lora import adapt
from tests.parallel import cases
from tests.prove import tasks
from tests.thorough import thorough

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")


@pytest.mark.parametrize("processes", [2, *thorough(4)])
def test_several_processes_train_what_one_trains(processes: int, tmp_path: Path) -> None:
    problems = {
        str(each): gap.problem
        for each, gap in zip(cases.SOME[processes], cases.gaps(processes, cases.SOME[processes], tmp_path), strict=True)
    }
    assert not {each: problem for each, problem in problems.items() if problem}


@pytest.mark.parametrize(
    ("model", "lora", "line"),
    [
        (cases.dropping("next token, rotary", **{"decoder.block.mixer.kernel": "sdpa"}), None,
         "decoder.blocks.0.mixer: kernel = 'sdpa' drops weights by random numbers of its own: set kernel = auto"),
        ({}, LoRAConfig(layers=("*.down",)), "decoder.blocks.0.ffn: adapters of down, which is cut by inputs, are not divided"),
        ({"decoder.block.mixer.kernel": "sdpa"}, LoRAConfig(rank=1),
         "decoder.blocks.0.mixer: its adapters of rank 1 leave a process without a row: set a multiple of 2"),
    ],
)  # fmt: skip
def test_layers_that_cannot_be_divided_are_refused(model: dict[str, Any], lora: LoRAConfig | None, line: str) -> None:
    from heddle.parallel.tensor import check_layers

    built = build(tasks.config_of("next token, rotary").override(model))
    check_layers(build(tasks.config_of("next token, rotary").override(cases.dropping("next token, rotary"))), 2)
    with pytest.raises(HeddleError, match=re.escape(line)):
        check_layers(adapt(built, lora), 2)
