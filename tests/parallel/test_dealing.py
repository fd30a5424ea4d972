"""Muon's matrices are dealt evenly: the work of each process falls with their number."""

from typing import Any

import pytest

from heddle.config import sized
from heddle.model import build
from heddle.model.roles import role
from heddle.parallel.dealing import Dealer


class Group:
    """A process among others, as `torch.distributed` describes it."""

    def __init__(self, rank: int, size: int) -> None:
        self.numbers = rank, size

    def rank(self) -> int:
        return self.numbers[0]

    def size(self) -> int:
        return self.numbers[1]


def work(shape: tuple[int, int]) -> int:
    """Multiplications of an iteration, up to a factor: products of the matrix with its transpose."""
    return shape[0] * shape[1] * min(shape)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("depth", [4, 6, 12])
def test_each_of_four_processes_iterates_at_most_three_tenths(depth: int, replicas: int) -> None:
    model = build(sized(depth, vocab_size=64, context=16, dim=64), "meta")
    named = {name: parameter for name, parameter in model.named_parameters() if role(name, parameter.dim()) == "matrix"}
    shapes = [(parameter.shape[0], parameter.shape[1]) for parameter in named.values()]
    size = 4 // replicas
    loads, dealt = [], list[int]()
    for replica in range(replicas):
        for rank in range(size):
            groups: list[Any] = [Group(rank, size), Group(replica, replicas) if replicas > 1 else None]
            dealer = Dealer(shapes, [], *groups)
            loads.append(sum(work(shapes[index]) for index in dealer.own))
            dealt += dealer.own
    assert sorted(dealt) == list(range(len(shapes)))
    assert max(loads) <= 0.3 * sum(map(work, shapes))
