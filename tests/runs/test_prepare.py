"""What takes long says how far it is."""

import re
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from heddle.config.run import RunConfig
from heddle.data.sources.documents import Document, read_documents
from heddle.errors import HeddleError
from heddle.runs import prepare
from heddle.text import train_tokenizer


def test_every_long_phase_is_seen_to_go_on(
    config: Callable[..., RunConfig], quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading, learning a tokenizer and cutting, each of which reads the text once more: slowly, here."""
    messages: list[str] = []

    def slowly(*args: Any) -> Iterator[Document]:
        before = len(messages)
        for document in read_documents(*args):
            yield Document(document.text * 4, document.origin)
        while len(messages) == before:
            time.sleep(0.001)

    monkeypatch.setattr(import_module("heddle.data.raw"), "read_documents", slowly)
    monkeypatch.setattr("heddle.progress.EVERY", 0.02)
    prepare(config(data={"tokenizer": "bpe", "tokenizer_size": 300}), tmp_path / "run", messages.append)
    for phase in (r"0\.0 MB read, 0 s", r"0\.0 MB of text read, 0 s", r"0\.0 of 0\.0 MB tokenised, 0 s"):
        assert any(re.fullmatch(phase, line) for line in messages), (phase, messages)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"tokenizer": "bytes", "tokenizer_size": 300}, "tokenizer_size = 300 has no effect, since bytes have as many"),
        (
            {"tokenizer": "characters", "tokenizer_size": 300},
            "tokenizer_size = 300 has no effect, since characters have",
        ),
        (
            {"tokenizer": "t.json", "tokenizer_size": 300},
            "tokenizer_size = 300 has no effect, since the tokenizer is given",
        ),
        ({"tokenizer": "t.json", "special_tokens": ["<a>", "<b>"]}, "special_tokens = <b>: the tokenizer is given"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_tokenizers_setting_is_kept_or_refused(
    config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: dict[str, Any], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    train_tokenizer("bytes", ["ab"], None, ("<a>",)).save(tmp_path / "t.json")
    with pytest.raises(HeddleError, match=re.escape(line)):
        prepare(config(data=data), tmp_path / "run")
    assert not (tmp_path / "run").exists()
