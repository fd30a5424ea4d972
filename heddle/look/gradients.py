"""Which input tokens a score depends on: by gradients, by integrated gradients, by attention followed through the layers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.checks import at_least, between, checked
from heddle.display import ROWS, displayed
from heddle.errors import HeddleError, pluralize
from heddle.look.attention import AttentionPass
from heddle.look.edits import Edit
from heddle.look.sites import broadcast, one_text
from heddle.look.trace import trace
from heddle.model.head import LanguageHead
from heddle.model.transformer import Transformer

MOST = 4096  # tokens of a rollout, whose maps are held whole


@displayed(".values")
@dataclass(frozen=True, eq=False)
class TokenScores:
    """How much each token of one text counts for a score.

    Attributes:
        values: Float[T], one number per token.
        score: what the numbers are about: the logit, or the difference of two.
        baseline: the same score for the baseline, if there is one.
    """

    values: Float[Tensor, " T"]
    score: float
    baseline: float | None = None

    def _lines(self) -> Iterator[str]:
        beside = "" if self.baseline is None else f", {self.baseline:.4f} for the baseline"
        yield f"TokenScores: score {self.score:.4f}{beside}; {pluralize(len(self.values), 'token')}, the largest first"
        order = self.values.abs().argsort(descending=True)[: ROWS - 2].tolist()
        yield from (f"  position {at:<6} {float(self.values[at]):+.4f}" for at in order)
        if len(self.values) > len(order):
            yield f"  and {len(self.values) - len(order):,} more in .values"

    def _repr_html_(self) -> str:
        largest = max(float(self.values.abs().max()), 1e-30)
        cells = "".join(
            f'<td style="background: rgba({"200,60,30" if value < 0 else "20,90,200"},{abs(value) / largest:.2f})">'
            f"{escape(f'{value:.3f}')}</td>"
            for value in self.values.tolist()
        )
        return f"<table><caption>score {self.score:.4f}</caption><tr>{cells}</tr></table>"


def _stack(model: Transformer) -> str:
    return "encoder" if model.decoder is None else "decoder"


def _score(model: Transformer, hidden: Tensor, target: int, position: int, against: int | None) -> Tensor:
    head = model.head
    if head is None:
        raise HeddleError("this model has no head, so it has no score")
    logits = head(hidden, None, model.embedding.weight)
    if logits.dim() == 3:  # a classifier has one score per text
        if not -logits.shape[1] <= position < logits.shape[1]:
            raise HeddleError(f"there is no position {position}: the text has {logits.shape[1]} tokens")
        logits = logits[:, position]
    scores = model.vocab_size if isinstance(head, LanguageHead) else logits.shape[-1]  # a table may be padded
    for each in (target, target if against is None else against):
        if not 0 <= each < scores:
            raise HeddleError(f"there is no score {each}: they are numbered from 0 to {scores - 1}")
    score: Tensor = logits[:, target]
    return score if against is None else score - logits[:, against]


@checked()
def input_gradients(
    model: Transformer,
    tokens: Int[Tensor, "1 T"],
    target: int,
    position: int = -1,
    against: int | None = None,
    *,
    times_input: bool = True,
    **more: Any,
) -> TokenScores:
    """The gradient of a score by each token's vector, times that vector; or its length (Simonyan et al. 2014).

    Args:
        model: any model with a head.
        tokens: one text.
        target: whose score: a token's or a class's.
        position: at which position, for a head that scores tokens.
        against: another id, for the difference of two scores.
        times_input: gradient · vector, which is signed; False: the length of the gradient.
        more: other arguments of the model.

    Raises:
        HeddleError: the model has no head, or no such score.
    """
    one_text("input_gradients", tokens)
    vectors, score = _with_gradient(model, tokens, target, position, against, more)
    (gradient,) = torch.autograd.grad(score.sum(), vectors)
    values = (gradient * vectors).sum(-1) if times_input else torch.linalg.vector_norm(gradient, dim=-1)
    return TokenScores(values[0].detach().float(), float(score.detach()))


@checked(steps=at_least(1))
def integrated_gradients(
    model: Transformer,
    tokens: Int[Tensor, "1 T"],
    target: int,
    position: int = -1,
    against: int | None = None,
    *,
    steps: int = 64,
    baseline: Float[Tensor, "*some D"] | None = None,
    **more: Any,
) -> TokenScores:
    """Gradients summed along the straight line from a baseline to the text; they add up to the difference of the scores.

    Sundararajan et al. 2017, eq. 1; the integral is summed at the steps' midpoints.

    Args:
        model: any model with a head.
        tokens: one text.
        target: whose score: a token's or a class's.
        position: at which position, for a head that scores tokens.
        against: another id, for the difference of two scores.
        steps: points of the line; more make the sum more exact.
        baseline: token vectors where the line starts; None: zeros.
        more: other arguments of the model.

    Raises:
        HeddleError: the model has no head, or no such score.
    """
    one_text("integrated_gradients", tokens)
    vectors, score = _with_gradient(model, tokens, target, position, against, more)
    end = vectors.detach()
    zeros = torch.zeros_like(end)
    start = zeros if baseline is None else broadcast("integrated_gradients", "baseline", baseline, end)
    total = torch.zeros_like(end)
    for step in range(steps):
        point = (start + (end - start) * ((step + 0.5) / steps)).requires_grad_()
        at = _score_at(model, tokens, point, target, position, against, more)
        total += torch.autograd.grad(at.sum(), point)[0]
    with torch.no_grad():
        lowest = _score_at(model, tokens, start, target, position, against, more)
    values = ((end - start) * total / steps).sum(-1)
    return TokenScores(values[0].float(), float(score.detach()), float(lowest))


def _with_gradient(
    model: Transformer, tokens: Tensor, target: int, position: int, against: int | None, more: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """The token vectors, and a score that depends on them."""
    name = f"{_stack(model)}.embedded"
    with torch.no_grad():
        given = trace(model, tokens, name, **more)[name]
    vectors = given.clone().requires_grad_()
    return vectors, _score_at(model, tokens, vectors, target, position, against, more)


def _score_at(
    model: Transformer,
    tokens: Tensor,
    vectors: Tensor,
    target: int,
    position: int,
    against: int | None,
    more: dict[str, Any],
) -> Tensor:
    edit = Edit(f"{_stack(model)}.embedded", lambda old: vectors)
    hidden = trace(model, tokens, edits=[edit], gradients=torch.is_grad_enabled(), **more).output.hidden
    return _score(model, hidden, target, position, against)


@torch.no_grad()
@checked(residual=between(0, 1))
def rollout(
    layers: Sequence[AttentionPass], residual: float = 0.5, combine: Callable[[Tensor], Tensor] | None = None
) -> Float[Tensor, "B T T"]:
    """Attention followed through the layers: how much of each input token reaches each position (L1-42).

    Abnar and Zuidema 2020, 3: the product of all layers' maps, each averaged over its heads and mixed with the identity, since
    half of what a layer passes on is its residual stream.

    Args:
        layers: self-attention of one stack in order, of `trace(..., attention="decoder.*.mixer").attention.values()`.
        residual: the identity's share; 0: maps alone.
        combine: from [B H T T] to [B T T]; None: the mean over heads. To follow one head: `lambda maps: maps[:, 2]`.

    Raises:
        HeddleError: there is no layer, it is no self-attention of whole texts, or the text is too long to hold its maps.
    """
    if not layers:
        raise HeddleError("a rollout needs at least one attention layer")
    product: Tensor | None = None
    for layer in layers:
        if layer.queries != layer.keys or layer.keys > MOST:
            size = f"{layer.queries} × {layer.keys}"
            raise HeddleError(f"a rollout needs maps of a whole text of at most {MOST:,} tokens, not {size}")
        weights = layer.weights()
        mixed = weights.mean(1) if combine is None else combine(weights)
        mixed = (1 - residual) * mixed + residual * torch.eye(layer.keys, device=mixed.device, dtype=mixed.dtype)
        product = mixed if product is None else mixed @ product
    assert product is not None
    return product
