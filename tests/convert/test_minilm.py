"""A real model of sentence-transformers, all-MiniLM-L6-v2: imported, served and exported, beside its own libraries."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import heddle
from heddle.config.serve import ServeConfig
from heddle.convert import export_model, import_model
from heddle.model import Transformer
from heddle.text import Tokenizer
from tests.minilm import extracted

Loaded = tuple[Transformer, Tokenizer]
# Short and long ones share batches; the third is longer than the 256 ids that the model reads.
TEXTS = [
    "The warp is held.",
    "A heddle lifts the threads that it owns, and the weft is thrown between them.",
    "weave and weft " * 200,
    "  Größe, naïve café: 織る \n UPPER",
    "heddle",
]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extracted(tmp_path_factory.mktemp("minilm") / "published")


@pytest.fixture(scope="module")
def run(published: Path) -> Path:
    report = import_model(published, published.parent / "run")
    assert (report["family"], report["notes"]) == ("bert", [])
    return published.parent / "run"


@pytest.fixture(scope="module")
def loaded(run: Path) -> Loaded:
    model, tokenizer = heddle.load(run, "cpu")
    assert tokenizer is not None
    return model, tokenizer


@pytest.fixture(scope="module")
def expected(published: Path) -> np.ndarray[Any, Any]:
    """The mean of transformers' hidden vectors, one text at a time, at length 1: what the model's files say."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(published)
    model = transformers.AutoModel.from_pretrained(published).eval()
    vectors = []
    with torch.no_grad():
        for text in TEXTS:
            hidden = model(**tokenizer(text, truncation=True, max_length=256, return_tensors="pt")).last_hidden_state
            vectors.append(torch.nn.functional.normalize(hidden[0].double().mean(0), dim=0).numpy())
    return np.stack(vectors)


def test_its_vectors_are_the_published_ones(loaded: Loaded, expected: np.ndarray[Any, Any]) -> None:
    vectors = heddle.embed(*loaded, TEXTS)
    assert vectors.cut == (False, False, True, False, False)
    np.testing.assert_allclose(vectors.vectors, expected, atol=1e-6)


def test_so_are_the_served_ones(loaded: Loaded, expected: np.ndarray[Any, Any]) -> None:
    testclient = pytest.importorskip("starlette.testclient")
    from heddle.serve import ServedRun, make_app

    with testclient.TestClient(make_app([ServedRun("minilm", *loaded)], ServeConfig()), "http://127.0.0.1") as client:
        answer = client.post("/v1/embeddings", json={"model": "minilm", "input": TEXTS, "dimensions": 384})
    data = answer.json()["data"]
    assert [each["cut"] for each in data] == [False, False, True, False, False]
    np.testing.assert_allclose([each["embedding"] for each in data], expected, atol=1e-6)


@pytest.mark.thorough
def test_what_is_exported_has_the_same_vectors(
    run: Path, published: Path, expected: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    """sentence-transformers reads the published directory and the exported one alike, from text on."""
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    export_model(run, tmp_path / "exported")
    for folder in (published, tmp_path / "exported"):
        model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        assert model.max_seq_length == 256
        np.testing.assert_allclose(model.encode(TEXTS, show_progress_bar=False), expected, atol=1e-6)
