"""Every kind of tokenizer, by the rules that all of them keep."""

import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from heddle.errors import HeddleError
from heddle.text import END_OF_TEXT, Tokenizer, load_tokenizer, train_tokenizer
from heddle.text.tokenizer import _Corpus

KINDS = ("bytes", "characters", "words", "bpe", "wordpiece", "unigram")
EXACT = ("bytes", "characters", "bpe", "unigram")  # any text that they take comes back; words only where all are known
SIZES = {"bpe": 320, "wordpiece": 200, "unigram": 400}
SPECIAL = (END_OF_TEXT, "<start>", "<start_translation>")
CORPUS = "It is raining. The rain, it is raining!\n\tcafé — 它在下雨 😀 <|endoftext|> <start>12345\n" * 20
ALPHABET = sorted(set(CORPUS))
KNOWN_WORDS = re.findall(r"\w+", CORPUS)
KNOWN = st.lists(st.sampled_from([*KNOWN_WORDS, " ", "\n", ".", ",", "!", "<", "|", ">", "😀", "—"]), max_size=12).map(
    # Two words in a row would be one word, and perhaps an unknown one.
    lambda parts: re.sub(r"(?<=\w)\0(?=\w)", " ", "\0".join(parts)).replace("\0", "")
)
PLAIN = {
    "bytes": st.text(),
    "bpe": st.text(),
    "unigram": st.text(),
    "characters": st.text(ALPHABET),
    "words": KNOWN,
    "wordpiece": KNOWN,
}


def trained(kind: str, special: Sequence[str] = SPECIAL) -> Tokenizer:
    return train_tokenizer(kind, [CORPUS], SIZES.get(kind), special)


TRAINED = {kind: trained(kind) for kind in KINDS}


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TRAINED[request.param]


@pytest.mark.lecture("L2-45")
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_decoding_gives_the_text_back(kind: str, data: st.DataObject) -> None:
    text = data.draw(PLAIN[kind])
    tokenizer = TRAINED[kind]
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode_bytes(ids) == text.encode()
    if kind in EXACT:
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert not set(ids) & set(tokenizer.special.values())


@pytest.mark.lecture("L2-45")
def test_pieces_show_ids_with_what_they_spell(tokenizer: Tokenizer) -> None:
    pieces = tokenizer.pieces("It is raining.")
    if tokenizer.kind in EXACT:
        assert "".join(text for _, text in pieces) == "It is raining."
    assert [i for i, _ in pieces] == tokenizer.encode("It is raining.")


def test_bpe_is_shorter_than_characters_and_characters_than_bytes() -> None:
    lengths = [len(TRAINED[kind].encode("It is raining in the café")) for kind in ("bpe", "characters", "bytes")]
    assert lengths == sorted(set(lengths))
    assert len(TRAINED["characters"].encode("It is raining.")) == 14


def test_bytes_and_characters_have_the_ids_they_say() -> None:
    assert TRAINED["bytes"].encode("aé") == [0x61, 0xC3, 0xA9]
    assert TRAINED["bytes"].vocab_size == 256 + len(SPECIAL)
    assert TRAINED["characters"].encode("".join(ALPHABET)) == list(range(len(ALPHABET)))
    assert [TRAINED["bpe"].token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]


@pytest.mark.lecture("L1-94", "L1-81")
def test_a_special_token_is_one_id_only_where_allowed(tokenizer: Tokenizer) -> None:
    first = tokenizer.vocab_size - len(SPECIAL)
    assert dict(tokenizer.special) == {name: first + i for i, name in enumerate(SPECIAL)}
    assert tokenizer.end_of_text == tokenizer.special[END_OF_TEXT]
    end, start = tokenizer.special[END_OF_TEXT], tokenizer.special["<start>"]
    assert tokenizer.encode(END_OF_TEXT, allow_special=True) == [end]
    assert len(tokenizer.encode(END_OF_TEXT)) > 1
    assert tokenizer.decode(tokenizer.encode(END_OF_TEXT)) == END_OF_TEXT
    text = f"It{END_OF_TEXT}{END_OF_TEXT} is<start>"
    assert tokenizer.encode(text, allow_special=True) == [
        *tokenizer.encode("It"), end, end, *tokenizer.encode(" is"), start,
    ]  # fmt: skip
    assert tokenizer.decode(tokenizer.encode(text, allow_special=True)) == text


def test_a_choice_of_special_tokens_may_be_allowed(tokenizer: Tokenizer) -> None:
    start, text = tokenizer.special["<start>"], f"It{END_OF_TEXT}<start>"
    ids = tokenizer.encode(text, allow_special={"<start>"})
    assert ids == [*tokenizer.encode(f"It{END_OF_TEXT}"), start]
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode(text, allow_special=()) == tokenizer.encode(text)
    assert tokenizer.encode(text, allow_special=list(SPECIAL)) == tokenizer.encode(text, allow_special=True)
    with pytest.raises(HeddleError, match=r"'<strat>' is not one of .* Did you mean '<start>'\?"):
        tokenizer.encode(text, allow_special=["<strat>"])


@pytest.mark.lecture("L1-94")
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_special_tokens_among_text_come_back(kind: str, data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.tuples(PLAIN[kind], st.sampled_from(SPECIAL)), max_size=5))
    text = "".join(plain + special for plain, special in parts)
    tokenizer = TRAINED[kind]
    ids = tokenizer.encode(text, allow_special=True)
    assert tokenizer.decode(ids) == text
    written = re.findall("|".join(map(re.escape, SPECIAL)), text)
    assert [i for i in ids if i in tokenizer.special.values()] == [tokenizer.special[name] for name in written]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "unigram"])
def test_training_twice_gives_the_same(kind: str) -> None:
    assert trained(kind).fingerprint() == TRAINED[kind].fingerprint()


def test_the_longest_special_token_wins() -> None:
    tokenizer = trained("bytes", ["<a>", "<a>b", "<a>bc"])
    assert tokenizer.encode("<a>bcd<a>b", allow_special=True) == [258, ord("d"), 257]
    assert tokenizer.end_of_text is None


@pytest.mark.lecture("L2-49")
def test_an_id_outside_the_vocabulary_is_refused(tokenizer: Tokenizer) -> None:
    highest = tokenizer.vocab_size - 1
    assert tokenizer.decode([highest]) == SPECIAL[-1]
    for bad in (highest + 1, -1):
        with pytest.raises(HeddleError, match=rf"id {bad} is out of range \(vocab size {highest + 1}\)"):
            tokenizer.decode([0, bad])
        with pytest.raises(HeddleError):
            tokenizer.token_bytes(bad)


def test_invalid_utf8_decodes_to_replacement_characters() -> None:
    assert TRAINED["bytes"].decode([0x61, 0xFF, 0xC3]) == "a\ufffd\ufffd"


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_a_batch_is_its_texts_one_by_one(kind: str, data: st.DataObject) -> None:
    texts = data.draw(st.lists(PLAIN[kind], max_size=30))
    assert TRAINED[kind].encode_batch(texts) == [TRAINED[kind].encode(text) for text in texts]


def test_a_lone_surrogate_is_refused_with_its_place(tokenizer: Tokenizer) -> None:
    for text, allow in (("It \ud800", False), (f"It \ud800{END_OF_TEXT}", True)):
        with pytest.raises(HeddleError, match=r"'\\ud800' at position 3 is a lone surrogate") as error:
            tokenizer.encode(text, allow)
        assert "\n" not in str(error.value)
    with pytest.raises(HeddleError):
        tokenizer.encode_batch(["It", "\udfff", "is"])
    with pytest.raises(HeddleError):
        train_tokenizer(tokenizer.kind, ["\ud800"], 300) if tokenizer.kind != "bytes" else tokenizer.encode("\ud800")


def test_an_unknown_character_is_named_with_its_place() -> None:
    with pytest.raises(HeddleError, match=r"'z' at position 4 \(in 'It iz'\) is not among"):
        TRAINED["characters"].encode("It iz raining")


# The file


def test_a_saved_tokenizer_comes_back_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "run")
    tokenizer.save(tmp_path / "other.json")
    tokenizer.save(tmp_path / "other.json")
    assert {file.name for file in tmp_path.rglob("*")} == {"run", "tokenizer.json", "other.json"}
    for place in (tmp_path / "run", tmp_path / "run" / "tokenizer.json", str(tmp_path / "other.json")):
        loaded = load_tokenizer(place)
        assert (loaded.kind, loaded.vocab_size, loaded.special) == (
            tokenizer.kind, tokenizer.vocab_size, tokenizer.special,
        )  # fmt: skip
        assert loaded.fingerprint() == tokenizer.fingerprint()
        assert loaded.encode(CORPUS, allow_special=True) == tokenizer.encode(CORPUS, allow_special=True)


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    prints = {tokenizer.fingerprint() for tokenizer in TRAINED.values()}
    assert len(prints | {trained("bytes", ["<x>"]).fingerprint()}) == len(KINDS) + 1
    TRAINED["bpe"].save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(dict(reversed(content.items()))), encoding="utf-8")
    assert load_tokenizer(tmp_path).fingerprint() == TRAINED["bpe"].fingerprint()


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_the_file_with_the_same_ids(kind: str, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = TRAINED[kind]
    tokenizer.save(tmp_path)
    library = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert len(library) == tokenizer.vocab_size
    for text in (
        CORPUS,
        f"{END_OF_TEXT} It's 12345 !  \n\n  <start>".replace("'", "").replace("!", "."),
        "",
        " ",
        "\t😀",
    ):
        ids = tokenizer.encode(text, allow_special=True)
        assert library.encode(text, add_special_tokens=False) == ids
        if getattr(tokenizer, "unknown", None) not in ids:
            assert library.decode(ids) == text == tokenizer.decode(ids)
    assert library.convert_tokens_to_ids(list(SPECIAL)) == [tokenizer.special[name] for name in SPECIAL]


def test_tokenizers_refuses_an_unknown_character_too(tmp_path: Path) -> None:
    TRAINED["characters"].save(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    with pytest.raises(Exception, match=r"(?i)unk"):
        library.encode("z")


def foreign(model: models.Model, decoder: decoders.Decoder | None = None) -> str:
    other = tokenizers.Tokenizer(model)
    if decoder is not None:
        other.decoder = decoder
    other.pre_tokenizer = pre_tokenizers.Whitespace()
    return other.to_str()


BAD_FILES = {
    "cut short": ('{"model": {"type": "BPE", "vocab": {"a"', "is not JSON"),
    "not JSON": ("#version: 0.2\na b\n", "is not JSON"),
    "JSON of something else": ('{"vocab_size": 3}', "has no 'model'"),
    "a list": ("[1, 2]", "has no 'model'"),
    "a model config": ('{"model": {"depth": 3}, "added_tokens": []}', "a unnamed tokenizer|not a valid"),
    "BPE without vocabulary": ('{"model": {"type": "BPE"}, "added_tokens": []}', "not a valid"),
    "WordPiece without vocabulary": ('{"model": {"type": "WordPiece"}, "added_tokens": []}', "not a valid"),
    "an unknown model": (
        '{"model": {"type": "Phrases", "vocab": {}}, "added_tokens": []}',
        "a Phrases tokenizer, which",
    ),
    "an unknown decoder": (
        foreign(models.WordLevel({"a": 0, "b": 1}, unk_token="a"), decoders.CTC()),
        "its decoder has a step that heddle does not support: 'CTC'",
    ),
    "BPE that loses text": (foreign(models.BPE({"a": 0, "▁": 1}, [])), "so text could be lost"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_file_that_cannot_serve_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    text, says = BAD_FILES[case]
    path = tmp_path / "tokenizer.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(HeddleError, match=says) as error:
        load_tokenizer(tmp_path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_vocabulary_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    whole = json.loads(path.read_text(encoding="utf-8"))
    gap = json.loads(json.dumps(whole))
    gap["added_tokens"][-1]["id"] += 1
    shared = json.loads(json.dumps(whole))
    shared["added_tokens"][0]["id"] = 5
    strange = json.loads(json.dumps(whole))
    strange["added_tokens"][0]["single_word"] = True
    refused = [(gap, "ids must be 0 to"), (shared, "ids must be 0 to")]
    # Where `tokenizers` looks for special tokens, every way to match them is as good.
    refused += [(strange, "special token")] if tokenizer.kind in ("bytes", "characters", "bpe") else []
    for content, says in refused:
        path.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(HeddleError, match=says):
            load_tokenizer(path)


def test_a_missing_file_or_an_unwritable_place_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(HeddleError, match=r"cannot read .*tokenizer\.json: No such file"):
        load_tokenizer(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(HeddleError, match="cannot write"):
        tokenizer.save(tmp_path / "file" / "run")
    (tmp_path / "taken.json").mkdir()
    with pytest.raises(HeddleError, match="cannot write"):
        tokenizer.save(tmp_path / "taken.json")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "taken.json"}


# Training


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("bpe", ["text"], 256), "at least 257 "),
        (("bpe", ["text"]), "at least 257 "),
        (("bpe", ["text"], 258, ("<a>", "<b>", "<c>")), "at least 259 "),
        (("bytes", [], 256), "takes 257 ids"),
        (("wordpiece", ["text"]), "at least 3 "),
        (("wordpiece", ["text"], 4), "too small for wordpiece: it takes"),
        (("unigram", ["text"], 276), "at least 277 "),
        (("unigram", ["".join(map(chr, range(0x4E00, 0x4F00)))], 300), "too small for unigram"),
        (("words", ["text"], 2), "at least 3 "),
        (("words", []), "every text is empty"),
        (("unigram", [], 300), "every text is empty"),
        (("words", ["the the"], None, ("the",)), "also an ordinary piece"),
        (("characters", ["abc"], 3), "takes 4 ids"),
        (("bpe", [], 300), "every text is empty"),
        (("characters", ["", ""]), "every text is empty"),
        (("bits", ["text"]), "unknown kind.*Did you mean 'bytes'"),
        (("bytes", [], None, ("<a>", "<a>")), "different names"),
        (("bytes", [], None, "<a>"), "special = .<a>.: must be a list"),
        (("bytes", [], None, ("",)), "not printable ASCII"),
        (("bytes", [], None, ("é",)), "not printable ASCII"),
        (("characters", ["a|b"], None, ("|",)), "also an ordinary piece"),
        (("bpe", ["the the"], 300, ("the",)), "also an ordinary piece"),
    ],
)
def test_training_refuses_what_cannot_work(arguments: tuple[object, ...], says: str) -> None:
    with pytest.raises(HeddleError, match=says):
        train_tokenizer(*arguments)  # type: ignore[arg-type]


def test_training_stops_where_the_text_gives_no_more() -> None:
    messages: list[str] = []
    tokenizer = train_tokenizer("bpe", iter(["to be or not to be"] * 3), 5000, progress=messages.append)
    assert 257 < tokenizer.vocab_size < 300
    assert messages == []  # what is done at once says nothing


def test_one_string_is_one_text() -> None:
    assert train_tokenizer("bpe", CORPUS, 300).fingerprint() == train_tokenizer("bpe", [CORPUS], 300).fingerprint()


def test_training_is_seen_to_be_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the text is read and while merges are learned, which is one long call."""
    monkeypatch.setattr("heddle.progress.EVERY", 0.001)
    messages: list[str] = []
    threads = threading.active_count()

    def texts() -> Iterator[str]:
        yield "a b " * 50_000
        while not messages or messages[-1].startswith("0.0"):
            time.sleep(0.001)

    train_tokenizer("bpe", texts(), 300, progress=messages.append)
    assert re.fullmatch(r"0\.2 MB of text read, \d+ s", messages[-1])
    assert threading.active_count() == threads


def test_training_text_is_limited_to_what_the_library_can_count() -> None:
    corpus = _Corpus(["text"])
    corpus.bytes = 2**31 - 4
    with pytest.raises(HeddleError, match="more than 2 GiB"):
        list(corpus)
