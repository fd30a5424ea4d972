"""Which settings with several values make a series, and how its runs are called."""

from typing import Any

import pytest

from heddle.config import RunConfig, parse_overrides, variants
from heddle.errors import HeddleError


def labels(table: dict[str, Any], seeds: int | None = None) -> list[str]:
    return [variant.label for variant in variants(table, seeds)]


def test_every_combination_is_a_run() -> None:
    result = variants({"model": {"depth": 2}, "train": {"learning_rate": [1e-3, 3e-3], "batch": [4, 8], "steps": 5}})
    assert [(each.config.train.learning_rate, each.config.train.batch) for each in result] == [
        (1e-3, 4), (1e-3, 8), (3e-3, 4), (3e-3, 8),
    ]  # fmt: skip
    assert all((each.config.model.depth, each.config.train.steps) == (2, 5) for each in result)
    assert result[1].settings == {"train.learning_rate": 1e-3, "train.batch": 8}
    assert result[1].label == "learning_rate=0.001,batch=8"


def test_seeds_are_counted_from_the_seed() -> None:
    result = variants({"train": {"seed": 5, "learning_rate": [1e-3, 3e-3]}}, seeds=2)
    assert [each.config.train.seed for each in result] == [5, 6, 5, 6]
    assert [each.label for each in result][:2] == ["learning_rate=0.001,seed5", "learning_rate=0.001,seed6"]
    assert labels({}, 2) == ["seed0", "seed1"]
    assert labels({"train": {"seed": [3, 7]}}) == ["seed3", "seed7"]


@pytest.mark.parametrize(
    "table",
    [
        {"train": {"betas": [0.9, 0.95]}},
        {"data": {"sources": ["a.txt", "b.txt"]}},
        {"data": {"special_tokens": ["<a>", "<b>"]}},
        {"model": {"decoder": {"overrides": [{"layers": "1", "block": {"mixer": {"window": 4}}}]}}},
        {"model": {"dropout": {"rate": 0.1}}},
        {},
    ],
)
def test_a_setting_that_takes_a_list_is_none(table: dict[str, Any]) -> None:
    (only,) = variants(table)
    assert (only.settings, only.label) == ({}, "")
    assert only.config == RunConfig.of(table)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"model": {"n_layer": [2, 4]}}, ["n_layer=2", "n_layer=4"]),
        ({"model": {"decoder": {"block": {"norm": {"kind": ["rms", "layer"]}}}}},
         ["decoder.block.norm.kind=rms", "decoder.block.norm.kind=layer"]),
        ({"model": {"head": {"tied": [True, False]}}}, ["head.tied=true", "head.tied=false"]),
        ({"model": {"dropout": [0.0, 0.1]}}, ["dropout=0.0", "dropout=0.1"]),
        ({"task": ["next_token", "masked"]}, ["task=next_token", "task=masked"]),
        ({"task": {"kind": "masked", "share": [0.1, 0.2]}}, ["task.share=0.1", "task.share=0.2"]),
        ({"data": {"tokenizer": ["runs/a", "runs/b/tokenizer.json"]}},
         ["tokenizer=runs_a", "tokenizer=runs_b_tokenizer.json"]),
        ({"train": parse_overrides(["optimizer=[muon, adamw]"])}, ["optimizer=muon", "optimizer=adamw"]),
        ({"train": parse_overrides(["learning_rate=[1e-3,3e-3]"])}, ["learning_rate=0.001", "learning_rate=0.003"]),
        ({"train": {"clip": [1.0]}}, ["clip=1.0"]),
    ],
)  # fmt: skip
def test_any_other_setting_may_have_several(table: dict[str, Any], expected: list[str]) -> None:
    assert labels(table) == expected


@pytest.mark.parametrize(
    ("table", "seeds", "line"),
    [
        ({"train": {"learning_rate": []}}, None, "settings: learning_rate = []: give at least one value"),
        ({"train": {"clip": [1.0, 1.0]}}, None, "settings: clip=1.0 occurs twice in the series; give each value once"),
        ({"train": {"seed": [1, 2]}}, 2, "settings: seed = [1, 2] and --seeds 2 both choose the seeds; leave one out"),
        ({"train": {"batch": [8, 0]}}, None, "settings: train.batch = 0: input should be greater than 0"),
        ({"train": {"batch": [4, 6], "accumulate": 4}}, None,
         "settings: train: batch = 6 cannot be split into accumulate = 4 equal micro-batches"),
        ({"train": {"learning_rates": [1, 2]}}, None, "unknown key 'train.learning_rates' in settings."),
        ({"train": {"betas": [0.9]}}, None, "settings: 'train.betas' is missing"),
        ({"data": {"tokenizer": ["a" * 99, "b" * 99], "validation": 0.1}, "train": {"vectors": ["c" * 99]}}, None,
         "settings: 2 settings are too many to name a run by"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_series_is_refused(table: dict[str, Any], seeds: int | None, line: str) -> None:
    with pytest.raises(HeddleError) as error:
        variants(table, seeds)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)
