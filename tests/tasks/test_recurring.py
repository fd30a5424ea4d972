"""Places with a weight come first, in order, and as many others as make their number one that recurs."""

import pytest
import torch

from heddle.tasks.recurring import recurring_size, weighted


@pytest.mark.parametrize("targets", [0, 1, 7, 8, 9, 40])
def test_what_has_a_weight_comes_first_and_in_order(targets: int) -> None:
    weights = torch.zeros(50)
    places = torch.randperm(50, generator=torch.Generator().manual_seed(targets))[:targets].sort().values
    weights[places] = torch.linspace(0.1, 1, targets)
    x = torch.arange(100.0).view(50, 2)
    rows, ids, row_weights = weighted(x, torch.arange(50), weights, targets)
    assert len(ids) == recurring_size(targets)
    assert ids[:targets].tolist() == places.tolist()
    assert not row_weights[targets:].any()
    assert torch.equal(row_weights, weights[ids])
    assert torch.equal(rows, x[ids])
    assert ids.tolist()[targets:] == sorted(ids.tolist()[targets:])


def test_sizes_recur_thirty_two_times_per_doubling() -> None:
    sizes = {recurring_size(number) for number in range(2049, 4097)}
    assert len(sizes) == 32
    assert all(number <= recurring_size(number) <= 1.032 * number for number in range(257, 5000))
