"""From the user's files of every kind to a run and its score, with the tasks that read them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heddle.config.run import RunConfig
from heddle.data import RecordStore, TokenStore, open_store, read_documents
from heddle.data.raw import open_dataset
from heddle.errors import HeddleError
from heddle.runs import Trainer, prepare
from heddle.runs.lint import lint_run
from heddle.text import train_tokenizer
from tests.refusing import refusal

pytestmark = pytest.mark.usefixtures("roomy")

SIZES = {"dim": 16, "depth": 1, "heads": 2, "context": 32}
TRAIN = {
    "steps": 2,
    "batch": 4,
    "precision": "fp32",
    "products": "torch",
    "compile": "off",
    "threads": 1,
    "evaluate_every": 2,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same eighty records as parallel files, a table, labelled folders and tagged words; and four to validate on."""
    for part, numbers in (("train", range(80)), ("val", range(80, 84))):
        (tmp_path / f"{part}.en").write_text("".join(f"the dog {n}\n" for n in numbers))
        (tmp_path / f"{part}.de").write_text("".join(f"der hund {n}\n" for n in numbers))
        rows = [{"body": f"text {n}", "stars": n % 3, "second": f"more {n}"} for n in numbers]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (tmp_path / f"{part}.conll").write_text("".join(f"Ann NNP B-PER\nis VB O\nin{n} IN O\n\n" for n in numbers))
        for n in numbers:
            file = tmp_path / part / ("odd" if n % 2 else "even") / f"{n}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"text {n}")
    return tmp_path


KINDS: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "parallel files": ("translation", "{}.*", "target source", {"source": "en", "target": "de"}),
    "a table": ("classification", "{}.jsonl", "text label", {"text": "body", "label": "stars"}),
    "pairs in a table": (
        "classification",
        "{}.jsonl",
        "text pair label",
        {"text": "body", "pair": "second", "label": "stars"},
    ),
    "numbers in a table": ("regression", "{}.jsonl", "text label", {"text": "body", "label": "stars"}),
    "labelled folders": ("classification", "{}", "text label", {}),
    "tagged words": ("token_classification", "{}.conll", "text label", {}),
}


def settings(folder: Path, kind: str, **more: Any) -> RunConfig:
    task, files, _, columns = KINDS[kind]
    pattern = f"{folder}/{files}"
    if kind == "parallel files":
        pattern = f"{folder}/{files[:-1]}[ed][ne]"
    data = {"sources": pattern.format("train"), "tokenizer": "bytes", **columns, **more}
    return RunConfig.of({"data": data, "model": SIZES, "task": task, "train": TRAIN})


@pytest.mark.parametrize("kind", KINDS)
def test_files_become_a_run(folder: Path, quick: None, kind: str) -> None:
    messages: list[str] = []
    config = settings(folder, kind)
    validation_file = config.data.sources[0].replace("train", "val")
    prepare(settings(folder, kind, validation_sources=validation_file), folder / "run", messages.append)
    assert messages[1].startswith("84 records, 0.0 MB")
    assert "validation: 4 records of validation_sources" in messages
    store = open_store(folder / "run" / "data")
    assert isinstance(store, RecordStore)
    assert (len(store.train), len(store.validation)) == (80, 4)
    assert set(store.train.columns) == set(KINDS[kind][2].split())
    assert Trainer(folder / "run").run().loss > 0
    assert [each.name for each in lint_run(folder / "run") if each.wrong] == []


def test_a_share_of_the_records_is_held_out_by_their_content(folder: Path, quick: None) -> None:
    messages: list[str] = []
    (folder / "train.en").write_text((folder / "train.en").read_text().replace("the dog 7\n", "\n"))
    prepare(settings(folder, "parallel files", validation=0.2), folder / "run", messages.append)
    first = f"79 records, 0.0 MB; 1 with an empty text left out, the first at {folder}/train.en:8"
    assert messages[1] == first
    assert any(line.startswith("held out for validation: ") and "of 79 records" in line for line in messages)


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        ("a table", {"label": "star"}, "no column 'star'; there are: body, stars, second. Did you mean 'stars'?"),
        ("a table", {"source": "en"}, "source = 'en' names a column that task.kind = 'classification' does not read"),
        ("a table", {"validation": 0.2, "validation_sources": "v.jsonl"}, "validation = 0.2 has no effect"),
        ("a table", {"sources": []}, "this task needs records with text and label: name their files"),
        ("tagged words", {"label": "tag"}, "CoNLL's columns have no names; give a number, from 1"),
    ],
)
def test_settings_that_do_not_fit_the_files(folder: Path, kind: str, more: dict[str, Any], message: str) -> None:
    assert message in refusal(lambda: prepare(settings(folder, kind, **more), folder / "run"))
    assert not (folder / "run").exists()


def test_a_text_may_have_validation_files_too(config: Callable[..., RunConfig], tmp_path: Path, quick: None) -> None:
    (tmp_path / "held.csv").write_text('id,text\n1,"the end, held out"\n2,another\n')
    messages: list[str] = []
    prepare(config(data={"validation_sources": str(tmp_path / "held.csv")}), tmp_path / "run", messages.append)
    assert any(line.startswith("validation: 2 documents of validation_sources, ") for line in messages)
    store: Any = open_store(tmp_path / "run" / "data")
    assert (store.validation.documents, store.train.documents) == (2, 1)
    assert bytes(store.validation.tokens[:17].tolist()) == b"the end, held out"


def read(data: dict[str, Any], task: str, directory: Path) -> tuple[list[str], RecordStore | TokenStore]:
    """What is told of sources, and the store that they become."""
    config, messages = RunConfig.of({"data": data, "task": task}), list[str]()
    with open_dataset(config.data, config.task) as sources:
        messages.append(sources.read(messages.append))
        store, _ = sources.tokenize(
            directory, train_tokenizer("bytes", [], special=("<|endoftext|>",)), messages.append
        )
    return messages, store


def test_what_cannot_be_read_is_left_out_if_asked_and_counted_in_the_store(tmp_path: Path) -> None:
    lines = [f'{{"text": "number {n}", "label": "{"xy"[n % 2]}"}}\n'.encode() for n in range(20)]
    lines[3:6] = b"{\n", b'{"text": null, "label": "x"}\n', '{"text": "Fäden", "label": "x"}\n'.encode("latin-1")
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines))
    data = {"sources": str(tmp_path / "a.jsonl")}
    for task in ("classification", "next_token"):
        message = refusal(lambda task=task: read(data, task, tmp_path / "none"))  # type: ignore[misc]
        assert message.startswith(f"{tmp_path}/a.jsonl:4: not a line of JSON")
        messages, store = read({**data, "skip_invalid": True}, task, tmp_path / task)
        counts = {"not JSON": 1, "null": 1, "not UTF-8": 1}
        where = f"{tmp_path}/a.jsonl"
        assert messages[0] == (
            f"left out: 3 of 20 items (not JSON: 1, first {where}:4; null: 1, first {where}:5; not UTF-8: 1, first {where}:6)"
        )
        assert messages[1].startswith("17 ")
        assert open_store(tmp_path / task).left_out == store.left_out == counts
        assert store.provenance is None
    with pytest.raises(HeddleError, match="encoding = 'latin1000' is unknown to Python"):
        RunConfig.of({"data": {"encoding": "latin1000"}})


def test_another_encoding_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Fäden und Öl\n".encode("cp1252") * 9)
    _, store = read({"sources": str(tmp_path / "a.txt"), "encoding": "cp1252"}, "next_token", tmp_path / "store")
    assert bytes(store.train.tokens[:6].tolist()).decode() == "Fäden"


def test_files_of_a_folder_that_are_not_read_are_told(tmp_path: Path) -> None:
    """How many, of which kinds, and how to read them; records in `.json` are read, and settings in it are not."""
    folder = tmp_path / "texts"
    (folder / "sub").mkdir(parents=True)
    for name, text in {
        "a.txt": "one text", "sub/b.md": "another", "c.py": "x = 3", "sub/d.py": "y = 4", "e.pdf": "%PDF-", "LICENSE": "free",
        "f.json": '[{"text": "a record"}]', "g.json": '{\n"steps": 3\n}', ".hidden": "never",
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    messages, _ = read({"sources": str(folder)}, "next_token", tmp_path / "store")
    assert messages == [
        "5 of 8 files in folders have extensions that are not read: 2 .py, 1 no extension, 1 .pdf, 1 .json; to read them, name "
        f"them by a pattern, such as '{folder}/**/*.py'",
        "3 documents, 0.0 MB",
    ]
    with pytest.warns(UserWarning, match="5 of 8 files in folders"):
        assert len(list(read_documents([folder]))) == 3


def test_a_label_of_the_validation_part_alone_does_not_refuse_training(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\tlabel\na b\tx\nc d\ty\ne f\tx\n")
    (tmp_path / "v.tsv").write_text("text\tlabel\ng h\tz\ni j\tx\n")
    data = {"sources": str(tmp_path / "a.tsv"), "validation_sources": str(tmp_path / "v.tsv")}
    messages, store = read(data, "classification", tmp_path / "store")
    assert messages[0] == (
        f"1 label of the validation part is not in the training part ('z', first {tmp_path}/v.tsv:2): no record teaches it"
    )
    assert isinstance(store, RecordStore)
    assert store.train.classes == store.validation.classes == ("x", "y", "z")
    assert store.validation.columns["label"].values.tolist() == [2, 0]
