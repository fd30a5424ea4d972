"""`heddle classify`, `fill` and `embed`: what they read, what they print, and what they refuse."""

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import heddle as package
from heddle.config import (
    ChatTemplateConfig,
    ClassificationConfig,
    MultiLabelConfig,
    RegressionConfig,
    TokenClassificationConfig,
    TransformerConfig,
)
from heddle.data.corpus import Corpus
from heddle.model import build
from heddle.weights.files import relist
from tests.tasks.labelled import TOKENIZER, WORDS, model_for, records

from .conftest import Heddle

Refused = Callable[..., str]
MASKED = package.train_tokenizer("words", [" ".join(WORDS)], 100, ("[MASK]",))
KINDS = {
    "class": ClassificationConfig(),
    "labels": MultiLabelConfig(),
    "tags": TokenClassificationConfig(),
    "number": RegressionConfig(),
}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Runs of new models: `class`, `labels`, `tags`, `number` and `masked`."""
    for kind, config in KINDS.items():
        package.save(build(model_for(config, Corpus(records(kind)))), tmp_path / "runs" / kind, TOKENIZER)
    block = {"mixer": {"heads": 2}}
    settings = {"vocab_size": MASKED.vocab_size, "dim": 16, "context": 16, "encoder": {"depth": 1, "block": block}}
    package.save(build(TransformerConfig.of(settings)), tmp_path / "runs" / "masked", MASKED)
    return tmp_path / "runs"


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_several_labels(heddle: Heddle, runs: Path, tmp_path: Path, refused: Refused) -> None:
    """Those above the threshold, in text and JSON; files are scored with the task that the head is for."""
    result = heddle("classify", "labels", "the warp", "thrown", "--threshold", "0", "--json")
    for text, each in zip(("the warp", "thrown"), lines(result.out), strict=True):
        (expected,) = package.classify(*loaded(runs / "labels"), [text], threshold=0.0)
        assert each["labels"] == ["cold", "warm"] == list(expected.labels)
        assert each["probabilities"] == pytest.approx(dict(expected.probabilities), abs=1e-6)
    shown = heddle("classify", "labels", "the warp", "thrown", "--threshold", "1").out
    assert shown.count("none") == 2
    assert "labels, probability" in shown
    alone = heddle("classify", "labels", "the warp", "--threshold", "0").out
    assert ("predicted" in alone, alone.count("yes")) == (True, 2)
    assert "threshold = 0.5 is for multi-label models" in refused("classify", "class", "warp", "--threshold", "0.5")
    (tmp_path / "rows.csv").write_text("text,cold,warm\nthe warp,1,0\nthrown,1,1\nis held,0,0\n")
    scored = heddle("eval", "labels", "rows.csv", "--label-column", "cold,warm", "--json").json
    assert scored["tokens"] == 3
    assert {"micro_f1", "macro_f1", "subset_accuracy"} <= set(scored)
    (tmp_path / "strange.jsonl").write_text(
        '{"text": "the warp", "label": ["cold", "sunny"]}\n{"text": "thrown", "label": ["rainy"]}\n{"text": "over", "label": []}\n'
    )
    unseen = heddle("eval", "labels", "strange.jsonl", "--json").json
    assert (unseen["tokens"], unseen["unseen_labels"]) == (3, {"sunny": 1, "rainy": 1})
    assert unseen["subset_accuracy"] <= 1 / 3  # whatever is predicted, two texts have labels that it lacks
    rows = heddle("eval", "labels", "strange.jsonl").out
    assert "counted as missed: 2 labels that the run has not learned: 'sunny' (1), 'rainy' (1)" in rows
    (tmp_path / "cells.csv").write_text('text,label\nthe warp,cold\nthrown,"warm,cold"\nis held,\n')
    again = heddle("eval", "labels", "cells.csv", "--json").json
    assert again["loss"] == scored["loss"]
    (tmp_path / "wrong.csv").write_text("text,label\nthe warp,hot\n")
    assert "does not know the label hot" in refused("eval", "labels", "wrong.csv")


def loaded(run: Path) -> tuple[Any, Any]:
    model, tokenizer = package.load(run)
    return model, tokenizer


def test_classes_are_read_from_everywhere(
    heddle: Heddle, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments, lines, tables, lines of JSON: in order, and the same as in Python."""
    (tmp_path / "lines.txt").write_text("the warp\n\nis held\n")
    (tmp_path / "table.csv").write_text('text,other\n"the weft, thrown",1\n')
    (tmp_path / "rows.jsonl").write_text('{"body": "over"}\n')
    result = heddle("classify", "class", "the warp is held", "lines.txt", "table.csv", "--json", "--device", "cpu")
    assert result.err.startswith("1 empty text of 5: no result (null or NaN)\n")
    rows = lines(result.out)
    assert rows.pop(2) == {"text": "", "label": None, "probability": None, "probabilities": None, "cut": None}
    texts = ["the warp is held", "the warp", "is held", "the weft, thrown"]
    assert [each["text"] for each in rows] == texts
    for each, expected in zip(rows, package.classify(*loaded(runs / "class"), texts), strict=True):
        assert each["probabilities"] == pytest.approx(dict(expected.probabilities), abs=1e-6)
        assert (each["label"], each["cut"]) == (expected.label, False)
    assert heddle("classify", "class", "--json", "--", "--warp").json["text"] == "--warp"
    other = heddle("classify", "class", "rows.jsonl", "--text-column", "body", "--json")
    assert [each["text"] for each in lines(other.out)] == ["over"]
    for piped in ("the warp\nis held\n", '{"text": "the warp"}\n{"text": "is held"}\n'):
        for words in ([], ["-"]):
            monkeypatch.setattr("sys.stdin", io.StringIO(piped))
            monkeypatch.setattr("sys.stdin.isatty", lambda: False)
            assert [each["text"] for each in lines(heddle("classify", "class", *words, "--json").out)] == texts[1:3]


def test_pairs_words_and_numbers(heddle: Heddle, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text('{"text": "the warp", "second": "the weft"}\n')
    tabled = heddle("classify", "class", "pairs.jsonl", "--pair-column", "second", "--json").json
    assert (tabled["text"], tabled["pair"]) == ("the warp", "the weft")
    report = heddle("classify", "class", "the warp", "--pair", "the weft", "--json").json
    assert report == tabled
    (tmp_path / "words.conll").write_text("the O\nwarp O\n\nis O\nheld O\n")
    tagged = lines(heddle("classify", "tags", "words.conll", "the weft", "--json").out)
    assert [[word["word"] for word in each["words"]] for each in tagged] == [
        ["the", "warp"],
        ["is", "held"],
        ["the", "weft"],
    ]
    assert {word["label"] for each in tagged for word in each["words"]} <= {"O", "B-THREAD", "I-THREAD"}
    number = heddle("classify", "number", "the warp", "--json").json
    assert number["number"] == pytest.approx(
        package.classify(*loaded(runs / "number"), ["the warp"])[0].number, abs=1e-6
    )


def test_tables_for_people(heddle: Heddle, runs: Path) -> None:
    (first, *rest) = heddle("classify", "class", "the warp").out.splitlines()
    assert first.split() == ["class", "probability"]
    assert {line.split()[0] for line in rest} == {"cold", "warm", "hot"}
    assert [float(line.split()[1]) for line in rest] == sorted((float(line.split()[1]) for line in rest), reverse=True)
    several = heddle("classify", "class", "the [warp]", "held").out
    assert re.search(r"^the \[warp\] +(cold|warm|hot) +0\.\d{4}", several, re.MULTILINE)
    assert heddle("classify", "number", "the warp").out.split()[:2] == ["text", "number"]
    assert heddle("classify", "tags", "the warp", "held").out.count("\n") == 5
    long = heddle("classify", "class", " ".join(WORDS * 3), "held")
    assert long.err == "texts longer than context = 16: 1 of 2; they are truncated\n"
    shown = heddle("fill", "masked", "the [MASK] is held", "--top", "2").out.splitlines()
    (expected,) = package.fill(*loaded(runs / "masked"), ["the [MASK] is held"], top=2)
    assert shown[0].split() == ["mask", "token", "probability"]
    assert [line.split() for line in shown[1:3]] == [
        ["1", each.token.strip(), f"{each.probability:.4f}"] for each in expected.masks[0]
    ]
    assert shown[3] == expected.text


def test_masks_as_json(heddle: Heddle, runs: Path) -> None:
    rows = lines(heddle("fill", "masked", "the [MASK] is [MASK]", "[MASK] over", "--top", "3", "--json").out)
    assert [each["text"] for each in rows] == ["the [MASK] is [MASK]", "[MASK] over"]
    for each, expected in zip(
        rows, package.fill(*loaded(runs / "masked"), [each["text"] for each in rows], 3), strict=True
    ):
        assert each["filled"] == expected.text
        assert [[one["id"] for one in mask] for mask in each["masks"]] == [
            [one.id for one in mask] for mask in expected.masks
        ]


def test_vectors_into_files(heddle: Heddle, runs: Path, tmp_path: Path) -> None:
    texts = ["the warp", "is held"]
    expected = package.embed(*loaded(runs / "masked"), texts, pooling="last", normalise=True).vectors
    how = ["--pooling", "last", "--normalise"]
    for name in ("v.npy", "v.safetensors", "v.jsonl"):
        assert heddle("embed", "masked", *texts, *how, "--out", name).out == f"{name}: 2 vectors of 16 dimensions\n"
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-6)
    np.testing.assert_allclose(load_file(tmp_path / "v.safetensors")["embeddings"], expected, atol=1e-6)
    for rows in ((tmp_path / "v.jsonl").read_text(), heddle("embed", "masked", *texts, *how, "--json").out):
        assert [each["text"] for each in lines(rows)] == texts
        np.testing.assert_allclose([each["embedding"] for each in lines(rows)], expected, atol=1e-6)
    assert "vector of 16 dimensions" in heddle("embed", "masked", *texts).out


def test_long_work_says_how_far_it_is(
    heddle: Heddle, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heddle.progress.EVERY", 0.001)
    monkeypatch.setattr("heddle.predict.inputs.CHUNK", 200)
    monkeypatch.setattr("heddle.predict.rows.TOKENS", {"cpu": 64})
    (tmp_path / "many.txt").write_text("the warp is held\n" * 500)
    result = heddle("classify", "class", "many.txt", "--json")
    assert len(lines(result.out)) == 500
    assert re.search(r"^\d+ of 500 texts, 0 s$", result.err, re.MULTILINE)


def test_labelled_files_are_scored_by_a_model_without_a_training(
    heddle: Heddle, refused: Refused, runs: Path, tmp_path: Path
) -> None:
    """An imported classifier, say: the task is its head's, and accuracy is that of `classify`."""
    texts, labels = ["the warp", "is held", "the weft", "over"], ["cold", "hot", "warm", "cold"]
    (tmp_path / "new.csv").write_text(
        "text,label\n" + "".join(f"{a},{b}\n" for a, b in zip(texts, labels, strict=True))
    )
    scored = heddle("eval", "class", "new.csv", "--json").json
    predictions = package.classify(*loaded(runs / "class"), texts)
    assert scored["accuracy"] == np.mean([each.label == label for each, label in zip(predictions, labels, strict=True)])
    assert (scored["text"], scored["tokens"]) == ("new.csv", 4)
    (tmp_path / "other.csv").write_text("text,label\nthe warp,sunny\nis held,cold\nover,rainy\n")
    some = heddle("eval", "class", "other.csv", "--json").json
    assert (some["tokens"], some["unseen_labels"]) == (1, {"sunny": 1, "rainy": 1})
    (tmp_path / "one.csv").write_text("text,label\nis held,cold\n")
    assert some["loss"] == heddle("eval", "class", "one.csv", "--json").json["loss"]
    output = heddle("eval", "class", "other.csv").out
    assert "not scored: 2 labels that the run has not learned: 'sunny' (1), 'rainy' (1)" in output
    (tmp_path / "none.csv").write_text("text,label\nthe warp,sunny\nover,rainy\n")
    message = refused("eval", "class", "none.csv")
    assert message == "none.csv:2: runs/class does not know the labels sunny, rainy; it has learned cold, warm, hot"


def test_words_whose_tag_the_run_has_not_learned_are_not_scored(heddle: Heddle, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "new.conll").write_text("the O\nwarp B-THREAD\nis B-NEW\n\nheld I-NEW\n\nover O\n")
    report = heddle("eval", "tags", "new.conll", "--json").json
    assert (report["tokens"], report["unseen_labels"]) == (3, {"B-NEW": 1, "I-NEW": 1})


def test_what_cannot_be_read_is_left_out_of_a_score_if_asked(
    heddle: Heddle, refused: Refused, runs: Path, tmp_path: Path
) -> None:
    (tmp_path / "new.jsonl").write_bytes(
        b'{"text": "the warp", "label": "cold"}\n{"text": null, "label": "cold"}\n{\n\xe4\n'
    )
    assert "new.jsonl:2: column 'text' has nothing, not a string" in refused("eval", "class", "new.jsonl")
    report = heddle("eval", "class", "new.jsonl", "--skip-invalid", "--json").json
    assert (report["tokens"], report["malformed"]) == (1, {"null": 1, "not JSON": 1, "not UTF-8": 1})
    output = heddle("eval", "class", "new.jsonl", "--skip-invalid").out
    assert "left out: 3 of 4 items (null: 1, first new.jsonl:2; not JSON: 1, first new.jsonl:3; not UTF-8: 1" in output


def read_back(file: Path) -> list[dict[str, Any]]:
    """The rows of a file of results."""
    if file.suffix == ".parquet":
        return list(pytest.importorskip("pyarrow.parquet").read_table(file).to_pylist())
    if file.suffix == ".jsonl":
        return lines(file.read_text())
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("kind", [".csv", ".jsonl", ".parquet"])
def test_rows_keep_their_place_and_their_columns(heddle: Heddle, runs: Path, tmp_path: Path, kind: str) -> None:
    """Blank ones and null ones included, with what `classify` and `embed` say of the others."""
    (tmp_path / "new.jsonl").write_text(
        '{"id": "a", "text": "the warp"}\n{"id": "b", "text": " "}\n{"id": "c", "text": null}\n{"id": "d", "text": "held"}\n'
    )
    model = loaded(runs / "class")
    whole = package.classify(*model, ["the warp", "held"])
    out = tmp_path / f"classes{kind}"
    result = heddle("classify", "class", "new.jsonl", "--out", str(out))
    assert result.err.startswith("2 empty texts of 4: no result (null or NaN)\n")
    actual = read_back(out)
    assert [(str(row["index"]), row["id"]) for row in actual] == [("0", "a"), ("1", "b"), ("2", "c"), ("3", "d")]
    none = "" if kind == ".csv" else None
    assert [row["predicted"] for row in actual] == [whole[0].label, none, none, whole[1].label]
    assert float(actual[3]["probability"]) == pytest.approx(whole[1].probability, abs=1e-6)
    vectors = package.embed(*model, ["the warp", "held"]).vectors
    heddle("embed", "class", "new.jsonl", "--out", str(tmp_path / f"vectors{kind}"))
    rows = read_back(tmp_path / f"vectors{kind}")
    embedded = [
        json.loads(row["embedding"]) if kind == ".csv" and row["embedding"] else row["embedding"] for row in rows
    ]
    assert [row["id"] for row in rows] == ["a", "b", "c", "d"]
    assert embedded[1] in ("", None)
    np.testing.assert_allclose([embedded[0], embedded[3]], vectors, atol=1e-6)


def test_vectors_and_fillings_keep_their_place(heddle: Heddle, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("the [MASK]\n\n[MASK] warp\n")
    heddle("embed", "masked", "new.txt", "--out", "vectors.npy")
    vectors = np.load(tmp_path / "vectors.npy")
    assert np.isnan(vectors).all(axis=1).tolist() == [False, True, False]
    assert not np.isnan(vectors[[0, 2]]).any()
    embedded = lines(heddle("embed", "masked", "new.txt", "--json").out)
    assert [each["embedding"] is None for each in embedded] == [False, True, False]
    heddle("fill", "masked", "new.txt", "--out", "filled.csv")
    filled = read_back(tmp_path / "filled.csv")
    assert [bool(row["filled"]) for row in filled] == [True, False, True]
    assert filled[2]["filled"] == lines(heddle("fill", "masked", "new.txt", "--json").out)[2]["filled"]
    (tmp_path / "words.txt").write_text("the warp\n\nheld\n")
    heddle("classify", "tags", "words.txt", "--out", "tags.jsonl")
    assert [each["predicted"] and len(each["predicted"]) for each in read_back(tmp_path / "tags.jsonl")] == [2, None, 1]
    heddle("classify", "number", "words.txt", "--out", "numbers.jsonl")
    assert [each["predicted"] is None for each in read_back(tmp_path / "numbers.jsonl")] == [False, True, False]


def test_malformed_rows_are_refused_or_left_out_and_counted(
    heddle: Heddle, refused: Refused, runs: Path, tmp_path: Path
) -> None:
    rows = ['{"text": "the warp"}', '{"text": 3', '{"txt": "held"}', '{"text": ""}', '{"text": "over"}']
    (tmp_path / "new.jsonl").write_text("\n".join(rows) + "\n")
    assert "new.jsonl:2: not a line of JSON" in refused("classify", "class", "new.jsonl")
    for command in (["classify", "class"], ["embed", "class"]):
        result = heddle(*command, "new.jsonl", "--skip-invalid", "--json")
        assert [line["text"] for line in lines(result.out)] == ["the warp", "", "over"]
        assert (
            "left out: 2 of 5 items (not JSON: 1, first new.jsonl:2; missing column: 1, first new.jsonl:3)"
            in result.err
        )
        assert "1 empty text of 3: no result" in result.err


@pytest.mark.parametrize("name", ["new.txt", "new.csv"])
def test_other_encodings_are_read_where_they_are_named(
    heddle: Heddle, refused: Refused, runs: Path, tmp_path: Path, name: str
) -> None:
    rows = ["the warp", "caf\u00e9", "over"]
    (tmp_path / name).write_text("\n".join(["text", *rows] if name.endswith(".csv") else rows), "cp1252")
    line = 3 if name.endswith(".csv") else 2
    for command in (["classify", "class"], ["embed", "class"]):
        assert f"{name}:{line}: not UTF-8 (0xe9)" in refused(*command, name)
        read = lines(heddle(*command, name, "--encoding", "cp1252", "--json").out)
        assert [each["text"] for each in read] == rows
        left = heddle(*command, name, "--skip-invalid", "--json")
        assert [each["text"] for each in lines(left.out)] == [rows[0], rows[2]]
        assert f"left out: 1 of 3 items (not UTF-8: 1, first {name}:{line})" in left.err
    for command in (["classify", "class"], ["eval", "class"]):
        assert "encoding = 'cp12522' is unknown to Python" in refused(*command, name, "--encoding", "cp12522")


def test_columns_of_several_kinds_fit_into_text_and_not_into_parquet(
    heddle: Heddle, refused: Refused, runs: Path, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "new.jsonl").write_text('{"text": "the warp", "id": 5}\n{"text": "held", "id": "\\ud83d x"}\n')
    message = refused("classify", "class", "new.jsonl", "--out", "out.parquet")
    assert message.startswith("--out out.parquet: column 'id' cannot be stored as Parquet (")
    assert message.endswith("); write .jsonl or .csv")
    assert not (tmp_path / "out.parquet").exists()
    for name in ("out.jsonl", "out.csv"):
        heddle("classify", "class", "new.jsonl", "--out", name)
    assert [row["id"] for row in read_back(tmp_path / "out.jsonl")] == [5, "\ud83d x"]
    assert [row["id"] for row in read_back(tmp_path / "out.csv")] == ["5", "\\ud83d x"]


def test_files_of_results_that_cannot_be_written_are_refused(refused: Refused, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("text,predicted\nthe warp,x\n")
    message = refused("classify", "class", "new.csv", "--out", "out.csv")
    assert message == "--out: the input column 'predicted' has the name of a result column; rename it in the input"
    assert (
        refused("classify", "class", "new.csv", "--out", "out.xlsx")
        == "--out out.xlsx: must end in .csv, .jsonl or .parquet"
    )
    assert "exists" in refused("fill", "masked", "the [MASK]", "--out", "new.csv")


def test_other_columns_are_scored_where_they_are_named(
    heddle: Heddle, refused: Refused, runs: Path, tmp_path: Path
) -> None:
    """Pairs, too, by a model without a training; a table whose pair would be left out is refused."""
    pairs = [("the warp", "is held"), ("over", "the weft"), ("the weft and", "thrown over"), ("held", "and the warp")]
    labels = ["cold", "hot", "warm", "cold"]
    rows = "".join(f"{a},{b},{label}\n" for (a, b), label in zip(pairs, labels, strict=True))
    (tmp_path / "named.csv").write_text(f"premise,hypothesis,gold\n{rows}")
    (tmp_path / "plain.csv").write_text(f"text,pair,label\n{rows}")

    def loss(texts: Sequence[Any]) -> Any:
        predictions = package.classify(*loaded(runs / "class"), texts)
        shares = [each.probabilities[label] for each, label in zip(predictions, labels, strict=True)]
        return pytest.approx(-np.log(shares).mean(), abs=1e-5)

    premise, gold = ["--text-column", "premise"], ["--label-column", "gold"]
    named = [*premise, "--pair-column", "hypothesis", *gold]
    assert heddle("eval", "class", "named.csv", *named, "--json").json["loss"] == loss(pairs)
    assert heddle("eval", "class", "named.csv", *premise, *gold, "--json").json["loss"] == loss([a for a, _ in pairs])
    message = "plain.csv:2: the column 'pair' would not be read: add --pair-column pair, or remove the column"
    assert refused("eval", "class", "plain.csv") == message
    assert heddle("eval", "class", "plain.csv", "--pair-column", "pair", "--json").json["loss"] == loss(pairs)
    seconds = heddle("eval", "class", "plain.csv", "--text-column", "pair", "--json").json["loss"]
    assert seconds == loss([b for _, b in pairs])


def test_columns_that_a_run_does_not_read_are_refused(
    heddle: Heddle, refused: Refused, run_a: Path, runs: Path, tmp_path: Path
) -> None:
    (tmp_path / "texts.csv").write_text("body,other\nthe warp is held over the loom,1\n")
    (tmp_path / "pairs.csv").write_text("text,pair,label\nthe warp,the weft,cold\n")
    assert heddle("eval", "a", "texts.csv", "--text-column", "body").code == 0
    trained_on = json.loads((runs / "class" / "config.json").read_text()) | {"data": {"sources": ["texts.csv"]}}
    (runs / "class" / "config.json").write_text(json.dumps(trained_on))
    relist(runs / "class", "config.json")
    assert heddle("eval", "class", "pairs.csv").code == 0  # its task is known: to read texts alone
    for words, message in (
        (["class", "pairs.csv", "--pair-column", "pair"], "runs/class reads single texts: leave out --pair-column"),
        (["tags", "pairs.csv", "--pair-column", "pair"], "--pair-column does not apply to runs/tags, which reads text"),
        (["a", "texts.csv", "--label-column", "other"], "--label-column does not apply to runs/a, which reads text: "),
        (["class", "--label-column", "gold"], "--label-column needs a file to score"),
        (["a", "--tasks", "t.yaml", "--text-column", "body"], "needs a file to score"),
    ):
        assert message in refused("eval", *words), words


def test_a_classifier_that_was_a_chats_model_is_scored(heddle: Heddle, runs: Path, tmp_path: Path) -> None:
    """Its config keeps the chat template, which its records have nothing to do with."""
    (tmp_path / "new.csv").write_text("text,label\nthe warp,cold\nis held,hot\n")
    expected = heddle("eval", "class", "new.csv", "--json").json["loss"]
    model, tokenizer = loaded(runs / "class")
    model.config = model.config.override({"chat": ChatTemplateConfig().to_dict()})
    package.save(model, runs / "chat", tokenizer)
    assert heddle("eval", "chat", "new.csv", "--json").json["loss"] == expected


def test_what_is_refused_is_one_line(refused: Refused, run_a: Path, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("the warp\n")
    (tmp_path / "table.csv").write_text("body\nthe warp\n")
    (tmp_path / "there.npy").write_text("")
    (tmp_path / "m.txt").write_text("the [MASK]\nthe warp\n")
    (tmp_path / "long.txt").write_text("[MASK] " * 80)
    for words, message in (
        (["classify", "a", "text"], "this model predicts tokens, so it cannot classify"),
        (["generate", "class"], "cannot generate text; use heddle classify"),
        (["generate", "masked"], "cannot generate text; use heddle fill"),
        (["classify", "class", "text", "--jsn"], "Unknown option: --jsn. Did you mean --json?"),
        (["classify", "class", "reviws.csv"], "reviws.csv: no such file"),
        (["classify", "class", "table.csv"], "table.csv:2: no column 'text'"),
        (["classify", "class", " "], "every text is empty"),
        (["classify", "class", "one", "two", "--pair", "three"], "2 texts and 1 second text"),
        (["classify", "class", "lines.txt", "--pair-column", "second"], "give a table"),
        (["classify", "tags", "one", "--pair", "two"], "do not apply to a run that classifies words"),
        (["fill", "a", "the [MASK]"], "heddle generate continues a text"),
        (["fill", "class", "the [MASK]"], "head is of kind 'classifier', which does not predict tokens"),
        (["fill", "masked", "the warp"], "the text has no [MASK] to fill in"),
        (["fill", "masked", "the [MASK]", "the warp"], "text 2 has no [MASK] to fill in"),
        (["fill", "masked", "m.txt"], "m.txt:2 has no [MASK] to fill in"),
        (["fill", "masked", "long.txt"], "long.txt:1 is longer than the model's context of 16 tokens"),
        (["fill", "masked", "[MASK]", "--top", "0"], "top = 0: must be at least 1"),
        (
            ["eval", "a", "corpus.txt", "--tasks", "t.yaml"],
            "--tasks cannot be combined with files, --context or --beams",
        ),
        (
            ["eval", "a", "--beams", "2", "--tasks", "t.yaml"],
            "--tasks cannot be combined with files, --context or --beams",
        ),
        (["eval", "a", "--beams", "2"], "was not trained to translate: leave out --beams"),
        (["eval", "a", "--limit", "3"], "--limit and --shots need --tasks"),
        (["eval", "a", "--tasks", "t.yaml", "--limit", "0"], "limit = 0: must be at least 1"),
        (
            ["embed", "a", "text", "--out", "x.txt"],
            "--out x.txt: must end in .npy, .safetensors, .csv, .jsonl or .parquet",
        ),
        (["embed", "a", "text", "--out", "there.npy"], "there.npy: already exists"),
        (["embed", "a", "text", "--out", "there.npy/v.npy"], "there.npy is not a writable folder"),
    ):
        assert message in refused(*words), words
