"""Tokens are used again only where sources, settings, tokenizer and version are the same, and a run keeps hold of its own."""

import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.cli.training import plan_run
from heddle.config import RunConfig, variants
from heddle.data import open_store
from heddle.errors import HeddleError
from heddle.prove.run import served_ids
from heddle.runs import Trainer, prepare, sweep
from heddle.text import load_tokenizer, train_tokenizer
from heddle.weights import load
from tests.refusing import refusal
from tests.running import SIZES, TRAIN

pytestmark = pytest.mark.usefixtures("roomy")

BPE = {"tokenizer": "bpe", "tokenizer_size": 300}
CUTTING = "cutting the text into tokens"


@pytest.fixture
def shared(config: Callable[..., RunConfig], quick: None, tmp_path: Path) -> Callable[..., list[str]]:
    """Prepare a run that names a store: `shared("name", data={...}, task="masked", seed=3)`; returns what was said."""

    def prepared(name: str, task: Any = "next_token", **more: Any) -> list[str]:
        data = {**BPE, "store": str(tmp_path / "store"), **more.pop("data", {})}
        made = config(data=data, **more).to_dict()
        messages: list[str] = []
        prepare(RunConfig.of({**made, "task": task}), tmp_path / name, messages.append)
        return messages

    return prepared


def test_a_second_run_takes_the_tokens(
    shared: Callable[..., list[str]], config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """Bit for bit the run that it would be without them; and it resumes and is proved when they are gone."""
    first = shared("a", steps=2)
    assert CUTTING in first
    assert f"{tmp_path / 'store'} keeps the tokens for other runs" in first
    second = shared("b", steps=2, seed=3)
    assert not {CUTTING, "training a tokenizer (bpe)"} & set(second)
    assert second[1].startswith(
        f"using the tokens of {tmp_path / 'store'}, made from the same sources, settings and tokenizer: "
    )
    files = [tmp_path / each / "train.tokens" for each in ("store", "a/data", "b/data")]
    assert files[0].samefile(files[1])
    assert files[0].samefile(files[2])
    prepare(config(data=BPE, steps=2, seed=3), tmp_path / "alone")
    shutil.rmtree(tmp_path / "store")
    assert Trainer(tmp_path / "b").run().loss == Trainer(tmp_path / "alone").run().loss
    ours, reference = (load(tmp_path / each, "cpu").model.state_dict() for each in ("b", "alone"))
    assert all(torch.equal(ours[name], reference[name]) for name in reference)
    assert served_ids(load_tokenizer(tmp_path / "b"), tmp_path / "b" / "data").word == "EXACT"


@pytest.mark.parametrize(
    "more",
    [
        {"seed": 7, "learning_rate": 0.5},
        {"model": {"dim": 32, "context": 8}},
        {"data": {"layout": "documents", "workers": 1}, "batch": 2},
        {"data": {"tokenizer": "{}/a/tokenizer.json", "tokenizer_size": 4096}},
    ],
)
def test_what_changes_no_token(shared: Callable[..., list[str]], tmp_path: Path, more: dict[str, Any]) -> None:
    shared("a")
    data = {
        key: str(value).format(tmp_path) if key == "tokenizer" else value for key, value in more.get("data", {}).items()
    }
    assert CUTTING not in shared("b", **{**more, "data": data})


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"validation": 0.2}, "validation = 0.1 there and 0.2 here"),
        ({"tokenizer_size": 310}, "tokenizer_size = 300 there and 310 here"),
        ({"tokenizer": "wordpiece"}, 'tokenizer = "bpe" there and "wordpiece" here'),
        ({"tokenizer": "{}/other", "tokenizer_size": 4096}, "the tokenizer is another one"),
        ({"special_tokens": ["<x>"]}, 'special_tokens = [] there and ["<x>"] here'),
        ({"sources": ["{}/corpus.txt", "{}/more.txt"]}, "more.txt: not read there"),
        ({"sources": ["{}/more.txt"]}, "more.txt: not read there; {}/corpus.txt: not read here"),
        ({"validation_sources": ["{}/more.txt"]}, "validation = 0.1 there and null here; {}/more.txt: not read there"),
        ({"sources": ["{}/table.jsonl"]}, "table.jsonl: not read there"),
    ],
)
def test_what_differs_is_said(
    shared: Callable[..., list[str]], tmp_path: Path, more: dict[str, Any], reason: str
) -> None:
    shared("a")
    (tmp_path / "more.txt").write_text("more text\n" * 20)
    (tmp_path / "table.jsonl").write_text(json.dumps({"text": "more text"}) + "\n")
    train_tokenizer("bpe", " ".join(map(str, range(2000))), 300).save(tmp_path / "other")
    settings = json.loads(json.dumps(more).replace("{}", str(tmp_path)))
    before = sorted(tmp_path.iterdir())
    message = refusal(lambda: shared("b", data=settings))
    assert message.startswith(f"store = '{tmp_path / 'store'}' was made from something else (")
    assert reason.replace("{}", str(tmp_path)) in message
    assert sorted(tmp_path.iterdir()) == before


def test_changed_sources_tasks_and_versions(shared: Callable[..., list[str]], corpus: Path, tmp_path: Path) -> None:
    shared("a")
    text, meta = corpus.read_text(), tmp_path / "store" / "meta.json"
    corpus.write_text("T" + text[1:])  # of the same size
    assert f"{corpus}: changed since" in refusal(lambda: shared("b"))
    corpus.write_text(text)
    assert 'special_tokens = [] there and ["[MASK]"] here' in refusal(lambda: shared("b", task="masked"))
    written = json.loads(meta.read_text())
    meta.write_text(json.dumps({**written, "version": 2}))
    assert "format version 2, but this heddle reads version 4" in refusal(lambda: shared("b"))
    meta.write_text(json.dumps({**written, "provenance": None}))
    assert "it does not say what it was made from" in refusal(lambda: shared("b"))
    meta.write_text(json.dumps(written))
    tokenizer = tmp_path / "store" / "tokenizer.json"
    tokenizer.unlink()
    train_tokenizer("bytes", []).save(tokenizer)
    assert "is not the tokenizer that made the tokens" in refusal(lambda: shared("b"))
    shutil.copyfile(tmp_path / "a" / "tokenizer.json", tokenizer)
    assert CUTTING not in shared("b")


def test_a_flipped_bit_is_found(shared: Callable[..., list[str]], tmp_path: Path) -> None:
    """By a run that would take the tokens, and by one that has taken them."""
    shared("a")
    shared("b")
    file = tmp_path / "store" / "validation.tokens"
    data = bytearray(file.read_bytes())
    data[5] ^= 4
    file.write_bytes(data)
    assert f"{file}: damaged, checksum mismatch" in refusal(lambda: shared("c"))
    for run in ("a", "b"):
        message = refusal(lambda run=run: Trainer(tmp_path / run))  # type: ignore[misc]
        assert f"{tmp_path / run / 'data' / 'validation.tokens'}: damaged" in message
    assert not (tmp_path / "c").exists()


def test_where_files_cannot_be_linked(
    shared: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another disk: then the run needs the store, and says so when it is gone."""

    def refuse(*paths: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    shared("a", steps=2)
    assert (tmp_path / "a" / "data" / "train.tokens").is_symlink()
    assert Trainer(tmp_path / "a").run().loss > 0
    shutil.rmtree(tmp_path / "store")
    message = refusal(lambda: Trainer(tmp_path / "a"))
    assert f"train.tokens: links to {tmp_path / 'store' / 'train.tokens'}, which is gone; restore that store" in message


def test_a_store_is_written_whole_or_not_at_all(
    shared: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(import_module("heddle.data.raw"), "describe_split", interrupt)
        with pytest.raises(KeyboardInterrupt):
            shared("a")
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.txt"]
    (tmp_path / "store").mkdir()
    assert "not a token store" in refusal(lambda: shared("a"))


def test_sources_that_change_while_they_are_tokenised(
    begin: Callable[..., Path], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("heddle.data.raw")
    build = module.build_store

    def built(*args: Any) -> Any:
        store = build(*args)
        corpus.write_text("another text\n" * 50)
        return store

    monkeypatch.setattr(module, "build_store", built)
    message = refusal(lambda: begin("run"))
    assert message == f"{corpus}: changed since; the text has changed since it was first read: run the command again"
    assert not (tmp_path / "run").exists()


def test_a_dry_run_writes_no_store(
    shared: Callable[..., list[str]], config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    from rich.console import Console

    out = io.StringIO()
    settings = config(data={**BPE, "store": str(tmp_path / "store")})
    plan_run(settings, tmp_path / "run", Console(file=out), json=False)
    assert not (tmp_path / "store").exists()
    shared("a")
    plan_run(settings, tmp_path / "run", Console(file=out, width=200), json=False)
    assert f"using the tokens of {tmp_path / 'store'}" in out.getvalue()


class TestSeries:
    """One command tokenises once, whatever its runs differ in."""

    @pytest.fixture
    def table(self, corpus: Path, quick: None) -> dict[str, Any]:
        return {
            "data": {"sources": [str(corpus)], **BPE},
            "model": SIZES,
            "train": {**TRAIN, "steps": 1, "evaluate_every": 1},
        }

    def test_runs_that_differ_in_rows_or_tasks(self, table: dict[str, Any], tmp_path: Path) -> None:
        table["data"] |= {"layout": ["concatenate", "documents"], "tokenizer_size": [300, 310]}
        messages: list[str] = []
        results = sweep(variants(table), tmp_path / "s", messages.append)
        assert messages.count(CUTTING) == 2  # one per tokenizer
        assert not [line for line in messages if "are not used" in line]
        files = [each.run / "data" / "train.tokens" for each in results]
        assert [files[0].samefile(file) for file in files] == [True, True, False, False]

    def test_a_source_that_changed_is_tokenised_again(
        self, table: dict[str, Any], corpus: Path, tmp_path: Path
    ) -> None:
        messages: list[str] = []
        sweep(variants(table, seeds=1), tmp_path / "s", messages.append)
        corpus.write_text(corpus.read_text() + " more")
        sweep(variants(table, seeds=2), tmp_path / "s", messages.append)
        assert messages.count(CUTTING) == 2
        assert f"the tokens of {tmp_path / 's-seed0'} are not used: {corpus}: changed since" in messages

    def test_tokens_that_are_gone_or_damaged_are_made_again(self, table: dict[str, Any], tmp_path: Path) -> None:
        messages: list[str] = []
        results = sweep(variants(table, seeds=2), tmp_path / "s")
        shutil.rmtree(results[0].run / "data")
        file = results[1].run / "data" / "train.tokens"
        file.write_bytes(b"\0" * file.stat().st_size)
        sweep(variants(table, seeds=3), tmp_path / "s", messages.append)
        assert messages.count(CUTTING) == 1
        assert [line.partition(" are not used: ")[2] for line in messages if " are not used: " in line] == [
            f"{results[0].run / 'data'}: not a token store (meta.json: No such file or directory)",
            f"{file}: damaged, checksum mismatch; restore the file or train a new run",
        ]

    def test_standard_input_is_read_once(
        self, table: dict[str, Any], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Stdin:
            buffer = io.BytesIO(corpus.read_bytes())

        monkeypatch.setattr(sys, "stdin", Stdin)
        table["data"]["sources"] = ["-"]
        first, second = (each.run / "data" for each in sweep(variants(table, seeds=2), tmp_path / "s"))
        assert open_store(first).sources == open_store(second).sources
        table["data"]["tokenizer_size"] = 310
        with pytest.raises(HeddleError, match="standard input was read for an earlier run, and its tokens do not suit"):
            prepare(RunConfig.of(table), tmp_path / "other", texts_of=[tmp_path / "s-seed0"])
