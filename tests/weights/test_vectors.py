"""Vectors from files become rows of the token table, and what was found is counted."""

from pathlib import Path

import numpy as np
import pytest
import torch

from heddle.config import TransformerConfig
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.text import train_tokenizer
from heddle.weights.vectors import Coverage, read_vectors, take_over_vectors

WORDS = {"cat": [1.0, -2.0, 0.5, 3.0], "dog": [0.25, 0.5, -1.0, 8.0], "naïve": [9.0, 1.0, 2.0, -4.0]}
TEXT = "the cat and the dog saw a naïve cat"


def lines() -> str:
    return "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in WORDS.items())


def write(path: Path, form: str) -> Path:
    if form == "glove":
        path.write_text(lines(), encoding="utf-8")
    elif form == "word2vec text":
        path.write_text(f"{len(WORDS)} 4\n" + lines(), encoding="utf-8")
    else:
        end = b"\n" if form == "word2vec binary, line breaks" else b""
        body = b"".join(w.encode() + b" " + np.array(v, "<f4").tobytes() + end for w, v in WORDS.items())
        path.write_bytes(f"{len(WORDS)} 4\n".encode() + body)
    return path


FORMS = ["glove", "word2vec text", "word2vec binary", "word2vec binary, line breaks"]


def model(vocab_size: int, dim: int = 4) -> Transformer:
    block = {"mixer": {"heads": 1}}
    return build(
        TransformerConfig.of(
            {"vocab_size": vocab_size, "dim": dim, "context": 8, "decoder": {"depth": 1, "block": block}}
        )
    )


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_vectors(form: str, tmp_path: Path) -> None:
    found = dict(read_vectors(write(tmp_path / "v", form)))
    assert {word: vector.tolist() for word, vector in found.items()} == WORDS


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_known_words_equal_the_vectors_and_others_stay(form: str, tmp_path: Path) -> None:
    tokenizer = train_tokenizer("words", [TEXT], 50)
    made = model(tokenizer.vocab_size)
    before = made.embedding.weight.detach().clone()
    coverage = take_over_vectors(made, tokenizer, write(tmp_path / "v", form))
    assert coverage == Coverage(found=3, vocabulary=tokenizer.vocab_size, unused=0)
    assert coverage.share == 3 / tokenizer.vocab_size
    ids = {word: tokenizer.encode(word)[0] for word in WORDS}
    for word, number in ids.items():
        assert made.embedding.weight[number].tolist() == WORDS[word]
    rest = [number for number in range(tokenizer.vocab_size) if number not in ids.values()]
    assert torch.equal(made.embedding.weight[rest], before[rest])
    assert made.embedding.weight.requires_grad


def test_words_that_are_no_token_are_counted(tmp_path: Path) -> None:
    tokenizer = train_tokenizer("bytes", [TEXT], 300)
    assert take_over_vectors(model(tokenizer.vocab_size), tokenizer, write(tmp_path / "v", "glove")).unused == 3


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no file of word vectors"),
        (b"hello\n", "no file of word vectors"),
        (b"cat 1 2 x\n", "line 1: a word and 3 numbers"),
        (b"cat 1 2\ndog 1 nan\n", "line 2: a word and 2 finite numbers"),
        (b"cat 1 2\n1\n", "line 2"),
        (b"3 2\ncat 1 2\n", "1 words where its first line promises 3"),
        (b"2 4\ncat " + np.ones(4, "<f4").tobytes() + b"dog " + b"\0\0", "cut off at word 2 of 2"),
    ],
)
def test_broken_files_are_refused_in_one_line(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(HeddleError) as refusal:
        list(read_vectors(tmp_path / "v"))
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_another_width_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    tokenizer = train_tokenizer("words", [TEXT], 50)
    with pytest.raises(HeddleError, match="its vectors have 4 numbers and the model's 8"):
        take_over_vectors(model(tokenizer.vocab_size, dim=8), tokenizer, write(tmp_path / "v", "glove"))
    with pytest.raises(HeddleError, match="No such file"):
        take_over_vectors(model(tokenizer.vocab_size), tokenizer, tmp_path / "none")
