"""A pass as plates that lie above each other, in the order in which they are computed (L3-39)."""

import torch
from torch import Tensor

from heddle.look.attention import AttentionPass
from heddle.look.sites import sites
from heddle.look.trace import trace
from heddle.page.asked import CheckpointQuery, Document
from heddle.page.numbers import packed
from heddle.page.subject import PageModel

ROWS, COLUMNS = 16, 48  # numbers of a plate, the first ones; heads share the columns
HEADS = 12  # beside each other
DRAWN = ("entry", "q", "k", "v", "weights", "heads", "gates", "hidden", "added", "output")
BESIDE = ("k", "v")  # on one level with the queries


def plates(subject: PageModel, asked: CheckpointQuery) -> Document:
    """The levels of a pass, each with its plates: names, what they are, shapes, and the first numbers as bytes.

    A byte b stands for (b - 128) / 127 of the largest magnitude in its plate.
    """
    text = subject.read(asked)
    every = {name: site for name, site in sites(subject.model).items() if _is_drawn(name)}
    kept = [name for name in every if not name.endswith(".weights")]
    found = trace(subject.model, text.tokens, kept, edits=subject.edits(asked), **text.more)
    maps = subject.attention(asked)
    levels: list[Document] = []
    for name, site in every.items():
        branch, _, end = name.rpartition(".")
        if end == "weights":
            plate, shape = _map(maps[branch])
        else:
            whole = found[name].float()
            plate, shape = _first(whole[0] if whole.dim() == 4 else whole[:1]), list(whole.shape)
        made = _plate(name, site.description, plate, shape)
        if end in BESIDE and levels[-1]["plates"][0]["name"] == f"{branch}.q":
            levels[-1]["plates"].append(made)
        else:
            levels.append({"plates": [made]})
    if subject.speaks and subject.model.vocab_size <= COLUMNS:
        with subject.without(asked):
            shares = subject.model.logits(found.output.hidden).float().softmax(-1)
        said = "the probability of each token of the vocabulary"
        levels.append({"plates": [_plate("probabilities", said, _first(shares[:1]), list(shares.shape))]})
    return {"pieces": text.pieces[:ROWS], "source": text.source_pieces[:ROWS], "levels": levels}


def _is_drawn(name: str) -> bool:
    """Whether a tensor is a level of its own: a branch's output is what it adds, which is drawn, so it is left out."""
    end, inside = name.rpartition(".")[2], name.count(".") > 2
    return end == "residual_after" or (end in DRAWN and not (inside and end == "output"))


def _first(whole: Tensor) -> Tensor:
    """The first numbers of [heads, rows, columns]; heads share the columns."""
    heads = whole[:HEADS] if whole.dim() == 3 else whole.reshape(1, 1, -1)
    return heads[:, :ROWS, : max(2, COLUMNS // len(heads))]


def _map(layer: AttentionPass) -> tuple[Tensor, list[int]]:
    found = layer.weights(slice(0, ROWS))[0].float()
    return _first(found[:, :, :ROWS]), [1, layer.heads, layer.queries, layer.keys]


def _plate(name: str, said: str, numbers: Tensor, shape: list[int]) -> Document:
    most = float(numbers.abs().max()) if numbers.numel() else 0.0
    bytes_ = (128 + 127 * numbers / (most or 1.0)).round().clamp(0, 255).to(torch.uint8)
    return {"name": name, "said": said, "shape": shape, "most": most, "numbers": packed(bytes_)}
