"""The matrix products of a model, stated from the shapes of its modules; only custom modules are run.

`STATED` has a row for each module class with matrix products: a function from a module, its name and its input to the products.
`counted` in `heddle.account.forward` checks them with torch's counter around a real forward pass.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from heddle.checks import at_least, checked
from heddle.config.model import TransformerConfig
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.model.build import build
from heddle.model.entry import Entry
from heddle.model.fusing import ORDINARY
from heddle.model.head import LanguageHead
from heddle.model.pooled import Classifier, TextVector
from heddle.model.transformer import Transformer
from heddle.nn.attention import Attention
from heddle.nn.convolution import Convolution
from heddle.nn.custom import Custom, CustomFeedForward, CustomMixer
from heddle.nn.feedforward import MLP, Gated
from heddle.nn.latent import Latent
from heddle.nn.layout import Layout
from heddle.nn.moe import MoE
from heddle.nn.recurrent import Recurrent

PROJECTIONS, SCORES, WEIGHTED_SUM = "projections", "scores", "weighted sum"
ENTRY, FEED_FORWARD, HEAD = "entry", "feed-forward", "head"
CONVOLUTION, RECURRENT = "convolution", "recurrent"
ROUTER, EXPERTS, SHARED = "router", "experts", "shared experts"
CUSTOM_MIXER, CUSTOM_FEED_FORWARD = "custom mixer", "custom feed-forward"
OWN_SCORES = "scores"  # attribute of an attention layer with a custom modification of its scores
MOST_ROWS, MOST_PAIRS = 2**24, 2**50  # of a pass; pairs of tokens in one head
USUAL = (PROJECTIONS, SCORES, WEIGHTED_SUM, FEED_FORWARD, HEAD)
PARTS = (*USUAL, ENTRY, CONVOLUTION, RECURRENT, ROUTER, EXPERTS, SHARED, CUSTOM_MIXER, CUSTOM_FEED_FORWARD)


@displayed()
@dataclass(frozen=True)
class Product:
    """A matrix product: `rows` vectors of `inputs` numbers are mapped to vectors of `outputs` numbers."""

    name: str
    part: str
    rows: int
    inputs: int
    outputs: int

    @property
    def flops(self) -> int:
        """A multiply and an add count as two."""
        return 2 * self.rows * self.inputs * self.outputs

    @property
    def numbers(self) -> int:
        """Numbers in the result."""
        return self.rows * self.outputs


@displayed()
@dataclass(frozen=True)
class Foreign:
    """A custom module's FLOPs, as torch's counter reports them; None if the module cannot run on the meta device."""

    name: str
    part: str
    flops: int | None


@displayed(".entries")
@dataclass(frozen=True)
class Walk:
    """The matrix products of a forward pass over `batch` rows of `length` tokens, in the order of the modules.

    Attributes:
        last: name of the stack under the head.
        entries: the products; a language head is applied at every position.
    """

    batch: int
    length: int
    last: str
    entries: tuple[Product | Foreign, ...]

    def products(self, part: str) -> list[Product]:
        """The products of one part; none for custom modules."""
        return [entry for entry in self.entries if isinstance(entry, Product) and entry.part == part]

    def by_part(self) -> dict[str, int]:
        """FLOPs by part; unusual parts only if there are any."""
        sums: Counter[str] = Counter()
        for entry in self.entries:
            sums[entry.part] += entry.flops or 0
        return {part: sums[part] for part in PARTS if part in USUAL or sums[part]}

    def first_layer(self) -> "Walk":
        """The walk of only the first block of the last stack."""
        first = f"{self.last}.blocks.0."
        return replace(self, entries=tuple(entry for entry in self.entries if entry.name.startswith(first)))

    def unknown(self) -> tuple[str, ...]:
        """Names of the custom modules that cannot run on the meta device."""
        return tuple(entry.name for entry in self.entries if entry.flops is None)


@checked(batch=at_least(1), length=at_least(1))
def walk(config: TransformerConfig, batch: int, length: int) -> Walk:
    """The matrix products of one forward pass; an encoder-decoder reads a source as long as its tokens."""
    return stated(build(config, "meta").eval(), batch, length)


def stated(model: Transformer, batch: int, length: int) -> Walk:
    """The matrix products of one forward pass of a built model. Only custom modules are run, on their own.

    Raises:
        HeddleError: the pass is too large to count.
    """
    check_countable(batch, length)
    hidden = model.embedding.weight.new_empty(batch, length, model.config.dim)
    entries = [entry for name, module in _parts(model) for entry in STATED[_kind(module)](module, name, hidden)]
    if isinstance(model.head, LanguageHead):
        table = model.head_weight()  # a tied head has no table of its own
        entries.append(Product("head", HEAD, batch * length, table.shape[1], table.shape[0]))
    return Walk(batch, length, model.config.last()[0], tuple(entries))


def check_countable(batch: int, length: int) -> None:
    """Raise a HeddleError if a tensor of the pass would have more elements than torch can count."""
    if batch > MOST_ROWS or batch * length**2 > MOST_PAIRS:
        raise HeddleError(
            f"batch = {batch:,} rows of length = {length:,} tokens are more than can be counted; choose fewer"
        )


def _kind(module: nn.Module) -> type[nn.Module]:
    """The class of a module; of a fused layer, that of the ordinary layer."""
    return ORDINARY.get(type(module), type(module))


def _parts(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules that have a row in `STATED`."""
    if _kind(module) in STATED:
        yield name, module
        return
    for inner, child in module.named_children():
        yield from _parts(child, f"{name}.{inner}" if name else inner)


def _linears(module: nn.Module, name: str, part: str, rows: int) -> Iterator[Product]:
    """One product for each linear layer inside a module."""
    for inner, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            yield Product(f"{name}.{inner}", part, rows, layer.in_features, layer.out_features)


def _per_token(part: str) -> Callable[[nn.Module, str, Tensor], Iterator[Product]]:
    """A function for modules whose linear layers apply to every token."""
    return lambda module, name, x: _linears(module, name, part, x.shape[0] * x.shape[1])


def _pooled(module: TextVector, name: str, x: Tensor) -> Iterator[Product]:
    """The linear layers of a head that pools each sequence into one vector."""
    return _linears(module, name, HEAD, x.shape[0])


def _classifier(module: Classifier, name: str, x: Tensor) -> Iterator[Product]:
    rows = x.shape[0] if module.pooler.pooling != "none" else x.shape[0] * x.shape[1]
    return _linears(module, name, HEAD, rows)


def _attention(module: Attention, name: str, x: Tensor) -> Iterator[Product | Foreign]:
    """Projections, then scores (C-01) and weighted sum (C-02) of all pairs of queries and keys, whatever the mask blocks."""
    yield from _linears(module, name, PROJECTIONS, x.shape[0] * x.shape[1])
    yield from _pairs(module, name, x, module.head_dim)
    if module.scores is not None:
        rows, length = x.shape[:2]
        at = torch.arange(length, device=x.device)
        scores = x.new_empty(rows, module.scores.width, length, length)
        yield _foreign(
            module.scores, f"{name}.{OWN_SCORES}", SCORES, scores, at[None, None, :, None], at[None, None, None]
        )


def _latent(module: Latent, name: str, x: Tensor) -> Iterator[Product]:
    """As `_attention`, with keys and values computed from narrow vectors."""
    yield from _linears(module, name, PROJECTIONS, x.shape[0] * x.shape[1])
    yield from _pairs(module, name, x, module.head_dim + module.rotary_dim)


def _pairs(module: Attention | Latent, name: str, x: Tensor, width: int) -> Iterator[Product]:
    """Scores and weighted sum, with queries of `width` channels."""
    rows, length = x.shape[0] * x.shape[1] * (module.q.out_features // width), x.shape[1]  # one row per head
    yield Product(f"{name}.scores", SCORES, rows, width, length)
    yield Product(f"{name}.weights", WEIGHTED_SUM, rows, length, module.value_dim)


def _convolution(module: Convolution, name: str, x: Tensor) -> Iterator[Product]:
    taps, outputs, inputs = module.weight.shape
    yield Product(name, CONVOLUTION, x.shape[0] * x.shape[1], taps * inputs, outputs)


def _mixture(module: MoE, name: str, x: Tensor) -> Iterator[Product]:
    """The router, the experts that each token chooses, and those that every token shares."""
    router, rows = module.router, x.shape[0] * x.shape[1]
    yield Product(f"{name}.router", ROUTER, rows, router.weight.shape[1], router.weight.shape[0])
    for inner, stack in module.experts.named_parameters():
        if stack.dim() == 3:  # biases have two dimensions
            yield Product(f"{name}.experts.{inner}", EXPERTS, rows * router.active, stack.shape[2], stack.shape[1])
    yield from _linears(module, name, SHARED, rows)


def _custom(module: CustomMixer | CustomFeedForward, name: str, x: Tensor) -> Iterator[Foreign]:
    mixes = isinstance(module, CustomMixer)
    arguments = (Layout.whole(x.shape[0], x.shape[1], x.device),) if mixes else ()
    yield _foreign(module, name, CUSTOM_MIXER if mixes else CUSTOM_FEED_FORWARD, x, *arguments)


def _foreign(module: Custom, name: str, part: str, x: Tensor, *arguments: Any) -> Foreign:
    """Torch's counter around the custom module alone."""
    flops: int | None = None
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            module.call(x, *arguments)
        flops = int(counter.get_total_flops())
    except HeddleError:  # it returned another shape
        raise
    except Exception:  # custom code may fail in any way, for example by reading values, which meta tensors lack
        flops = None
    return Foreign(name, part, flops)


# Module class -> its products, for hidden vectors [B T D]. A class without a row has no matrix products.
STATED: dict[type[nn.Module], Callable[[Any, str, Tensor], Iterator[Product | Foreign]]] = {
    Entry: _per_token(ENTRY),
    Attention: _attention,
    Latent: _latent,
    Convolution: _convolution,
    Recurrent: _per_token(RECURRENT),
    CustomMixer: _custom,
    MLP: _per_token(FEED_FORWARD),
    Gated: _per_token(FEED_FORWARD),
    MoE: _mixture,
    CustomFeedForward: _custom,
    LanguageHead: _per_token(HEAD),
    TextVector: _pooled,
    Classifier: _classifier,
}
