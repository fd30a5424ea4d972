"""Which tokens an output depends on, in each family: the edges of the first transformer's figure, computed from gradients."""

from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.config import TransformerConfig
from heddle.model import Transformer, build

FAMILIES = ("encoder", "decoder", "encoder-decoder")
EDGES = ("s0→e0", "s0→e2", "s2→e0", "s0→p0", "s2→p0", "s0→p2", "t0→p0", "t0→p2", "t2→p0", "t2→p2", "t0→e2", "t2→e2")
SOURCE, TARGET = torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5, 6]])
PLACES = {f"{letter}{n}": n + 3 * (letter in "tp") for letter in "sept" for n in range(3)}


@cache
def edges(family: str) -> list[str]:
    """Which of `EDGES` exist: an output depends on a token if the gradient is not 0 (L1-76, L1-79, L1-82, L1-83).

    s0 to s2 are the tokens of a source, t0 to t2 those of a target; e is what the last layer puts out above a source token, p
    above a target token. A decoder reads both as one row, the source first; an encoder reads the source alone.
    """
    slopes = influence(small_model(family))
    return [edge for edge in EDGES if slopes[PLACES[edge[:2]], PLACES[edge[3:]]] > 0]


def influence(model: Transformer) -> Float[Tensor, "6 6"]:
    """Gradient magnitudes: how much each output (columns) depends on each token (rows); 0 where it does not.

    All tokens are different, so that the gradient of a row of the token table is that of one token.
    """
    model.eval()
    family = "-".join(model.config.stacks())
    if family == "encoder-decoder":
        cache = model.new_cache(1)
        target = model(TARGET, source=SOURCE, cache=cache).hidden[0]
        assert cache.encoded is not None
        outputs = torch.cat([cache.encoded.hidden[0], target])
    else:
        outputs = model(SOURCE if family == "encoder" else torch.cat([SOURCE, TARGET], 1)).hidden[0]
    slopes = torch.zeros(6, 6)
    for place, output in enumerate(outputs):
        # One channel: after a norm, the sum over all channels is the same for every token.
        (table,) = torch.autograd.grad(output[0], model.embedding.weight, retain_graph=True)
        slopes[:, place] = table[1:7].norm(dim=-1)
    return slopes


def small_model(family: str) -> Transformer:
    """One layer of a family, 8 wide."""
    block: dict[str, Any] = {"mixer": {"heads": 2}}
    stacks = {name: {"depth": 1, "entry": {"positions": "learned"}, "block": block} for name in family.split("-")}
    if family == "encoder-decoder":
        stacks["decoder"] = {**stacks["decoder"], "block": {**block, "cross": {"heads": 2}}}
    sizes = {"vocab_size": 8, "dim": 8, "context": 8, "initial": {"std": 0.5}}
    return build(TransformerConfig.of({**sizes, **stacks}))
