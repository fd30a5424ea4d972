"""Vectors of texts: poolings in numpy of what transformers and the model itself say of single texts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import heddle
from heddle.config import TransformerConfig, sized
from heddle.model import build
from heddle.predict import embed
from heddle.text import train_tokenizer

from .published import published

TEXTS = ["the warps is held", "loom", "the weft is thrown over and over"]
POOLED = {
    "mean": lambda hidden: hidden.mean(0),
    "first": lambda hidden: hidden[0],
    "last": lambda hidden: hidden[-1],
    "max": lambda hidden: hidden.max(0),
}


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "BertModel", "T5ForConditionalGeneration"])
def test_vectors_are_pooled_hidden_vectors_of_transformers(tmp_path: Path, architecture: str) -> None:
    template = ("$A [SEP]", "$A [SEP] $B [SEP]") if architecture.startswith("T5") else ()
    model, tokenizer, reference, cut = published(tmp_path, architecture, template)
    body: Any = {"BertForMaskedLM": "bert", "T5ForConditionalGeneration": "encoder"}.get(architecture)
    network: Any = reference if body is None else getattr(reference, body)
    hidden = []
    for text in TEXTS:
        ids = torch.tensor([cut(text)["input_ids"]])
        with torch.no_grad():
            hidden.append(network(input_ids=ids).last_hidden_state[0].numpy().astype(np.float64))
    for how, pooled in POOLED.items():
        expected = np.stack([pooled(each) for each in hidden])
        vectors = embed(model, tokenizer, TEXTS, pooling=how)  # type: ignore[arg-type]
        np.testing.assert_allclose(vectors.vectors, expected, rtol=1e-4, atol=2e-5)
        length = np.linalg.norm(expected, axis=1, keepdims=True)
        normalised = embed(model, tokenizer, TEXTS, pooling=how, normalise=True)  # type: ignore[arg-type]
        np.testing.assert_allclose(normalised.vectors, expected / length, rtol=1e-4, atol=2e-5)
    default = embed(model, tokenizer, TEXTS).vectors
    if architecture == "BertModel":
        with torch.no_grad():
            expected = np.stack(
                [network(torch.tensor([cut(text)["input_ids"]])).pooler_output[0].numpy() for text in TEXTS]
            )
    else:
        expected = np.stack([each.mean(0) for each in hidden])
    np.testing.assert_allclose(default, expected, rtol=1e-4, atol=2e-5)


def test_a_language_model_reads_plain_texts() -> None:
    """As it was trained: nothing around the text. A long one loses its end."""
    tokenizer = train_tokenizer("bytes", [])
    model = build(sized(1, vocab_size=tokenizer.vocab_size, context=8, dim=16))
    vectors = heddle.embed(model, tokenizer, ["warp", "the weft is thrown"])
    assert (vectors.vectors.dtype, vectors.vectors.shape, vectors.cut) == (np.float32, (2, 16), (False, True))
    for text, vector in zip(["warp", "the weft"], vectors.vectors, strict=True):
        with torch.no_grad():
            hidden = model(torch.tensor([tokenizer.encode(text)])).hidden[0].mean(0)
        np.testing.assert_allclose(vector, hidden.numpy(), rtol=1e-5, atol=1e-6)


def test_the_pooling_of_the_head_is_the_default() -> None:
    tokenizer = train_tokenizer("words", ["the warp is held over"], special=("[CLS]", "[SEP]"))
    block = {"mixer": {"heads": 2}}
    settings = {"vocab_size": tokenizer.vocab_size, "dim": 16, "context": 16, "encoder": {"depth": 1, "block": block}}

    def model(head: dict[str, Any]) -> Any:
        return build(TransformerConfig.of({**settings, "head": head}))

    for pooling in POOLED:
        for head in ({"kind": "classifier", "classes": 2}, {"kind": "embedding"}):
            made = model({**head, "pooling": pooling})
            default, chosen = (
                embed(made, tokenizer, ["the warp"]),
                embed(made, tokenizer, ["the warp"], pooling=pooling),
            )  # type: ignore[arg-type]
            np.testing.assert_array_equal(default.vectors, chosen.vectors)
    vectors = embed(model({"kind": "embedding", "normalise": True}), tokenizer, ["the warp", "over"]).vectors
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    with pytest.warns(UserWarning, match="embed: 1 text of 3 empty or only whitespace"):
        result = embed(made, tokenizer, ["warp", "", "weft"])
    plain = embed(made, tokenizer, ["warp", "weft"])
    np.testing.assert_allclose(result.vectors[[0, 2]], plain.vectors, atol=1e-6)
    assert np.isnan(result.vectors[1]).all()
    assert result.cut == (False, False, False)
    assert embed(made, tokenizer, []).vectors.shape == (0, 16)
