"""Attention maps: all heads as thumbnails with their scores, one head in full, one query step by step."""

import torch
from jaxtyping import Float
from torch import Tensor

from heddle.errors import HeddleError
from heddle.look.attention import AttentionPass
from heddle.look.heads import FIELDS, score_heads, strongest
from heddle.page.asked import CheckpointQuery, Document, OneHead, OneQuery
from heddle.page.numbers import packed, packed_bits
from heddle.page.subject import PageModel
from heddle.page.write import position

SMALL = 40  # cells along a thumbnail
LONGEST = 4096  # tokens of a map
PAIRS = 10


def heads(subject: PageModel, asked: CheckpointQuery) -> Document:
    """Every attention layer: a thumbnail and the scores of each head."""
    text = subject.read(asked)
    attention = subject.attention(asked)
    found = []
    for name, layer in attention.items():
        own = name.startswith(subject.stack) and name.endswith(".mixer")
        scores = score_heads(layer, text.tokens if own else None)
        shares = {field: getattr(scores, field).nan_to_num(0.0).tolist() for field in FIELDS}
        found.append(
            {
                "layer": name,
                "heads": layer.heads,
                "queries": layer.queries,
                "keys": layer.keys,
                "names": scores.names() if name.endswith(".mixer") else [""] * layer.heads,
                "scores": shares,
                "thumbnails": packed(thumbnails(layer)),
            }
        )
    return {"layers": found, "pieces": text.pieces, "source": text.source_pieces}


def thumbnails(layer: AttentionPass) -> Tensor:
    """All heads' maps, UInt8[H h w]: the largest weight of each cell, 0 to 254; 255 where the mask blocks all of it."""
    height, width = min(SMALL, layer.queries), min(SMALL, layer.keys)
    found = torch.zeros(layer.heads, height, width)
    seen = torch.zeros(height, width, dtype=torch.bool)
    for start, stop, weights in layer.blocks():
        rows = torch.arange(start, stop) * height // layer.queries
        cells = torch.nn.functional.adaptive_max_pool1d(weights[0].float().flatten(0, 1), width).unflatten(
            0, (layer.heads, stop - start)
        )
        allowed = layer.allowed(slice(start, stop)).expand(len(weights), 1, -1, -1)[0].float()
        open_cells = torch.nn.functional.adaptive_max_pool1d(allowed, width)[0] > 0
        for row in rows.unique().tolist():
            found[:, row] = torch.maximum(found[:, row], cells[:, rows == row].amax(1).cpu())
            seen[row] |= open_cells[rows == row].any(0).cpu()
    return torch.where(seen, (found * 254).round().clamp(0, 254), 255.0).to(torch.uint8)


def one_map(subject: PageModel, asked: OneHead) -> Document:
    """One head in full: the scores before the mask, the mask and the head's sink; the page computes the weights from these.

    Raises:
        HeddleError: there is no such layer or head, or the text is too long.
    """
    layer = _layer(subject, asked)
    if max(layer.queries, layer.keys) > LONGEST:
        raise HeddleError(f"a map shows at most {LONGEST} tokens, and this text has {max(layer.queries, layer.keys)}")
    rows, columns = _labels(subject, asked)
    return {
        "layer": asked.layer,
        "head": asked.head,
        "rows": rows,
        "columns": columns,
        "scores": packed(layer.scores(heads=asked.head, masked=False)[0, 0]),
        "allowed": packed_bits(layer.allowed()[0, 0].expand(layer.queries, layer.keys)),
        "sink": None if layer.lowered.sinks is None else float(layer.lowered.sinks[asked.head]),
        "strongest": strongest(layer, asked.head, PAIRS),
    }


def one_query(subject: PageModel, asked: OneQuery) -> Document:
    """One query's way through one head: q·k, scale, mask, softmax, weighted sum (L0-93, L3-18)."""
    layer = _layer(subject, asked)
    row = position(asked.query, layer.queries)
    steps = layer.steps(row, asked.head)
    rows, columns = _labels(subject, asked)
    group = layer.heads // layer.k.shape[1]
    return {
        "layer": asked.layer,
        "head": asked.head,
        "query": row,
        "rows": rows,
        "columns": columns,
        "scale": layer.scale,
        "cap": layer.cap,
        "biased": layer.lowered.bias is not None or layer.lowered.custom_scores is not None,
        "q": packed(layer.q[0, asked.head, row]),
        "k": packed(_short(layer.k[0, asked.head // group])),
        "values": packed(_short(steps.values)),
        "products": packed(steps.products),
        "scaled": packed(steps.scaled),
        "changed": packed(steps.biased),
        "allowed": packed_bits(steps.allowed[None]),
        "weights": packed(steps.weights),
        "output": packed(steps.output),
    }


def _short(tensor: Float[Tensor, "S d"]) -> Tensor:
    """Of a long text, the first keys; the rest is in the sums alone."""
    return tensor[:512]


def _layer(subject: PageModel, asked: OneHead) -> AttentionPass:
    attention = subject.attention(asked)
    if asked.layer not in attention:
        has = ", ".join(attention) or "none"
        raise HeddleError(f"there is no attention layer {asked.layer!r}: this model has {has}")
    layer: AttentionPass = attention[asked.layer]
    if asked.head >= layer.heads:
        raise HeddleError(f"there is no head {asked.head}: {asked.layer} has {layer.heads}, numbered from 0")
    return layer


def _labels(subject: PageModel, asked: OneHead) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The texts of queries and keys."""
    text = subject.read(asked)
    if subject.paired and asked.layer.startswith("encoder"):
        return text.source_pieces, text.source_pieces
    return text.pieces, text.source_pieces if asked.layer.endswith(".cross") else text.pieces
