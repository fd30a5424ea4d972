"""FLOPs of a forward pass, from the walk: matrix products only, a multiply and an add counted as two.

Norms, activations, softmax and table look-ups are not counted, as torch's own counter does not count them. Attention
is the full square, masked or not: that is what `reference` computes and what the counter says of `sdpa`. `plain` leaves
out blocks above the diagonal, so the counter says less there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from heddle.account.formulas import Line, causal_share, layer_flops, prefix_rows
from heddle.account.walk import (
    FEED_FORWARD,
    HEAD,
    PROJECTIONS,
    Walk,
    first_layer,
    forward,
    kernels_taken,
    lengthened,
    walk,
)
from heddle.config.model import TransformerConfig
from heddle.model.build import build
from heddle.nn.kernels import BLOCK
from heddle.nn.mask import Rule

# The backward pass makes two products of the same size for every one of the forward pass: one towards the input, one
# towards the weight (or the other factor). A fused kernel that makes its scores again adds to this.
TRAINING = 3


@dataclass(frozen=True)
class Flops:
    """What one pass over `batch` rows of `length` tokens costs.

    Attributes:
        parts: projections, scores, weighted sum, feed-forward, head; sums to `forward`.
        layer: the same for the first layer alone, without the head.
        forward: one forward pass, the head taken at every position.
        training: forward and backward, three times the forward pass.
        per_token: `training` for one token.
        quadratic_share: scores and weighted sum over the whole layer (C-06).
        crossover: the length at which that share is one half; 6d for a GPT-2-like layer.
        counted: what torch's counter says of the same pass, by kernel.
        deck: the lectures' closed forms beside the walk (C-01 … C-07, C-14).
        prefix_rows: rows of tokens for one prediction after every prefix, in one pass and each alone (C-13).
        path: layers until the last token has seen the first (C-17).
    """

    batch: int
    length: int
    parts: Mapping[str, int]
    layer: Mapping[str, int]
    forward: int
    training: int
    per_token: float
    quadratic_share: float
    crossover: float
    counted: Mapping[str, int]
    deck: tuple[Line, ...]
    prefix_rows: tuple[int, int]
    path: int


def flops(config: TransformerConfig, batch: int = 1, length: int | None = None) -> Flops:
    """Walk the model a config describes; `length`, by default its context, may exceed the learned positions."""
    length = config.context if length is None else length
    steps = walk(config, batch, length)
    parts, layer = by_part(steps), by_part(first_layer(steps))
    total = sum(parts.values())
    square = layer["scores"] + layer["weighted sum"]
    straight = sum(layer.values()) - square
    kernels = dict.fromkeys(("sdpa", *kernels_taken(config, length).values()))
    count = {kernel: counted(config, batch, length, kernel) for kernel in kernels}
    return Flops(
        batch=batch,
        length=length,
        parts=parts,
        layer=layer,
        forward=total,
        training=TRAINING * total,
        per_token=TRAINING * total / (batch * length),
        quadratic_share=square / (square + straight),
        crossover=straight * length / square,
        counted=count,
        deck=_deck(config, steps, count),
        prefix_rows=prefix_rows(length),
        path=path(build(config, "meta").decoder.sight.rule, length),
    )


def training_flops_per_token(config: TransformerConfig, length: int) -> int:
    """FLOPs of forward and backward for one token of a sequence of `length`, the head included."""
    return TRAINING * sum(by_part(walk(config, 1, length)).values()) // length


def by_part(steps: Walk) -> dict[str, int]:
    """FLOPs of a walk, summed by part."""

    def products(part: str) -> int:
        return sum(product.flops for product in steps.products if product.part == part)

    return {
        PROJECTIONS: products(PROJECTIONS),
        "scores": sum(look.score_flops for look in steps.looks),
        "weighted sum": sum(look.sum_flops for look in steps.looks),
        FEED_FORWARD: products(FEED_FORWARD),
        HEAD: products(HEAD),
    }


def counted(config: TransformerConfig, batch: int, length: int, kernel: str = "sdpa", *, training: bool = False) -> int:
    """What torch's counter says of the same forward pass with a kernel; with `training`, of the backward pass too."""
    model = build(lengthened(config, length).override({"decoder.block.mixer.kernel": kernel}), "meta")
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(training):
        logits = forward(model, batch, length)
        if training:
            logits.sum().backward()
    return int(counter.get_total_flops())


def path(rule: Rule, length: int) -> int:
    """Layers until the last of `length` tokens has seen the first: 1 for attention without a window (L1-75, C-17).

    Raises:
        ValueError: the rule never lets the first token through.
    """
    places = torch.arange(length)
    seen = new = places == length - 1
    layers = 0
    while not seen[0]:
        new = rule(places[new][:, None], places).any(0) & ~seen
        if not new.any():
            raise ValueError(f"under {rule} token {length - 1} never sees token 0")
        seen, layers = seen | new, layers + 1
    return layers


def _deck(config: TransformerConfig, steps: Walk, count: Mapping[str, int]) -> tuple[Line, ...]:
    """The lectures' closed forms for this batch and length, beside the walk."""
    batch, length, dim = steps.batch, steps.length, config.dim
    parts, layer = by_part(steps), by_part(first_layer(steps))
    lines = [
        Line(f"{name}, one layer", formula, batch * value, layer[name])
        for name, (formula, value) in layer_flops(length, dim).items()
    ]
    one = sum(line.value for line in lines)
    head = batch * 2 * length * dim * config.vocab_size
    total = sum(parts.values())
    lines.append(Line("one layer", "24nd² + 4n²d", one, sum(layer.values())))
    lines.append(Line("head", "2ndV", head, parts[HEAD]))
    lines.append(Line("forward", "L(24nd² + 4n²d) + 2ndV", config.decoder.depth * one + head, total))
    if "plain" in count and length % BLOCK == 0:
        square = parts["scores"] + parts["weighted sum"]
        kept = round(causal_share(length, BLOCK) * square)
        lines.append(Line("attention, blocks left out", "(n + b)/2n", kept, count["plain"] - (total - square)))
    return tuple(lines)
