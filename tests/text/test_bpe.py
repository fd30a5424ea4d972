"""Byte-level BPE: the fast encoder against `tokenizers`, on real text, on any Unicode, and on hostile vocabularies."""

import json
import os
import string
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from heddle.errors import HeddleError
from heddle.text import load_gpt2_merges, load_tokenizer, train_tokenizer
from heddle.text.bpe import BPE, GPT2_SPLIT, GPT4_SPLIT, QWEN_SPLIT
from heddle.text.file import bpe_model, byte_level, byte_symbols, describe

DATA = Path(os.environ.get("HEDDLE_DATA", Path(__file__).parents[2] / "../shared/data"))
GPT2_FILE = DATA / "gpt2" / "vocab.bpe"
SHAKESPEARE = DATA / "shakespeare" / "input.txt"
needs_gpt2 = pytest.mark.skipif(not GPT2_FILE.exists(), reason="GPT-2's vocab.bpe is not in the shared data")

SOURCES = sorted(Path(string.__file__).parent.glob("[a-d]*.py"))
PYTHON = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
TRAINED = train_tokenizer("bpe", [PYTHON[:600_000], "日本語のテキスト、наука и жизнь 😀👍🏽 naïve"] * 2, 3000)

# Text that stresses where pieces are cut: blanks of every sort, contractions, digits, marks, joined emoji, long s.
AWKWARD = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from(
            " \t\n\r\x0b\x0c\x1c\x85\xa0\u2003\u2028\u3000'stmdrevlLſK0123४٣½aBéß日あ\u0301\u200d\ufe0f😀👍🏽.!_-<|>"
        ),
    ),
    max_size=60,
)


def reference(path: Path) -> tokenizers.Tokenizer:
    """`tokenizers` on a saved file, told to read special tokens as plain text."""
    library = tokenizers.Tokenizer.from_file(str(path))
    library.encode_special_tokens = True
    return library


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tokenizers.Tokenizer:
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    TRAINED.save(path)
    return reference(path)


def is_fast(tokenizer: object) -> bool:
    assert isinstance(tokenizer, BPE)
    return tokenizer._fast is not None


def test_ids_on_source_code_are_those_of_tokenizers(library: tokenizers.Tokenizer) -> None:
    assert is_fast(TRAINED)
    assert TRAINED.encode(PYTHON) == library.encode(PYTHON).ids
    assert TRAINED.decode(TRAINED.encode(PYTHON)) == PYTHON


@pytest.mark.skipif(not SHAKESPEARE.exists(), reason="shakespeare is not in the shared data")
def test_ids_on_shakespeare_are_those_of_tokenizers(library: tokenizers.Tokenizer) -> None:
    text = SHAKESPEARE.read_text(encoding="utf-8")
    assert TRAINED.encode(text) == library.encode(text).ids


@settings(max_examples=500, deadline=None)
@given(text=AWKWARD)
def test_ids_on_any_unicode_are_those_of_tokenizers(text: str, library: tokenizers.Tokenizer) -> None:
    ids = TRAINED.encode(text)
    assert ids == library.encode(text).ids
    assert TRAINED.decode(ids) == text


@pytest.mark.parametrize("sort", [r"\p{L}", r"\p{N}", r"\s", "(?i:s)"])
def test_both_engines_sort_every_character_alike(sort: str) -> None:
    # No version of Unicode has a character in planes 4 to 13: of these, one in 257.
    unassigned = range(0x40000, 0xE0000, 257)
    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x40000), *unassigned, *range(0xE0000, 0x110000)]))
    ranks = {bytes([byte]): byte for byte in range(256)}
    ours = bytes(
        tiktoken.Encoding("", pat_str=sort, mergeable_ranks=ranks, special_tokens={}).encode_ordinary(everything)
    )
    split = pre_tokenizers.Split(tokenizers.Regex(f"(?:{sort})+"), "removed", invert=True)
    assert ours.decode() == "".join(piece for piece, _ in split.pre_tokenize_str(everything))


@pytest.mark.parametrize(("run", "times"), [("a", 1_100_000), (" ", 1_100_000), ("é", 300_000)])
def test_one_character_over_and_over_is_no_trouble(run: str, times: int) -> None:
    text = run * times + "x"
    assert TRAINED.decode(TRAINED.encode(text)) == text


@pytest.mark.parametrize("length", [249_999, 250_000, 250_001, 600_000])
def test_long_stretches_of_blanks_have_the_same_ids_either_way(length: int, library: tokenizers.Tokenizer) -> None:
    text = "x" * 7 + " " * length + "x"
    assert TRAINED.encode(text) == library.encode(text).ids


def test_training_learns_no_piece_across_a_cut() -> None:
    tokenizer = train_tokenizer("bpe", ["year 123456 in the\n    end, isn't it?\n"] * 50, 400)
    pieces = [text for _, text in tokenizer.pieces("year 123456 in the\n    end, isn't it?\n")]
    assert pieces == ["year", " ", "123", "456", " in", " the", "\n", "   ", " end", ",", " isn", "'t", " it", "?\n"]


# GPT-2


@pytest.fixture(scope="module")
def gpt2() -> BPE:
    return load_gpt2_merges(GPT2_FILE)


@needs_gpt2
def test_gpt2_ids_are_the_published_ones(gpt2: BPE) -> None:
    assert (gpt2.vocab_size, gpt2.end_of_text) == (50257, 50256)
    assert is_fast(gpt2)
    assert gpt2.encode("Hello world") == [15496, 995]
    assert gpt2.encode(" the") == [262]
    assert gpt2.encode("<|endoftext|>", allow_special=True) == [50256]
    assert gpt2.encode("<|endoftext|>") == [27, 91, 437, 1659, 5239, 91, 29]
    assert (gpt2.token_bytes(0), gpt2.token_bytes(220)) == (b"!", b" ")


@needs_gpt2
@settings(max_examples=300, deadline=None)
@given(text=AWKWARD)
def test_gpt2_ids_are_those_of_tokenizers(text: str, gpt2: BPE, gpt2_theirs: tokenizers.Tokenizer) -> None:
    assert gpt2.encode(text) == gpt2_theirs.encode(text).ids
    assert gpt2.decode(gpt2.encode(text)) == text


@pytest.fixture(scope="module")
def gpt2_theirs(gpt2: BPE, tmp_path_factory: pytest.TempPathFactory) -> tokenizers.Tokenizer:
    path = tmp_path_factory.mktemp("gpt2") / "tokenizer.json"
    gpt2.save(path)
    assert load_tokenizer(path).fingerprint() == gpt2.fingerprint()
    return reference(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("#version: 0.2\nt h\nth e\nt\n", r"line 4: 't' is not"),
        ("#version: 0.2\nt h\n\nth e\n", r"line 3: '' is not"),
        ("t h\nt he\n", r"line 2: 't he' is not"),
        ("t h\nt h\n", r"line 2: 't h' is not"),
        ("t h e\n", r"line 1: 't h e' is not"),
        ("t h\nth e\n", r"has 2 merges, but GPT-2 has 50,000"),
        ("", r"has 0 merges"),
    ],
)
def test_a_malformed_merges_file_is_refused_by_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "vocab.bpe"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(HeddleError, match=says) as error:
        load_gpt2_merges(path)
    assert str(path) in str(error.value)


def test_a_merges_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(HeddleError, match="cannot read"):
        load_gpt2_merges(tmp_path / "vocab.bpe")
    (tmp_path / "vocab.bpe").write_bytes(b"\xff\xfe")
    with pytest.raises(HeddleError, match="not UTF-8"):
        load_gpt2_merges(tmp_path / "vocab.bpe")


# Files of other origin


def content(merges: list[str], vocab: dict[str, int] | None = None, **entries: Any) -> dict[str, Any]:
    """A byte-level file over the given merges; `entries` replace whole parts of it."""
    pieces = byte_symbols()
    for merge in merges:
        pieces.setdefault(merge.replace(" ", ""), len(pieces))
    whole = describe(bpe_model(vocab or pieces, merges), byte_level(use_regex=True), byte_level(), ["<|end|>"])
    return {**whole, **entries}


def agree(file: dict[str, Any], texts: list[str], directory: Path, allow_special: bool = False) -> BPE:
    """Load the file and check ids on the texts against `tokenizers`."""
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    ours, library = load_tokenizer(path), reference(path)
    library.encode_special_tokens = not allow_special
    library.no_truncation()
    library.no_padding()
    for text in texts:
        assert ours.encode(text, allow_special) == library.encode(text, add_special_tokens=False).ids, text
    assert isinstance(ours, BPE)
    return ours


WORDS = ["the", "then there, the theme\n\n  is in it", "heh he thhe", "", " ", "tthhee ththee", "<|end|> <|end|>"]


@st.composite
def vocabularies(draw: st.DrawFn) -> dict[str, Any]:
    """Any list of merges over a few letters: pieces made twice, or in two ways, before their parts, or in no order."""
    known = ["a", "b", "c"]
    merges: list[str] = []
    for _ in range(draw(st.integers(0, 12))):
        left, right = draw(st.sampled_from(known)), draw(st.sampled_from(known))
        known.append(left + right)
        merges.append(f"{left} {right}")
    if draw(st.booleans()):
        merges = draw(st.permutations(merges))
    merges = list(dict.fromkeys(merges))
    file = content(merges)
    model = file["model"]
    if draw(st.booleans()):
        made = [piece for piece in model["vocab"] if len(piece) > 1]
        model["vocab"].update(zip(made, draw(st.permutations([model["vocab"][piece] for piece in made])), strict=True))
    model["ignore_merges"] = draw(st.booleans())
    return file


@pytest.mark.thorough
@settings(max_examples=300, deadline=None)
@given(file=vocabularies(), texts=st.lists(st.text("abc ", max_size=24), min_size=1, max_size=8))
def test_any_vocabulary_has_the_ids_of_tokenizers(
    file: dict[str, Any], texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    agree(file, texts, tmp_path_factory.getbasetemp())


def test_ids_in_the_order_of_merges_go_the_fast_way(tmp_path: Path) -> None:
    assert is_fast(agree(content(["t h", "th e", "Ġ the"]), WORDS, tmp_path))
    # Llama 3's file lists every way to make a piece, as pairs rather than strings.
    every_way = content(["t h", "h e", "th e", "t he"])
    every_way["model"]["merges"] = [merge.split() for merge in every_way["model"]["merges"]]
    assert is_fast(agree(every_way, WORDS, tmp_path))


def test_what_ranks_cannot_say_goes_the_slow_way_with_the_same_ids(tmp_path: Path) -> None:
    symbols = byte_symbols()
    out_of_order = content(["t h", "h e"], {**symbols, "he": 256, "th": 257})
    unreachable = content(["t h"], {**symbols, "th": 256, "the": 257})
    # "th" comes first, so that "the" is never met as "t", "he"; joined by bytes it would be.
    never_itself = content(["t h", "h e", "t he"])
    for file in (out_of_order, unreachable, never_itself):
        assert not is_fast(agree(file, WORDS, tmp_path))
    for file in (out_of_order, unreachable, never_itself):
        file["model"]["ignore_merges"] = True
        assert not is_fast(agree(file, WORDS, tmp_path))


@pytest.mark.parametrize("pattern", [GPT2_SPLIT, GPT4_SPLIT, QWEN_SPLIT, r"\p{L}+", r"\s"])
@settings(max_examples=60, deadline=None)
@given(text=AWKWARD)
def test_cutting_patterns_are_read_from_the_file(
    pattern: str, text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    entry = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    steps = {"type": "Sequence", "pretokenizers": [entry, byte_level()]}
    merges = ["Ġ Ġ", "Ċ Ċ", "Ġ s", "1 2", "12 3", "' s", "! Ċ", "a B"]
    ours = agree(content(merges, pre_tokenizer=steps), [text, "12345 sss's !\n\n  aB"], tmp_path_factory.getbasetemp())
    assert is_fast(ours) == (pattern in (GPT2_SPLIT, GPT4_SPLIT, QWEN_SPLIT))
    assert ours.decode(ours.encode(text)) == text


def test_habits_of_published_files_keep_their_ids(tmp_path: Path) -> None:
    merges = ["t h", "th e", "Ġ the", "Ã ©"]
    prefix = content(merges, pre_tokenizer={**byte_level(use_regex=True), "add_prefix_space": True})
    assert not is_fast(agree(prefix, WORDS, tmp_path))
    composed = content(merges, normalizer={"type": "NFC"})
    ours = agree(composed, [*WORDS, "e\u0301 é", "the\u0301"], tmp_path)
    assert is_fast(ours)
    assert ours.decode(ours.encode("e\u0301")) == "é"
    unmarked = content(merges)
    del unmarked["model"]["type"], unmarked["pre_tokenizer"]["use_regex"]
    assert is_fast(agree(unmarked, WORDS, tmp_path))
    limits = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    agree({**prefix, "truncation": limits}, WORDS, tmp_path)


def test_other_ways_of_cutting_go_the_slow_way(tmp_path: Path) -> None:
    uncut = content(["h e", "e Ġ", "Ġ Ġ"], pre_tokenizer=byte_level(use_regex=False))
    assert not is_fast(agree(uncut, WORDS, tmp_path))
    entry = {"type": "Split", "pattern": {"Regex": GPT4_SPLIT}, "behavior": "Isolated", "invert": False}
    twice = {"type": "Sequence", "pretokenizers": [entry, byte_level(use_regex=True)]}
    assert not is_fast(agree(content(["! Ċ"], pre_tokenizer=twice), ["the!\n"], tmp_path))
    removed = {"type": "Sequence", "pretokenizers": [{**entry, "behavior": "MergedWithNext"}, byte_level()]}
    assert not is_fast(agree(content(["h e"], pre_tokenizer=removed), WORDS, tmp_path))


def test_dropout_is_left_to_training(tmp_path: Path) -> None:
    file = content(["t h", "th e"], pre_tokenizer=byte_level())
    file["model"]["dropout"] = 1.0
    (tmp_path / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    assert load_tokenizer(tmp_path).encode("the") == [257]


def test_added_tokens_are_special_whatever_the_file_calls_them(tmp_path: Path) -> None:
    file = content(["t h", "th e"])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    first = file["added_tokens"][0]["id"]
    file["added_tokens"] += [
        {"id": first + 1, "content": "<think>", **flags, "special": False},
        {"id": first + 2, "content": "<mask>", **flags, "lstrip": True, "special": True},
        {"id": first + 3, "content": "<sep>", **flags, "rstrip": True, "special": True},
    ]
    file["model"]["vocab"]["<|end|>"] = first
    texts = ["the<think> the", "the \n <mask> the", "<sep>  the <sep>", " <sep> <mask> ", "<mask><|end|>", "  <mask>"]
    ours = agree(file, texts, tmp_path, allow_special=True)
    assert ours.encode("<think>", allow_special=True) == [first + 1]
    assert not set(ours.special.values()) & set(ours.encode("<|end|><think><mask>"))
    assert ours.end_of_text is None
