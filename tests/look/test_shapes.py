"""Tensors of the wrong shape are refused in one line, wherever they go in."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from heddle.errors import HeddleError
from heddle.look import (
    Edit,
    ablate,
    attribute,
    edited,
    input_gradients,
    integrated_gradients,
    lens,
    patch,
    probe,
    replace,
    steer,
    trace,
)
from heddle.nn import Layout
from tests.models import awake, config_of, tokens_of

STREAM = "decoder.0.residual_after"
MODEL = awake(config_of())
WIDTH, TOKENS = MODEL.config.dim, tokens_of(1, 6)
TWO = tokens_of(2, 6)


def under(edit: Edit) -> Any:
    with edited(MODEL, [edit]):
        return MODEL(TOKENS)


CALLS: dict[str, Callable[[], Any]] = {
    "steer, width": lambda: under(steer(STREAM, torch.ones(WIDTH + 1))),
    "steer, length": lambda: under(steer(STREAM, torch.ones(5, WIDTH))),
    "steer, dimensions": lambda: under(steer(STREAM, torch.ones(1, 1, 1, WIDTH))),
    "steer, nothing": lambda: under(steer(STREAM, torch.ones(0))),
    "replace, width": lambda: under(replace(STREAM, torch.ones(1, 6, WIDTH + 1))),
    "replace, rows": lambda: under(replace(STREAM, torch.ones(3, 6, WIDTH))),
    "edit, fails": lambda: under(Edit(STREAM, lambda old: old @ torch.ones(3, 3, dtype=old.dtype))),
    "edit, no tensor": lambda: under(Edit(STREAM, lambda old: None)),  # type: ignore[arg-type,return-value]
    "edit, shape": lambda: under(Edit(STREAM, lambda old: old[:, :2])),
    "ablate, position": lambda: under(ablate(STREAM, positions=[6])),
    "trace, flat": lambda: trace(MODEL, TOKENS[0], [STREAM]),
    "trace, layout": lambda: trace(MODEL, TOKENS, [STREAM], layout=Layout.whole(1, 5)),
    "lens, rows": lambda: lens(MODEL, TWO),
    "lens, floats": lambda: lens(MODEL, TOKENS.float()),
    "attribute, targets": lambda: attribute(MODEL, TOKENS, targets=torch.zeros(1, 3, dtype=torch.long)),
    "attribute, position": lambda: attribute(MODEL, TOKENS, positions=[6]),
    "gradients, rows": lambda: input_gradients(MODEL, TWO, 1),
    "gradients, position": lambda: input_gradients(MODEL, TOKENS, 1, position=7),
    "baseline, width": lambda: integrated_gradients(MODEL, TOKENS, 1, baseline=torch.ones(WIDTH + 1)),
    "baseline, length": lambda: integrated_gradients(MODEL, TOKENS, 1, baseline=torch.ones(5, WIDTH)),
    "patch, lengths": lambda: patch(MODEL, TOKENS, tokens_of(1, 5), lambda scores: float(scores[0, -1, 0]), STREAM),
    "probe, labels": lambda: probe(MODEL, TWO, tokens_of(2, 5), STREAM),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_shape_is_one_line(name: str) -> None:
    with pytest.raises(HeddleError) as caught:
        CALLS[name]()
    assert "\n" not in str(caught.value)
    assert torch.isfinite(MODEL(TOKENS).hidden).all()  # and no hook stays


def test_what_broadcasts_is_taken() -> None:
    plain = trace(MODEL, TOKENS, [STREAM])[STREAM]
    for shape in ((), (WIDTH,), (1, WIDTH), (6, WIDTH), (1, 6, WIDTH)):
        vector = torch.ones(shape)
        traced = trace(MODEL, TOKENS, [STREAM], edits=[steer(STREAM, vector, 0.5)])[STREAM]
        torch.testing.assert_close(traced, plain + 0.5)
