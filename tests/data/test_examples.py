"""Records from files of every usual kind: what was written is read, and what is not as it should be is refused with its place."""

import bz2
import csv
import gzip
import io
import json
import lzma
import shutil
import sys
import types
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heddle.config.data import DataConfig
from heddle.data.record_stats import RecordStats, class_names, describe_examples, for_parts
from heddle.data.sources.documents import read_documents
from heddle.data.sources.examples import Example, read_examples
from heddle.data.sources.files import standard_input
from heddle.data.sources.notes import MalformedError, Reader
from heddle.data.sources.tables import read_rows
from heddle.data.sources.values import split_words
from tests import refusing

PAIR = ("source", "target")
CLASSES = ("text", "label")


def read(*sources: str | Path, fields: tuple[str, ...] = PAIR, **more: Any) -> list[Example]:
    return list(read_examples(sources, fields, **{"reader": Reader(), **more}))


def refusal(*sources: str | Path, **more: Any) -> str:
    return refusing.refusal(lambda: read(*sources, **more))


def texts(examples: list[Example]) -> list[tuple[Any, ...]]:
    return [tuple(each.texts.values()) for each in examples]


FIELD = st.text(alphabet='a",\n\r\té \u2028;\ufeff', max_size=6)


@given(st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=6), st.sampled_from(["", "\ufeff"]))
@example([('"', "\n\n"), ("\r", "")], "\ufeff")
def test_csv_that_python_writes_comes_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], mark: str
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    written = io.StringIO()
    csv.writer(written).writerows([("source", "target"), *rows])
    file = folder / "a.csv"
    file.write_bytes((mark + written.getvalue()).encode())
    assert texts(read(file)) == rows
    places = [int(each.origin.rpartition(":")[2]) for each in read(file)]
    lines = written.getvalue().split("\n")
    if not any("\n" in field or "\r" in field for row in rows for field in row):
        assert places == list(range(2, len(rows) + 2))
    assert all(lines[place - 1] for place in places)
    shutil.rmtree(folder)


def test_one_field_may_be_a_long_document(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f'id,text\n1,"{"word " * 50_000}"\n')
    assert len(next(read_documents([tmp_path / "a.csv"])).text) == 250_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "source,target\na,b\nc\n", "a.csv:3: 1 field, but the header names 2: source, target"),
        ("a.csv", 'source,target\n"a\n,b",c,d\n', "a.csv:2: 3 fields"),
        ("a.csv", 'source,target\n"a,b\n', "a.csv:2: not valid CSV (unexpected end of data)"),
        ("a.csv", 'source,target\n"a" x,b\n', "a.csv:2: not valid CSV"),
        ("a.csv", "source,target\ra,b\r", "a.csv:1: not valid CSV (its lines end in carriage returns alone); end them with"),
        ("a.csv", "source,source\na,b\n", "a.csv:1: the header names the column 'source' twice"),
        ("a.csv", "source,targets\na,b\n", "a.csv:2: no column 'target'; there are: source, targets. Did you mean 'targets'?"),
        ("a.tsv", "source\ttarget\na\tb\tc\n", "a.tsv:2: 3 fields"),
        ("a.tsv", "source\ttarget\ra\tb\r", "a.tsv:1: not a header (its lines end in carriage returns alone); end them with"),
        ("a.jsonl", '{"source": "a"}\n', "a.jsonl:1: no column 'target'; there are: source"),
        ("a.jsonl", '{"source": "a", "target": ["b"]}\n', "a.jsonl:1: column 'target' has a list, not a string"),
        ("a.jsonl", '{"source": "a", "target": null}\n', "a.jsonl:1: column 'target' has nothing, not a string"),
        ("a.csv", "source,target\n", "no records"),
        ("a.csv", "", "no records"),
    ],
)  # fmt: skip
def test_tables_that_are_not_as_they_should_be(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    assert message in refusal(tmp_path / name)


def test_quotes_in_tsv_are_characters(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b'source\ttarget\r\n"a\tb"\r\n\r\nc\td\r\n')
    assert texts(read(tmp_path / "a.tsv")) == [('"a', 'b"'), ("c", "d")]
    assert [row.origin.rpartition(":")[2] for row in read_rows(tmp_path / "a.tsv")] == ["2", "4"]


def test_columns_have_the_names_that_the_user_gives(tmp_path: Path) -> None:
    line = {"translation": {"en": "a", "de": "b"}, "de.x": "c"}
    (tmp_path / "a.jsonl").write_text(json.dumps(line) + "\n")
    columns = {"source": "translation.en", "target": "de.x"}
    assert texts(read(tmp_path / "a.jsonl", columns=columns)) == [("a", "c")]
    message = refusal(tmp_path / "a.jsonl", columns={"source": "translation.fr"})
    assert "no column 'translation.fr'; there are: translation, de.x" in message
    assert [each.text for each in read_documents([tmp_path / "a.jsonl"], "translation.de")] == ["b"]


@pytest.mark.parametrize(
    ("extension", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed_files(tmp_path: Path, extension: str, compress: Any) -> None:
    for side, text in (("en", b"one\ntwo\n"), ("de", b"eins\nzwei\n")):
        (tmp_path / f"train.{side}{extension}").write_bytes(compress(text))
    examples = read(tmp_path, columns={"source": "en", "target": "de"})
    assert texts(examples) == [("one", "eins"), ("two", "zwei")]
    (tmp_path / f"train.de{extension}").write_bytes(compress(b"eins\nzwei\n" * 999)[:-9])
    assert "cut short" in refusal(tmp_path, columns={"source": "en", "target": "de"})
    (tmp_path / f"train.de{extension}").write_bytes(b"plain text, more than enough of it")
    assert "not a valid" in refusal(tmp_path, columns={"source": "en", "target": "de"})


def test_zstd_needs_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt.zst").write_bytes(b"zstd")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert "pip install zstandard" in refusing.refusal(lambda: list(read_documents([tmp_path / "a.txt.zst"])))
    # A witness for the one function that is called, where the package is not installed.
    opened = types.ModuleType("zstandard")
    vars(opened)["open"] = lambda file, mode: io.BytesIO(b"its text")
    monkeypatch.setitem(sys.modules, "zstandard", opened)
    assert [each.text for each in read_documents([tmp_path / "a.txt.zst"])] == ["its text"]


class TestParallel:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name, lines in {
            "train.en": "\ufeffone\r\ntwo \u2028 lines\r\n",
            "train.de": "eins\nzwei",
            "val.en": "three\n",
            "val.de": "drei\n",
            "README.md": "not a pair",
        }.items():
            (tmp_path / name).write_bytes(lines.encode())
        return tmp_path

    def test_of_two_files_the_first_is_the_source(self, folder: Path) -> None:
        examples = read(folder / "train.de", folder / "train.en")
        assert texts(examples) == [("eins", "one"), ("zwei", "two \u2028 lines")]
        assert examples[1].origin == f"{folder}/train.de:2"

    def test_extensions_name_the_sides(self, folder: Path) -> None:
        columns = {"source": "en", "target": "de"}
        for sources in ([folder], [folder / "train.de", folder / "train.en", f"{folder}/val.*"]):
            pairs = texts(read(*sources, columns=columns))
            assert pairs == [("one", "eins"), ("two \u2028 lines", "zwei"), ("three", "drei")]

    def test_unequal_files(self, folder: Path) -> None:
        (folder / "train.de").write_text("eins\n")
        message = refusal(folder / "train.en", folder / "train.de")
        assert (
            message
            == f"{folder}/train.de has 1 line, but {folder}/train.en has 2: parallel files need equally many lines"
        )
        (folder / "train.de").write_text("eins\n" * 9)
        assert f"{folder}/train.en has 2 lines, but {folder}/train.de has 9" in refusal(
            folder / "train.en", folder / "train.de"
        )

    def test_files_that_are_no_pairs(self, folder: Path) -> None:
        assert "two parallel files are needed, the source first, not 1" in refusal(folder / "train.en")
        assert "not 5" in refusal(f"{folder}/*.??")
        both = {"source": "en", "target": "de"}
        (folder / "val.de").unlink()
        assert f"{folder}/val.de is missing: there is only {folder}/val.en" in refusal(folder, columns=both)
        assert "extensions of both sides" in refusal(folder, columns={"source": "en"})
        (folder / "a.csv").write_text("source,target\na,b\n")
        assert "is not a table" in refusal(folder / "a.csv", folder / "val.en")


class TestLabels:
    def test_a_folder_names_the_label_of_its_texts(self, tmp_path: Path) -> None:
        for name in ("pos/b.txt", "pos/a.txt", "neg/a.txt.gz", "neg/.hidden.txt", "neg/sub/c.csv"):
            (tmp_path / "all" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "all" / name).write_bytes(gzip.compress(b"bad") if "gz" in name else b"good")
        (tmp_path / "all/neg/sub/c.csv").unlink()
        examples = read(tmp_path / "all", fields=CLASSES)
        assert [(each.texts["text"], each.label) for each in examples] == [
            ("bad", "neg"),
            ("good", "pos"),
            ("good", "pos"),
        ]
        assert [each.label for each in read(tmp_path / "all/pos", f"{tmp_path}/all/n*", fields=CLASSES)] == [
            "pos"
        ] * 2 + ["neg"]
        assert "is not a table" in refusal(tmp_path / "all", fields=CLASSES, columns={"label": "stars"})
        assert "can only be read from tables" in refusal(tmp_path / "all", fields=("text", "pair", "label"))

    def test_a_text_beside_the_folders_of_others_has_no_label(self, tmp_path: Path) -> None:
        """Such as a readme: it would be the only text of a class that is called like the folder of all."""
        for name in ("all/pos/a.txt", "all/neg/a.txt", "all/readme.md"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("words")
        line = refusal(tmp_path / "all", fields=CLASSES)
        assert line.startswith(f"{tmp_path}/all/readme.md: it lies next to folders")
        assert "'all' is not a label; move it" in line
        skipped = read(tmp_path / "all", fields=CLASSES, reader=Reader(skips="items"))
        assert [each.label for each in skipped] == ["neg", "pos"]
        assert [each.label for each in read(tmp_path / "all" / "pos", tmp_path / "all" / "neg", fields=CLASSES)] == [
            "pos",
            "neg",
        ]

    def test_labels_of_tables(self, tmp_path: Path) -> None:
        lines = [{"text": "a", "label": label} for label in (3, "three", True, 2.5)]
        (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
        assert [each.label for each in read(tmp_path / "a.jsonl", fields=CLASSES)] == ["3", "three", "true", "2.5"]
        (tmp_path / "a.csv").write_text("text,label,pair\na, b ,c\nd,,e\n")
        message = refusal(tmp_path / "a.csv", fields=("text", "pair", "label"))
        assert message == f"{tmp_path}/a.csv:3: the label is empty; leave the record out, or give it one"

    def test_classes_are_in_the_order_of_numbers_or_names(self) -> None:
        assert class_names(["10", "9", "-1", "10"]) == ("-1", "9", "10")
        assert class_names(["10", "9", "x"]) == ("10", "9", "x")


class TestTagged:
    @pytest.mark.parametrize(
        ("name", "content", "more"),
        [
            ("a.jsonl", '{"text": "t", "label": ["b", "a"]}\n{"text": "u", "label": []}\n{"text": "v", "label": "b"}', {}),
            ("a.csv", 'text,label\nt,"b, a"\nu,\nv,b\n', {}),
            ("a.csv", 'text,label\nt,"[\'b\', \'a\', \'b\']"\nu,[]\nv,"[""b""]"\n', {}),
            ("a.tsv", "text\tlabel\nt\tb | a\nu\t\nv\tb", {"separator": "|"}),
            ("a.tsv", "text\tkinds\nt\tb;a\nu\t\nv\tb", {"separator": ";", "columns": {"label": "kinds"}}),
            ("a.csv", "text,b,a\nt,1,1\nu,0,0\nv,1.0,False\n", {"columns": {"label": "b, a"}}),
            ("a.jsonl", '{"text": "t", "b": 1, "a": true}\n{"text": "u", "b": 0, "a": 0}\n{"text": "v", "b": true, "a": false}',
             {"columns": {"label": "b,a"}}),
        ],
    )  # fmt: skip
    def test_several_labels_are_read_as_people_write_them(
        self, tmp_path: Path, name: str, content: str, more: dict[str, Any]
    ) -> None:
        (tmp_path / name).write_text(content)
        examples = read(tmp_path / name, fields=CLASSES, labels="several", **more)
        assert [each.label for each in examples] == [("b", "a"), (), ("b",)]
        assert texts(examples) == [("t",), ("u",), ("v",)]

    @pytest.mark.parametrize(
        ("row", "columns", "message"),
        [
            ({"label": None}, {}, "column 'label' must have a list of labels, or a text with ',' between them"),
            ({"label": {"a": 1}}, {}, "must have a list of labels"),
            ({"label": float("nan")}, {}, "must have a list of labels"),
            ({"label": [""]}, {}, "the label is empty"),
            ({"label": [["a"]]}, {}, "column 'label' has a list, not a string"),
            ({"label": "a;b"}, {}, "the label 'a;b' may be several: set their separator"),
            ({"label": "a|b,c"}, {}, "the label 'a|b' may be several"),
            ({"a": 1, "b": -1}, {"label": "a,b"}, "column 'b' has -1; the column of a label must have 1 or 0"),
            ({"a": 1, "b": ""}, {"label": "a,b"}, "column 'b' has ''"),
            ({"a": 1}, {"label": "a,b"}, "no column 'b'"),
            ({"a": 1}, {}, "no column 'label'"),
        ],
    )
    def test_labels_that_may_mean_something_else_are_refused(
        self, tmp_path: Path, row: dict[str, Any], columns: dict[str, str], message: str
    ) -> None:
        (tmp_path / "a.jsonl").write_text(json.dumps({"text": "t", **row}))
        assert message in refusal(tmp_path / "a.jsonl", fields=CLASSES, labels="several", columns=columns)

    def test_a_column_may_have_a_comma_in_its_name_and_a_label_a_semicolon(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_text('{"text": "t", "a,b": ["x;y", 3]}')
        (example,) = read(tmp_path / "a.jsonl", fields=CLASSES, labels="several", columns={"label": "a,b"})
        assert example.label == ("x;y", "3")
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / "t.txt").write_text("text")
        assert "can only be read from tables" in refusal(tmp_path / "x", fields=CLASSES, labels="several")

    def test_columns_of_conll(self, tmp_path: Path) -> None:
        file = tmp_path / "a.conll"
        file.write_text("-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\n\nGerman JJ B-MISC\n")
        examples = read(file, fields=CLASSES, labels="tokens")
        assert [(each.texts["text"], each.label) for each in examples] == [
            (("EU", "rejects"), ("B-ORG", "O")),
            (("German",), ("B-MISC",)),
        ]
        assert [each.origin for each in examples] == [f"{file}:3", f"{file}:7"]
        tagged = read(tmp_path, fields=CLASSES, labels="tokens", columns={"label": "2"})
        assert tagged[0].label == ("NNP", "VBZ")
        for columns in ({"label": "tag"}, {"text": "0"}):
            assert "give a number, from 1" in refusal(file, fields=CLASSES, labels="tokens", columns=columns)
        file.write_text("EU B-ORG\nrejects\n")
        assert "a.conll:2: 1 column, but at least 2 are needed" in refusal(file, fields=CLASSES, labels="tokens")

    def test_universal_dependencies(self, tmp_path: Path) -> None:
        lines = ["# text = zum", "1-2\tzum\t_\t_", "1\tzu\tzu\tADP", "2\tdem\tder\tDET", "2.1\tx\tx\tX", ""]
        (tmp_path / "a.conllu").write_text("\n".join(lines))
        for columns in ({}, {"text": "2", "label": "4"}):
            (example,) = read(tmp_path / "a.conllu", fields=CLASSES, labels="tokens", columns=columns)
            assert (example.texts["text"], example.label) == (("zu", "dem"), ("ADP", "DET"))
        (lemmas,) = read(tmp_path / "a.conllu", fields=CLASSES, labels="tokens", columns={"label": "3"})
        assert (lemmas.texts["text"], lemmas.label) == (("zu", "dem"), ("zu", "der"))

    def test_tables_of_words(self, tmp_path: Path) -> None:
        lines = [{"tokens": ["a", "b"], "tags": [1, 0]}, {"tokens": "c d e", "tags": "x y z"}]
        file, columns = tmp_path / "a.jsonl", {"text": "tokens", "label": "tags"}
        file.write_text("\n".join(map(json.dumps, lines)))
        examples = read(file, fields=CLASSES, labels="tokens", columns=columns)
        assert [each.label for each in examples] == [("1", "0"), ("x", "y", "z")]
        file.write_text('{"tokens": ["a", "b"], "tags": ["x"]}\n')
        message = refusal(file, fields=CLASSES, labels="tokens", columns=columns)
        assert "a.jsonl:1: 2 words, but 1 label; there must be one for each" in message


def examples(*rows: tuple[str, str]) -> list[Example]:
    return [Example({"text": text}, label, f"line {number}") for number, (text, label) in enumerate(rows)]


class TestParts:
    def test_equal_texts_are_in_one_part(self) -> None:
        tally = RecordStats(0.3)
        rows = [(f"text {number % 40}", str(number % 2)) for number in range(200)]
        parts = [tally.add(each) for each in examples(*rows)]
        assert len({(text, part) for (text, _), part in zip(rows, parts, strict=True)}) == 40
        stats = tally.description()
        assert 0 < stats.held_out == parts.count("validation") < 100
        assert stats.repeated == 0
        assert stats.classes == ("0", "1")

    @pytest.mark.parametrize("share", [0.1, 1e-6])
    def test_one_of_several_records_is_held_out(self, share: float) -> None:
        """Where the share would hold out none, the record with the smallest hash is, with its copies."""
        for start in range(60):
            texts = [f"text {start} {number}" for number in range(20)]
            rows = examples(*((text, str(number % 2)) for number, text in enumerate([*texts, texts[3]])))
            stats = describe_examples(rows, RecordStats(share))
            tally = RecordStats(share, below=stats.below)
            held = {each.texts["text"] for each in rows if tally.add(each) == "validation"}
            assert tally.description() == stats
            numbers = {text: int.from_bytes(sha256(text.encode()).digest()[:8], "big") for text in texts}
            drawn = {text for text, number in numbers.items() if number < share * 2**64}
            assert held == (drawn or {min(numbers, key=numbers.__getitem__)})
            assert stats.below == 0 or not drawn
            assert (stats.records, stats.repeated) == (21, 0)

    def test_a_label_of_the_one_held_out_is_of_no_training_record(self) -> None:
        texts = sorted("abcdef", key=lambda text: sha256(text.encode()).digest())
        rows = examples(*((text, "x" if number else "y") for number, text in enumerate(texts)))
        message = refusing.refusal(lambda: describe_examples(rows, RecordStats(1e-6)))
        assert (
            message
            == "every training record has the label 'x'; classes need at least two: are they in another column (label=...)?"
        )

    def test_copies_of_one_record_have_one_part(self) -> None:
        message = refusing.refusal(lambda: describe_examples(examples(("a", "x"), ("a", "y")), RecordStats(1e-6)))
        assert "the validation part would have none of the 2 records" in message

    def test_the_users_own_validation_records(self) -> None:
        train = examples(("a", "x"), ("b", "y"), ("", "x"))
        stats = describe_examples(for_parts(train, examples(("b", "x"), ("c", "y"))), RecordStats(None))
        assert (stats.records, stats.held_out, stats.repeated, stats.empty) == (4, 2, 1, 1)
        assert stats.first_empty == "line 2"

    @pytest.mark.parametrize(
        ("train", "validation", "message"),
        [
            ([("a", "x")], [("b", "x")], "every training record has the label 'x'"),
            ([("a", "x"), ("b", "y")], [(" ", "z")], "the validation part would have none of the 2 records"),
            ([(" ", "x")], [("\n", "y")], "all have an empty text, the first at line 0"),
        ],
    )  # fmt: skip
    def test_labels_that_cannot_be_learned(self, train: Any, validation: Any, message: str) -> None:
        both = for_parts(examples(*train), examples(*validation))
        assert message in refusing.refusal(lambda: describe_examples(both, RecordStats(None)))

    def test_a_label_of_the_validation_part_alone_is_a_class_that_nothing_teaches(self) -> None:
        train, validation = examples(("a", "x"), ("b", "y")), examples(("c", "z"), ("d", "x"), ("e", "w"), ("f", "z"))
        stats = describe_examples(for_parts(train, validation), RecordStats(None))
        assert (stats.classes, stats.validation_only, stats.first_validation_only) == (
            ("w", "x", "y", "z"),
            ("w", "z"),
            "line 0",
        )

    @pytest.mark.parametrize("label", ["high", "nan", "inf", ""])
    def test_labels_that_are_no_numbers(self, label: str) -> None:
        both = for_parts(examples(("a", "1.5")), examples(("b", label)))
        message = refusing.refusal(lambda: describe_examples(both, RecordStats(None, "numbers")))
        assert f"line 0: the label {label!r} is not a finite number" == message


class TestColumnsOfWords:
    """Files with a word and its tag per line, as they come."""

    def test_blanks_of_unicode_belong_to_words(self, tmp_path: Path) -> None:
        """French and German numbers have no-break spaces inside, Japanese texts wide ones."""
        for name, between in (("a.conll", " "), ("b.conll", "\t")):
            (tmp_path / name).write_bytes(
                f"\ufeff10\u00a0000{between}B-NUM\r\n\u3000{between}O\r\nEuro\u2009s{between}O\r\n\r\n".encode()
            )
            (example,) = read_examples([tmp_path / name], ("text", "label"), labels="tokens")
            assert example.texts["text"] == ("10\u00a0000", "\u3000", "Euro\u2009s")
            assert example.label == ("B-NUM", "O", "O")

    def test_a_text_in_a_table_has_the_same_words(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_text('{"text": "10\u00a0000 Euro", "label": "B-NUM O"}\n')
        (example,) = read_examples([tmp_path / "a.jsonl"], ("text", "label"), labels="tokens")
        assert example.texts["text"] == ("10\u00a0000", "Euro") == split_words("10\u00a0000  Euro\n")

    @pytest.mark.parametrize("between", [" ", "\t"])
    def test_comments_are_no_words_and_hashtags_are(self, tmp_path: Path, between: str) -> None:
        lines = ["# sent_id = 1", "# text = #loom is", f"#loom{between}B-X", f"#{between}O", "", "#begin document (a); part 1",
                 f"is{between}O"]  # fmt: skip
        (tmp_path / "a.conll").write_text("\n".join(lines))
        examples = list(read_examples([tmp_path / "a.conll"], ("text", "label"), labels="tokens"))
        assert [(each.texts["text"], each.label) for each in examples] == [
            (("#loom", "#"), ("B-X", "O")),
            (("is",), ("O",)),
        ]
        assert [each.origin for each in examples] == [f"{tmp_path}/a.conll:3", f"{tmp_path}/a.conll:7"]

    @pytest.mark.parametrize("line", ["New York B-LOC", "York"])
    def test_a_line_with_other_columns_is_refused_or_its_sentence_left_out(self, tmp_path: Path, line: str) -> None:
        file, reader = tmp_path / "a.conll", Reader(skips="items")
        file.write_text(f"a O\n\nb O\n{line}\n\nc O\n")
        with pytest.raises(MalformedError, match=r"a\.conll:4: "):
            list(read_examples([file], ("text", "label"), labels="tokens"))
        examples = list(read_examples([file], ("text", "label"), labels="tokens", reader=reader))
        assert [each.texts["text"] for each in examples] == [("a",), ("c",)]
        assert reader.notes.left_out == {"wrong number of columns": 1}


class TestConversations:
    def test_records_of_sharegpt(self, tmp_path: Path) -> None:
        lines = [{"id": "1", "conversations": [{"from": "system", "value": "be"}, {"from": "human", "value": "hi"},
                                               {"from": "gpt", "value": "yes"}]},
                 {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]  # fmt: skip
        (tmp_path / "a.json").write_text(json.dumps(lines))
        one, other = read_examples([tmp_path / "a.json"], ("messages",), labels="roles")
        assert (one.label, one.texts["messages"]) == (("system", "user", "assistant"), ("be", "hi", "yes"))
        assert other.label == ("user", "assistant")

    @pytest.mark.parametrize(("weight", "read"), [(None, True), (1, True), (1.0, True), (0, False), (0.5, False)])
    def test_an_answer_that_must_not_be_learned_is_named(
        self, tmp_path: Path, weight: float | None, read: bool
    ) -> None:
        messages = [{"from": "human", "value": "hi", "weight": 0}, {"from": "gpt", "value": "yes", "weight": weight}]
        (tmp_path / "a.jsonl").write_text(json.dumps({"conversations": messages}))
        reader = Reader(skips="items")
        examples = list(read_examples([tmp_path / "a.jsonl"], ("messages",), labels="roles", reader=reader))
        assert [example.label for example in examples] == [("user", "assistant")] * read
        expected = [] if read else ["message 2 has 'weight', which heddle does not read: remove it"]
        assert [note.message for note in reader.notes] == expected

    def test_what_is_no_message_is_named(self, tmp_path: Path) -> None:
        for message, line in (
            ({"from": "tool", "value": "x"}, "message 1 has the role 'tool'; use one of system, user, assistant"),
            ({"from": "human", "value": None}, "message 1 needs a content that is a string"),
        ):
            (tmp_path / "a.jsonl").write_text(json.dumps({"conversations": [message]}))
            with pytest.raises(MalformedError, match=r"a\.jsonl:1: ") as error:
                list(read_examples([tmp_path / "a.jsonl"], ("messages",), labels="roles"))
            assert line in str(error.value)


def test_labels_that_mean_none_are_left_out_if_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"text": "a", "label": "-"}\n{"text": "b", "label": 1}\n{"text": "c", "label": -1}\n'
    )
    reader = Reader(unlabelled=("-", "-1"))
    (example,) = read_examples([tmp_path / "a.jsonl"], ("text", "label"), reader=reader)
    assert example.label == "1"
    assert reader.notes.left_out == {"unlabelled": 2}
    assert DataConfig(unlabelled=-1).unlabelled == ("-1",)


def test_words_whose_tag_means_none_are_no_targets(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("a O\nb -\n\nc -\nd -\n\ne O\n")
    reader = Reader(unlabelled=("-",))
    examples = read_examples([tmp_path / "a.conll"], ("text", "label"), labels="tokens", reader=reader)
    assert [(each.texts["text"], each.label) for each in examples] == [(("a", "b"), ("O", "")), (("e",), ("O",))]
    assert [(note.kind, note.count, note.left_out) for note in reader.notes] == [
        ("unlabelled words", 1, False),
        ("unlabelled", 1, True),
    ]


def test_a_record_with_a_label_that_means_none_among_several_is_left_out(tmp_path: Path) -> None:
    labels = (["-"], ["a"], ["a", "-"], [])
    lines = [json.dumps({"text": "x", "label": each}) for each in labels]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    reader = Reader(unlabelled=("-",))
    examples = read_examples([tmp_path / "a.jsonl"], ("text", "label"), labels="several", reader=reader)
    assert [each.label for each in examples] == [("a",), ()]
    assert reader.notes.left_out == {"unlabelled": 2}


def test_a_tag_has_no_blanks_around_it(tmp_path: Path) -> None:
    """A no-break space after a tag would make a class of its own that looks like the other."""
    (tmp_path / "a.conll").write_text("a O\u00a0\nb\u00a0c O\n")
    (example,) = read_examples([tmp_path / "a.conll"], ("text", "label"), labels="tokens")
    assert (example.texts["text"], example.label) == (("a", "b\u00a0c"), ("O", "O"))


def test_unequal_lines_are_never_skipped(tmp_path: Path) -> None:
    """What is beside what is no longer certain; but they are counted where everything is."""
    for name, text in (("a.en", "one\ntwo\nthree\n"), ("a.de", "eins\nzwei\n")):
        (tmp_path / name).write_text(text)
    sources = [tmp_path / "a.en", tmp_path / "a.de"]
    for skips in ("none", "items"):
        with pytest.raises(
            MalformedError, match=r"a\.de has 2 lines, but .*a\.en has 3: parallel files need equally many"
        ):
            list(read_examples(sources, ("source", "target"), reader=Reader(skips=skips)))
    reader = Reader(skips="all")
    assert len(list(read_examples(sources, ("source", "target"), reader=reader))) == 2
    assert reader.notes.left_out == {"unequal lines": 1}


def test_standard_input_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BytesIO(b'{"source": "a", "target": "b"}\n')))
    with standard_input(["-"], ".jsonl") as sources:
        assert texts(read(*sources)) == texts(read(*sources)) == [("a", "b")]
    assert not Path(sources[0]).exists()
    with pytest.raises(Exception, match="given twice"), standard_input(["-", "-"], ".txt"):
        pass


def test_a_column_for_sources_without_any(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("no columns here")
    message = refusing.refusal(lambda: list(read_documents([tmp_path / "a.txt"], "body")))
    assert message.startswith("text = 'body' names a column, but no source is a table")
