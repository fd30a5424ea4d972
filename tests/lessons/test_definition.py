"""The definition of attention, a block and a model equals heddle's own modules, and the lectures' worked examples."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import heddle
from heddle.config import AttentionConfig, BlockConfig, TransformerConfig
from heddle.lessons.definition import Weights, attention, below, block, loss, model
from heddle.nn import Attention, Block, Causal, Layout, Setting
from tests.lectures.golden import Case, bare, same, scope
from tests.lessons.drawn import DIM, HEADS, draw, input_of, model_weights

CONFIG = {
    "vocab_size": 11,
    "dim": DIM,
    "context": 8,
    "decoder": {
        "depth": 2,
        "entry": {"positions": "learned"},
        "block": {"mixer": {"heads": HEADS, "kernel": "reference"}, "ffn": {"kind": "mlp"}, "norm": {"kind": "layer"}},
    },
    "head": {"tied": True},
}
PARTS = {
    "mixer.": "attention.",
    "mixer_residual.before": "norm1",
    "ffn_residual.before": "norm2",
    "ffn.": "",
}


def renamed(state: dict[str, Tensor]) -> Weights:
    """A block's weights by the names of the homework."""
    names = {}
    for name in state:
        new = name
        for own, homework in PARTS.items():
            new = homework + new.removeprefix(own) if new.startswith(own) else new
        names[new] = state[name]
    return names


def test_attention_is_that_of_heddle() -> None:
    module = Attention(AttentionConfig(heads=HEADS, kernel="reference"), Setting(DIM)).double()
    draw(module.state_dict(), seed=3)
    x = input_of(seed=1)
    expected = module(x, scope(Causal(), "reference", Layout.whole(*x.shape[:2])))
    same(attention(x, module.state_dict(), HEADS), expected)


def test_a_block_is_that_of_heddle() -> None:
    config = BlockConfig.of({"mixer": {"heads": HEADS, "kernel": "reference"}, "norm": {"kind": "layer"}})
    module = Block(config, Setting(DIM)).double()
    draw(module.state_dict(), seed=4)
    x = input_of(seed=1)
    expected = module(x, scope(Causal(), "reference", Layout.whole(*x.shape[:2]))).hidden
    same(block(x, renamed(module.state_dict()), HEADS), expected)


def test_a_model_and_its_loss_are_those_of_heddle() -> None:
    built = heddle.build(TransformerConfig.of(CONFIG)).double()
    draw(built.state_dict(), seed=5)
    state = built.state_dict()
    weights = {
        "tokens.weight": state["embedding.weight"],
        "positions.weight": state["decoder.entry.positions.weight"],
        "norm.weight": state["decoder.final_norm.weight"],
        "norm.bias": state["decoder.final_norm.bias"],
    }
    for index in range(2):
        inner = below(state, f"decoder.blocks.{index}")
        weights |= {f"blocks.{index}.{name}": each for name, each in renamed(dict(inner)).items()}
    ids = torch.randint(11, (2, 8), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = built.logits(built(ids).hidden)
    same(model(ids, weights, HEADS), logits)
    same(loss(ids, weights, HEADS), F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))


def of_homework(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A case's block, whose weights are stored input first, some without biases."""

    def linear(name: str, weight: str, bias: str) -> dict[str, Tensor]:
        matrix = weights[weight].T
        return {f"{name}.weight": matrix, f"{name}.bias": weights.get(bias, matrix.new_zeros(len(matrix)))}

    result = {}
    for letter in "QKVO":
        result |= linear(f"attention.{letter.lower()}", f"W_{letter}", f"b_{letter}")
    if "W_1" in weights:
        result |= linear("up", "W_1", "b_1") | linear("down", "W_2", "b_2")
        for number in (1, 2):
            result |= {
                f"norm{number}.weight": weights[f"norm{number}_gain"],
                f"norm{number}.bias": weights[f"norm{number}_shift"],
            }
    return result


@pytest.mark.lecture("L1-90")
def test_attention_is_the_worked_example() -> None:
    case = Case("multihead_causal_dk")
    weights = below(of_homework(case.weights), "attention")
    same(attention(case.inputs["Z"][None], weights, heads=2)[0], case.outputs["output"])


@pytest.mark.lecture("L1-91")
def test_a_block_is_the_worked_example() -> None:
    case = Case("block_pre_norm")
    same(block(case.inputs["X"][None], of_homework(bare(case.weights)), heads=2)[0], case.outputs["output"])


@pytest.mark.lecture("L1-92")
def test_a_model_is_the_worked_example() -> None:
    case = Case("tiny_lm")
    weights: dict[str, Any] = {
        "tokens.weight": case.weights["E"],
        "positions.weight": case.weights["P"],
        "norm.weight": case.weights["final_gain"],
        "norm.bias": case.weights["final_shift"],
    }
    for index, layer in enumerate(case.weights["layers"]):
        weights |= {f"blocks.{index}.{name}": each for name, each in of_homework(layer).items()}
    same(model(case.inputs["ids"].long()[None], weights, heads=2)[0], case.outputs["logits"])


def test_weights_are_read() -> None:
    """Each number of each tensor changes the logits."""
    weights, ids = model_weights(seed=2), torch.arange(6).reshape(1, 6)
    sound = model(ids, weights, HEADS)
    for name, tensor in weights.items():
        if not name.endswith("k.bias"):  # adds the same to all scores of a query
            assert (
                model(ids, {**weights, name: tensor + torch.randn_like(tensor)}, HEADS) - sound
            ).abs().max() > 1e-3, name
