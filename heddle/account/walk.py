"""One forward pass over shapes alone: every matrix product a model makes is written down as it happens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from heddle.checks import at_least, checked
from heddle.config.kernels import choose, missing, together
from heddle.config.layers import AttentionConfig
from heddle.config.model import BlockConfig, TransformerConfig, with_kernel
from heddle.model.build import build
from heddle.model.head import LanguageHead
from heddle.model.transformer import Transformer
from heddle.nn.attention import Attention
from heddle.nn.convolution import Convolution
from heddle.nn.custom import Custom
from heddle.nn.experts import Experts
from heddle.nn.layout import Layout
from heddle.nn.moe import MoE, Router
from heddle.nn.recurrent import Recurrent

FEED_FORWARD, PROJECTIONS, HEAD = "feed-forward", "projections", "head"
CONVOLUTION, RECURRENT, ROUTER = "convolution", "recurrent", "router"
EXPERTS, SHARED, CUSTOM = "experts", "shared experts", "custom"


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
class AttentionProducts:
    """The two products of one attention, for all pairs of queries and keys, whatever the mask then blocks."""

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
class Foreign:
    """What a module of the user's own multiplied, as torch's counter says; None where it cannot run without memory."""

    name: str
    flops: int | None


@dataclass(frozen=True)
class Walk:
    """What one forward pass multiplied, in order; a language head is taken at every position.

    An encoder-decoder reads a source as long as its tokens. `last` is the stack under the head.
    """

    batch: int
    length: int
    last: str
    products: tuple[Product, ...]
    attentions: tuple[AttentionProducts, ...]
    foreign: tuple[Foreign, ...]


def first_layer(steps: Walk) -> Walk:
    """What the first block of the last stack alone multiplied."""
    first = f"{steps.last}.blocks.0."
    products = tuple(product for product in steps.products if product.name.startswith(first))
    attentions = tuple(each for each in steps.attentions if each.name.startswith(first))
    foreign = tuple(each for each in steps.foreign if each.name.startswith(first))
    return Walk(steps.batch, steps.length, steps.last, products, attentions, foreign)


def attentions(block: BlockConfig) -> list[AttentionConfig]:
    """The attention in a block: its mixer's, and the one that looks at an encoder's output."""
    return [place for place in (block.mixer, block.cross) if isinstance(place, AttentionConfig)]


def kernels_taken(config: TransformerConfig, length: int) -> dict[str, str]:
    """Which attention kernel whole sequences of `length` tokens take, by device type: that of the first layer with attention.

    Where another layer asks for what that kernel does not know, it is the next that knows it: everything is measured with
    one. Empty where no layer pays attention.
    """
    found = [each for stack in config.stacks().values() for block in stack.blocks for each in attentions(block)]
    if not found:
        return {}
    needs = together(each.needs(config.dropout) for each in found)
    kernel = "auto" if missing(found[0].kernel, needs) else found[0].kernel
    return {device: choose(kernel, needs, device, length) for device in ("cpu", "cuda")}


def lengthened(config: TransformerConfig, length: int) -> TransformerConfig:
    """The same model, with room for `length` tokens where its positions are learned."""
    return config if length <= config.context else config.override({"context": length})


def forward(model: Transformer, batch: int, length: int) -> Tensor:
    """What comes out for a whole batch of some tokens: logits [B T V], scores, vectors.

    On the meta device nothing is computed and nothing is held.
    """
    tokens = torch.zeros(batch, length, dtype=torch.long, device=model.device)
    hidden: Tensor = model(tokens, None, source_for(model, tokens)).hidden
    if isinstance(model.head, LanguageHead):
        logits: Tensor = model.logits(hidden)
        return logits
    out: Tensor = hidden if model.head is None else model.head(hidden, None, model.embedding.weight)
    return out


def source_for(model: Transformer, tokens: Tensor) -> Tensor | None:
    """What an encoder-decoder reads: as many tokens as it is given."""
    return torch.zeros_like(tokens) if model.encoder is not None and model.decoder is not None else None


def model_for_walking(
    config: TransformerConfig, length: int, kernel: str | None = None
) -> tuple[Transformer, list[Foreign]]:
    """A model on the meta device in which everything runs on shapes alone, and what its foreign modules multiply.

    What looks into tensors is replaced by something that makes the same products: tokens need not be sorted by expert, a
    recurrent network need not wait for the token before.
    """
    config = lengthened(config, length)
    model = build(config if kernel is None else with_kernel(config, kernel), "meta").eval()
    for module in list(model.modules()):
        if isinstance(module, MoE):
            module.balance = 0.0  # part of a loss, not of the pass
            module.experts = Spread(module.experts)  # type: ignore[assignment]
        elif isinstance(module, Recurrent):
            at_once(module)
    return model, guard(model)


def guard(model: Transformer) -> list[Foreign]:
    """Put every module of the user's own inside a `Guarded`; what they multiply comes into the list as they run."""
    found: list[Foreign] = []
    for name, module in list(model.named_modules()):
        if isinstance(module, Custom):
            module.inner = Guarded(name, module.inner, found)
    return found


@checked(batch=at_least(1), length=at_least(1))
def walk(config: TransformerConfig, batch: int, length: int) -> Walk:
    """Write down every matrix product of one forward pass over `batch` rows of `length` tokens."""
    model, foreign = model_for_walking(config, length, "reference")
    products: list[Product] = []
    attentions: list[AttentionProducts] = []
    guarded = tuple(name for name, module in model.named_modules() if isinstance(module, Guarded))
    for name, module in model.named_modules():
        if any(name.startswith(f"{each}.") for each in guarded):
            continue
        if isinstance(module, nn.Linear | Convolution | Router):
            module.register_forward_hook(_product(name, products))
        elif isinstance(module, Spread):
            module.register_forward_hook(_expert_products(name, products))
        elif isinstance(module, Attention):
            module.kernel.register_forward_hook(_attention_products(name, attentions))
    with torch.no_grad():
        forward(model, batch, length)
    if isinstance(model.head, LanguageHead):
        table = model.head_weight()
        # The head is a table, not a layer: it is the one product that no module of its own makes.
        products.append(Product("head", HEAD, batch * length, table.shape[1], table.shape[0]))
    return Walk(batch, length, config.last()[0], tuple(products), tuple(attentions), tuple(foreign))


class Spread(nn.Module):
    """Experts without the sorting: every (token, expert) pair goes through the first one, which costs what any other costs."""

    def __init__(self, experts: Experts) -> None:
        super().__init__()
        self.inner = experts

    def forward(self, x: Tensor, gates: Tensor, choice: Tensor, load: Tensor) -> Tensor:
        experts, active = self.inner, choice.shape[1]
        pairs = x.repeat_interleave(active, dim=0)
        out = experts.feed(pairs, 0) * gates.flatten()[:, None].to(x.dtype)
        summed: Tensor = out.unflatten(0, (-1, active)).sum(1)
        return summed


class Guarded(nn.Module):
    """A module of the user's own, with torch's counter around it. Where it cannot run without memory, nothing is counted."""

    def __init__(self, name: str, inner: nn.Module, found: list[Foreign]) -> None:
        super().__init__()
        self.name = name
        self.inner = inner
        self.found = found

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        try:
            with FlopCounterMode(display=False) as counter:
                out: Tensor = self.inner(x, *more)
        except Exception:  # somebody else's code, and it may ask the values that are not there
            self.found.append(Foreign(self.name, None))
            return x
        self.found.append(Foreign(self.name, int(counter.get_total_flops())))
        return out


def at_once(recurrent: Recurrent) -> None:
    """Let a recurrent network see all its tokens at once: the products and what is kept of them are the same, the values not."""

    def run(x: Tensor, at: Layout, carried: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        tokens = x.shape[0] * x.shape[1]
        before = tuple(x.new_zeros(tokens, recurrent.hidden) for _ in range(recurrent.carries))
        before = tuple(tensor.requires_grad_(torch.is_grad_enabled()) for tensor in before)
        new = recurrent.cell(recurrent.input(x).flatten(0, 1), *before, recalled=recurrent.carry(before[0]))
        rows = tuple(tensor.unflatten(0, x.shape[:2]) for tensor in new)
        return recurrent.output(rows[0].clone()), tuple(tensor[:, -1].clone() for tensor in rows)

    recurrent.unroll = run  # type: ignore[method-assign]


def _part(name: str, module: nn.Module) -> str:
    if isinstance(module, Router):
        return ROUTER
    if isinstance(module, Convolution):
        return CONVOLUTION
    if name.startswith("head."):
        return HEAD
    if ".ffn.shared" in name:
        return SHARED
    if ".ffn." in name:
        return FEED_FORWARD
    return RECURRENT if name.endswith((".mixer.input", ".mixer.carry", ".mixer.output")) else PROJECTIONS


def _product(name: str, products: list[Product]) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        width = inputs[0].shape[-1]
        rows = inputs[0].numel() // width
        if isinstance(module, Convolution):
            made = Product(name, CONVOLUTION, rows, len(module.distances) * width, output.shape[-1])
        elif isinstance(module, Router):
            made = Product(name, ROUTER, rows, width, module.weight.shape[0])
        else:
            made = Product(name, _part(name, module), rows, width, output.shape[-1])
        products.append(made)

    return note


def _expert_products(name: str, products: list[Product]) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        assert isinstance(module, Spread)
        for what, stacked in (("gate", module.inner.gate), ("up", module.inner.up), ("down", module.inner.down)):
            if stacked is not None:
                _, outputs, width = stacked.shape
                products.append(Product(f"{name}.{what}", EXPERTS, inputs[2].numel(), width, outputs))

    return note


def _attention_products(
    name: str, attentions: list[AttentionProducts]
) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        q, k, v = inputs[:3]
        rows, heads, queries, head_dim = q.shape
        attentions.append(AttentionProducts(name, rows, heads, k.shape[1], queries, k.shape[2], head_dim, v.shape[3]))

    return note
