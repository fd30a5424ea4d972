"""How long the groups of a pipeline wait, and how many passes are in flight."""

import pytest

from heddle.config import preset
from heddle.scale.schedules import in_stages, most_at_once, of_stage, order_of, waiting


@pytest.mark.parametrize(("processes", "micro_batches"), [(2, 2), (4, 8), (4, 16)])
def test_waiting_is_what_is_published(processes: int, micro_batches: int) -> None:
    """1F1B: Narayanan et al. 2021; half of it with two stages on each; a third with gradients in two halves (Qi et al. 2023)."""
    bubble = (processes - 1) / micro_batches
    share = {"1f1b": 1.0, "interleaved": 1 / 2, "zero-bubble": 1 / 3}
    for schedule, part in share.items():
        assert waiting(order_of(schedule, processes, micro_batches), False) == pytest.approx(part * bubble)
    assert waiting(order_of("1f1b", processes, micro_batches), True) == pytest.approx(bubble)


def test_passes_in_flight() -> None:
    assert [most_at_once(passes) for passes in order_of("1f1b", 4, 8)] == [4, 3, 2, 1]
    assert [most_at_once(passes) for passes in order_of("zero-bubble", 4, 8)] == [4, 4, 4, 4]
    assert most_at_once(order_of("interleaved", 4, 8)[0]) > 2 * 4  # passes through half as many layers


def test_a_stage_stands_for_all_if_all_are_alike() -> None:
    config = preset("laptop-tiny")
    stage = of_stage(config, 2)
    assert stage is not None
    assert stage.last()[1].depth == config.last()[1].depth // 2
    assert in_stages(stage, 2) == config
    assert of_stage(config.override({"decoder.overrides": [{"layers": "0", "block": {"dropout": 0.1}}]}), 2) is None
