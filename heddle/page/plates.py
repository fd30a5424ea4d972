"""A forward pass as a stack of plates, in the order of computation (L3-39)."""

import torch
from torch import Tensor

from heddle.look.attention import AttentionPass
from heddle.look.sites import sites
from heddle.look.trace import trace
from heddle.page.numbers import encode_tensor
from heddle.page.queries import Document, TextQuery
from heddle.page.subject import PageModel

ROWS, COLUMNS = 16, 48  # of a plate: the first ones of its tensor; heads share the columns
HEADS = 12  # side by side
SHOWN = ("entry", "q", "k", "v", "weights", "heads", "gates", "hidden", "added", "output")
SAME_LEVEL = ("k", "v")  # on one level with the queries


def plates(subject: PageModel, query: TextQuery) -> Document:
    """The levels of a pass, each with its plates: names, descriptions, shapes, and the first numbers as bytes.

    A byte b stands for (b - 128) / 127 of the largest magnitude in its plate.
    """
    text = subject.read(query)
    plated = {name: site for name, site in sites(subject.model).items() if _is_shown(name)}
    traced_names = [name for name in plated if not name.endswith(".weights")]
    traced = trace(subject.model, text.tokens, traced_names, edits=subject.edits(query), **text.more)
    maps = subject.attention(query)
    levels: list[Document] = []
    for name, site in plated.items():
        branch, _, end = name.rpartition(".")
        if end == "weights":
            numbers, shape = _map(maps[branch])
        else:
            tensor = traced[name].float()
            numbers, shape = _crop(tensor[0] if tensor.dim() == 4 else tensor[:1]), list(tensor.shape)
        plate = _plate(name, site.description, numbers, shape)
        if end in SAME_LEVEL and levels[-1]["plates"][0]["name"] == f"{branch}.q":
            levels[-1]["plates"].append(plate)
        else:
            levels.append({"plates": [plate]})
    if subject.speaks and subject.model.vocab_size <= COLUMNS:
        with subject.without(query):
            probabilities = subject.model.logits(traced.output.hidden).float().softmax(-1)
        description = "the probability of each token of the vocabulary"
        plate = _plate("probabilities", description, _crop(probabilities[:1]), list(probabilities.shape))
        levels.append({"plates": [plate]})
    return {"pieces": text.pieces[:ROWS], "source": text.source_pieces[:ROWS], "levels": levels}


def _is_shown(name: str) -> bool:
    """Whether a tensor gets a plate. The output of a branch does not, since `added` shows the same."""
    end, in_branch = name.rpartition(".")[2], name.count(".") > 2
    return end == "residual_after" or (end in SHOWN and not (in_branch and end == "output"))


def _crop(tensor: Tensor) -> Tensor:
    """The first numbers of [heads, rows, columns]; heads share the columns."""
    heads = tensor[:HEADS] if tensor.dim() == 3 else tensor.reshape(1, 1, -1)
    return heads[:, :ROWS, : max(2, COLUMNS // len(heads))]


def _map(layer: AttentionPass) -> tuple[Tensor, list[int]]:
    weights = layer.weights(slice(0, ROWS))[0].float()
    return _crop(weights[:, :, :ROWS]), [1, layer.heads, layer.queries, layer.keys]


def _plate(name: str, description: str, numbers: Tensor, shape: list[int]) -> Document:
    largest = float(numbers.abs().max()) if numbers.numel() else 0.0
    bytes_ = (128 + 127 * numbers / (largest or 1.0)).round().clamp(0, 255).to(torch.uint8)
    return {"name": name, "said": description, "shape": shape, "most": largest, "numbers": encode_tensor(bytes_)}
