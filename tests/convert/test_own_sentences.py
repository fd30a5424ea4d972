"""Embedding models that were trained here, in sentence-transformers: its own vectors of texts, in batches, cut and with prompts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heddle
from heddle.config import ContrastiveConfig
from heddle.convert import export_model
from heddle.text.tokenizer import Tokenizer

library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")

PAIRS = [(f"the warp {number} is held", f"held is warp {number}") for number in range(8)]
TEXTS = ["the warp is held", "held", "a weft " * 40, "threads 3 and 4"]  # of different lengths; the third is cut
POOLINGS = ("mean", "first", "last", "max", "mean_sqrt", "weighted_mean")
PROMPT = {"prompts": {"query": "the warp "}, "prompt": "query"}


def check(model: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """Train, save, export, and compare all vectors."""
    heddle.fit(model, tokenizer, PAIRS, steps=1, task=ContrastiveConfig(group=4), progress=False)
    heddle.save(model, folder / "run", tokenizer)
    export_model(folder / "run", folder / "out")
    reference = library.SentenceTransformer(str(folder / "out"), device="cpu")
    vectors = heddle.embed(model, tokenizer, TEXTS)
    assert vectors.cut[2]
    np.testing.assert_allclose(reference.encode(TEXTS), vectors.vectors, atol=1e-6, rtol=1e-6)
    if model.config.head.prompts:
        bare = heddle.embed(model, tokenizer, TEXTS, prompt="").vectors
        assert np.abs(bare - vectors.vectors).max() > 1e-3
        np.testing.assert_allclose(reference.encode(TEXTS, prompt=""), bare, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_decoder(pooling: str, tmp_path: Path) -> None:
    """Its tokenizer has no token to pad with, which a batch needs."""
    tokenizer = heddle.tokenizer_for("contrastive", PAIRS, kind="bytes")
    head = {"kind": "embedding", "pooling": pooling, "normalise": pooling in POOLINGS[::2]}
    head |= PROMPT if pooling in ("mean", "last") else {}
    sizes = {"depth": 1, "context": 24, "dim": 16, "family": "decoder"}
    check(heddle.model_for("contrastive", tokenizer, head=head, **sizes), tokenizer, tmp_path)


@pytest.mark.parametrize("normalise", [True, False])
def test_an_encoder(normalise: bool, tmp_path: Path) -> None:
    tokenizer = heddle.tokenizer_for("contrastive", PAIRS, kind="wordpiece", vocab_size=200)
    head = {"kind": "embedding", "pooling": "mean", "normalise": normalise, **({} if normalise else PROMPT)}
    sizes = {"vocab_size": tokenizer.vocab_size, "dim": 16, "context": 16, "head": head}
    small = heddle.preset("bert-base-like").override({**sizes, "encoder.depth": 1, "encoder.block.mixer.heads": 2})
    check(heddle.build(small), tokenizer, tmp_path)
