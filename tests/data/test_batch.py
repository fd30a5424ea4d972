"""Batches: targets are the inputs shifted by one, and a split loses nothing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree

from heddle.data.batch import IGNORED, Batch, next_token_batch
from heddle.errors import HeddleError
from heddle.model.head import Scores
from heddle.nn import Layout
from heddle.tasks.loss import cross_entropy

LECTURES = Path(__file__).parents[1] / "lectures"


def golden(case: str) -> dict[str, Any]:
    file = LECTURES / "golden.json"
    return next(entry for entry in json.loads(file.read_text())["cases"] if entry["id"] == case)


@pytest.mark.lecture("L0-89")
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int64])
def test_targets_are_inputs_shifted_by_one(dtype: type) -> None:
    batch = next_token_batch(np.array([[1, 2, 3, 4], [5, 6, 7, 60000]], dtype=dtype))
    assert batch.tokens.tolist() == [[1, 2, 3], [5, 6, 7]]
    assert batch.targets.tolist() == [[2, 3, 4], [6, 7, 60000]]
    assert batch.weights.tolist() == [[1.0] * 3] * 2
    assert batch.layout.form == "whole"
    assert batch.layout.position.tolist() == [[0, 1, 2]] * 2
    assert batch.tokens.dtype == batch.targets.dtype == torch.long


@pytest.mark.lecture("L0-89")
def test_a_model_that_knows_the_next_token_loses_nothing() -> None:
    """Its hidden vectors are the next token's one-hot vectors, and its head is the identity."""
    batch = next_token_batch(np.arange(20).reshape(2, 10))
    targets, mean = batch.targets.flatten(), batch.weights.flatten().double() / 18
    hidden = 1e4 * torch.nn.functional.one_hot(batch.tokens + 1, 21).flatten(0, 1).double()
    assert cross_entropy(hidden, targets, mean, Scores(torch.eye(21).double(), 21))[0] == 0
    assert cross_entropy(hidden.roll(1, 0), targets, mean, Scores(torch.eye(21).double(), 21))[0] > 1e3


@pytest.mark.lecture("L2-56", "L2-60")
def test_a_start_token_shifts_as_in_the_lecture() -> None:
    """The lecture's last input has no target: it continues the text, which is generation's part."""
    case = golden("start_shift")
    ids, out = case["inputs"]["ids"], case["outputs"]
    batch = next_token_batch(np.array([[case["inputs"]["start"], *ids]]))
    assert batch.tokens.tolist() == [out["inputs"][:-1]]
    assert batch.targets.tolist() == [out["targets_no_end"][:-1]]
    assert (out["inputs"][-1], out["targets_no_end"][-1]) == (ids[-1], IGNORED)
    packed = next_token_batch(np.array([ids]))
    assert packed.tokens.tolist() == [out["packed_inputs_without_start"]]
    assert packed.targets.tolist() == [out["packed_targets_without_start"]]


def test_an_ignored_target_has_no_weight() -> None:
    """It would be learned as id 0."""
    targets = torch.tensor([[1, IGNORED]])
    with pytest.raises(HeddleError, match="need weight 0"):
        Batch(torch.zeros_like(targets), Layout.whole(1, 2), targets, torch.ones(1, 2))
    Batch(torch.zeros_like(targets), Layout.whole(1, 2), targets, torch.tensor([[2.0, 0.0]]))


def test_rows_without_a_target_are_refused() -> None:
    with pytest.raises(HeddleError, match="have no target"):
        next_token_batch(np.array([[1], [2]]))


def test_split_and_join() -> None:
    batch = next_token_batch(np.arange(60).reshape(6, 10))
    for parts in (1, 2, 3, 6):
        split = batch.split(parts)
        assert len(split) == parts
        for name in ("tokens", "targets", "weights"):
            assert torch.equal(torch.cat([getattr(piece, name) for piece in split]), getattr(batch, name))
        assert {piece.layout.rows for piece in split} == {6 // parts}
        assert {piece.layout.form for piece in split} == {"whole"}
    for parts in (0, -2, 4, 7):
        with pytest.raises(HeddleError, match="6 rows cannot be split"):
            batch.split(parts)


def test_a_batch_is_a_tree_of_tensors() -> None:
    batch = next_token_batch(np.arange(20).reshape(2, 10))
    leaves, spec = _pytree.tree_flatten(batch)
    assert len(leaves) == 5
    again = _pytree.tree_unflatten(leaves, spec)
    assert isinstance(again, Batch)
    assert again.tokens is batch.tokens
    assert again.layout.form == batch.layout.form


def test_to_moves_every_tensor() -> None:
    batch = next_token_batch(np.arange(20).reshape(2, 10)).to("meta")
    assert {leaf.device.type for leaf in _pytree.tree_leaves(batch)} == {"meta"}
    assert batch.layout.form == "whole"


def whole() -> Batch:
    """Everything that a batch can hold; one target for each row."""
    tokens, source = torch.arange(24).view(4, 6), torch.arange(12).view(4, 3)
    return Batch(
        tokens,
        Layout.padded([6, 2, 3, 1], 6),
        torch.arange(4),
        torch.ones(4),
        source,
        Layout.padded([3, 1, 2, 3], 3),
        tokens % 2,
        source % 2,
    )


NAMES = ["tokens", "targets", "weights", "source", "types", "source_types"]


def test_a_source_types_and_targets_of_another_shape_are_split_by_rows() -> None:
    """With their layouts, which a loss of padded rows needs."""
    batch = whole()
    pieces = batch.split(2)
    for name in NAMES:
        assert torch.equal(torch.cat([getattr(piece, name) for piece in pieces]), getattr(batch, name)), name
    for name in ("layout", "source_layout"):
        assert [getattr(piece, name).rows for piece in pieces] == [2, 2]
        assert torch.equal(
            torch.cat([getattr(piece, name).segment for piece in pieces]), getattr(batch, name).segment
        ), name
    assert [piece.targets.tolist() for piece in pieces] == [[0, 1], [2, 3]]


def test_a_source_and_types_are_moved_and_flattened() -> None:
    batch = whole()
    assert {leaf.device.type for leaf in _pytree.tree_leaves(batch.to("meta"))} == {"meta"}
    leaves, spec = _pytree.tree_flatten(batch)
    assert len(leaves) == 10  # six tensors, two layouts of two
    again = _pytree.tree_unflatten(leaves, spec)
    assert all(getattr(again, name) is getattr(batch, name) for name in NAMES)
    assert again.source_layout.form == "padded"


def test_a_batch_on_another_device_knows_how_many_targets_count() -> None:
    batch = next_token_batch(np.ones((4, 4), dtype=np.int64))
    weights = torch.tensor([[1.0, 0, 0], [0, 0, 0], [2, 1, 1], [0, 0.5, 0.5]])
    moved = replace(batch, weights=weights).to("meta")
    assert moved.counts == (1, 0, 3, 2)
    assert [part.counts for part in moved.split(2)] == [(1, 0), (3, 2)]
    assert moved.to("meta").counts == (1, 0, 3, 2)
    assert replace(moved, weights=moved.weights * 2).counts is None, "other weights may be 0"
    assert batch.counts is None
    assert [part.counts for part in batch.split(2)] == [None, None]
    assert Batch(batch.tokens, batch.layout, batch.tokens[:, 0], weights[:, 0]).to("meta").counts == (1, 0, 1, 0)
