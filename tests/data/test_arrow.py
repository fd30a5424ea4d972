"""Parquet, Arrow and datasets of Hugging Face, written by their own libraries; and what is said where those are missing."""

import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from heddle.config.data import DataConfig
from heddle.config.tasks import NextTokenConfig, TaskSettings
from heddle.data.raw import open_dataset, own_validation
from heddle.data.sources.arrow import arrow_rows, dataset_files, is_dataset, named_class, splits_of
from heddle.data.sources.documents import read_documents
from heddle.data.sources.examples import read_examples
from tests.refusing import refusal

ROWS = {"text": [f"text {n}" for n in range(3000)], "label": [n % 2 for n in range(3000)]}
CLASSES = ("text", "label")


class Labelled(TaskSettings):
    fields = CLASSES


@pytest.fixture
def datasets() -> Any:
    return pytest.importorskip("datasets")


@pytest.fixture
def named(datasets: Any) -> Any:
    """Rows with two named classes."""
    datasets.disable_progress_bars()
    kinds = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    return datasets.Dataset.from_dict(ROWS, features=datasets.Features(kinds))


def labels(*sources: str | Path) -> list[Any]:
    return [example.label for example in read_examples(sources, CLASSES)]


def test_parquet_is_read_by_column(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(ROWS), tmp_path / "a.parquet")
    assert [each.text for each in read_documents([tmp_path])] == ROWS["text"]
    assert labels(tmp_path / "a.parquet")[:3] == ["0", "1", "0"]
    message = refusal(lambda: list(read_documents([tmp_path / "a.parquet"], "txt")))
    assert message.endswith("a.parquet:1: no column 'txt'; there are: text, label. Did you mean 'text'?")
    with (
        arrow.OSFile(str(tmp_path / "b.arrow"), "wb") as sink,
        arrow.ipc.new_file(sink, arrow.table(ROWS).schema) as out,
    ):
        out.write_table(arrow.table(ROWS))
    assert [row["text"] for row in arrow_rows(tmp_path / "b.arrow")] == ROWS["text"]
    for name in ("a.parquet", "b.arrow"):
        (tmp_path / name).write_bytes(b"neither of the two, but long enough")
        assert f"{name}: cannot be read" in refusal(lambda name=name: list(arrow_rows(tmp_path / name)))


def test_classes_have_the_names_in_the_file(tmp_path: Path, named: Any) -> None:
    named.to_parquet(tmp_path / "a.parquet")
    named.save_to_disk(tmp_path / "saved")
    for source in (tmp_path / "a.parquet", tmp_path / "saved"):
        names = labels(source)
        assert names[:3] == ["neg", "pos", "neg"]
        assert len(names) == 3000


def test_a_saved_dataset_has_its_own_validation_split(tmp_path: Path, datasets: Any, named: Any) -> None:
    parts = {"train": named, "validation": named.select(range(7)), "test": named.select(range(5))}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    saved = str(tmp_path / "saved")
    assert {split: len(labels(*files)) for split, files in splits_of(saved).items()} == {
        "train": 3000,
        "validation": 7,
        "test": 5,
    }
    data = DataConfig.of({"sources": saved}, "settings")
    with open_dataset(data, Labelled()) as examples:
        assert examples.read(print).startswith("3,007 records")
        assert examples.described.held_out == 7  # type: ignore[attr-defined]
    with open_dataset(data, NextTokenConfig()) as texts:
        assert texts.read(print).startswith("3,007 documents")
    assert len(dataset_files(f"{saved}#test")) == 1
    assert "has no split 'tests'; there are: train, validation, test. Did you mean 'test'?" in refusal(
        lambda: dataset_files(f"{saved}#tests")
    )
    config = DataConfig.of({"sources": saved, "validation": 0.2}, "settings")
    assert "validation = 0.2 has no effect" in refusal(lambda: own_validation(config))
    named.save_to_disk(tmp_path / "one")
    mixed = DataConfig.of({"sources": [saved, str(tmp_path / "one")]}, "settings")
    assert "only some of the sources" in refusal(lambda: own_validation(mixed))
    (tmp_path / "one" / "state.json").write_text("{}")
    assert "not what save_to_disk" in refusal(lambda: labels(tmp_path / "one"))


def test_a_saved_dataset_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, datasets: Any, named: Any
) -> None:
    """Its splits stay apart there, too."""
    monkeypatch.setenv("HOME", str(tmp_path))
    datasets.DatasetDict({"train": named, "test": named.select(range(5))}).save_to_disk(tmp_path / "saved")
    assert is_dataset("~/saved")
    assert {split: len(labels(*files)) for split, files in splits_of("~/saved").items()} == {"train": 3000, "test": 5}


def test_a_missing_class_has_no_name() -> None:
    """Datasets write -1 or None; neither is the last class."""
    assert [named_class(each, ["neg", "pos"]) for each in (0, 1, -1, None, 2)] == ["neg", "pos", None, None, None]
    assert named_class([1, -1, None], ["neg", "pos"]) == ["pos", None, None]


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert 'needs the package pyarrow: pip install "heddle-lm[data]"' in refusal(
        lambda: list(arrow_rows(tmp_path / "a.parquet"))
    )
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setattr("heddle.data.sources.arrow._online", lambda: True)
    assert "hf:nobody/nothing: reading it needs the package datasets" in refusal(lambda: splits_of("hf:nobody/nothing"))


def test_a_name_without_network_is_refused_at_once(datasets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("unreachable")

    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "")  # so that it is restored
    monkeypatch.setattr(socket, "create_connection", unreachable)
    start = time.monotonic()
    message = refusal(lambda: splits_of("hf:nobody/nothing"))
    assert message == "hf:nobody/nothing: the hub cannot be reached, and it was not downloaded before"
    assert time.monotonic() - start < 3


def test_a_dataset_by_name_is_looked_up_once_per_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files stand for it, whatever they are: the hub itself is not asked."""
    names: list[str] = []
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text("".join(f'{{"text": "{split} {n}"}}\n' for n in range(3)))

    def hub(name: str) -> dict[str, list[Path]]:
        names.append(name)
        return {split: [tmp_path / f"{split}.jsonl"] for split in ("train", "validation")}

    monkeypatch.setattr("heddle.data.sources.arrow._from_hub", hub)
    data = DataConfig.of({"sources": "hf:owner/name:config"}, "settings")
    with open_dataset(data, NextTokenConfig()) as examples:
        assert examples.read(print).startswith("6 documents")
        assert list(examples.texts()) == [f"{split} {n}" for split in ("train", "validation") for n in range(3)]
        assert examples.share is None
    assert names == ["owner/name:config"] * 2
    data = DataConfig.of({"sources": "hf:a", "validation_sources": "hf:a#validation"}, "settings")
    with open_dataset(data, NextTokenConfig()) as examples:
        assert len(list(examples.texts())) == 6
