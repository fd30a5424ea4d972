"""Attention maps: all heads as thumbnails with their scores, one head in full, one query step by step."""

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.errors import HeddleError
from heddle.look.attention import AttentionPass
from heddle.look.heads import FIELDS, score_heads, strongest
from heddle.look.thumbnails import thumbnails
from heddle.nn.kernels import Running
from heddle.page.numbers import encode_bits, encode_tensor
from heddle.page.queries import AttentionQuery, Document, HeadQuery, RunningQuery, TextQuery
from heddle.page.subject import PageModel
from heddle.page.write import position

LONGEST = 4096  # tokens of a map
PAIRS = 10
TILES, WIDTH = 64, 3  # of a running softmax: tiles at most, numbers of its output


def heads(subject: PageModel, query: TextQuery) -> Document:
    """Every attention layer: a thumbnail and the scores of each head."""
    text = subject.read(query)
    attention = subject.attention(query)
    layers = []
    for name, layer in attention.items():
        is_self_attention = name.startswith(subject.stack) and name.endswith(".mixer")
        scores = score_heads(layer, text.tokens if is_self_attention else None)
        shares = {field: getattr(scores, field).nan_to_num(0.0).tolist() for field in FIELDS}
        layers.append(
            {
                "layer": name,
                "heads": layer.heads,
                "queries": layer.queries,
                "keys": layer.keys,
                "names": scores.names() if name.endswith(".mixer") else [""] * layer.heads,
                "scores": shares,
                "thumbnails": encode_tensor(thumbnails(layer)),
            }
        )
    return {"layers": layers, "pieces": text.pieces, "source": text.source_pieces}


def head_map(subject: PageModel, query: HeadQuery) -> Document:
    """One head in full: the scores before the mask, the mask and the head's sink. The page computes the weights from them."""
    layer = _layer(subject, query)
    if max(layer.queries, layer.keys) > LONGEST:
        raise HeddleError(f"a map shows at most {LONGEST} tokens, and this text has {max(layer.queries, layer.keys)}")
    rows, columns = _labels(subject, query)
    return {
        "layer": query.layer,
        "head": query.head,
        "rows": rows,
        "columns": columns,
        "scores": encode_tensor(layer.scores(heads=query.head, masked=False)[0, 0]),
        "allowed": encode_bits(layer.allowed()[0, 0].expand(layer.queries, layer.keys)),
        "sink": None if layer.lowered.sinks is None else float(layer.lowered.sinks[query.head]),
        "strongest": strongest(layer, query.head, PAIRS),
    }


def query_steps(subject: PageModel, query: AttentionQuery) -> Document:
    """The steps of one query in one head: q·k, scale, mask, softmax, weighted sum (L0-93, L3-18)."""
    layer = _layer(subject, query)
    row = position(query.query, layer.queries)
    steps = layer.steps(row, query.head)
    rows, columns = _labels(subject, query)
    group = layer.heads // layer.k.shape[1]
    return {
        "layer": query.layer,
        "head": query.head,
        "query": row,
        "rows": rows,
        "columns": columns,
        "scale": layer.scale,
        "cap": layer.cap,
        "biased": layer.lowered.bias is not None or layer.lowered.custom_scores is not None,
        "q": encode_tensor(layer.q[0, query.head, row]),
        "k": encode_tensor(_short(layer.k[0, query.head // group])),
        "values": encode_tensor(_short(steps.values)),
        "products": encode_tensor(steps.products),
        "scaled": encode_tensor(steps.scaled),
        "changed": encode_tensor(steps.biased),
        "allowed": encode_bits(steps.allowed[None]),
        "weights": encode_tensor(steps.weights),
        "output": encode_tensor(steps.output),
    }


def running_softmax(subject: PageModel, query: RunningQuery) -> Document:
    """The softmax of one query in one head as FlashAttention computes it: tile by tile of keys, with running sums (L2-19)."""
    layer = _layer(subject, query)
    row = position(query.query, layer.queries)
    steps = layer.steps(row, query.head)
    tile = max(query.tile, -(-layer.keys // TILES))
    sinks = None if layer.lowered.sinks is None else layer.lowered.sinks.detach()[query.head].to(steps.masked)
    running = Running.start((1,), steps.values.shape[1], steps.values, sinks)
    tiles: list[Document] = []
    for first in range(0, layer.keys, tile):
        last = min(first + tile, layer.keys)
        scores, before = steps.masked[None, first:last], running.maximum
        running = running.add(scores, steps.values[first:last])
        largest = running.maximum.masked_fill(running.maximum == -torch.inf, 0.0)
        tiles.append(
            {
                "first": first,
                "last": last,
                "seen": int(steps.allowed[first:last].sum()),
                "scores": [_finite(score) for score in scores[0].tolist()],
                "maximum": _finite(float(running.maximum)),
                "rescale": float((before - largest).exp()),
                "total": float(running.total),
                "output": running.output()[0, :WIDTH].tolist(),
            }
        )
    rows, columns = _labels(subject, query)
    return {
        "query": row,
        "tile": tile,
        "tiles": tiles,
        "rows": rows,
        "columns": columns,
        "width": steps.values.shape[1],
        "whole": steps.output[:WIDTH].tolist(),
        "difference": float((running.output()[0] - steps.output).abs().max()),
    }


def _finite(value: float) -> float | None:
    """A number for JSON, which has no infinities: None for -inf."""
    return value if value > -torch.inf else None


def _short(tensor: Float[Tensor, "S d"]) -> Tensor:
    """The first keys of a long text. The rest only counts in the sums."""
    return tensor[:512]


def _layer(subject: PageModel, query: HeadQuery) -> AttentionPass:
    attention = subject.attention(query)
    if query.layer not in attention:
        names = ", ".join(attention) or "none"
        raise HeddleError(f"there is no attention layer {query.layer!r}: this model has {names}")
    layer: AttentionPass = attention[query.layer]
    if query.head >= layer.heads:
        raise HeddleError(f"there is no head {query.head}: {query.layer} has {layer.heads}, numbered from 0")
    return layer


def _labels(subject: PageModel, query: HeadQuery) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The texts of queries and keys."""
    text = subject.read(query)
    if subject.paired and query.layer.startswith("encoder"):
        return text.source_pieces, text.source_pieces
    return text.pieces, text.source_pieces if query.layer.endswith(".cross") else text.pieces
