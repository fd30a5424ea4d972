"""The lectures' worked examples, and how their weights get into heddle's modules.

Numbers are rounded to 12 decimals, so they are compared in float64 to 1e-11. The lectures write X W with W stored input
first; `torch.nn.Linear` keeps the transpose. Nothing is computed here.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heddle.config import AttentionConfig
from heddle.model import Transformer
from heddle.nn import MLP, Attention, Block, Causal, Everything, Gated, Layout, Pattern, Scope, Setting

HERE = Path(__file__).parent
CASES = {case["id"]: case for case in json.loads((HERE / "golden.json").read_text())["cases"]}
LECTURES = json.loads((HERE / "lectures.json").read_text())
# What a test can settle: a row of the checklist (L), a decision where lectures disagree (D), a cost (C).
ROWS = {row["id"] for part in ("rows", "decisions") for row in LECTURES[part]} | {
    row[0] for row in LECTURES["complexity"]
}

Rule = Causal | Everything


def tensors(value: Any) -> Any:
    """Nested lists of numbers as float64 tensors; tables and lists of tables keep their form."""
    if isinstance(value, dict):
        return {key: tensors(inner) for key, inner in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [tensors(inner) for inner in value]
    if isinstance(value, list):
        return torch.tensor(numbers(value), dtype=torch.float64)
    return value


def numbers(value: Any) -> Any:
    """What JSON cannot write as a number ("-inf", "nan") is written as text."""
    return [numbers(inner) for inner in value] if isinstance(value, list) else float(value)


class Case:
    """One worked example: `inputs`, `weights` and `outputs` by name."""

    def __init__(self, name: str) -> None:
        case = CASES[name]
        self.inputs = tensors(case["inputs"])
        self.weights = tensors(case["weights"])
        self.outputs = tensors(case["outputs"])


def same(actual: Tensor, expected: Tensor) -> None:
    """Equal to the last of the twelve decimals; -inf equals -inf."""
    assert actual.dtype == torch.float64
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11)


def attention(weights: dict[str, Tensor], kernel: str = "reference", **config: Any) -> Attention:
    """Attention without biases, with a case's weights; where it has no W_O, that is the identity."""
    dim = weights["W_Q"].shape[0]
    made = Attention(AttentionConfig.of({"bias": False, "kernel": kernel, **config}), Setting(dim)).double()
    load_attention(made, {"W_O": torch.eye(dim, dtype=torch.float64), **weights})
    return made


@torch.no_grad()
def load_attention(module: Attention, weights: dict[str, Tensor]) -> None:
    """W_Q, W_K, W_V and W_O, and their biases where there are any."""
    for letter in "QKVO":
        load(getattr(module, letter.lower()), weights[f"W_{letter}"], weights.get(f"b_{letter}"))


@torch.no_grad()
def load_mlp(module: MLP, weights: dict[str, Tensor]) -> None:
    """W_1 and W_2, and their biases where there are any."""
    load(module.up, weights["W_1"], weights.get("b_1"))
    load(module.down, weights["W_2"], weights.get("b_2"))


@torch.no_grad()
def load_gated(module: Gated, weights: dict[str, Tensor]) -> None:
    """W_gate, W_up and W_down."""
    for name in ("gate", "up", "down"):
        load(getattr(module, name), weights[f"W_{name}"])


@torch.no_grad()
def load(linear: nn.Linear, weight: Tensor, bias: Tensor | None = None) -> None:
    """A weight stored input first. Strict: a bias that one of the two does not have is an error."""
    state = {"weight": weight.T} if linear.bias is None else {"weight": weight.T, "bias": bias}
    linear.load_state_dict(state)


def load_norm(module: nn.Module, gain: Tensor, shift: Tensor) -> None:
    """Gain and shift; a norm without a shift takes the gain alone."""
    state = {"weight": gain, "bias": shift}
    module.load_state_dict({name: state[name] for name in module.state_dict()})


def load_block(block: Block, weights: dict[str, Tensor]) -> None:
    """A whole block: attention, perhaps cross-attention, an MLP and their norms, wherever its placement has them."""
    load_attention(block.mixer, weights)
    load_mlp(block.ffn, weights)
    residuals = [block.mixer_residual, block.ffn_residual]
    if block.cross is not None:
        load_attention(block.cross, {f"W_{letter}": weights[f"C_{letter}"] for letter in "QKVO"})
        residuals.insert(1, block.cross_residual)
    for number, residual in enumerate(residuals, start=1):
        norm = residual.outside if isinstance(residual.before, nn.Identity) else residual.before
        load_norm(norm, weights[f"norm{number}_gain"], weights[f"norm{number}_shift"])


@torch.no_grad()
def load_model(model: Transformer, weights: dict[str, Any]) -> None:
    """The case `tiny_lm`. To the letter of deck 000 there are no biases and no final norm; those weights then stay unused."""
    model.embedding.load_state_dict({"weight": weights["E"]})
    model.decoder.entry.positions.load_state_dict({"weight": weights["P"]})
    for block, layer in zip(model.decoder.blocks, weights["layers"], strict=True):
        load_block(block, layer if block.mixer.q.bias is not None else bare(layer))
    if not isinstance(model.decoder.final_norm, nn.Identity):
        load_norm(model.decoder.final_norm, weights["final_gain"], weights["final_shift"])


def bare(layer: dict[str, Tensor]) -> dict[str, Tensor]:
    """A layer's weights without those of its biases."""
    return {name: tensor for name, tensor in layer.items() if not name.startswith("b_")}


def scope(rule: Rule, kernel: str, queries: Layout, keys: Layout | None = None, source: Tensor | None = None) -> Scope:
    """What attention attends to."""
    return Pattern(rule, kernel=kernel).scope(queries, keys, source=source)


@contextmanager
def watched(**modules: nn.Module) -> Iterator[dict[str, Tensor]]:
    """What the named modules put out, and under `name_in` what goes in, of the last call."""
    seen: dict[str, Tensor] = {}

    def watch(name: str) -> Any:
        def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
            seen[f"{name}_in"], seen[name] = inputs[0], output[0] if isinstance(output, tuple) else output

        return look

    hooks = [module.register_forward_hook(watch(name)) for name, module in modules.items()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
