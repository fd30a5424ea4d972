"""`heddle data show` and `heddle data lint`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.runs import show_step

from .conftest import TINY, Heddle


def test_show_prints_a_table_and_a_picture(heddle: Heddle, run_a: Path) -> None:
    shown = heddle("data", "show", "a", "--step", "2", "--length", "4").out
    assert shown.startswith("step 2 of 4: windows that start at training tokens ")
    assert "64 targets in 64 places" in shown
    assert shown.splitlines()[-4:] == ["█···", "██··", "███·", "████"]
    assert "\n   12  " in heddle("data", "show", "a", "--start", "12").out
    document = heddle("data", "show", "a", "--rows", "2", "--json").json
    assert [row["tokens"] for row in document["rows"]] == [row.tokens for row in show_step(run_a, rows=2).rows]


@pytest.mark.parametrize(
    ("words", "line"), [(["none"], "no run 'none'"), (["a", "--step", "9"], "step = 9: runs/a has 4 steps")]
)
def test_what_cannot_be_shown_is_refused(refused: Callable[..., str], run_a: Path, words: list[str], line: str) -> None:
    assert line in refused("data", "show", *words)


def test_a_file_is_no_run(refused: Callable[..., str], corpus: str) -> None:
    assert refused("data", "show", corpus) == (
        "corpus.txt is a file, not a run. Check files with `heddle data lint corpus.txt`"
    )
    message = "corpus.txt is a file; a run is a directory written by `heddle train`"
    assert refused("eval", corpus) == message
    line = "`heddle data show` got unexpected arguments: task=chat; see heddle data show --help"
    assert refused("data", "show", corpus, "task=chat") == line


class TestLint:
    def test_clean_text_and_planted_faults(self, heddle: Heddle, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "line {number}"}}\n' for number in range(50)))
        assert heddle("data", "lint", "a.jsonl").out == "no problems found\n"
        with (tmp_path / "a.jsonl").open("a") as file:
            file.write('{"text": "caf\\u00c3\\u00a9"}\n{"text": "a\\u200bb"}\n')
        result = heddle("data", "lint", "a.jsonl")
        assert result.code == 1
        wrong, remark = result.out.splitlines()
        assert wrong.startswith("wrong: mojibake: 1 of 52 documents have characters such as")
        assert remark.startswith("remark: invisible characters: 1 of 52 documents ")
        assert "first a.jsonl:52; remove them" in remark
        assert [each["name"] for each in heddle("data", "lint", "a.jsonl", "--json").json["findings"]] == [
            "mojibake",
            "invisible characters",
        ]

    def test_texts_of_validation_that_are_trained_on(self, heddle: Heddle, tmp_path: Path) -> None:
        for name, texts in (("a", ["one", "two"]), ("b", ["two", "three"])):
            (tmp_path / f"{name}.csv").write_text("\n".join(["body", *texts]))
        result = heddle("data", "lint", "a.csv", "validation_sources=b.csv", "text=body")
        assert result.code == 1
        assert result.out.startswith("wrong: overlap: 1 of 4 documents are in both parts, first b.csv:2; ")

    @pytest.mark.parametrize(("silent", "sort"), [(20, "wrong"), (3, "remark")])
    def test_conversations_without_an_answer(self, heddle: Heddle, tmp_path: Path, silent: int, sort: str) -> None:
        """They teach nothing; without any answer in a part, training refuses."""
        question, answer = '{"role": "user", "content": "what is %d"}', ', {"role": "assistant", "content": "%d"}'
        talks = [f'{{"messages": [{question % n}{answer % n if n >= silent else ""}]}}\n' for n in range(20)]
        (tmp_path / "talks.jsonl").write_text("".join(talks))
        result = heddle("data", "lint", "talks.jsonl", "task=chat")
        assert result.code == (sort == "wrong")
        assert result.out == (
            f"{sort}: no answer: {silent} of 20 conversations have no message of the role 'assistant', first "
            "talks.jsonl:1; these have no target: add the answers, or leave them out\n"
            f"    talks.jsonl ({silent}): 1, 2, 3{', 4, 5, …' if silent > 5 else ''}\n"
        )

    def test_a_run(self, heddle: Heddle, run_a: Path, corpus: str, tmp_path: Path) -> None:
        assert (heddle("data", "lint", "a").code, heddle("data", "lint", "runs/a").code) == (0, 0)
        (tmp_path / corpus).write_text("other text")
        result = heddle("data", "lint", "a", "--json")
        assert result.code == 0  # a remark: the run keeps what it learned from
        assert "changed sources" in [each["name"] for each in result.json["findings"]]

    def test_what_cannot_be_looked_at_is_refused(self, refused: Callable[..., str]) -> None:
        assert "give sources or a run" in refused("data", "lint")
        assert "nowhere.txt: no such file or folder" in refused("data", "lint", "nowhere.txt")


class TestTokenize:
    def test_two_parts_and_the_store_that_training_takes(self, heddle: Heddle, corpus: str) -> None:
        words = ["data", "tokenize", corpus, "tokenizer=bytes"]
        assert heddle(*words, "store=a", "--part", "0/2").out.endswith(
            "1 piece of the store: all are there; without --part, it is written\n"
        )
        made = heddle(*words, "store=b", "--part", "1/2", "--json").json
        assert (made["store"], made["missing"]) == (None, [0])
        joined = heddle(*words, "store=b", "--join", "a").out
        assert "joining pieces" in joined
        assert joined.splitlines()[-1].startswith("b is complete: ")
        again = heddle(*words, "store=b", "--json").json
        assert (again["store"], len(again["fingerprint"]), again["missing"]) == ("b", 64, [])
        trained = heddle("train", corpus, *TINY, "store=b", "--name", "b")
        assert "using the tokens of b, made from the same sources" in trained.out

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            (["corpus.txt"], "name the store to write: store=DIR"),
            (
                ["corpus.txt", "store=a", "--part", "2/2"],
                "--part 2/2: use i/n with i from 0 to n - 1, such as 0/2 and 1/2",
            ),
            (
                ["corpus.txt", "store=a", "--part", "half"],
                "--part half: use i/n with i from 0 to n - 1, such as 0/2 and 1/2",
            ),
            (["corpus.txt", "store=a", "--join", "b"], "b.pieces: no such directory of pieces"),
            (["none.txt", "store=a"], "none.txt: no such file or folder"),
        ],
    )
    def test_what_cannot_be_tokenised_is_refused(
        self, refused: Callable[..., str], corpus: str, words: list[str], line: str
    ) -> None:
        assert refused("data", "tokenize", *words) == line
