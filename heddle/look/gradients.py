"""Token saliency: input gradients, integrated gradients and attention rollout."""

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
from heddle.look.sites import broadcast, check_single_text
from heddle.look.trace import trace
from heddle.model.head import LanguageHead
from heddle.model.transformer import Transformer

MAX_TOKENS = 4096  # of a rollout, which materializes full attention maps


@displayed(".values")
@dataclass(frozen=True, eq=False)
class TokenScores:
    """The saliency of each token of one text for a score.

    Attributes:
        values: Float[T], one number per token.
        score: the explained score: a logit, or the difference of two.
        baseline: the score of the baseline, if there is one.
    """

    values: Float[Tensor, " T"]
    score: float
    baseline: float | None = None

    def _lines(self) -> Iterator[str]:
        baseline = "" if self.baseline is None else f", {self.baseline:.4f} for the baseline"
        yield f"TokenScores: score {self.score:.4f}{baseline}; {pluralize(len(self.values), 'token')}, the largest first"
        order = self.values.abs().argsort(descending=True)[: ROWS - 2].tolist()
        yield from (f"  position {position:<6} {float(self.values[position]):+.4f}" for position in order)
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
        raise HeddleError("this model has no head")
    logits = head(hidden, None, model.embedding.weight)
    if logits.dim() == 3:  # a classifier has one score per text
        if not -logits.shape[1] <= position < logits.shape[1]:
            raise HeddleError(f"position {position} is out of range: the text has {logits.shape[1]} tokens")
        logits = logits[:, position]
    scores = model.vocab_size if isinstance(head, LanguageHead) else logits.shape[-1]  # a table may be padded
    for id in (target, target if against is None else against):
        if not 0 <= id < scores:
            raise HeddleError(f"score {id} is out of range (0 to {scores - 1})")
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
    """The gradient of a score with respect to each token embedding, times the embedding (Simonyan et al. 2014).

    Args:
        model: any model with a head.
        tokens: one text.
        target: the token id or class to score.
        position: of the score, for heads that score every position.
        against: an id whose score is subtracted.
        times_input: gradient · embedding, which is signed; False: the norm of the gradient.
        more: further model arguments.

    Raises:
        HeddleError: the model has no head, or an id is out of range.
    """
    check_single_text("input_gradients", tokens)
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
    """Integrate gradients along the line from a baseline to the text; they sum to the difference of the scores.

    Sundararajan et al. 2017, eq. 1, with the midpoint rule.

    Args:
        model: any model with a head.
        tokens: one text.
        target: the token id or class to score.
        position: of the score, for heads that score every position.
        against: an id whose score is subtracted.
        steps: number of points on the line; more are more accurate.
        baseline: token embeddings to start from; None: zeros.
        more: further model arguments.

    Raises:
        HeddleError: the model has no head, or an id is out of range.
    """
    check_single_text("integrated_gradients", tokens)
    vectors, score = _with_gradient(model, tokens, target, position, against, more)
    end = vectors.detach()
    zeros = torch.zeros_like(end)
    start = zeros if baseline is None else broadcast("integrated_gradients", "baseline", baseline, end)
    total = torch.zeros_like(end)
    for step in range(steps):
        point = (start + (end - start) * ((step + 0.5) / steps)).requires_grad_()
        point_score = _score_at(model, tokens, point, target, position, against, more)
        total += torch.autograd.grad(point_score.sum(), point)[0]
    with torch.no_grad():
        baseline_score = _score_at(model, tokens, start, target, position, against, more)
    values = ((end - start) * total / steps).sum(-1)
    return TokenScores(values[0].float(), float(score.detach()), float(baseline_score))


def _with_gradient(
    model: Transformer, tokens: Tensor, target: int, position: int, against: int | None, more: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """The token embeddings, and a score that depends on them."""
    name = f"{_stack(model)}.embedded"
    with torch.no_grad():
        embedded = trace(model, tokens, name, **more)[name]
    vectors = embedded.clone().requires_grad_()
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
    """Attention rollout: how much of each input token reaches each position (L1-42).

    Abnar and Zuidema 2020, section 3: the product of all layers' maps, each averaged over its heads and mixed with the identity for
    the residual stream.

    Args:
        layers: self-attention of one stack in order, of `trace(..., attention="decoder.*.mixer").attention.values()`.
        residual: weight of the identity.
        combine: from [B H T T] to [B T T]; None: the mean over heads. To follow one head: `lambda maps: maps[:, 2]`.

    Raises:
        HeddleError: there are no layers, a map is not square, or the text is too long.
    """
    if not layers:
        raise HeddleError("a rollout needs at least one attention layer")
    product: Tensor | None = None
    for layer in layers:
        if layer.queries != layer.keys or layer.keys > MAX_TOKENS:
            size = f"{layer.queries} × {layer.keys}"
            raise HeddleError(f"a rollout needs maps of a whole text of at most {MAX_TOKENS:,} tokens, not {size}")
        weights = layer.weights()
        mixed = weights.mean(1) if combine is None else combine(weights)
        mixed = (1 - residual) * mixed + residual * torch.eye(layer.keys, device=mixed.device, dtype=mixed.dtype)
        product = mixed if product is None else mixed @ product
    assert product is not None
    return product
