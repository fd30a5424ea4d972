"""Small models of every kind that the page shows, with their tokenizers."""

from functools import cache
from typing import Any

import torch

from heddle.config import TransformerConfig
from heddle.model import build
from heddle.page import PageModel
from heddle.text import train_tokenizer

TEXT = "the warp is held and the weft is thrown over the warp. the man eats the fish, a researcher is thinking. "
KINDS = (
    *("decoder", "experts", "recurrent", "translation", "masked", "classes", "words", "number", "vector", "prefix"),
    "ids",
)
HEADS: dict[str, dict[str, Any]] = {
    "classes": {"kind": "classifier", "classes": 3, "names": ["good", "bad", "neither"], "pooling": "mean"},
    "words": {"kind": "classifier", "classes": 3, "pooling": "none"},
    "number": {"kind": "classifier", "classes": 1, "pooling": "mean"},
    "vector": {"kind": "embedding", "pooling": "mean"},
}


@cache
def subject(kind: str) -> PageModel:
    """The model of a kind, made once: whoever changes it or serves it makes one of its own."""
    return make_subject(kind)


def make_subject(kind: str, **more: Any) -> PageModel:
    """A model whose weights are so large that its predictions depend on every token and its place."""
    special = ("<|endoftext|>", "[MASK]") if kind == "masked" or kind in HEADS else ("<|endoftext|>",)
    tokenizer = None if kind == "ids" else train_tokenizer("bytes", [TEXT * 20], None, special)
    block: dict[str, Any] = {"mixer": {"heads": 2}}
    if kind == "experts":
        block |= {"ffn": {"kind": "moe", "experts": 4, "active": 2}}
    if kind == "recurrent":
        block = {"mixer": {"kind": "recurrent"}}
    stack: dict[str, Any] = {"depth": 2, "entry": {"positions": "learned"}, "block": block}
    sizes: dict[str, Any] = {
        "vocab_size": 40 if tokenizer is None else tokenizer.vocab_size,
        "dim": 16,
        "context": 64,
        "initial": {"std": 0.3, "scale_residual": False},
    }
    if kind == "translation":
        cross = {**stack, "block": {**block, "cross": {"heads": 2}}}
        sizes |= {"encoder": stack, "decoder": cross}
    elif kind == "masked" or kind in HEADS:
        sizes |= {"encoder": stack} | ({"head": HEADS[kind]} if kind in HEADS else {})
    else:
        sizes |= {"decoder": stack | ({"prefix": True} if kind == "prefix" else {})}
    torch.manual_seed(1)
    model = build(TransformerConfig.of(sizes | more)).eval()
    return PageModel(kind, model, tokenizer)
