"""The token store: what is written comes back, the split is stable, nothing foreign or cut short is opened."""

import itertools
import json
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import heddle.data.store
import heddle.data.token_writer
from heddle.data.corpus import Part
from heddle.data.memory import part_of
from heddle.data.sources.documents import Document, TextStats, describe, describe_documents
from heddle.data.store import TokenStore, build_store
from heddle.data.token_writer import first_bytes, pieces
from heddle.text import train_tokenizer
from tests.refusing import refusal


class Bytes:
    """UTF-8 bytes, and an end-of-text id after them."""

    def __init__(self, vocab_size: int = 257, end_of_text: int | None = 256) -> None:
        self.vocab_size, self.end_of_text = vocab_size, end_of_text
        self.batches: list[list[str]] = []

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        self.batches.append(list(texts))
        return [self.encode(text) for text in texts]

    def token_bytes(self, id: int) -> bytes:
        return bytes([id]) if id < 256 else b""

    def fingerprint(self) -> str:
        return "bytes"

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(self.token_bytes(int(id)) for id in ids).decode()


class Words(Bytes):
    """Ids of words with the white space after them: a cut inside a run changes the ids."""

    def __init__(self) -> None:
        super().__init__(vocab_size=1 << 20)

    def encode(self, text: str) -> list[int]:
        return [sum(word.encode()) % 60_000 + 1000 * len(word) for word in re.findall(r"\S*\s*", text) if word]


class Global(Bytes):
    """Every id depends on the whole text: no cut is allowed."""

    def encode(self, text: str) -> list[int]:
        return [(byte + len(text)) % 256 for byte in text.encode()]


def documents(*texts: str) -> list[Document]:
    return [Document(text, f"document {number}") for number, text in enumerate(texts)]


def held(part: Part, separator: int | None = 256) -> list[list[int]]:
    """The documents of a part, as lists of ids."""
    documents: list[list[int]] = [[]]
    for id in part.tokens.tolist():
        if id == separator:
            documents.append([])
        else:
            documents[-1].append(id)
    return documents


@given(text=st.text(min_size=25, max_size=80, alphabet="aé✓😀\n"), fraction=st.sampled_from([0.1, 0.2, 0.5]))
def test_one_document_is_split_by_characters(
    tmp_path_factory: pytest.TempPathFactory, text: str, fraction: float
) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = build_store(folder, documents(text), Bytes(), fraction, end_of_text=True)
    cut = int(len(text) * (1 - fraction))
    for part, expected in ((store.train, text[:cut]), (store.validation, text[cut:])):
        assert Bytes().decode(part.tokens) == expected
        assert part.bytes == len(expected.encode())
        assert part.documents == part.first_token_bytes == 1
    shutil.rmtree(folder)


def test_nine_tenths_are_exact(tmp_path: Path) -> None:
    for n in (20, 37, 1000, 9999):
        text = ("abcdefghij" * n)[:n]
        store = build_store(tmp_path / str(n), documents(text), Bytes(), 0.1, end_of_text=False)
        assert Bytes().decode(store.train.tokens) == text[: int(n * 0.9)]
        assert Bytes().decode(store.validation.tokens) == text[int(n * 0.9) :]


def test_documents_go_whole_to_one_part_in_order(tmp_path: Path) -> None:
    texts = [f"document number {number}, é" for number in range(200)]
    store = build_store(tmp_path / "store", documents(*texts), Bytes(), 0.25, end_of_text=True)
    train, validation = ([bytes(ids).decode() for ids in held(part)] for part in (store.train, store.validation))
    assert sorted(train + validation) == sorted(texts)
    assert train == [text for text in texts if text in train]
    assert validation == [text for text in texts if text in validation]
    assert 25 <= len(validation) <= 75
    assert (store.train.documents, store.validation.documents) == (len(train), len(validation))
    assert store.validation.bytes == sum(len(text.encode()) for text in validation)
    assert store.separator == 256


@given(texts=st.lists(st.text("ab é", min_size=1, max_size=9), min_size=2, max_size=20), end=st.booleans())
def test_where_each_document_starts(tmp_path_factory: pytest.TempPathFactory, texts: list[str], end: bool) -> None:
    """In a store and in memory; a separator belongs to the document before it, and the last has none."""
    folder = tmp_path_factory.mktemp("store")
    distinct = [f"{number}{text}" for number, text in enumerate(texts)]
    store = (
        build_store(folder, documents(*distinct), Bytes(end_of_text=256 if end else None), 0.5, end_of_text=end)
        if end
        else None
    )
    parts = [part_of(documents(*distinct), Bytes(end_of_text=256 if end else None))]  # type: ignore[arg-type]
    parts += [store.train, store.validation] if store else []
    for part in parts:
        assert (part.starts[0], part.starts[-1], len(part.starts)) == (0, len(part.tokens), part.documents + 1)
        pieces = [part.tokens[start:stop].tolist() for start, stop in itertools.pairwise(part.starts)]
        assert all(piece[-1] == 256 and 256 not in piece[:-1] for piece in pieces[:-1]) == end or not pieces[1:]
        result = [bytes(id for id in piece if id != 256).decode() for piece in pieces]
        assert set(result) <= set(distinct) or (store is not None and store.split["cut"])
        assert part.target_sizes.tolist() == [len(text.encode()) - 1 for text in result]
        assert part.bytes == sum(len(text.encode()) for text in result)
        assert part.separator == (256 if end else None)
    shutil.rmtree(folder)


def test_texts_in_both_parts_are_counted(tmp_path: Path) -> None:
    """Whole documents are divided by their content, so only the two parts of a document can meet an equal text."""
    apart = build_store(tmp_path / "apart", documents(*["one", "two", "three", "four"] * 50), Bytes(), 0.3, True)
    assert apart.split["overlap"] == 0
    halves = build_store(tmp_path / "halves", documents("ab" * 500, "ab" * 500), Bytes(), 0.5, end_of_text=True)
    assert halves.split["cut"] == 2
    assert halves.split["overlap"] == 2


def test_the_split_stays_when_documents_are_added(tmp_path: Path) -> None:
    texts = [f"document {number}" for number in range(100)]
    few = build_store(tmp_path / "few", documents(*texts[::2]), Bytes(), 0.3, end_of_text=True)
    many = build_store(tmp_path / "many", documents(*texts), Bytes(), 0.3, end_of_text=True)
    for before, after in ((few.train, many.train), (few.validation, many.validation)):
        assert {bytes(ids) for ids in held(before)} <= {bytes(ids) for ids in held(after)}


@given(
    texts=st.lists(st.text(min_size=6, max_size=60, alphabet="ab \n."), min_size=2, max_size=8),
    validation=st.sampled_from([0.2, 0.5, 0.7]),
    end_of_text=st.booleans(),
)
def test_nothing_is_lost_where_documents_are_cut(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], validation: float, end_of_text: bool
) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = build_store(folder, documents(*texts), Bytes(), validation, end_of_text)
    parts = (store.train, store.validation)
    assert [part.bytes for part in parts] == [sum(id != 256 for id in part.tokens.tolist()) for part in parts]
    assert sum(part.bytes for part in parts) == sum(map(len, texts))
    assert store.split["cut"] == sum(part.documents for part in parts) - len(texts)
    if end_of_text:
        train, held_out = ([bytes(ids).decode() for ids in held(part)] for part in parts)
        assert [len(train), len(held_out)] == [part.documents for part in parts]
        for text in texts:
            if train and text.startswith(train[0]) and held_out and text == train[0] + held_out[0]:
                train, held_out = train[1:], held_out[1:]
            elif train and text == train[0]:
                train = train[1:]
            else:
                assert text == held_out[0]
                held_out = held_out[1:]
        assert not train
        assert not held_out
    shutil.rmtree(folder)


PROSE = "".join(f"Line {n} of a text, which goes on. And on.\n" for n in range(6000))


@pytest.mark.parametrize(
    "sizes", [(60_000, 60_000, 6), (200_000, 200_000, 3_000), (9_000, 9_000), (100_000, *(50,) * 300), (500,) * 20]
)
@pytest.mark.parametrize("validation", [0.1, 0.25])
def test_few_or_uneven_documents_hold_out_the_share_asked_for(
    tmp_path: Path, sizes: tuple[int, ...], validation: float
) -> None:
    texts = [PROSE[number : number + size] for number, size in enumerate(sizes)]
    store = build_store(tmp_path / "store", documents(*texts), Bytes(), validation, end_of_text=True)
    assert store.split["held_out"] == store.validation.bytes / sum(sizes)
    assert store.split["held_out"] == pytest.approx(validation, rel=0.25)
    assert store.split["by"] == "both"
    # What was cut was cut after a line, or where none is near after a blank.
    ends = {tuple(text.encode()[-20:]) for text in texts}
    assert all(ids[-1] in b"\n " or tuple(ids[-20:]) in ends for ids in held(store.train))
    meta = json.loads((tmp_path / "store" / "meta.json").read_text())
    assert meta["split"] == store.split
    assert TokenStore.open(tmp_path / "store").split == store.split


def test_a_small_document_stays_in_its_part_beside_large_ones(tmp_path: Path) -> None:
    small = [f"document number {number}" for number in range(400)]
    alone = build_store(tmp_path / "alone", documents(*small), Bytes(), 0.2, end_of_text=True)
    beside = build_store(tmp_path / "beside", documents(PROSE, *small), Bytes(), 0.2, end_of_text=True)
    assert (alone.split["by"], beside.split["by"], beside.split["cut"]) == ("documents", "both", 1)
    for before, after in ((alone.train, beside.train), (alone.validation, beside.validation)):
        assert held(before) == held(after)[1:]


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("a word\n" * 4 + "a word. " * 10 + "\n" + "words " * 50, "words"),
        ("What is it? It is that. " * 20, "What"),
        ("of words alone " * 20, "of words"),
        ("x" * 300, "x"),
    ],
)
def test_a_document_is_cut_where_it_hurts_least(tmp_path: Path, text: str, begins: str) -> None:
    """After a line, else after a sentence, else after a blank, else anywhere; always near the place asked for."""
    store = build_store(tmp_path / "store", documents(text, text), Bytes(), 0.7, end_of_text=True)
    piece = bytes(held(store.validation)[0]).decode()
    assert piece.startswith(begins)
    assert text.endswith(piece)
    assert len(piece) / len(text) == pytest.approx(0.7, rel=0.2)


def test_documents_that_change_while_they_are_read_are_refused(tmp_path: Path) -> None:
    described = describe_documents(documents("one text", "two texts"), TextStats(0.5))
    build = lambda *texts: build_store(  # noqa: E731
        tmp_path / "store", documents(*texts), Bytes(), 0.5, end_of_text=True, described=described
    )
    assert "has changed since it was first read" in refusal(lambda: build("one text", "two textS"))
    assert build("one text", "two texts").split["cut"] == 2


def test_bits_count_the_bytes_of_the_text(tmp_path: Path) -> None:
    """Not those of tokens: blanks between words belong to none, and an end of text is no text."""
    texts = [f"two words {number}" for number in range(10, 90)]
    tokenizer = train_tokenizer("words", texts)
    store = build_store(tmp_path / "store", documents(*texts), tokenizer, 0.5, end_of_text=True)
    for part in (store.train, store.validation):
        assert part.bytes == 12 * part.documents
        assert part.target_bytes == part.bytes - len("two")
        assert part.targets == 4 * part.documents - 2  # three words each, and separators between documents


def test_characters_are_counted(tmp_path: Path) -> None:
    """In the store and in memory, also of a document that is cut into pieces to be tokenised."""
    documents = [Document("äöü€ " * 40 + str(number), str(number)) for number in range(30)]
    store = build_store(tmp_path / "store", documents, Bytes(), 0.2, True)
    whole = sum(len(document.text) for document in documents)
    assert store.train.characters is not None
    assert store.validation.characters is not None
    assert store.train.characters + store.validation.characters == whole == part_of(documents, Bytes()).characters
    assert store.validation.bytes > store.validation.characters > 0


@pytest.mark.parametrize(
    ("spelt", "text", "expected"),
    [
        (b"the", "the loom", 3),
        (b" the", "the loom", 3),
        (b" the", " the loom", 4),
        ("é".encode()[:1], "é", 1),
        (b"<unk>", "x y", 0),
        (b"", "x", 0),
        ("é".encode(), "é", 2),
    ],
)
def test_the_bytes_of_the_first_token(spelt: bytes, text: str, expected: int) -> None:
    assert first_bytes(spelt, text) == expected


@pytest.mark.parametrize(("vocab_size", "dtype"), [(257, "<u2"), (65536, "<u2"), (65537, "<u4"), (200_000, "<u4")])
def test_the_smallest_type_that_holds_the_vocabulary(tmp_path: Path, vocab_size: int, dtype: str) -> None:
    class Top(Bytes):
        def encode(self, text: str) -> list[int]:
            return [self.vocab_size - 1] * len(text)

        def token_bytes(self, id: int) -> bytes:
            return b"four"

    store = build_store(tmp_path / "store", documents("x" * 100), Top(vocab_size), 0.1, end_of_text=False)
    assert store.train.tokens.dtype == np.dtype(dtype)
    assert set(store.train.tokens.tolist()) == {vocab_size - 1}
    assert store.train.first_token_bytes == 0  # "four" is not how the text begins
    assert (tmp_path / "store" / "train.tokens").stat().st_size == 90 * np.dtype(dtype).itemsize


def test_open_gives_what_build_gave(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text, long enough")
    built = build_store(tmp_path / "store", documents("some text, long enough"), Bytes(), 0.2, end_of_text=True)
    reopened = TokenStore.open(tmp_path / "store")
    assert reopened.tokenizer == "bytes"
    assert reopened.vocab_size == 257
    assert reopened.sources == built.sources == describe([tmp_path / "a.txt"]).sha256
    assert np.array_equal(reopened.train.tokens, built.train.tokens)
    assert isinstance(reopened.train.tokens, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        reopened.train.tokens[0] = 1


def test_huge_texts_are_cut_only_where_no_id_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heddle.data.token_writer, "_PIECE", 200)
    monkeypatch.setattr(heddle.data.token_writer, "_SEAM", 40)
    generator = np.random.default_rng(0)
    text = "".join(generator.choice(["the ", "weft\n", "warp\n\n", "  loom\n ", "\n"], size=2000))
    for tokenizer in (Bytes(), Words()):
        cut = list(pieces(text, tokenizer))
        assert "".join(cut) == text
        assert len(cut) > 20
        assert [id for piece in cut for id in tokenizer.encode(piece)] == tokenizer.encode(text)
    assert list(pieces(text, Global())) == [text]
    assert list(pieces("word " * 1000, Bytes())) == ["word " * 1000]


def test_batches_are_bounded_and_progress_counts_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heddle.data.store, "_BATCH", 100)
    tokenizer = Bytes()
    seen: list[tuple[int, int]] = []
    texts = [f"text number {number} é" for number in range(100)]
    build_store(tmp_path / "many", iter(documents(*texts)), tokenizer, 0.1, True, lambda *state: seen.append(state))
    assert len(tokenizer.batches) > 10
    assert max(sum(map(len, batch)) for batch in tokenizer.batches) < 150
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (size := sum(len(text.encode()) for text in texts), size)
    seen.clear()
    build_store(tmp_path / "one", documents("é" * 30), tokenizer, 0.1, True, lambda *state: seen.append(state))
    assert seen == [(60, 60)]


@pytest.mark.parametrize(
    ("texts", "tokenizer", "fraction", "message"),
    [
        ([], Bytes(), 0.1, "no text"),
        (["", ""], Bytes(), 0.1, "no text"),
        (["a"], Bytes(), 0.1, "the train part would have 0 token"),
        (["abcdefghij"], Bytes(), 0.1, "the validation part would have 1 token"),
        (["long enough text"], Bytes(), 0.0, "between 0 and 1"),
        (["long enough text"], Bytes(), 1.0, "between 0 and 1"),
        (["one text", "two texts"], Bytes(end_of_text=None), 0.1, "no end-of-text token"),
        (["long enough text"], Bytes(vocab_size=100), 0.2, "out of range (vocab size 100)"),
    ],
)
def test_what_cannot_be_built_is_refused(
    tmp_path: Path, texts: list[str], tokenizer: Bytes, fraction: float, message: str
) -> None:
    act = lambda: build_store(tmp_path / "store", documents(*texts), tokenizer, fraction, end_of_text=True)  # noqa: E731
    assert message in refusal(act)
    assert not list(tmp_path.rglob("*.*"))


def test_one_document_needs_no_end_of_text(tmp_path: Path) -> None:
    store = build_store(tmp_path, documents("long enough text"), Bytes(end_of_text=None), 0.2, end_of_text=True)
    assert store.separator is None


def test_a_store_is_not_overwritten_but_a_killed_build_is(tmp_path: Path) -> None:
    (tmp_path / "train.tokens").write_bytes(b"half")
    assert "not a token store" in refusal(lambda: TokenStore.open(tmp_path))
    build_store(tmp_path, documents("long enough text"), Bytes(), 0.2, end_of_text=True)
    again = lambda: build_store(tmp_path, documents("another text"), Bytes(), 0.2, end_of_text=True)  # noqa: E731
    assert "already" in refusal(again)
    assert Bytes().decode(TokenStore.open(tmp_path).train.tokens) == "long enough "


def test_an_error_while_building_leaves_other_files_alone(tmp_path: Path) -> None:
    for name in ("mine.tokens", "train.txt"):
        (tmp_path / name).write_text("mine")

    class Broken(Bytes):
        def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
            raise OSError(28, "No space left on device")

    act = lambda: build_store(tmp_path, documents("long enough text"), Broken(), 0.2, end_of_text=True)  # noqa: E731
    assert "cannot write the token store" in refusal(act)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.tokens", "train.txt"]


def test_foreign_and_cut_stores_are_refused(tmp_path: Path) -> None:
    build_store(tmp_path, documents("long enough text"), Bytes(), 0.2, end_of_text=True)
    meta = json.loads((tmp_path / "meta.json").read_text())
    open_it = lambda: TokenStore.open(tmp_path)  # noqa: E731

    def with_meta(**changes: object) -> str:
        (tmp_path / "meta.json").write_text(json.dumps({**meta, **changes}))
        return refusal(open_it)

    assert "format version 1, but this heddle reads version 4; build the store again" in with_meta(version=1)
    assert "not the description" in with_meta(format="other")
    assert "dtype" in with_meta(vocab_size=100_000)
    assert "damaged" in with_meta(train={})
    assert "damaged" in with_meta(sources=3)
    assert "says 13 tokens" in with_meta(train={**meta["train"], "tokens": 13})
    (tmp_path / "meta.json").write_text("{")
    assert "not JSON" in refusal(open_it)
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    assert TokenStore.open(tmp_path).train.documents == 1
    whole = (tmp_path / "train.tokens").read_bytes()
    store = TokenStore.open(tmp_path)
    store.verify()
    (tmp_path / "train.tokens").write_bytes(whole[:4] + b"zz" + whole[6:])
    assert f"{tmp_path / 'train.tokens'}: damaged" in refusal(store.verify)
    store.verify("validation")
    (tmp_path / "train.tokens").write_bytes(whole)
    starts = (tmp_path / "train.documents").read_bytes()
    (tmp_path / "train.documents").write_bytes(b"\1" + starts[1:])
    assert f"{tmp_path / 'train.documents'}: damaged" in refusal(store.verify)
    (tmp_path / "train.documents").write_bytes(starts[:-1])
    assert "says 1 documents of 16 bytes" in refusal(open_it)
    (tmp_path / "train.documents").write_bytes(starts)
    (tmp_path / "train.tokens").write_bytes(whole[:-1])
    assert "says 12 tokens" in refusal(open_it)
    (tmp_path / "train.tokens").unlink()
    assert "No such file" in refusal(open_it)
    assert "not a token store" in refusal(lambda: TokenStore.open(tmp_path / "nowhere"))
