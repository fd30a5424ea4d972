"""The logit lens: what a model would predict if it ended after each layer (nostalgebraist 2020; L1-44)."""

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
from heddle.look.edits import Edit
from heddle.look.sites import one_text
from heddle.look.trace import trace
from heddle.model.transformer import Transformer
from heddle.nn.numeric import wide_dtype

ROWS = 1 << 24  # scores held at once: 64 MiB in fp32


SHOWN = 6  # positions of a display, the last ones


@displayed(".table(tokenizer.piece), .probabilities, .losses()")
@dataclass(frozen=True, eq=False)
class Lens:
    """What each layer's residual stream would predict at each position of one text.

    Attributes:
        places: where the stream was read: `entry`, `0`, `1`, …; the last is the model's own prediction.
        tokens: Int[P T k], the most probable tokens, best first.
        probabilities: Float[P T k], theirs.
        entropy: Float[P T], of the whole distribution, in nats.
        target_probabilities: Float[P T-1], of the token that follows; empty for a model that does not predict the next token.
        target_ranks: Int[P T-1], how many tokens are more probable than it.
        norms: Float[P T], length of the residual stream's vectors.
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
        yield f"Lens: {pluralize(places, 'place')}, {pluralize(length, 'token')}; the ids it would predict, and their probabilities"
        first = max(0, length - SHOWN)
        yield f"  {'after':<8}{'position':>10}" + "".join(f"{at:>12}" for at in range(first, length))
        losses = self.losses().tolist() if self.target_probabilities.numel() else []
        for row, place in enumerate(self.places):
            best = zip(self.tokens[row, first:, 0].tolist(), self.probabilities[row, first:, 0].tolist(), strict=True)
            loss = f"loss {losses[row]:5.3f}" if losses else ""
            yield f"  {place:<8}{loss:>10}" + "".join(f"{id:>7} {share:.2f}" for id, share in best)

    def losses(self) -> Float[Tensor, " P"]:
        """The mean of -log p of the tokens that follow, by place, in nats; the last is the model's loss on the text."""
        return -self.target_probabilities.log().mean(-1)

    def table(self, text: Callable[[int], str] = str) -> list[list[str]]:
        """The most probable token by place and position, as texts."""
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
    """Read the residual stream after the entry and after each layer by the model's last norm and head.

    Args:
        model: any model whose head scores tokens.
        tokens: one text.
        top: how many tokens to keep for each place and position.
        edits: changes to the pass, see `heddle.look.edits`.
        more: other arguments of the model: layout, source, source_layout, types, source_types.

    Raises:
        HeddleError: the head does not score tokens.
    """
    model.language_head()
    one_text("lens", tokens)
    name = "encoder" if model.decoder is None else "decoder"
    layers = [f"{name}.{number}.residual_after" for number in range(len(model.last_stack().blocks))]
    traced = trace(model, tokens, [f"{name}.entry", *layers], edits=edits, **more)
    follows = tokens[0, 1:] if model.decoder is not None else tokens[0, :0]
    found = [_read(model, stream[0], follows, min(top, model.vocab_size)) for stream in traced.values()]
    places = tuple(each.split(".")[1] for each in traced)
    return Lens(places, *(torch.stack(part) for part in zip(*found, strict=True)))


def read_out(model: Transformer, stream: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows V"]:
    """The scores that the model's last norm and head give to vectors of the residual stream."""
    return model.logits(model.last_stack().final_norm(stream))


def _read(model: Transformer, stream: Tensor, follows: Tensor, top: int) -> tuple[Tensor, ...]:
    """What `Lens` holds of one place, without all scores at once."""
    parts, start = [], 0
    for some in stream.split(max(1, ROWS // model.vocab_size)):
        logs = read_out(model, some).to(wide_dtype(some.dtype)).log_softmax(-1)
        probabilities, tokens = logs.exp().topk(top)
        entropy = -torch.special.xlogy(logs.exp(), logs.exp()).sum(-1)
        wanted = follows[start : start + len(some)]
        own = logs[: len(wanted)].gather(-1, wanted[:, None])
        ranks = (logs[: len(wanted)] > own).sum(-1)
        norms = torch.linalg.vector_norm(some.float(), dim=-1)
        parts.append((tokens, probabilities, entropy, own[:, 0].exp(), ranks, norms))
        start += len(some)
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))
