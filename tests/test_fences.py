"""The reader of fences notices what a page gets wrong."""

import pytest

from heddle.errors import HeddleError
from tests.fences import Fence, agrees, commands, compared, fences, kind_of, outside, parsed, read_toml

PAGE = """
```console compared
$ heddle train my.txt \\
    depth=2   # small
loss …
$ heddle runs
```

1. In a list:
   ```python file=a.py
   x = 1
   ```

````text
```
no fence
```
````
"""


def test_a_page_is_its_blocks() -> None:
    console, python, text = fences(PAGE)
    assert (console.language, console.words, console.line) == ("console", ("compared",), 2)
    assert (python.file, python.body) == ("a.py", "x = 1\n")
    assert text.body == "```\nno fence\n```\n"
    first, second = commands(console.body)
    assert first.words == ["heddle", "train", "my.txt", "depth=2"]
    assert (first.output, second.output) == ("loss …\n", "")


@pytest.mark.parametrize(
    ("shown", "printed", "equal"),
    [
        ("a\nb", "a \nb\n", True),
        ("a …", "a 1.5", True),
        ("a\n…\nd", "a\nb\nc\nd", True),
        ("a", "a\nb", False),
        ("…a", "ab", False),
        ("a.c", "abc", False),
        ("loss 1.5", "loss 2.5", False),
    ],
)
def test_what_is_shown_is_compared(shown: str, printed: str, equal: bool) -> None:
    assert agrees(shown, printed) == equal


def test_numbers_of_smaller_runs_may_differ() -> None:
    assert agrees("loss 1.5 of 3", "loss 22.75 of 1", r"\d[\d.]*")
    assert not agrees("loss 1.5 of 3", "loss none of 1", r"\d[\d.]*")
    assert not agrees("loss 1.5", "lost 1.5", r"\d[\d.]*")


@pytest.mark.parametrize(
    ("language", "words", "kind"),
    [
        ("python", (), "executed"),
        ("python", ("compared",), "compared"),
        ("console", (), "executed"),
        ("toml", (), "compared"),
        ("text", (), "shown"),
        ("text", ("printed",), "compared"),
    ],
)
def test_every_block_has_a_kind(language: str, words: tuple[str, ...], kind: str) -> None:
    assert kind_of(Fence(language, words, "$ heddle runs\n", 1, "")) == kind


@pytest.mark.parametrize(("language", "words"), [("", ()), ("fish", ()), ("python", ("perhaps",))])
def test_a_block_of_an_unknown_kind_is_an_error(language: str, words: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError, match="line 7"):
        kind_of(Fence(language, words, "", 7, ""))


@pytest.mark.parametrize(
    "words",
    [
        ["weave"],
        ["generate", "runs/mine", "--warmth", "1"],
        ["train", "my.txt", "depht=2"],
        ["train", "my.txt", "depth=-1"],
        ["data", "shwo", "runs/mine"],
    ],
)
def test_a_command_that_does_not_exist_is_refused(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"(?i)weave|warmth|depth|shwo") as error:
        parsed(words)
    assert isinstance(error.value, HeddleError) or "cyclopts" in type(error.value).__module__


def test_commands_that_exist_are_accepted() -> None:
    for line in ("heddle train my.txt depth=2 --name a", "zcat a.gz | heddle train -", "K=1 heddle serve runs/a > log"):
        compared(commands(f"$ {line}\n")[0])


@pytest.mark.parametrize(
    "line",
    [
        "weave it",
        "make demo loom",
        "pip install 'heddle-lm[loom]'",
        "python recipes/loom.py",
        "python -m loom",
    ],
)
def test_other_programs_are_known_with_their_words(line: str) -> None:
    with pytest.raises(AssertionError):
        outside(commands(f"$ {line}\n")[0].words)


def test_settings_are_read() -> None:
    assert read_toml("[decoder.block.mixer]\nheads = 8\n").decoder.block.mixer.heads == 8
    assert read_toml('[data]\nsources = ["a.txt"]\n').data.sources == ("a.txt",)
    for wrong in ("[decoder.block.mixer]\nheds = 8\n", "[data]\nsource = 3\n"):
        with pytest.raises(HeddleError):
            read_toml(wrong)
