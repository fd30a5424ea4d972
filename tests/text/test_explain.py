"""A text is cut step by step into the same ids that the tokenizer gives at once."""

import json
from pathlib import Path

import pytest

from heddle.errors import HeddleError
from heddle.text import Explanation, Tokenizer, explain, load_tokenizer, train_tokenizer
from heddle.text.bpe import BPE
from heddle.text.file import bpe_model, byte_level, byte_symbols, describe
from heddle.text.words import WordPiece
from tests.lectures.golden import CASES
from tests.text.test_kinds import PIECES, RAIN, UNIGRAM, WORDS

EXAMPLE = CASES["subword_examples"]
TEXTS = ("It is raining.", "raining\n\nin trains  warm", "café naïve — 雨!", "xylophone", "", " ", "aaaaaaa", "😀 🌧")
TRAINED = {
    "bpe": train_tokenizer("bpe", [RAIN], 320),
    "bytes": train_tokenizer("bytes", [RAIN]),
    "characters": train_tokenizer("characters", [RAIN + "xyloph😀🌧—!"]),
    "words": WORDS,
    "wordpiece": PIECES,
    "unigram": UNIGRAM,
}


def lecture_bpe() -> BPE:
    """BPE with the merges of the lectures."""
    vocab, merges = byte_symbols(), [" ".join(pair) for pair in EXAMPLE["inputs"]["bpe_merges"]]
    for merge in merges:
        vocab[merge.replace(" ", "")] = len(vocab)
    return BPE(describe(bpe_model(vocab, merges), byte_level(use_regex=True), byte_level(), []))


@pytest.mark.lecture("L2-47", "L2-48")
def test_the_merges_of_the_lectures_one_by_one() -> None:
    explained = explain(lecture_bpe(), "unbelievable")
    (word,) = explained.words
    assert ["·".join(step.pieces) for step in word.steps] == [
        "u·n·b·e·l·i·e·v·a·b·l·e",
        "un·b·e·l·i·e·v·a·b·l·e",
        "un·b·e·l·i·e·v·ab·l·e",
        "un·b·e·l·i·e·v·ab·le",
        "un·b·e·l·i·e·v·able",
        "un·be·l·i·e·v·able",
        "un·be·li·e·v·able",
        "un·beli·e·v·able",
        "un·beli·ev·able",
        "un·believ·able",
    ]
    assert [step.rank for step in word.steps] == [None, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert word.steps[-1].joined == ("beli", "ev")
    assert list(word.pieces) == EXAMPLE["outputs"]["bpe"][0]
    assert list(explain(lecture_bpe(), "raining").words[0].pieces) == EXAMPLE["outputs"]["bpe"][1]
    lines = list(explained.lines())
    assert lines[1:3] == ["", "'unbelievable'"]
    assert lines[-2].split() == ["rule", "11:", "beli", "+", "ev", "un", "·", "believ", "·", "able"]


@pytest.mark.lecture("L2-47")
def test_wordpiece_takes_the_longest_match_and_says_how_many_it_tried() -> None:
    (word,) = explain(WordPiece.of(EXAMPLE["inputs"]["wordpiece_vocab"]), "unbelievable").words
    assert [step.pieces for step in word.steps] == [
        ("unbelievable",),
        ("un", "believable"),
        ("un", "##believ", "able"),
        ("un", "##believ", "##able"),
    ]
    assert [step.reason for step in word.steps[1:]] == [f"longest match, {tried} tried" for tried in (11, 5, 1)]


def test_unigram_s_best_path_is_the_best_of_all_ways() -> None:
    """Compared with every way to cut a short word."""
    scores = dict(UNIGRAM.content["model"]["vocab"])  # type: ignore[attr-defined]

    def ways(word: str) -> list[tuple[float, tuple[str, ...]]]:
        if not word:
            return [(0.0, ())]
        pieces = [word[:end] for end in range(1, len(word) + 1) if word[:end] in scores]
        return [(scores[piece] + score, (piece, *rest)) for piece in pieces for score, rest in ways(word[len(piece) :])]

    (word,) = explain(UNIGRAM, "raining").words
    score, path = max(ways("raining"))
    assert word.steps[-1].pieces == path
    assert word.steps[-1].score == pytest.approx(score)
    assert [len("".join(step.pieces)) for step in word.steps] == [7] * 7


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", TRAINED)
def test_the_ids_are_the_tokenizer_s(kind: str, text: str) -> None:
    tokenizer = TRAINED[kind]
    if kind == "characters" and not set(text) <= set(RAIN + "xyloph😀🌧—!"):
        with pytest.raises(HeddleError, match="is not among the"):
            explain(tokenizer, text)
        return
    explained = explain(tokenizer, text)
    assert list(explained.ids) == tokenizer.encode(text)
    assert [piece for word in explained.words for piece in word.pieces] == [
        piece for _, piece in tokenizer.pieces(text)
    ]
    assert all(step.pieces for word in explained.words for step in word.steps)
    assert isinstance("\n".join(explained.lines()), str)


def published(directory: Path, **model: object) -> Tokenizer:
    """A file as Llama 2's: BPE over characters, bytes for others, a space before the text."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abc", "ab", "▁ab", "abc"]
    vocab = {piece: id for id, piece in enumerate(pieces)}
    settings = {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "vocab": vocab}
    merges = [["a", "b"], ["▁", "ab"], ["ab", "c"]]
    steps = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    content = {
        **{"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "post_processor": None},
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]},
        "model": settings | {"merges": merges} | model,
    }
    (directory / "tokenizer.json").write_text(json.dumps(content))
    return load_tokenizer(directory)


@pytest.mark.parametrize("text", ["abc ab", "cab é", "abcabc"])
def test_a_published_file_is_explained_with_its_bytes(tmp_path: Path, text: str) -> None:
    tokenizer = published(tmp_path)
    assert list(explain(tokenizer, text).ids) == tokenizer.encode(text)


def test_what_is_not_explained_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(HeddleError, match="cuts 'ab c' by more than its pieces"):
        explain(published(tmp_path, fuse_unk=True, end_of_word_suffix="c"), "ab c")
    assert isinstance(explain(TRAINED["bpe"], "rain rain"), Explanation)
