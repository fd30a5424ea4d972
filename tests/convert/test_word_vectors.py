"""Vectors from files become rows of the token table, and what was found is counted."""

from pathlib import Path

import numpy as np
import pytest
import torch

from heddle.config import TransformerConfig
from heddle.convert import word_vectors as module
from heddle.convert.word_vectors import Coverage, find_rows, load_rows, load_vectors, read_vectors, save_rows
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.text import train_tokenizer
from tests.refusing import refusal

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


def model(vocab_size: int, dim: int = 4, tied: bool = True) -> Transformer:
    block = {"mixer": {"heads": 1}}
    sizes = {"vocab_size": vocab_size, "dim": dim, "context": 8, "head": {"tied": tied}}
    return build(TransformerConfig.of({**sizes, "decoder": {"depth": 1, "block": block}}))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_vectors(form: str, tmp_path: Path) -> None:
    result = dict(read_vectors(write(tmp_path / "v", form)))
    assert {word: vector.tolist() for word, vector in result.items()} == WORDS


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_known_words_equal_the_vectors_and_others_stay(form: str, tmp_path: Path) -> None:
    tokenizer = train_tokenizer("words", [TEXT], 50)
    made = model(tokenizer.vocab_size)
    before = made.embedding.weight.detach().clone()
    coverage = load_vectors(made, tokenizer, write(tmp_path / "v", form))
    assert coverage == Coverage(matched=3, vocabulary=tokenizer.vocab_size, unused=0)
    assert coverage.share == 3 / tokenizer.vocab_size
    ids = {word: tokenizer.encode(word)[0] for word in WORDS}
    for word, number in ids.items():
        assert made.embedding.weight[number].tolist() == WORDS[word]
    rest = [number for number in range(tokenizer.vocab_size) if number not in ids.values()]
    assert torch.equal(made.embedding.weight[rest], before[rest])
    assert made.embedding.weight.requires_grad


@pytest.mark.parametrize(("kind", "unused"), [("bytes", 3), ("characters", 3), ("words", 1), ("bpe", 1)])
def test_words_that_are_no_token_are_counted(tmp_path: Path, kind: str, unused: int) -> None:
    """Also those that a tokenizer has no characters for, or one id for all: `dog` is not in this text."""
    tokenizer = train_tokenizer(kind, ["cat naïve cat cat naïve cat naïve"], 300)
    assert load_vectors(model(tokenizer.vocab_size), tokenizer, write(tmp_path / "v", "glove")).unused == unused


def test_a_head_scores_with_the_table_or_keeps_its_own(tmp_path: Path) -> None:
    tokenizer = train_tokenizer("words", [TEXT], 50)
    cat = tokenizer.encode("cat")[0]
    tied, untied = (model(tokenizer.vocab_size, tied=tied) for tied in (True, False))
    before = untied.head.weight.detach().clone()
    for made in (tied, untied):
        load_vectors(made, tokenizer, write(tmp_path / "v", "glove"))
    assert torch.equal(untied.head.weight, before)
    hidden = torch.eye(4)[:, None]
    assert tied.logits(hidden)[:, 0, cat].tolist() == pytest.approx(WORDS["cat"])
    assert untied.logits(hidden)[:, 0, cat].tolist() != pytest.approx(WORDS["cat"])


def test_a_word_in_two_rows(tmp_path: Path) -> None:
    """With a space before it and without, where a vocabulary has both."""
    tokenizer = train_tokenizer("bpe", ["cat\ncat\n cat cat cat" * 9], 300)
    rows = find_rows(tokenizer, write(tmp_path / "v", "glove"))
    assert rows.ids.tolist() == sorted({tokenizer.encode("cat")[0], tokenizer.encode(" cat")[0]})
    assert rows.vectors.tolist() == [WORDS["cat"]] * 2


def test_rows_are_kept_and_a_damaged_file_is_refused(tmp_path: Path) -> None:
    tokenizer = train_tokenizer("words", [TEXT], 50)
    rows = find_rows(tokenizer, write(tmp_path / "v", "glove"))
    file = tmp_path / "rows.safetensors"
    digest = save_rows(file, rows)
    ids, vectors = load_rows(file, digest)
    assert torch.equal(ids, rows.ids)
    assert torch.equal(vectors, rows.vectors)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(HeddleError, match="damaged"):
        load_rows(file, digest)
    file.unlink()
    with pytest.raises(HeddleError, match="missing"):
        load_rows(file, digest)


def test_long_reading_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "v").write_text("".join(f"w{number} 1 2\n" for number in range(600)))
    messages: list[str] = []
    assert len(list(read_vectors(tmp_path / "v", messages.append))) == 600
    assert messages == []
    monkeypatch.setattr(module, "PATIENCE", -1.0)
    monkeypatch.setattr(module, "PAUSE", -1.0)
    assert len(list(read_vectors(tmp_path / "v", messages.append))) == 600
    assert messages == [f"{count} words of {tmp_path / 'v'} read" for count in (256, 512)]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a file of word vectors"),
        (b"hello\n", "not a file of word vectors"),
        (
            b"cat 1 2 x\n",
            "word2vec's and GloVe's text formats have a word and equally many numbers on each line, and its first",
        ),
        (
            b"The warp\nis held\n",
            "not a file of word vectors: word2vec's and GloVe's text formats have a word and equally",
        ),
        (
            b"cat 1 2\nthe warp is\n",
            "line 2: must be a word and 2 numbers, as the lines before; word2vec's and GloVe's",
        ),
        (b"cat 1\ndog 1 x\n", "line 2: must be a word and 1 number, as"),
        (b"cat 1 2\ndog 1 nan\n", "line 2: must be a word and 2 finite numbers"),
        (b"cat 1 2\n1\n", "line 2"),
        (b"3 2\ncat 1 2\n", "1 words, but its first line says 3"),
        (b"3 0\n", "not a file of word vectors"),
        (b"9 99999999999\ncat 1 2\n", "not a file of word vectors"),
        (b"2 4\ncat " + np.ones(4, "<f4").tobytes() + b"dog " + b"\0\0", "truncated at word 2 of 2"),
        (b"1 4\ncat " + 2 * np.ones(4, "<f4").tobytes(), "more than the 1 words that its first line says"),
        (b"1 4\ncat " + np.full(4, np.inf, "<f4").tobytes(), "the vector of 'cat' is not finite"),
        (b"\x1f\x8b\x08\x00 as gzip begins", "is compressed; decompress it first"),
    ],
)
def test_broken_files_are_refused_in_one_line(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "v").write_bytes(content)
    assert reason in refusal(lambda: list(read_vectors(tmp_path / "v")))


def test_another_width_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    tokenizer = train_tokenizer("words", [TEXT], 50)
    with pytest.raises(HeddleError, match="its vectors have 4 numbers and the model's 8"):
        load_vectors(model(tokenizer.vocab_size, dim=8), tokenizer, write(tmp_path / "v", "glove"))
    with pytest.raises(HeddleError, match="No such file"):
        load_vectors(model(tokenizer.vocab_size), tokenizer, tmp_path / "none")
