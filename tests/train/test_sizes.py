"""Rows and tokens of a step, from what was asked for."""

from typing import Any

import pytest

from heddle.config import RunConfig
from heddle.train.sizes import TOKENS_PER_STEP, batch_size, by_tokens, padded_tokens

DOCUMENTS: dict[str, Any] = {"data": {"layout": "documents"}}
PACKED: dict[str, Any] = {"data": {"layout": "pack"}, "task": "translation"}
SEVERAL: dict[str, Any] = {"task": "classification"}


@pytest.mark.parametrize(
    ("settings", "train", "rows"),
    [
        ({}, {"batch_tokens": 1000}, 10),
        ({}, {"batch_tokens": 1000, "accumulate": 3}, 12),
        ({}, {"batch": 5, "accumulate": 1}, 5),
        ({}, {"batch_tokens": 1049}, 10),
        ({}, {"batch_tokens": 1051}, 11),
        ({}, {}, round(TOKENS_PER_STEP["cpu"] / 100)),
        (DOCUMENTS, {"batch_tokens": 1000, "accumulate": 3}, 24),
        (DOCUMENTS, {"batch_tokens": 50}, 8),
        (SEVERAL, {"batch_tokens": 2000}, 24),
        (PACKED, {"batch_tokens": 1000}, 10),
    ],
)
def test_rows_are_a_multiple_of_what_divides_them(settings: dict[str, Any], train: dict[str, Any], rows: int) -> None:
    assert batch_size(RunConfig.of({**settings, "train": train}), 100, "cpu") == rows


@pytest.mark.parametrize(
    ("settings", "train", "tokens"),
    [
        (DOCUMENTS, {}, 77),
        (DOCUMENTS, {"batch_tokens": 500}, 500),
        (DOCUMENTS, {"batch": 4}, None),
        (SEVERAL, {}, 77),
        (PACKED, {}, None),
        ({}, {"batch_tokens": 500}, None),
    ],
)
def test_steps_of_rows_of_different_lengths_are_tokens_unless_rows_are_asked_for(
    settings: dict[str, Any], train: dict[str, Any], tokens: int | None
) -> None:
    config = RunConfig.of({**settings, "train": train})
    assert padded_tokens(config, 77) == tokens
    assert by_tokens(config) == (settings in (DOCUMENTS, SEVERAL))
