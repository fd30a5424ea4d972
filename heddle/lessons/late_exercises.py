"""Exercises of the lessons 7 to 14: dropout, loss, counting, tiles, edges, experts, heads, a norm of another text."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from heddle.lessons.edges import EDGES, FAMILIES, edges
from heddle.lessons.exercise import Cases, Exercise

Heads = tuple[int, int]


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def dropout(x: Float[Tensor, "*n"], keep: Float[Tensor, "*n"], rate: float, training: bool, classic: bool) -> Tensor:
    """Inverted: kept values are divided by 1 - rate in training. Classic: prediction multiplies by 1 - rate (L0-61, L0-63)."""
    if training:
        return x * keep if classic else x * keep / (1 - rate)
    return x * (1 - rate) if classic else x


def _dropout_cases() -> Cases:
    x, keep = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64), torch.tensor([1.0, 0, 1, 1], dtype=torch.float64)
    return {
        "inverted, training": (x, keep, 0.25, True, False),
        "inverted, predicting": (x, keep, 0.25, False, False),
        "classic, training": (x, keep, 0.25, True, True),
        "classic, predicting": (x, keep, 0.25, False, True),
        "inverted, training, a tenth dropped": (_random(3, 3), torch.ones(3, 3).tril(), 0.1, True, False),
    }


def loss(logits: Float[Tensor, "B T V"], ids: Int[Tensor, "B T"], lengths: Int[Tensor, "B"]) -> Float[Tensor, ""]:
    """The mean surprise of each next token, over the real tokens of all texts (L0-75, L1-24)."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), _next(ids, lengths).flatten())


def _next(ids: Tensor, lengths: Tensor) -> Tensor:
    """The next tokens, -100 where a text has ended."""
    places = torch.arange(1, ids.shape[1])
    return ids[:, 1:].masked_fill(places >= lengths[:, None], -100)


def _mean_of_means(logits: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([loss(logits[n : n + 1], ids[n : n + 1], lengths[n : n + 1]) for n in range(len(ids))]).mean()


def _by_id(logits: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)


def _loss_cases() -> Cases:
    worked = torch.tensor(
        [[[-0.935537805919, 2.411687685535, 2.148499358004, 0.848859483386, 0.349747179360],
          [0.742583749595, -2.362565457839, -2.010935912390, -0.664224585938, -0.118563218483],
          [0.906066338577, -2.652687992571, -2.300456882587, -0.825926833684, -0.213022769753],
          [0.0, 0.0, 0.0, 0.0, 0.0]]], dtype=torch.float64,
    )  # fmt: skip
    return {
        "the lectures' small model": (worked, torch.tensor([[1, 3, 0, 2]]), torch.tensor([4])),
        "two texts, one padded with 0": (
            _random(2, 5, 7), torch.tensor([[1, 3, 2, 0, 0], [2, 0, 1, 3, 1]]), torch.tensor([3, 5]),
        ),
        "a text that contains id 0": (_random(1, 4, 7, seed=1), torch.tensor([[4, 0, 0, 6]]), torch.tensor([4])),
    }  # fmt: skip


def llama(
    depth: int, dim: int, heads: int, kv_heads: int, width: int, hidden: int, vocabulary: int, tied: bool, normed: bool
) -> int:
    """Parameters of a Llama or a Qwen3: no biases, three matrices in the MLP, norms with a gain alone (L1-46, D-55).

    `width` is that of a head. With `normed`, queries and keys have a norm of that width, one for all heads.
    """
    count: int = _llama()(depth, dim, heads, kv_heads, width, hidden, vocabulary, tied, normed)
    return count


def _llama(
    matrices: int = 3, norms: int = 2, gains: int = 1, last: int = 1, grouped: bool = True, square: bool = False,
    untied: int = 2, shared: int = 1, per_head: bool = False, head_norms: bool = True, positions: int = 0,
) -> Any:  # fmt: skip
    def count(
        depth: int,
        dim: int,
        heads: int,
        kv_heads: int,
        width: int,
        hidden: int,
        vocabulary: int,
        tied: bool,
        normed: bool,
    ) -> int:
        inner = dim if square else heads * width
        keys = kv_heads * width if grouped else inner
        block = 2 * dim * (inner + keys) + matrices * dim * hidden + norms * gains * dim
        block += 2 * width * (heads if per_head else 1) * (normed and head_norms)
        return (shared if tied else untied) * vocabulary * dim + depth * block + (last * gains + positions) * dim

    return count


LLAMAS: Cases = {  # the arguments of `llama`, by the name of a preset
    "llama-7b": (32, 4096, 32, 32, 128, 11_008, 32_000, False, False),
    "llama-3-8b": (32, 4096, 32, 8, 128, 14_336, 128_256, False, False),
    "mistral-7b": (32, 4096, 32, 8, 128, 14_336, 32_000, False, False),
    "qwen3-8b": (36, 4096, 32, 8, 128, 12_288, 151_936, False, True),
    "qwen3-0.6b": (28, 1024, 16, 8, 128, 3072, 151_936, True, True),
}


def running(
    scores: Float[Tensor, "S"], values: Float[Tensor, "S d"], tile: int
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"], Float[Tensor, "n d"]]:
    """The largest score, the sum and the weighted sum of values after each tile of keys, for one query (L2-19)."""
    largest, total, weighted = _running(scores, values, tile)
    return largest, total, weighted


def _running(scores: Tensor, values: Tensor, tile: int, rescale: Any = None, forget: bool = False) -> Any:
    largest = scores.new_tensor(-torch.inf)
    total, weighted, states = scores.new_zeros(()), scores.new_zeros(values.shape[1]), []
    for start in range(0, len(scores), tile):
        part = scores[start : start + tile]
        new = part.max() if forget else torch.maximum(largest, part.max())
        factor = (largest - new).exp() if rescale is None else rescale(largest, new)
        weights = (part - new).exp()
        total, weighted = total * factor + weights.sum(), weighted * factor + weights @ values[start : start + tile]
        largest = new
        states.append((largest, total, weighted))
    return tuple(torch.stack(each) for each in zip(*states, strict=True))


def _not_stable(scores: Tensor, values: Tensor, tile: int) -> Any:
    ends = [min(end, len(scores)) for end in range(tile, len(scores) + tile, tile)]
    return (
        torch.stack([scores[:end].max() for end in ends]),
        torch.stack([scores[:end].exp().sum() for end in ends]),
        torch.stack([scores[:end].exp() @ values[:end] for end in ends]),
    )


def _tile_cases() -> Cases:
    scores = torch.tensor([[-0.921375, -0.2954, 0.8356875], [1.1101875, 0.4300375, -1.2016125]], dtype=torch.float64)
    values = torch.tensor(
        [[-0.175, -0.275, 2.325, 2.075], [0.245, 0.075, -0.26, -0.47], [-0.985, -0.75, 0.865, 1.135]],
        dtype=torch.float64,
    )
    return {
        "query 1 of the lectures' example, tiles of 1": (scores[0, :2], values[:2], 1),
        "query 2, tiles of 1": (scores[1], values, 1),
        "query 2, tiles of 2": (scores[1], values, 2),
        "one tile": (scores[0], values, 4),
        "scores of 10,000": (1e4 * _random(9), _random(9, 3), 4),
    }


def gates(scores: Float[Tensor, "T E"], active: int) -> Float[Tensor, "T E"]:
    """The softmax over all experts, of which the `active` largest stay; ties go to the lowest index (L2-71, L2-73)."""
    choice = scores.sort(dim=-1, descending=True, stable=True).indices[:, :active]
    return torch.zeros_like(scores).scatter(-1, choice, scores.softmax(-1).gather(-1, choice))


def _all_that_tie(scores: Tensor, active: int) -> Tensor:
    shares = scores.softmax(-1)
    return shares * (scores >= scores.topk(active).values[:, -1:])


def _last_of_ties(scores: Tensor, active: int) -> Tensor:
    return gates(scores.flip(-1), active).flip(-1)


def _gate_cases() -> Cases:
    worked = [[-3.375, 0.55, -0.15, 3.25], [1.625, -1.8, -1.15, -1.705], [-1.295, 1.49, 1.075, 1.38]]
    ties = [[0.0, 0, 0, 0], [1, 2, 2, 2], [3, 1, 3, 1]]
    return {
        "the lectures' three tokens": (torch.tensor(worked, dtype=torch.float64), 2),
        "scores that tie": (torch.tensor(ties, dtype=torch.float64), 2),
        "one expert": (_random(4, 6), 1),
        "all experts": (_random(4, 3), 3),
    }


def previous_head(maps: Float[Tensor, "L H T T"]) -> Heads:
    """The layer and number of the head that attends most to the token before, averaged over its queries."""
    return _best(maps, -1)


def _best(maps: Tensor, offset: int) -> Heads:
    place = int(maps.diagonal(offset, -2, -1).mean(-1).argmax())
    return place // maps.shape[1], place % maps.shape[1]


def _largest_anywhere(maps: Tensor) -> Heads:
    place = int(maps.diagonal(-1, -2, -1).amax(-1).argmax())
    return place // maps.shape[1], place % maps.shape[1]


def _head_cases() -> Cases:
    def maps(layers: int, heads: int, length: int, **planted: Heads) -> Tensor:
        """Random causal maps, some of them with a pattern; one has a single large entry before the diagonal."""
        scores = _random(layers, heads, length, length, seed=layers)
        queries, keys = torch.arange(length)[:, None], torch.arange(length)
        patterns = {"itself": keys == queries, "previous": keys == queries - 1, "two_before": keys == queries - 2,
                    "first": keys == 0, "once": (queries == 3) & (keys == 2)}  # fmt: skip
        for name, place in planted.items():
            scores[place] += {"previous": 3, "once": 20}.get(name, 6) * patterns[name]
        return scores.masked_fill(keys > queries, -torch.inf).softmax(-1)

    return {
        "two layers of four heads": (
            maps(2, 4, 9, previous=(0, 2), itself=(0, 1), two_before=(1, 0), first=(1, 3), once=(0, 0)),
        ),
        "three layers of two": (
            maps(3, 2, 12, previous=(1, 1), itself=(0, 0), two_before=(2, 1), first=(0, 1), once=(2, 0)),
        ),
    }  # fmt: skip


def annotated_norm(x: Float[Tensor, "*n D"], gain: Float[Tensor, "D"], shift: Float[Tensor, "D"]) -> Tensor:
    """The norm of the Annotated Transformer: the unbiased deviation, and 1e-6 outside the root (L3-36, D-04)."""
    return gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + shift


def _norm(correction: int, inside: float, outside: float) -> Any:
    def norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
        deviation = (x.var(-1, correction=correction, keepdim=True) + inside).sqrt() + outside
        return gain * (x - x.mean(-1, keepdim=True)) / deviation + shift

    return norm


def _norm_cases() -> Cases:
    worked = torch.tensor(
        [[1.0, 0.5, -0.5, 2.0], [0.0, -1.0, 1.5, 0.3], [0.7, 0.2, -1.2, -0.4], [2.0, 2.0, 2.0, 2.0]],
        dtype=torch.float64,
    )
    gain, shift = (torch.tensor(each, dtype=torch.float64) for each in ([1.0, 0.9, 1.1, 1.2], [0.1, -0.1, 0.0, 0.2]))
    return {
        "the lectures' tokens, one of them constant": (worked, gain, shift),
        "nearly constant tokens": (1 + 1e-6 * _random(3, 4), gain, shift),
    }


LATE = (
    Exercise(
        "dropout", 7, dropout, _dropout_cases,
        {
            "kept values are multiplied by 1 - rate in training. Inverted dropout divides them.":
                lambda x, keep, rate, training, classic:
                    x * keep * (1 if classic else 1 - rate) if training else x * (1 - rate if classic else 1),
            "kept values are divided by the rate. They are divided by the share that stays, 1 - rate.":
                lambda x, keep, rate, training, classic:
                    x * keep / (1 if classic else rate) if training else x * (1 - rate if classic else 1),
            "the mask is used in prediction too: two predictions of one model would differ.":
                lambda x, keep, rate, training, classic: dropout(x, keep, rate, True, classic),
            "both conventions scale: in training and in prediction. One of the two is enough.":
                lambda x, keep, rate, training, classic: x * keep / (1 - rate) if training else x * (1 - rate),
            "neither convention scales: prediction is then larger than training by 1 / (1 - rate).":
                lambda x, keep, rate, training, classic: x * keep if training else x,
            "the two conventions are exchanged.":
                lambda x, keep, rate, training, classic: dropout(x, keep, rate, training, not classic),
            "classic prediction multiplies by the rate. It multiplies by the share that stayed, 1 - rate.":
                lambda x, keep, rate, training, classic:
                    x * rate if classic and not training else dropout(x, keep, rate, training, classic),
        },
        ("L0-57", "L0-60", "L0-61", "L0-62", "L0-63"),
    ),
    Exercise(
        "loss", 8, loss, _loss_cases,
        {
            "the target is the input itself. Compare the logits of place i with the token at i + 1.":
                lambda logits, ids, lengths: F.cross_entropy(
                    logits.flatten(0, 1), ids.masked_fill(torch.arange(ids.shape[1]) >= lengths[:, None], -100).flatten()
                ),
            "padding is counted: the mean is over real next tokens alone.":
                lambda logits, ids, lengths: F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()),
            "tokens are left out by their id. Id 0 is padding in one text and a token in another: go by the lengths.": _by_id,
            "the surprises are summed: the loss grows with the batch.":
                lambda logits, ids, lengths: F.cross_entropy(
                    logits[:, :-1].flatten(0, 1), _next(ids, lengths).flatten(), reduction="sum"
                ),
            "the softmax is taken twice: cross-entropy has one.":
                lambda logits, ids, lengths: loss(logits.softmax(-1), ids, lengths),
            "a mean for each text, and then the mean of these: short texts count more. Average over all tokens.":
                _mean_of_means,
            "the sign is missing: surprise is -log p.": lambda logits, ids, lengths: -loss(logits, ids, lengths),
        },
        ("L1-24", "L1-92", "L2-59"),
    ),
    Exercise(
        "llama", 9, llama, lambda: LLAMAS,
        {
            "the gated MLP has two matrices. It has three: gate, up and down.": _llama(matrices=2),
            "keys and values have as many heads as queries. They have kv_heads.": _llama(grouped=False),
            "W_Q and W_O are dim × dim. They are dim × heads · width, which is more in qwen3-0.6b.": _llama(square=True),
            "the last norm is missing: one more vector of width dim.": _llama(last=0),
            "a block has two norms of dim numbers each. You count one.": _llama(norms=1),
            "the norms have shifts. An RMSNorm has a gain alone.": _llama(gains=2),
            "the norms are missing: two for each block and one at the end.": _llama(norms=0, last=0),
            "the norms of queries and keys are missing in the Qwens: 2 · width for each block.": _llama(head_norms=False),
            "queries and keys have a norm for each head. One gain of a head's width serves all heads.": _llama(per_head=True),
            "the head is missing: untied, it is a second table.": _llama(untied=1),
            "a tied head is counted twice: it is the token table.": _llama(shared=2),
            "positions are counted. Rotary positions have no parameters.": _llama(positions=2048),
        },
        ("L1-46", "L1-59", "D-55"),
    ),
    Exercise(
        "running", 10, running, _tile_cases,
        {
            "earlier sums are not rescaled: they belong to an older maximum. Multiply them by exp(old - new).":
                lambda scores, values, tile: _running(scores, values, tile, rescale=lambda old, new: 1.0),
            "the factor is upside down: it is exp(old - new), at most 1.":
                lambda scores, values, tile: _running(
                    scores, values, tile, rescale=lambda old, new: (new - old).exp() if old > -torch.inf else 0.0
                ),
            "the maximum is that of the tile alone. It is the larger of the old one and the tile's.":
                lambda scores, values, tile: _running(scores, values, tile, forget=True),
            "the sums are of exp(score). Subtract the running maximum first: scores of 10,000 overflow.": _not_stable,
        },
        ("L2-17", "L2-19"),
    ),
    Exercise(
        "edges", 11, edges, lambda: {f"the {name}": (name,) for name in FAMILIES},
        {
            "the decoder has no mask: no place sees a later token of its own row.":
                lambda family: [edge for edge in EDGES if edge in edges(family) or (family != "encoder" and edge == "t2→p0")],
            "you give the decoder alone an encoder's sight: its source rows are causal too, so s2→e0 is not there.":
                lambda family: [edge for edge in EDGES if edge in edges(family) or (family, edge) == ("decoder", "s2→e0")],
            "cross-attention is missing: with an encoder and a decoder, each target token sees the whole source.":
                lambda family: [
                    edge for edge in edges(family) if not (family == "encoder-decoder" and edge[0] + edge[3] == "sp")
                ],
            "cross-attention is causal. The source is known as a whole: s2→p0 is there.":
                lambda family: [edge for edge in edges(family) if (family, edge) != ("encoder-decoder", "s2→p0")],
        },
        ("L1-76", "L1-78", "L1-79", "L1-82", "L1-83"),
    ),
    Exercise(
        "gates", 12, gates, _gate_cases,
        {
            "the gates are divided by their sum. The deck keeps the softmax values as they are.":
                lambda scores, active: gates(scores, active) / gates(scores, active).sum(-1, keepdim=True),
            "more experts than allowed stay where scores tie: choose by rank, not by comparing with the last.": _all_that_tie,
            "ties go to the highest index. They go to the lowest.": _last_of_ties,
            "all gates stay: set those outside the choice to 0.": lambda scores, active: scores.softmax(-1),
            "the scores themselves are the gates: take their softmax over all experts.":
                lambda scores, active: torch.where(gates(scores, active) > 0, scores, 0.0),
        },
        ("L2-71", "L2-72", "L2-73"),
    ),
    Exercise(
        "previous head", 13, previous_head, _head_cases,
        {
            "this head attends to itself: the diagonal. The token before stands one column to the left.":
                lambda maps: _best(maps, 0),
            "rows and columns are exchanged: row i is what token i attends to.": lambda maps: _best(maps, 1),
            "this head attends two tokens back.": lambda maps: _best(maps, -2),
            "one large entry is not a pattern: average over all queries.": _largest_anywhere,
            "this head attends to the first token.":
                lambda maps: divmod(int(maps[..., 1:, 0].mean(-1).argmax()), maps.shape[1]),
            "the layer and the head are exchanged: return (layer, head).": lambda maps: previous_head(maps)[::-1],
        },
        ("L1-36", "L1-38", "L1-41"),
    ),
    Exercise(
        "annotated norm", 14, annotated_norm, _norm_cases,
        {
            "this is heddle's norm: divide by d, and 1e-5 inside the root. The Annotated Transformer does neither.":
                _norm(0, 1e-5, 0.0),
            "the variance is divided by d: `Tensor.std` divides by d - 1.": _norm(0, 0.0, 1e-6),
            "1e-6 is inside the root. It is added to the deviation.": _norm(1, 1e-6, 0.0),
            "nothing is added to the deviation: a constant token becomes nan.": _norm(1, 0.0, 0.0),
        },
        ("L3-36", "D-04"),
    ),
)  # fmt: skip
