"""What the quiz's expressions are evaluated with: heddle's own functions, and the mistakes of `heddle.lessons`."""

# ruff: noqa: F401 - the expressions use what looks unused here

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from math import log, log2, log10, sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from heddle.account import Parameters
from heddle.account import parameters as parameters_of
from heddle.account.formulas import flash_bytes, prefix_rows, quadratic_share, rule, score_bytes
from heddle.config import MoEConfig, SamplingConfig, preset, sized
from heddle.config.layers import GatedConfig
from heddle.generate import process
from heddle.lessons import fault
from heddle.lessons.definition import RIGHT, Steps
from heddle.look import rollout, trace
from heddle.look.attention import AttentionPass
from heddle.model import build
from heddle.nn import (
    Attention,
    Block,
    Dropout,
    Everything,
    Gated,
    LayerNorm,
    Layout,
    Pattern,
    RMSNorm,
    Setting,
)
from heddle.nn.convolution import distances
from heddle.nn.moe import Router
from heddle.nn.position import SinusoidalPositions
from heddle.text import train_tokenizer

GPT2 = preset("gpt2-small")
D, LAYERS, V, T = GPT2.dim, 12, GPT2.vocab_size, GPT2.context
GPT3 = preset("gpt3-175b")
FALCON = preset("falcon-40b")


@cache
def count_parameters(name: str, **changes: Any) -> Parameters:
    """The account of a preset, with changed settings (`__` for a dot)."""
    return parameters_of(preset(name).override({key.replace("__", "."): value for key, value in changes.items()}))


def parameters(name: str, **changes: Any) -> int:
    return count_parameters(name, **changes).total


def active(name: str, **changes: Any) -> int:
    return count_parameters(name, **changes).active


def deck_sum(name: str = "gpt2-small") -> int:
    """Deck 000's sum: its last line."""
    return count_parameters(name).deck[-1].value


def steps_of(mistake: str = "", variant: int = 0) -> Steps:
    return fault(mistake).steps(variant) if mistake else RIGHT


def weights(scores: list[float], query: int, mistake: str = "") -> list[float]:
    """The weights of a query, all queries having the same scores."""
    steps = steps_of(mistake).attention
    table = torch.tensor(scores, dtype=torch.float64).expand(1, 1, len(scores), len(scores))
    return steps.softmax(steps.mask(table))[0, 0, query].tolist()


def softmax(scores: list[float]) -> list[float]:
    return torch.tensor(scores, dtype=torch.float64).softmax(-1).tolist()


def scale(products: float, width: int, dim: int, mistake: str = "") -> float:
    return float(steps_of(mistake).attention.scale(torch.tensor(products, dtype=torch.float64), width, dim))


def normed(row: list[float], mistake: str = "", variant: int = 0) -> Tensor:
    """A row under LayerNorm with gain 1 and shift 0."""
    x = torch.tensor(row, dtype=torch.float64)
    return steps_of(mistake, variant).block.norm(x, torch.ones_like(x), torch.zeros_like(x))


def largest(kind: str, dim: int) -> float:
    """The largest number that a norm puts out, at a row with one large entry."""
    norm = (LayerNorm if kind == "layer" else RMSNorm)(dim).double()
    row = torch.zeros(1, dim, dtype=torch.float64)
    row[0, 0] = 1e6
    return norm(row).max().item()


def minimum(activation: Callable[[Tensor], Tensor]) -> tuple[float, float]:
    """The smallest value of an activation below 0, and where."""
    grid = torch.linspace(-5, 0, 500_001, dtype=torch.float64)
    values = activation(grid)
    return float(values.min()), float(grid[values.argmin()])


def variance(row: list[float], correction: int = 0) -> float:
    return float(torch.tensor(row, dtype=torch.float64).var(correction=correction))


def dropped(rate: float, training: bool, classic: bool = False) -> float:
    """What becomes of a kept value of 1."""
    torch.manual_seed(0)
    module = Dropout(rate, classic=classic).train(training)
    return float(module(torch.ones(64, dtype=torch.float64)).max())


def gates(scores: list[float], count: int, renormalise: bool = False) -> list[float]:
    """The router's gates, best first."""
    return routed(scores, count, renormalise)[0].tolist()


def slope(scores: list[float], count: int, renormalise: bool = False) -> float:
    """The derivative of the best expert's gate by that expert's own score."""
    best, router = routed(scores, count, renormalise)
    best[0].backward()
    return float(router.weight.grad[scores.index(max(scores)), 0])


def routed(scores: list[float], count: int, renormalise: bool) -> tuple[Tensor, Router]:
    router = Router(MoEConfig(experts=len(scores), active=count, renormalise=renormalise), 1).double()
    router.weight.data = torch.tensor(scores, dtype=torch.float64)[:, None]
    return router(torch.ones(1, 1, dtype=torch.float64))[0][0], router


def drawn_with(logits: list[float], temperature: float) -> list[float]:
    """Probabilities that a token is sampled with."""
    config = SamplingConfig(temperature=temperature)
    return process(torch.tensor([logits], dtype=torch.float64), config).softmax(-1)[0].tolist()


def least_loss(classes: int, mistake: str = "") -> float:
    """The loss of a model that is as sure as can be, and right."""
    logits = torch.full((1, classes), -1e4, dtype=torch.float64)
    logits[0, 0] = 1e4
    return float(steps_of(mistake).model.surprise(logits, torch.tensor([0])))


def tokens(kind: str, text: str) -> int:
    """How many tokens a tokenizer makes of a text that it was trained on."""
    return len(train_tokenizer(kind, [text]).encode(text))


def sinusoid(row: int, column: int) -> float:
    return float(SinusoidalPositions(64)(torch.tensor([[row]]), torch.float64)[0, 0, column])


def reach(taps: int, layers: int, dilation: int = 2) -> int:
    """Tokens that the last row of a stack of causal convolutions sees, itself included."""
    return 1 + sum(distances(taps, dilation**layer)[-1] for layer in range(layers))


def spread(dim: int) -> float:
    """The variance of q · k for independent entries of variance 1: of every sum of signs, which are such entries."""
    sums = torch.tensor([0.0], dtype=torch.float64)
    counts = torch.tensor([1.0], dtype=torch.float64)
    for _ in range(dim):  # the distribution of a sum of one more sign
        sums, counts = torch.cat((sums - 1, sums[-1:] + 1)), F.pad(counts, (0, 1)) / 2 + F.pad(counts, (1, 0)) / 2
    return round(float((sums**2 * counts).sum()), 9)


def over_queries(scores: list[float]) -> list[float]:
    """The weights of a lone query under a softmax over the queries."""
    softmax = steps_of("softmax over the queries").attention.softmax
    return softmax(torch.tensor([scores], dtype=torch.float64))[0].tolist()


def order_is_lost(positions: str) -> bool:
    """Whether an encoder gives a text in another order the same vectors, in that order."""
    changes = {"encoder.entry.positions": positions, "encoder.block.mixer.relative": None}
    model = build(sized(1, vocab_size=9, context=8, dim=16, stacks=("encoder",)).override(changes), seed=0).double()
    ids, order = torch.tensor([[1, 2, 3, 4, 5]]), [2, 0, 4, 1, 3]
    return torch.allclose(model(ids).hidden[:, order], model(ids[:, order]).hidden)


def is_attention(formula: Callable[[Tensor, Tensor, Tensor], Tensor]) -> bool:
    """Whether a formula of one head is torch's."""
    q, k, v = torch.randn(3, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return torch.allclose(formula(q, k, v), F.scaled_dot_product_attention(q[None], k[None], v[None])[0])


def are_averages(formula: Callable[[Tensor], Tensor]) -> bool:
    """Whether each row is an average of the input's rows: the same for shifted rows, shifted, and within their range."""
    x = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y, even = formula(x), formula(torch.ones_like(x))
    within = bool(((y <= x.max(0).values) & (y >= x.min(0).values)).all())
    return within and torch.allclose(even, torch.ones_like(x)) and not torch.allclose(y, x)


def is_llama(w1: str, w3: str, w2: str) -> bool:
    """Whether w2(silu(w1 x) · w3 x) is heddle's gated feed-forward with its matrices under these names."""
    torch.manual_seed(0)
    module = Gated(GatedConfig(hidden=8, activation="silu", bias=False), Setting(8)).double()
    x = torch.randn(3, 8, dtype=torch.float64)
    matrices = {name: getattr(module, name).weight.T for name in ("gate", "up", "down")}
    return torch.allclose((F.silu(x @ matrices[w1]) * (x @ matrices[w3])) @ matrices[w2], module(x).hidden)


ENCODER_PARTS = ("attention", "feed-forward", "skip around each", "norm after each sum")


def encoder_parts() -> set[str]:
    """Which parts make a block of the first transformer's encoder: without any of them, it computes something else."""
    torch.manual_seed(0)
    block = Block(preset("vaswani-base").encoder.block, Setting(16, causal=False)).double().eval()
    layout = Layout.whole(1, 5)
    scope, x = Pattern(Everything(), kernel="auto").scope(layout, layout), torch.randn(1, 5, 16, dtype=torch.float64)

    def assembled(parts: set[str]) -> Tensor:
        attend = block.mixer(x, scope) if "attention" in parts else torch.zeros_like(x)
        middle = attend + x * ("skip around each" in parts)
        middle = block.mixer_residual.outside(middle) if "norm after each sum" in parts else middle
        feed = block.ffn(middle).hidden if "feed-forward" in parts else torch.zeros_like(x)
        end = feed + middle * ("skip around each" in parts)
        return block.ffn_residual.outside(end) if "norm after each sum" in parts else end

    right, every = block(x, scope).hidden, set(ENCODER_PARTS)
    if not torch.allclose(assembled(every), right):
        return set()
    return {part for part in every if not torch.allclose(assembled(every - {part}), right)}


def block_matrices(name: str) -> int:
    """Numbers in the matrices of a preset's first block."""
    block = count_parameters(name).block
    return sum(block[part] for part in ("q", "k", "v", "o", "feed-forward"))


def flash_ratio(length: int) -> float:
    """All scores of a layer of GPT-2 small over what FlashAttention holds."""
    return score_bytes(length, 12) / flash_bytes(length, D, 12)


def cross_shape(source: int, target: int, layer: str = "decoder.0.cross") -> tuple[int, int]:
    """Queries and keys of an attention layer of an encoder-decoder."""
    model = build(sized(1, vocab_size=20, context=16, dim=16, stacks=("encoder", "decoder")), seed=0)
    ids = torch.arange(20)[None]
    attention = trace(model, ids[:, :target], source=ids[:, :source], attention=layer).attention[layer]
    return attention.queries, attention.keys


def attentions(name: str) -> int:
    """Attention layers of a preset's model, counted on the model."""
    return sum(isinstance(module, Attention) for module in build(preset(name), "meta").modules())


def even_attention(length: int) -> AttentionPass:
    """Causal attention that is even over what each token sees: its queries are 0."""
    model = build(sized(1, vocab_size=9, context=8, dim=16), seed=0).double()
    torch.nn.init.zeros_(model.decoder.blocks[0].mixer.q.weight)
    layer = "decoder.0.mixer"
    return trace(model, torch.zeros(1, length, dtype=torch.long), attention=layer).attention[layer]


def rolled(length: int, layers: int, residual: float) -> float:
    """How much of token 0 reaches the last row after layers of even attention."""
    return float(rollout([even_attention(length)] * layers, residual=residual)[0, -1, 0])


def entropy(row: list[float]) -> float:
    """In nats."""
    return sum(-weight * log(weight) for weight in row if weight)
