"""The objective wrapped: in a plain module, in DistributedDataParallel on two processes, captured. The losses are the same."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from heddle.config import TransformerConfig, sized
from heddle.config.train import TrainConfig
from heddle.data.batch import Batch, next_token_batch
from heddle.model import build
from heddle.model.lora import adapt
from heddle.tasks import CrossEntropy, Loss
from heddle.train import Optimizer, train_step
from tests import programs

STEPS = 20


def config(depth: int = 2) -> TransformerConfig:
    """With routers whose choice is balanced by their loads and by a term of the loss."""
    experts = {
        "kind": "moe",
        "experts": 4,
        "active": 2,
        "balance": 0.1,
        "bias_rate": 0.01,
        "expert": {"kind": "mlp", "hidden": 8},
    }
    return sized(depth, vocab_size=41, context=8, dim=16).override(
        {"decoder.overrides": [{"layers": str(depth - 1), "block": {"ffn": experts}}]}
    )


def uneven(step: int) -> Batch:
    """One of two batches of eight rows; the later rows have fewer targets, so that two halves count differently."""
    draw = np.random.default_rng(step % 2)
    batch = next_token_batch(draw.integers(0, 41, (8, 9)))
    inside = torch.arange(8)[None] < torch.arange(8, 0, -1)[:, None]
    return Batch(batch.tokens, batch.layout, batch.targets, inside.float())


def settings_of(word: str) -> dict[str, Any]:
    """Those of an optimizer by its name, or of adapters."""
    return {"lora": {"rank": 2, "layers": ["*.mixer.*"]}} if word == "lora" else {"optimizer": word}


class Plain(nn.Module):
    """A wrapper that does nothing but be there."""

    def __init__(self, objective: nn.Module) -> None:
        super().__init__()
        self.inner = objective

    def forward(self, batch: Batch) -> Loss:
        loss: Loss = self.inner(batch)
        return loss


def trained(
    wrap: Any = lambda objective: objective, depth: int = 2, **train: Any
) -> tuple[list[tuple[float, float]], Any]:
    """The losses and the norms of twenty steps in one process, and the model."""
    settings = TrainConfig.of(train)
    model = adapt(build(config(depth)), settings.lora)
    optimizer = Optimizer(model, settings, 1e-2, "fp32")
    objective = wrap(CrossEntropy(model))
    results = [train_step(objective, optimizer, uneven(step), 2, 1.0, 1.0) for step in range(STEPS)]
    return results, model


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_plain_wrapper_changes_no_bit(optimizer: str) -> None:
    """Nor the names of what is saved, which are the model's."""
    (bare, model), (wrapped, other) = trained(optimizer=optimizer), trained(Plain, optimizer=optimizer)
    assert wrapped == bare
    assert bare[-1][0] < bare[0][0] - 0.5
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name


@pytest.mark.thorough
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_two_ranks_have_the_losses_of_one() -> None:
    """Half of the batch each, in two micro-batches; counts, losses, gradients and loads add up over both."""
    optimizers = ("adamw", "muon", "lora")
    firsts, seconds = json.loads(programs.traced("train.ranks", "fp32", *optimizers))
    assert firsts == seconds  # also the gradient's norm and the experts' biases
    for optimizer, (losses, biases) in zip(optimizers, firsts, strict=True):
        alone, model = trained(**settings_of(optimizer))
        # The first gradients of A are rounding, which AdamW scales up.
        close, norms = (2e-4, 3e-2) if optimizer == "lora" else (2e-5, 1e-3)
        assert [loss for loss, _ in losses] == pytest.approx([loss for loss, _ in alone], abs=close)
        assert [norm for _, norm in losses] == pytest.approx([norm for _, norm in alone], rel=norms)
        (bias,) = (each for name, each in model.named_parameters() if name.endswith("router.bias"))
        assert bias.abs().max() > 0 or optimizer == "lora"  # beside adapters, the biases keep their values
        assert biases == [bias.tolist()]


@pytest.mark.thorough
def test_compiled_it_has_the_same_losses() -> None:
    """One layer, the one with experts: a second one takes as long again."""
    alone = [loss for loss, _ in trained(depth=1)[0]]
    assert json.loads(programs.traced("train.compiled")) == pytest.approx(alone, abs=1e-4)
