"""The map of the lectures: every row has a line, and every command, key, file and lesson in it exists."""

import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest

from heddle.account import resolve
from heddle.cli.main import make_app
from heddle.config import RunConfig, parse_overrides, preset
from heddle.lessons import fault
from heddle.lessons.lesson import lessons, rows_in
from tests.cli.conftest import Heddle
from tests.cli.conftest import heddle as heddle
from tests.cli.conftest import run_a as run_a
from tests.cli.conftest import trained as trained
from tests.cli.conftest import woven as woven
from tests.fences import parsed
from tests.lectures.golden import LECTURES
from tests.lectures.rows import NOTHING, ROOT
from tests.lessons import quiz_page

MAP = (ROOT / "docs" / "map.md").read_text(encoding="utf-8")
OUTLINE = ["Recap: multi-head attention", "Transformer layers", "Causal masking", "Encoders and decoders",
    "Decoder-only models", "Output layer"]  # fmt: skip
DISAGREEMENTS = ["D-01", "D-02", "D-03", "D-04", "D-05", "D-08", "D-09", "D-21", "D-22", "D-24", "D-31"]
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", MAP, re.MULTILINE))
TOPICS = {heading: text for heading, text in SECTIONS.items() if "\nRead on: " in text}


def table(text: str) -> list[list[str]]:
    """The cells of a Markdown table, without its heading."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def commands(text: str) -> list[list[str]]:
    return [shlex.split(cells[3].strip("`"))[1:] for cells in table(text)]


def test_every_row_of_the_lectures_has_a_line() -> None:
    named = [row for text in TOPICS.values() for cells in table(text) for row in rows_in(cells[5])]
    rows = [row["id"] for row in LECTURES["rows"]]
    assert sorted(named) == sorted(set(rows) - set(NOTHING)), "each row once"


def test_what_the_lines_name_exists() -> None:
    assert set(SECTIONS) - set(TOPICS) == {"Where the decks disagree"}
    for text in TOPICS.values():
        for topic, slides, lesson, _, code, _ in table(text):
            assert topic
            assert re.match(r"00\d[:,;]", slides), slides
            assert int(lesson.strip("[]")) in range(15)
            files = re.findall(r"\[`(.+?)`\]\(\.\./heddle/(.+?)\)", code)
            assert files
            for name, path in files:
                assert name == path
                assert (ROOT / "heddle" / path).is_file(), path


def test_lessons_are_links_to_their_pages() -> None:
    assert quiz_page.relinked(MAP) == MAP, "run python -m tests.lessons.quiz_page"
    assert quiz_page.relinked("[5]\n\n[5]: lessons/04-old.md\n").startswith("[5]\n\n")
    assert "04-old.md" not in quiz_page.relinked("[5]: lessons/04-old.md\n")


@pytest.mark.parametrize("heading", TOPICS)
def test_every_command_of_the_map_is_one(heading: str) -> None:
    for words in commands(TOPICS[heading]):
        parsed(words)


@pytest.mark.thorough
@pytest.mark.lecture("L1-01")
def test_the_outline_of_deck_001_is_the_first_part_of_the_map_and_runs(heddle: Heddle, run_a: Path) -> None:
    """Its six topics in their order; each command is run, and prints something. `prove` and `train` run in tests of their own."""
    assert list(SECTIONS)[: len(OUTLINE)] == OUTLINE
    shutil.move(run_a, run_a.with_name("mine"))
    for words in {tuple(words): words for heading in OUTLINE for words in commands(SECTIONS[heading])}.values():
        if words[0] in ("prove", "train"):
            continue
        result = heddle(*words)
        assert result.code == 0, (words, result.err)
        assert result.out.strip(), words
    assert Path("figure1.svg").read_text().startswith("<svg")


@pytest.mark.lecture("L3-33")
def test_each_topic_leads_to_code_and_to_what_to_read() -> None:
    """And each lesson ends with what one should have understood, what is hard, and where there is more."""
    for heading, text in TOPICS.items():
        (reading,) = re.findall(r"^Read on: (.*)\.$", text, re.MULTILINE)
        assert re.findall(r"\[.+?\]\(https://\S+?\)", reading), heading
        assert "](../heddle/" in text
    for link in re.findall(r"\]\(([^):]+)\)", MAP):
        assert (ROOT / "docs" / link).exists(), link
    for each in lessons():
        end = each.path.read_text(encoding="utf-8").rpartition("\n## ")[2]
        for line in ("**You understood it if you can**", "**Most people stumble over**", "**More**"):
            assert line in end, each.path.name


def test_the_decks_disagree_at_eleven_places_and_each_key_gives_the_other_reading() -> None:
    """Each key is valid, and not the default; so is each mistake."""
    lines = table(SECTIONS["Where the decks disagree"])
    assert [cells[0] for cells in lines] == DISAGREEMENTS
    for name, _, _, cell in lines:
        keys = re.findall(r"`(.+?)`", cell)
        assert keys, name
        for key in keys:
            if key.startswith("fault="):
                mistake = fault(key.removeprefix("fault="))
                assert name in mistake.rows, key
            elif key.startswith("--"):
                words = ["generate", "runs/mine", *key.split()]
                options = make_app(words).parse_args(words, exit_on_error=False, print_error=False)[1].arguments
                assert options["sampling"].temperature == 0
            elif key.startswith("data."):
                assert RunConfig().override(parse_overrides([key])) != RunConfig()
            else:
                base = preset("laptop-moe" if ".ffn." in key else "gpt2-small")
                assert base.override(parse_overrides([key])) != base, key


def test_the_run_file_with_a_mistake_is_read() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", MAP, re.DOTALL)
    settings = tomllib.loads(text)["decoder"]["block"]["mixer"]
    _, config = resolve("laptop-small")
    changed = config.override({"decoder.block.mixer": settings})
    assert changed.decoder.block.mixer.options["fault"] == "mask after the softmax"
