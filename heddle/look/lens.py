"""The logit lens: the model's predictions if it ended after each layer (nostalgebraist 2020; L1-44)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heddle.checks import at_least, checked
from heddle.display import displayed
from heddle.errors import pluralize
from heddle.look.edits import Edit, without
from heddle.look.sites import check_single_text, hooked
from heddle.look.trace import trace
from heddle.model.transformer import Transformer
from heddle.nn.numeric import wide_dtype

BLOCK_SCORES = 1 << 24  # in one block: 64 MiB in fp32


DISPLAYED = 6  # last positions in the text display


@displayed(".table(tokenizer.piece), .probabilities, .losses()")
@dataclass(frozen=True, eq=False)
class Lens:
    """Predictions from each layer's residual stream at each position of one text.

    Attributes:
        places: where the stream was read: `entry`, `0`, `1`, …; the last is the model's prediction.
        tokens: Int[P T k], the most probable tokens, best first.
        probabilities: Float[P T k], of these tokens.
        entropy: Float[P T], of the full distribution, in nats.
        target_probabilities: Float[P T-1], of the next token; empty for an encoder.
        target_ranks: Int[P T-1], how many tokens are more probable than the next token.
        norms: Float[P T], of the residual stream.
    """

    places: tuple[str, ...]
    tokens: Int[Tensor, "P T k"]
    probabilities: Float[Tensor, "P T k"]
    entropy: Float[Tensor, "P T"]
    target_probabilities: Float[Tensor, "P N"]
    target_ranks: Int[Tensor, "P N"]
    norms: Float[Tensor, "P T"]

    def _lines(self) -> Iterator[str]:
        places, length = self.entropy.shape
        yield f"Lens: {pluralize(places, 'place')}, {pluralize(length, 'token')}; predicted ids and their probabilities"
        first = max(0, length - DISPLAYED)
        yield f"  {'after':<8}{'position':>10}" + "".join(f"{position:>12}" for position in range(first, length))
        losses = self.losses().tolist() if self.target_probabilities.numel() else []
        for row, place in enumerate(self.places):
            predictions = zip(
                self.tokens[row, first:, 0].tolist(), self.probabilities[row, first:, 0].tolist(), strict=True
            )
            loss = f"loss {losses[row]:5.3f}" if losses else ""
            yield f"  {place:<8}{loss:>10}" + "".join(f"{id:>7} {probability:.2f}" for id, probability in predictions)

    def losses(self) -> Float[Tensor, " P"]:
        """The mean next-token loss by place, in nats; the last is the model's loss on the text."""
        return -self.target_probabilities.log().mean(-1)

    def table(self, text: Callable[[int], str] = str) -> list[list[str]]:
        """The most probable tokens by place and position, as text."""
        return [[text(token) for token in row] for row in self.tokens[..., 0].tolist()]

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{place}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
            for place, row in zip(self.places, self.table(), strict=True)
        )
        return f"<table><caption>most probable token after each layer</caption>{rows}</table>"


@torch.no_grad()
@checked(top=at_least(1))
def lens(
    model: Transformer, tokens: Int[Tensor, "1 T"], top: int = 5, *, edits: Sequence[Edit] = (), **more: Any
) -> Lens:
    """Decode the residual stream after the entry and after each layer with the final norm and the head.

    Args:
        model: any model whose head scores tokens.
        tokens: one text.
        top: number of tokens to keep per place and position.
        edits: interventions in the pass, see `heddle.look.edits`.
        more: further model arguments: layout, source, source_layout, types, source_types.

    Raises:
        HeddleError: the head does not score tokens.
    """
    model.language_head()
    check_single_text("lens", tokens)
    name = "encoder" if model.decoder is None else "decoder"
    layers = [f"{name}.{number}.residual_after" for number in range(len(model.last_stack().blocks))]
    traced = trace(model, tokens, [f"{name}.entry", *layers], edits=edits, **more)
    next_tokens = tokens[0, 1:] if model.decoder is not None else tokens[0, :0]
    count = min(top, model.vocab_size)
    with hooked((), (), without(model, edits)):  # the final norm may be off
        readings = [_read_layer(model, stream[0], next_tokens, count) for stream in traced.values()]
    places = tuple(site.split(".")[1] for site in traced)
    return Lens(places, *(torch.stack(part) for part in zip(*readings, strict=True)))


def read_out(model: Transformer, stream: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
    """Apply the final norm and the head to vectors of the residual stream."""
    return model.logits(model.last_stack().final_norm(stream))


def _read_layer(model: Transformer, stream: Tensor, next_tokens: Tensor, top: int) -> tuple[Tensor, ...]:
    """The fields of `Lens` for one place, in blocks of positions to save memory."""
    parts, start = [], 0
    for block in stream.split(max(1, BLOCK_SCORES // model.vocab_size)):
        log_probabilities = read_out(model, block).to(wide_dtype(block.dtype)).log_softmax(-1)
        probabilities, tokens = log_probabilities.exp().topk(top)
        entropy = -torch.special.xlogy(log_probabilities.exp(), log_probabilities.exp()).sum(-1)
        targets = next_tokens[start : start + len(block)]
        target_logs = log_probabilities[: len(targets)].gather(-1, targets[:, None])
        ranks = (log_probabilities[: len(targets)] > target_logs).sum(-1)
        norms = torch.linalg.vector_norm(block.float(), dim=-1)
        parts.append((tokens, probabilities, entropy, target_logs[:, 0].exp(), ranks, norms))
        start += len(block)
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))
