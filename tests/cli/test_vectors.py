"""`heddle vectors`: what people read, the one document that programs read, and what is refused."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.vectors import WordVectors
from tests.vectors.planted import planted

from .conftest import Heddle

SETTINGS = ["dim=8", "epochs=2", "min_count=1", "subsampling=0"]


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text.txt").write_text("\n".join(planted(0, 200)))
    return "text.txt"


def test_training_writes_a_file(heddle: Heddle, text: str, tmp_path: Path) -> None:
    result = heddle("vectors", "train", text, *SETTINGS, "--out", "v.txt")
    assert (result.code, result.err) == (0, "")
    assert "v.txt: 36 words of 8 dimensions, " in result.out
    assert "words/s, loss " in result.out
    assert "heddle train … tokenizer=words vectors=v.txt dim=8" in result.out
    assert WordVectors.read(tmp_path / "v.txt").array.shape == (36, 8)


def test_as_a_document_and_from_a_file_of_settings(heddle: Heddle, text: str, tmp_path: Path) -> None:
    """What the command line says overrides the file; GloVe's form is the default for its method."""
    (tmp_path / "glove.toml").write_text('method = "glove"\ndim = 4\nwindow = 3\n')
    report = heddle("vectors", "train", text, "glove.toml", "dim=6", "--out", "v.txt", "--json").json
    assert (report["method"], report["dim"], report["window"], report["epochs"], report["form"]) == (
        "glove",
        6,
        3,
        25,
        "glove",
    )
    assert (report["words"], report["tokens"], len(report["losses"])) == (36, 1000, 25)
    assert report["words_per_second"] > 0
    assert len((tmp_path / "v.txt").read_text().splitlines()) == 36


def test_standard_input_and_tables(heddle: Heddle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the warp the weft " * 9)))
    assert heddle("vectors", "train", "-", *SETTINGS, "--out", "a.bin", "--json").json["words"] == 3
    (tmp_path / "t.csv").write_text("body,n\n" + "the warp,1\nthe weft,2\n" * 9)
    assert (
        heddle("vectors", "train", "t.csv", *SETTINGS, "--text", "body", "--out", "b.bin", "--json").json["tokens"]
        == 36
    )
    assert len(WordVectors.read(tmp_path / "a.bin")) == 3


def test_neighbours_and_analogies(heddle: Heddle, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("man 1 0 0\nwoman 1 1 0\nking 1 0 1\nqueen 1 1 1\n")
    report = heddle("vectors", "analogy", "v.txt", "man", "king", "woman", "--json").json
    assert [each["word"] for each in report["found"]] == ["queen"]
    output = heddle("vectors", "analogy", "v.txt", "man", "king", "woman").out
    assert "man : king = woman : …" in output
    assert "queen" in output
    report = heddle("vectors", "near", "v.txt", "queen", "man", "--count", "2", "--json").json["near"]
    assert [each["word"] for each in report["queen"]] == ["woman", "king"]
    assert report["queen"][0]["cosine"] == pytest.approx((2 / 3) ** 0.5)
    assert len(report["man"]) == 2
    assert "0.8165" in heddle("vectors", "near", "v.txt", "queen").out


def test_words_are_shown_as_they_are(heddle: Heddle, tmp_path: Path) -> None:
    """Those of a chat template, say, which look like markup to the library that prints tables."""
    (tmp_path / "v.txt").write_text("[/INST] 1 0 0\n[unused1] 1 1 0\n:x: 1 0 1\nweft 1 1 1\n")
    neighbours = heddle("vectors", "near", "v.txt", "[/INST]", "--count", "3").out.splitlines()
    assert [line.split() for line in neighbours] == [
        ["word", "near", "cosine"],
        ["[/INST]", "[unused1]", "0.7071"],
        ["[/INST]", ":x:", "0.7071"],
        ["[/INST]", "weft", "0.5774"],
    ]
    header = heddle("vectors", "analogy", "v.txt", "[/INST]", "[unused1]", ":x:").out.splitlines()[0]
    assert header.startswith("[/INST] : [unused1] = :x: : …")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "text.txt", "--out", "text.txt"], "text.txt: already exists; nothing was changed"),
        (["train", "text.txt", "--out", "text.txt/v.txt"], "text.txt is not a writable folder"),
        (["train", "text.txt", "--out", "v.bin", "--form", "glove"], "v.bin: form = glove is text"),
        (["train", "text.txt", "dimm=3", "--out", "v.txt"], "unknown key 'dimm' in settings. Did you mean 'dim'?"),
        (["train", "text.txt", "method=glove", "negatives=9", "--out", "v.txt"], "no effect with method = glove"),
        (["train", "text.txt", "min_count=999", "--out", "v.txt"], "0 words that occur at least min_count = 999 times"),
        (["train", "text.txt", "learning_rate=10", *SETTINGS, "--out", "v.txt"], "set a lower learning_rate"),
        (["train", "text.txt", "a.toml", "b.toml", "--out", "v.txt"], "only one settings file is allowed"),
        (["train", "text.txt", "c.toml", "dim=x", "--out", "v.txt"], "the command line: dim = 'x': input should be"),
        (["train", "none.txt", "--out", "v.txt"], "none.txt: no such file or folder"),
        (["near", "none.txt", "cat"], "none.txt: No such file"),
        (["near", "text.txt"], "name a word"),
        (["near", "text.txt", "cat"], "text.txt: not a file of word vectors: word2vec's and GloVe's text formats have"),
        (["analogy", "v3.txt", "a", "b", "c"], "'c' is not one of the 2 words with a vector"),
        (["near", "v3.txt", "a", "--count", "0"], "count = 0: must be at least 1"),
    ],
)
def test_refusals(refused: Callable[..., str], text: str, tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "v3.txt").write_text("a 1 2\nb 2 1\n")
    (tmp_path / "c.toml").write_text("window = 3\n")
    assert message in refused("vectors", *words)


def test_a_run_starts_from_the_file_and_refuses_another_width(
    heddle: Heddle, refused: Callable[..., str], text: str
) -> None:
    heddle("vectors", "train", text, *SETTINGS, "--out", "v.txt")
    model = ["tokenizer=words", "depth=1", "heads=2", "context=16", "steps=1", "batch=2", "device=cpu"]
    model += ["precision=fp32", "compile=off", "vectors=v.txt"]
    line = refused("train", text, *model, "dim=16", "--dry-run")
    assert (
        line == "v.txt: its vectors have 8 numbers and the model's 16: use vectors as wide as the model's, or set dim=8"
    )
    planned = heddle("train", text, *model, "dim=8", "--dry-run", "--json").json
    assert planned["chosen"]["vectors"]["matched"] == 36
