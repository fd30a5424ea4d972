"""The fenced blocks of a Markdown page: what each says that it is, and how it is checked.

The info string of a fence has a language and words. `python` runs in the page's namespace and `console` runs in its folder, one
command after the other; what follows a command is what it prints, with … for anything. Words change that: `compared` compiles
or parses alone, `whole` leaves the sizes of `heddle train` as they are written, `file=NAME` writes the block to a file.
"""

import re
import shlex
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from heddle.cli.main import make_app
from heddle.cli.train import parse_series, train
from heddle.config import RunConfig, TransformerConfig
from heddle.config.base import merge

ROOT = Path(__file__).parents[1]
# What users read, without the lessons, whose cells the site's build executes, and without what it writes.
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(
        page for page in (ROOT / "docs").rglob("*.md") if {"_build", "lessons", "reference"}.isdisjoint(page.parts)
    ),
]
FENCE = re.compile(
    r"^(?P<indent> *)(?P<mark>```+)(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=indent)(?P=mark) *$", re.M | re.S
)
WORDS = {"compared", "whole", "printed"}
# Programs of others that a console may name. What can be known about their words is checked by `outside`.
OUTSIDE = {
    ".",
    "cd",
    "curl",
    "cat",
    "ct2-transformers-converter",
    "echo",
    "git",
    "make",
    "pip",
    "python",
    "ssh",
    "torchrun",
    "zcat",
}
# A fragment of a model's config, such as one table, is completed with these.
REST = {"vocab_size": 256, "dim": 64, "context": 64, "decoder": {"depth": 1}}


# Options of heddle and the shell whose value is what a command writes, and what an argument that names a file looks like.
WRITES = {"--name", "--out", "--png", "--html", "--csv", "--plot", "--model", "--tensorboard", ">"}
FILE = re.compile(r"runs/[\w-]+|[\w-]+\.(?:txt|tsv|csv|jsonl?|yaml|toml|py|npy|safetensors|conll)(?:\.gz)?")


@dataclass(frozen=True)
class Fence:
    """One block: its language, the other words of its info string, its text, the line that it starts in, and the prose before."""

    language: str
    words: tuple[str, ...]
    body: str
    line: int
    prose: str

    @property
    def is_run(self) -> bool:
        """Whether its code or commands run."""
        return "compared" not in self.words

    @property
    def file(self) -> str | None:
        """The file that the block is, if it is one."""
        return next((word.removeprefix("file=") for word in self.words if word.startswith("file=")), None)


@dataclass(frozen=True)
class Command:
    """One `$` line of a console, with the lines that it prints."""

    line: str
    output: str

    @property
    def words(self) -> list[str]:
        """Its words, without a comment."""
        return shlex.split(self.line, comments=True)

    @property
    def is_run(self) -> bool:
        """Whether it is a call of heddle alone, which ends by itself."""
        return self.words[0] == "heddle" and "|" not in self.words and self.words[1:2] not in (["serve"], ["chat"])

    def files(self) -> tuple[set[str], set[str]]:
        """The files and runs that it names: those that it needs, and those that it writes."""
        words = self.words
        written = {word for option, word in pairwise(words) if option in WRITES}
        if words[1:2] in (["import"], ["export"]) or words[1:3] == ["adapter", "merge"]:
            written.add(words[-1])
        elif words[1:3] == ["tokenizer", "train"]:
            written.add(words[3])
        runs = {f"runs/{word}" for word in written if "/" not in word and "." not in word}
        return {word for word in words if FILE.fullmatch(word)} - written, written | runs


def fences(text: str) -> list[Fence]:
    """Every fenced block of a page, in its order."""
    blocks = []
    end, prose = 0, ""
    for match in FENCE.finditer(text):
        prose, end = prose + text[end : match.start()], match.end()
        language, *words = match["info"].split() or [""]
        body = re.sub(f"^{match['indent']}", "", match["body"], flags=re.M)
        blocks.append(Fence(language, tuple(words), body, text[: match.start()].count("\n") + 1, prose))
    return blocks


def commands(body: str) -> list[Command]:
    """The commands of a console block. A line that ends with a backslash goes on in the next."""
    first, *parts = re.split(r"^\$ ", body, flags=re.M)
    assert not first.strip(), f"a console starts with `$ `, not with {first.strip().splitlines()[0]!r}"
    pairs = (re.match(r"((?:[^\n]*\\\n)*[^\n]*)\n?(.*)", part, re.S).groups() for part in parts)
    return [Command(line.replace("\\\n", " "), output) for line, output in pairs]


def kind_of(fence: Fence) -> str:
    """How a block is checked: `executed`, `compared` or `shown`. An unknown language or word is an error."""
    if fence.language.startswith("{"):  # a directive of the site, which its build reads; it executes cells
        return "compared" if fence.language == "{code-cell}" else "shown"
    unknown = [word for word in fence.words if word not in WORDS and not word.startswith("file=")]
    assert not unknown, f"line {fence.line}: what is {unknown[0]!r}?"
    if fence.language == "text":
        return "compared" if "printed" in fence.words else "shown"
    if fence.language in ("toml", "json"):
        return "compared"
    assert fence.language in ("python", "console"), f"line {fence.line}: no test reads {fence.language!r}"
    calls = fence.language == "python" or any(command.is_run for command in commands(fence.body))
    return "executed" if fence.is_run and calls else "compared"


def compile_cell(fence: Fence, place: str) -> None:
    """Compile a cell of a notebook, without its options."""
    compile(re.sub(r"\A(?:---\n.*?^---\n|(?::.*\n)+)", "", fence.body, flags=re.S | re.M), place, "exec")


def agrees(shown: str, printed: str, loose: str | None = None) -> bool:
    """Whether a page shows what was printed.

    … stands for any text, and some spaces for any others. With `loose`, a pattern, what it matches may be another such text.
    """
    plain, real = (
        re.sub(r"[ \t]+", " ", "\n".join(map(str.strip, text.strip().splitlines()))) for text in (shown, printed)
    )
    parts = re.split(rf"(…|{loose})" if loose else "(…)", plain)
    wild = {"…": ".*?"}
    pattern = "".join(
        re.escape(part) if place % 2 == 0 else wild.get(part, loose or "") for place, part in enumerate(parts)
    )
    return re.fullmatch(pattern, real, re.S) is not None


def parsed(words: list[str]) -> None:
    """Parse a call of heddle as its command line does, without running it: an unknown command, option or setting is an error."""
    words = ["/dev/stdin" if word == "-" else word for word in words]
    function, bound, _ = make_app(words).parse_args(words, exit_on_error=False, print_error=False)
    if function is train and "resume" not in bound.arguments:
        settings = [word for word in bound.arguments.get("words", ()) if "=" in word and not word.startswith("from=")]
        parse_series(("a.txt", *settings))


def outside(words: list[str]) -> None:
    """Check what can be known of another program's words: targets, extras, scripts, modules."""
    name, *rest = words
    assert name in OUTSIDE, f"{name}: no test knows this program; see tests/fences.py"
    if name == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
        assert set(rest) - {word for word in rest if "=" in word} <= targets, rest
    elif name == "pip":
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = {extra for word in rest for extra in re.findall(r"\[([\w,]+)\]", word)}
        assert {part for each in named for part in each.split(",")} <= set(known), rest
    elif name in ("python", "torchrun") and "-m" in rest:
        module, *more = rest[rest.index("-m") + 1 :]
        if module == "heddle":
            parsed(more)
        else:
            assert (ROOT / f"{module.replace('.', '/')}.py").is_file() or find_spec(module), f"no module {module}"
    elif name == "python" and rest and not rest[0].startswith("-"):
        assert (ROOT / rest[0]).is_file(), rest[0]


def compared(command: Command) -> None:
    """Check a command that is not run: each program of a pipe by its own rule."""
    for part in re.split(r" (?:\||&&) ", command.line):
        words = [word for word in shlex.split(part, comments=True) if word != "&"]
        words = words[next(place for place, word in enumerate(words) if not re.fullmatch(r"[A-Z_]+=.*", word)) :]
        words = words[: words.index(">")] if ">" in words else words
        parsed(words[1:]) if words[0] == "heddle" else outside(words)


def read_toml(body: str) -> RunConfig | TransformerConfig:
    """Read a settings block: a run file, or a model's config, which may be a fragment."""
    table: dict[str, Any] = tomllib.loads(body)
    if {"data", "train", "task", "model"} & table.keys():
        return RunConfig.of(table)
    return TransformerConfig.of(merge(REST if "encoder" not in table else {**REST, "decoder": None}, table))
