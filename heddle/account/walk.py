"""One forward pass over shapes alone: every matrix product a model makes is written down as it happens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heddle.config.model import TransformerConfig
from heddle.model.build import build
from heddle.model.transformer import Transformer
from heddle.nn.attention import Attention
from heddle.nn.kernels import fastest

FEED_FORWARD, PROJECTIONS, HEAD = "feed-forward", "projections", "head"


@dataclass(frozen=True)
class Product:
    """A linear map applied to `rows` vectors."""

    name: str
    part: str
    rows: int
    inputs: int
    outputs: int

    @property
    def flops(self) -> int:
        """Multiply and add are two."""
        return 2 * self.rows * self.inputs * self.outputs

    @property
    def numbers(self) -> int:
        """Numbers that come out."""
        return self.rows * self.outputs


@dataclass(frozen=True)
class Look:
    """One attention: every query looks at every key, the full square, whatever the mask then blocks."""

    name: str
    rows: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    value_dim: int

    @property
    def scores(self) -> int:
        """Numbers in the score matrices of all heads, B·H·T·S."""
        return self.rows * self.heads * self.queries * self.keys

    @property
    def score_flops(self) -> int:
        """FLOPs of q kᵀ (C-01)."""
        return 2 * self.scores * self.head_dim

    @property
    def sum_flops(self) -> int:
        """FLOPs of the weighted sum of the values (C-02)."""
        return 2 * self.scores * self.value_dim

    @property
    def output(self) -> int:
        """Numbers in the output of all heads."""
        return self.rows * self.queries * self.heads * self.value_dim

    @property
    def inputs(self) -> int:
        """Numbers in the queries, the keys and the values."""
        ours = self.queries * self.heads * self.head_dim
        theirs = self.keys * self.kv_heads * (self.head_dim + self.value_dim)
        return self.rows * (ours + theirs)


@dataclass(frozen=True)
class Walk:
    """What one forward pass multiplied, in order; the head is taken at every position."""

    batch: int
    length: int
    products: tuple[Product, ...]
    looks: tuple[Look, ...]


def first_layer(steps: Walk) -> Walk:
    """What the first block alone multiplied."""
    first = "decoder.blocks.0."
    products = tuple(product for product in steps.products if product.name.startswith(first))
    looks = tuple(look for look in steps.looks if look.name.startswith(first))
    return Walk(steps.batch, steps.length, products, looks)


def kernels_taken(config: TransformerConfig, length: int) -> dict[str, str]:
    """Which attention kernel whole sequences of `length` tokens take, by device type."""
    kernel = config.decoder.block.mixer.kernel
    return {device: fastest(device, length) if kernel == "auto" else kernel for device in ("cpu", "cuda")}


def lengthened(config: TransformerConfig, length: int) -> TransformerConfig:
    """The same model, with room for `length` tokens where its positions are learned."""
    return config if length <= config.context else config.override({"context": length})


def forward(model: Transformer, batch: int, length: int) -> Tensor:
    """Logits [B T V] of a whole batch of some tokens; on the meta device nothing is computed and nothing is held."""
    tokens = torch.zeros(batch, length, dtype=torch.long, device=model.device)
    logits: Tensor = model.logits(model(tokens))
    return logits


def walk(config: TransformerConfig, batch: int, length: int) -> Walk:
    """Write down every matrix product of one forward pass over `batch` rows of `length` tokens."""
    model = build(lengthened(config, length), "meta")
    products: list[Product] = []
    looks: list[Look] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(_product(name, products))
        elif isinstance(module, Attention):
            module.kernel.register_forward_hook(_look(name, looks))
    with torch.no_grad():
        forward(model, batch, length)
    table = model.head_weight()
    # The head is a table, not a layer: it is the one product that no module of its own makes.
    products.append(Product("head", HEAD, batch * length, table.shape[1], table.shape[0]))
    return Walk(batch, length, tuple(products), tuple(looks))


def _product(name: str, products: list[Product]) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
    part = FEED_FORWARD if ".ffn." in name else PROJECTIONS

    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        width, made = inputs[0].shape[-1], output.shape[-1]
        products.append(Product(name, part, inputs[0].numel() // width, width, made))

    return note


def _look(name: str, looks: list[Look]) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        q, k, v = inputs[:3]
        rows, heads, queries, head_dim = q.shape
        looks.append(Look(name, rows, heads, k.shape[1], queries, k.shape[2], head_dim, v.shape[3]))

    return note
