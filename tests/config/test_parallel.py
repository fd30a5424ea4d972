"""How processes divide a training: what the settings refuse, and the mesh of a number of processes."""

import re
from typing import Any

import pytest

from heddle.config import TransformerConfig
from heddle.config.parallel import ParallelConfig
from heddle.config.train import TrainConfig
from heddle.errors import HeddleError
from heddle.parallel.mesh import check_layers, check_pipeline, check_task, count_processes, cut_layers, mesh_sizes
from heddle.parallel.ranks import Ranks
from tests.prove.tasks import RUNS, config_of


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"schedule": "zero-bubble"}, "schedule = 'zero-bubble' orders the stages of a pipeline: set pipeline above 1"),
        (
            {"pipeline": 2, "context": 2},
            "pipeline = 2 cannot be combined with context = 2: use it with replicate",
        ),
        ({"pipeline": 2, "expert": 2}, "pipeline = 2 cannot be combined with expert = 2"),
    ],
)
def test_what_a_pipeline_goes_with(settings: dict[str, Any], line: str) -> None:
    assert ParallelConfig.of({"pipeline": 2, "tensor": 2, "sequence": True}).sequence
    with pytest.raises(HeddleError, match=re.escape(line)):
        ParallelConfig.of(settings)


@pytest.mark.parametrize(
    ("run", "depth", "schedule", "train", "line"),
    [
        ("translation, both", None, "1f1b", {}, "pipeline = 2: a model with an encoder and a decoder cannot be divided"),
        ("next token, rotary", 1, "1f1b", {}, "has 2 stages, but the model has 1 layer: set depth to 2 or more"),
        ("next token, rotary", 3, "interleaved", {}, "has 4 stages, but the model has 3 layers: set depth to 4 or more"),
        ("prefix, distances, experts", 2, "zero-bubble", {}, "cannot divide layers that share tables of relative positions"),
        ("next token, rotary", 2, "1f1b", {"accumulate": 3}, "accumulate must be a multiple of 2, not 3"),
        ("next token, rotary", 2, "1f1b", {"compile": "on"}, "cannot be combined with compile = on: leave one out"),
    ],
)  # fmt: skip
def test_a_pipeline_that_cannot_work_is_refused(
    run: str, depth: int | None, schedule: str, train: dict[str, Any], line: str
) -> None:
    config, settings = ParallelConfig.of({"pipeline": 2, "schedule": schedule}), {"accumulate": 2, **train}
    with pytest.raises(HeddleError, match=re.escape(line)):
        refuse(config, config_of(run, depth), TrainConfig.of(settings))
    refuse(config, config_of("next token, rotary", 4), TrainConfig.of({"accumulate": 2}))
    refuse(ParallelConfig(), config_of(run, depth), TrainConfig.of(settings))


@pytest.mark.parametrize("run", RUNS)
def test_tokens_of_rows_that_are_scored_whole_are_not_divided(run: str) -> None:
    """Exactly the tasks whose batches `cut_tokens` refuses at the first step."""
    task = RUNS[run].task
    check_task(ParallelConfig.of({"tensor": 2}), task)
    if not run.startswith(("classes", "labels", "numbers", "contrast")):
        check_task(ParallelConfig.of({"context": 2}), task)
        return
    with pytest.raises(
        HeddleError, match=r"context = 2 divides tokens that are scored one by one, but task.kind = '\w+' scores"
    ):
        check_task(ParallelConfig.of({"context": 2}), task)


def test_earlier_stages_have_one_more_layer() -> None:
    assert cut_layers(8, 4) == [range(2), range(2, 4), range(4, 6), range(6, 8)]
    assert cut_layers(10, 4) == [range(3), range(3, 6), range(6, 8), range(8, 10)]
    assert cut_layers(5, 4) == [range(2), range(2, 3), range(3, 4), range(4, 5)]


def refuse(config: ParallelConfig, model: TransformerConfig, train: TrainConfig) -> None:
    check_pipeline(config, model, train, train.compile == "on")
    check_layers(config, model)


def test_each_stage_of_a_pipeline_reads_the_rows_of_the_others() -> None:
    """The ranks of the first stage come first; each reads what the same rank of the next one reads."""
    sizes = mesh_sizes(ParallelConfig.of({"pipeline": 2, "replicate": 2}), 8)
    ranks = [Ranks(rank, 8).on(sizes) for rank in range(8)]
    assert [each.data_rank for each in ranks] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert {(each.data_count, each.token_count, each.readers) for each in ranks} == {(4, 4, range(4))}


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
        ({"tensor": 3}, 4, "tensor = 3 does not divide 4 processes: use a multiple of 3"),
        ({"shard": 4}, 2, "shard = 4 is for 4 processes, not for 2: use as many"),
        ({"replicate": 2, "shard": 2}, 1, "replicate = 2 x shard = 2 is for 4 processes, not for 1: use as many"),
        ({"expert": 3}, 4, "expert = 3 does not divide shard x context = 4"),
    ],
)
def test_a_mesh_of_another_size_is_refused(settings: dict[str, int], processes: int, line: str) -> None:
    with pytest.raises(HeddleError, match=re.escape(line)):
        mesh_sizes(ParallelConfig.of(settings), processes)
