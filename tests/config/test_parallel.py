"""How processes divide a training: what the settings refuse, and the mesh of a number of processes."""

import re

import pytest

from heddle.config.parallel import ParallelConfig
from heddle.errors import HeddleError
from heddle.parallel.mesh import count_processes, mesh_sizes


def test_sequence_needs_tensor() -> None:
    with pytest.raises(HeddleError, match="sequence = true divides tokens among the processes of tensor"):
        ParallelConfig.of({"sequence": True})
    assert ParallelConfig.of({"sequence": True, "tensor": 2}).sequence


@pytest.mark.parametrize(
    ("settings", "processes", "shard"),
    [({}, 1, 1), ({}, 8, 8), ({"replicate": 2}, 8, 4), ({"tensor": 2, "context": 2}, 8, 2), ({"shard": 2}, 2, 2)],
)
def test_auto_takes_the_processes_that_are_left(settings: dict[str, int], processes: int, shard: int) -> None:
    sizes = mesh_sizes(ParallelConfig.of(settings), processes)
    assert sizes["shard"] == shard
    assert count_processes(sizes) == processes


@pytest.mark.parametrize(
    ("settings", "processes", "line"),
    [
        ({"tensor": 3}, 4, "tensor = 3 does not divide 4 processes: start a multiple of 3"),
        ({"shard": 4}, 2, "shard = 4 is for 4 processes, but 2 were started"),
        ({"replicate": 2, "shard": 2}, 1, "replicate = 2 x shard = 2 is for 4 processes, but 1 was started"),
        ({"expert": 3}, 4, "expert = 3 does not divide shard x context = 4"),
    ],
)
def test_a_mesh_of_another_size_is_refused(settings: dict[str, int], processes: int, line: str) -> None:
    with pytest.raises(HeddleError, match=re.escape(line)):
        mesh_sizes(ParallelConfig.of(settings), processes)
