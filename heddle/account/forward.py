"""A real forward pass on shapes alone, measured by torch's FLOP counter to check `heddle.account.walk`.

The model is changed so that it runs without values: experts are dispatched as `grouped`, and a custom module that needs values is
replaced by one that returns its input.
"""

from collections.abc import Container
from math import prod
from typing import Any

import torch
from torch import Size, Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from heddle.account.repeats import measured, stepped, with_blocks
from heddle.account.walk import OWN_SCORES, check_countable, walk
from heddle.checks import at_least, checked
from heddle.config.kernels import choose, missing, together
from heddle.config.layers import AttentionConfig, CustomConfig, LatentConfig, MoEConfig, ScoresConfig
from heddle.config.model import BlockConfig, TransformerConfig, with_kernel
from heddle.model.build import build
from heddle.model.transformer import Transformer
from heddle.nn.layout import Layout


class Skipped(nn.Module):
    """Returns its input; replaces a custom module that cannot run on shapes alone."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        return x


SKIPPED = CustomConfig(target=f"{__name__}:Skipped")
UNCHANGED = ScoresConfig(target=SKIPPED.target)


def attentions(block: BlockConfig) -> list[AttentionConfig | LatentConfig]:
    """The attention layers of a block: its mixer and its cross-attention."""
    return [part for part in (block.mixer, block.cross) if isinstance(part, AttentionConfig | LatentConfig)]


def kernels_by_device(config: TransformerConfig, length: int) -> dict[str, str]:
    """The attention kernel for sequences of `length` tokens, by device type; empty if no layer has attention.

    One kernel measures all layers: that of the first layer with attention, or the next that supports them all.
    """
    layers = [layer for stack in config.stacks().values() for block in stack.blocks for layer in attentions(block)]
    if not layers:
        return {}
    needs = together(layer.needs(config.dropout) for layer in layers)
    kernel = "auto" if missing(layers[0].kernel, needs) else layers[0].kernel
    return {device: choose(kernel, needs, device, length, length) for device in ("cpu", "cuda")}


def prepared(config: TransformerConfig, length: int, kernel: str | None) -> TransformerConfig:
    """The same model with one kernel in all layers, and at least `length` positions if they are learned.

    Raises:
        HeddleError: the kernel does not support the model, or the pass is too large to count.
    """
    check_countable(1, length)
    config = config if length <= config.context else config.override({"context": length})
    return config if kernel is None else with_kernel(config, kernel)


def without_values(config: TransformerConfig, skipped: Container[str] | None, **routing: Any) -> TransformerConfig:
    """The same model with `grouped` experts, and with `Skipped` for some custom modules.

    Args:
        skipped: names of these modules, such as `decoder.blocks.0.ffn` or `decoder.blocks.0.mixer.scores`; None: all of them.
        routing: further settings of each mixture of experts.
    """

    def change(name: str, block: BlockConfig) -> BlockConfig:
        changes: dict[str, Any] = {}
        for role, part in (("mixer", block.mixer), ("cross", block.cross), ("ffn", block.ffn)):
            if isinstance(part, CustomConfig) and (skipped is None or f"{name}.{role}" in skipped):
                changes[role] = SKIPPED
            scores_name = f"{name}.{role}.{OWN_SCORES}"
            if isinstance(part, AttentionConfig) and part.scores and (skipped is None or scores_name in skipped):
                changes[role] = part.model_copy(update={"scores": UNCHANGED})
        if isinstance(block.ffn, MoEConfig):
            changes["ffn"] = block.ffn.model_copy(update={"dispatch": "grouped", **routing})
        return block.model_copy(update=changes)

    return with_blocks(config, change)


def source_for(model: Transformer, tokens: Tensor) -> Tensor | None:
    """The source of an encoder-decoder, as long as its tokens; None for any other model."""
    return torch.zeros_like(tokens) if model.encoder is not None and model.decoder is not None else None


def prefixes_for(model: Transformer, tokens: Tensor) -> Layout | None:
    """The layout of rows that are all prefix, for a decoder that reads prefixes; None for any other model.

    Kernels compute all scores here, whatever the length of the prefix, because the mask is not triangular.
    """
    if not model.last_stack().prefix:
        return None
    rows, width = tokens.shape
    return Layout.whole(rows, width, tokens.device).prefixed(tokens.new_full((rows, 1), width))


def forward(model: Transformer, batch: int, length: int) -> Tensor:
    """The output of a model and its head for `batch` rows of `length` tokens: logits, scores or vectors."""
    tokens = torch.zeros(batch, length, dtype=torch.long, device=model.device)
    hidden: Tensor = model(tokens, prefixes_for(model, tokens), source_for(model, tokens)).hidden
    if model.head is None:
        return hidden
    out: Tensor = model.head(hidden, None, model.embedding.weight)
    return out


@checked(batch=at_least(1), length=at_least(1))
def counted(
    config: TransformerConfig, batch: int, length: int, kernel: str | None = "sdpa", *, training: bool = False
) -> int:
    """FLOPs of a forward pass with a kernel, from torch's counter; with `training`, also of the backward pass.

    Raises:
        HeddleError: the kernel does not support the model.
    """

    def measure(variant: TransformerConfig, tokens: int) -> dict[str, int]:
        return {"flops": count_pass(variant, batch, tokens, training=training)}

    config = prepared(config, length, kernel)
    return measured(config, lambda variant: stepped(variant, length, measure))["flops"]


def count_pass(config: TransformerConfig, batch: int, length: int, *, training: bool = False) -> int:
    """`counted` for exactly this config: all its layers, token by token where they are recurrent."""
    unknown = walk(config, batch, length).unknown()
    # The balance loss multiplies too, but is not part of the pass.
    model = build(without_values(config, unknown, balance=0.0), "meta").eval()
    counter = FlopCounterMode(display=False, custom_mapping=EXPERTS_FLOPS)
    with counter, torch.set_grad_enabled(training):
        out = forward(model, batch, length)
        if training:
            out.sum().backward()
    return int(counter.get_total_flops())


def _experts(x: Size, gates: Size, choice: Size, load: Size, weights: list[Size], *_: Any, **__: Any) -> int:
    """FLOPs of `heddle::experts`: every chosen pair of a token and an expert goes through each matrix of the expert."""
    return 2 * prod(choice) * sum(prod(weight[1:]) for weight in weights)


def _experts_gradient(above: Size, x: Size, gates: Size, *more: Any, **rest: Any) -> int:
    """FLOPs of the gradient: two products of the same size for each one of the forward pass."""
    return 2 * _experts(x, gates, gates, more[0], more[5])


# Torch's counter knows only torch's own operators.
EXPERTS_FLOPS = {torch.ops.heddle.experts: _experts, torch.ops.heddle.experts_gradient: _experts_gradient}
