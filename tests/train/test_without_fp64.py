"""A Mac's device has no fp64: what the model computes is brought to the host before it is summed in it."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import heddle
from heddle.config import (
    ClassificationConfig,
    MaskedConfig,
    NextTokenConfig,
    RegressionConfig,
    TokenClassificationConfig,
)
from heddle.data.batch import Batch
from heddle.look import find_heads
from heddle.model import Transformer
from tests.train.test_fit import LABELLED, LETTERS, QUIET, TAGGED, TEXT, suited


class OnMac(Tensor):
    """A tensor whose results are of its kind until they are brought to the host. None of them may be in fp64."""

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        if func is Tensor.cpu:
            return result.as_subclass(Tensor)
        if isinstance(result, OnMac) and result.dtype == torch.float64:
            raise TypeError(f"MPS has no float64: {func}")
        return result


@torch.no_grad()
def on_mac(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> Transformer:
    """The model and every batch that is moved to it, on such a device."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(parameter.as_subclass(OnMac)))
    monkeypatch.setattr(Batch, "to", lambda batch, device: tree_map(lambda each: each.as_subclass(OnMac), batch))
    return model


DATA: dict[str, tuple[Any, Any]] = {
    "next_token": (NextTokenConfig(), TEXT * 3),
    "masked": (MaskedConfig(), TEXT * 3),
    "classification": (ClassificationConfig(), LABELLED),
    "token_classification": (TokenClassificationConfig(), TAGGED),
    "regression": (RegressionConfig(), [(text, len(text) / 20) for text, _ in LABELLED]),
}


@pytest.mark.parametrize("kind", list(DATA))
def test_evaluations_are_summed_on_the_host(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, data = DATA[kind]
    settings = {"task": task, "validation": 0.4, "steps": 1, **QUIET}
    expected = heddle.fit(suited(task), LETTERS, data, **settings).evaluation
    there = heddle.fit(on_mac(suited(task), monkeypatch), LETTERS, data, **settings).evaluation
    assert there is not None
    assert there == expected


def test_heads_are_scored_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    model = heddle.build(heddle.sized(2, vocab_size=41, context=64, dim=16))
    expected = find_heads(model)
    for name, scores in find_heads(on_mac(model, monkeypatch)).items():
        for field in fields(scores):
            torch.testing.assert_close(getattr(scores, field.name), getattr(expected[name], field.name), rtol=0, atol=0)
