"""A store that several processes tokenise for is, file by file, the one that a single process makes."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import heddle.data.record_store
import heddle.data.store
import heddle.data.token_writer
import heddle.text.processes
from heddle.data import build_records, build_store
from heddle.data.sources.documents import Document
from heddle.data.sources.examples import Example
from heddle.text import train_tokenizer
from tests.processes import InThread
from tests.refusing import refusal

WORDS = ["the", "loom", "weaves", "a", "weft;", "is", "gone\n"]
TOKENIZERS = {
    kind: train_tokenizer(kind, " ".join(WORDS) * 9, size)
    for kind, size in (("bytes", None), ("bpe", 290), ("words", 40))
}
documents = st.lists(st.lists(st.sampled_from(WORDS), min_size=3, max_size=40).map(" ".join), min_size=1, max_size=6)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches and pieces of a few characters, and threads in place of processes."""
    monkeypatch.setattr(heddle.data.store, "_BATCH", 50)
    monkeypatch.setattr(heddle.data.token_writer, "_PIECE", 60)
    monkeypatch.setattr(heddle.data.token_writer, "_SEAM", 20)
    monkeypatch.setattr(heddle.data.record_store, "BATCH", 3)
    monkeypatch.setattr(heddle.text.processes, "subprocess", InThread)


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    texts=documents, kind=st.sampled_from([*TOKENIZERS]), workers=st.integers(2, 4), share=st.sampled_from([0.2, 0.5])
)
def test_the_tokens_of_texts(
    small: None, tmp_path_factory: pytest.TempPathFactory, texts: list[str], kind: str, workers: int, share: float
) -> None:
    place, results = (
        tmp_path_factory.mktemp("stores"),
        [Document(f"{n} {text}", f"{n}.txt") for n, text in enumerate(texts)],
    )
    made = []
    for count in (0, workers):
        seen: list[Any] = []
        tell = lambda *state, seen=seen: seen.append(state)  # noqa: E731
        build_store(place / str(count), results, TOKENIZERS[kind], share, True, tell, workers=count)
        made.append((contents(place / str(count)), seen))
    assert made[0] == made[1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(workers=st.integers(2, 4), kind=st.sampled_from([*TOKENIZERS]), number=st.integers(30, 40), tagged=st.booleans())
def test_the_tokens_of_records(
    small: None, tmp_path_factory: pytest.TempPathFactory, workers: int, kind: str, number: int, tagged: bool
) -> None:
    place = tmp_path_factory.mktemp("stores")
    words = [(*(WORDS[(n + k) % 6] for k in range(n % 5 + 2)), str(n)) for n in range(number)]
    labels: Any = [tuple("AB"[len(word) % 2] for word in each) if tagged else str(len(each) % 2) for each in words]
    results = [
        Example({"text": each if tagged else " ".join(each)}, label, f"{n}")
        for n, (each, label) in enumerate(zip(words, labels, strict=True))
    ]
    for count in (1, workers):
        build_records(
            place / str(count), results, TOKENIZERS[kind], 0.3, "tokens" if tagged else "classes", workers=count
        )
    assert contents(place / "1") == contents(place / str(workers))


def test_real_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heddle.data.store, "_BATCH", 1000)
    documents = [Document(" ".join(WORDS[(n * k) % 7] for k in range(1, 99)), f"{n}.txt") for n in range(40)]
    for count in (0, 2):
        build_store(tmp_path / str(count), documents, TOKENIZERS["bpe"], 0.2, True, workers=count)
    assert contents(tmp_path / "0") == contents(tmp_path / "2")


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_process_refuses_leaves_nothing(tmp_path: Path, small: None, workers: int) -> None:
    tokenizer = train_tokenizer("characters", "abc\n", special=())
    text = [Document("abc\n" * 99 + "abcX" + "abc\n" * 99, "a.txt")]
    message = refusal(lambda: build_store(tmp_path / "store", text, tokenizer, 0.2, False, workers=workers))
    assert message.startswith("character 'X' at position ")
    assert not list(tmp_path.iterdir())
