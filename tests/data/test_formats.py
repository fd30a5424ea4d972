"""What is no text is called by its name, and a folder of damaged files is named file by file in one reading."""

from pathlib import Path

import pytest

from heddle.config import RunConfig
from heddle.data.sources.formats import not_text, utf16
from heddle.data.sources.lint import Finding
from heddle.runs.lint import lint_sources

from . import damaged


def named(findings: list[Finding]) -> dict[str, set[str]]:
    """The kinds of what was found in each file."""
    kinds: dict[str, set[str]] = {}
    for each in findings:
        for place in each.places:
            kinds.setdefault(Path(place.file).name, set()).add(each.name)
    return kinds


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> list[Finding]:
    folder = tmp_path_factory.mktemp("sources") / "damaged"
    damaged.write(folder)
    return lint_sources(RunConfig.of({"data": {"sources": [str(folder)]}}))


def test_every_one_of_sixty_damaged_files_is_named(findings: list[Finding]) -> None:
    """In one reading, each with what is wrong with it; and so in the text that is printed."""
    kinds = named(findings)
    assert {name: kind for name, (_, kind) in damaged.TEXTS.items() if kind not in kinds.get(name, set())} == {}
    printed = "\n".join(line for each in findings for line in each.lines())
    assert [name for name in damaged.TEXTS if f"/{name}" not in printed] == []


def test_the_lines_are_named_too_and_the_causes(findings: list[Finding]) -> None:
    printed = "\n".join(line for each in findings for line in each.lines())
    for line in ("again.csv:3", "commas.jsonl: 1", "zero.csv: 2002", "sheet.csv: this is an Excel workbook",
                 "report.txt: this is a PDF", "packed.tsv: this is compressed with bzip2", "1 .pdf"):  # fmt: skip
        assert line in printed


def test_damaged_records_are_named(tmp_path: Path) -> None:
    for name, (data, _) in damaged.RECORDS.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "good.tsv").write_text("text\tlabel\n" + "".join(f"text {n}\t{'xy'[n % 2]}\n" for n in range(20)))
    config = RunConfig.of({"data": {"sources": [str(tmp_path)]}, "task": "classification"})
    findings = lint_sources(config)
    kinds = named(findings)
    kinds.setdefault("unlabelled.tsv", set()).update(each.name for each in findings if "unlabelled.tsv" in each.where)
    assert {name: kind for name, (_, kind) in damaged.RECORDS.items() if kind not in kinds.get(name, set())} == {}


def test_what_is_listed_is_bounded(tmp_path: Path) -> None:
    """A million bad lines are a count and a few places."""
    (tmp_path / "a.jsonl").write_bytes(damaged.GOOD + b"{\n" * 5000)
    (finding,) = (each for each in lint_sources(RunConfig.of({"data": {"sources": [str(tmp_path)]}})) if each.wrong)
    assert (finding.name, finding.count, finding.of) == ("not JSON", 5000, 5002)
    assert [str(place) for place in finding.places] == [f"{tmp_path}/a.jsonl (5,000): 3, 4, 5, 6, 7, \u2026"]


@pytest.mark.parametrize("text", ["plain", "BZh is short", "%PDF", "Rar!", "PK\x03", '{"text": 3}', "GIF8"])
def test_text_is_text(tmp_path: Path, text: str) -> None:
    assert not_text(text.encode(), tmp_path) is None
    assert not utf16(text.encode())
