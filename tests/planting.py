"""Planted faults: small changes that make heddle wrong, and who must notice each.

The rows are in the `faults.py` beside the tests that notice them; `collect` reads them all. `benchmarks/mutations.py` plants every
fault in a copy of heddle. `planted` plants those that change a function in this process, for tests of the checks of `prove`.

This module imports nothing of heddle, since a copy's own heddle must be imported after a fault is planted.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from io import StringIO
from pathlib import Path
from tokenize import COMMENT, generate_tokens
from types import CodeType, FunctionType
from typing import Any, NamedTuple

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "heddle"
# Numbers, words and operators. Strings are read like code, so that a fragment may be a part of one.
TOKEN = re.compile(r"\d[\w.]*(?:(?<=[eE])-\d+)?|\w+|[<>=!]=+|[-+*/%&|^@:]=|[-=]>|\*\*|//|<<|>>|&&|\|\||\S")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class PlaceError(LookupError):
    """A fault's place or fragment is not in the source, or not there once."""


@dataclass(frozen=True)
class Fault:
    """One changed fragment of code.

    Attributes:
        name: what is wrong then.
        place: a file below `heddle/` and a function, method, class or constant in it, such as `nn/mask.py:Window.__call__`; or a
            file alone, which stands for all of it.
        old: the fragment of code that is changed. It occurs there exactly once, however its lines are broken; comments and
            docstrings do not count.
        new: what it becomes. Its further lines are indented like the one that the fragment starts in.
        toy: the trained toy whose outputs it must move by more than rounding; empty: none.
        check: the check of `prove` that must notice it in that toy, or `parity` with transformers.
        steps: the five steps of training that it must change; empty: none.
        test: the test that must fail, in the folder of the row's `faults.py`; `collect` adds the folder. Empty: none.
        law: the law of training that must notice it in the small run `run` of `tests/prove/tasks.py`; empty: none.
    """

    name: str
    place: str
    old: str
    new: str
    toy: str = ""
    check: str = ""
    steps: str = ""
    test: str = ""
    law: str = ""
    run: str = ""

    @property
    def file(self) -> str:
        return self.place.partition(":")[0]

    def plant(self, source: str) -> str:
        """The source of the fault's file with the fault in it.

        Raises:
            PlaceError: the source has no such place, or the fragment is not in it exactly once.
        """
        code = without_prose(source) if self.file.endswith(".py") else source
        inside = self.place.partition(":")[2]
        extents = places(source).get(inside, []) if inside else [(0, len(source))]
        if not extents:
            raise PlaceError(f"{self.name}: heddle/{self.file} has no {inside}")
        spans = [span for extent in extents for span in occurrences(self.old, code, *extent)]
        if len(spans) != 1:
            raise PlaceError(f"{self.name}: heddle/{self.place} has {self.old!r} {len(spans)} times")
        ((start, stop),) = spans
        line = source[source.rfind("\n", 0, start) + 1 :]
        indent = line[: len(line) - len(line.lstrip())]
        return source[:start] + self.new.replace("\n", "\n" + indent) + source[stop:]


def collect() -> list[Fault]:
    """All faults, in the order of their folders."""
    faults = []
    for path in sorted(TESTS.glob("*/faults.py")):
        folder = path.parent.name
        rows: list[Fault] = importlib.import_module(f"tests.{folder}.faults").FAULTS
        faults += [replace(fault, test=fault.test and f"{folder}/{fault.test}") for fault in rows]
    return faults


def misplaced(faults: list[Fault]) -> list[str]:
    """Which faults cannot be planted, and why."""
    reasons = []
    for fault in faults:
        try:
            fault.plant((SOURCE / fault.file).read_text())
        except PlaceError as error:
            reasons.append(str(error))
        except FileNotFoundError:
            reasons.append(f"{fault.name}: there is no heddle/{fault.file}")
    return reasons


@cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


def statements(node: ast.AST) -> Iterator[Any]:
    """The statements right inside a statement: its body and its other branches."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        yield from getattr(node, name, ())


@cache
def places(source: str) -> dict[str, list[tuple[int, int]]]:
    """Where a Python file defines its functions, classes and constants, by qualified name: offsets of their lines."""
    starts = [0]
    for line in source.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    extents: dict[str, list[tuple[int, int]]] = {}

    def visit(node: ast.AST, owner: str, *, in_function: bool) -> None:
        for child in statements(node):
            name = defined_name(child, in_function=in_function)
            qualified = f"{owner}.{name}".lstrip(".") if name else owner
            if name:
                decorators = getattr(child, "decorator_list", [])
                first = min(each.lineno for each in (child, *decorators))
                extents.setdefault(qualified, []).append((starts[first - 1], starts[child.end_lineno] - 1))
            visit(child, qualified, in_function=in_function or isinstance(child, DEFINITIONS[:2]))

    visit(parsed(source), "", in_function=False)
    return extents


def defined_name(node: ast.AST, *, in_function: bool) -> str:
    """What a statement defines: a function, a class or, outside of functions, a constant; empty: nothing."""
    if isinstance(node, DEFINITIONS):
        return node.name
    if in_function or not isinstance(node, ast.Assign | ast.AnnAssign):
        return ""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


@cache
def without_prose(source: str) -> str:
    """A Python file with blanks for its comments and docstrings, so that every offset stays."""
    lines = source.split("\n")
    for token in generate_tokens(StringIO(source).readline):
        if token.type == COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column] + " " * len(token.string)

    def visit(node: ast.AST) -> None:
        for child in statements(node):
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                for row in range(child.lineno - 1, child.end_lineno):
                    lines[row] = " " * len(lines[row])
            visit(child)

    visit(parsed(source))
    return "\n".join(lines)


class Token(NamedTuple):
    """A word or an operator, and its offsets."""

    text: str
    start: int
    stop: int


def tokens_of(code: str, start: int, stop: int) -> list[Token]:
    """The tokens of a part, without the commas that a formatter adds before closing brackets."""
    tokens = [Token(match.group(), *match.span()) for match in TOKEN.finditer(code, start, stop)]
    after = [*(token.text for token in tokens[1:]), ""]
    return [
        token
        for token, following in zip(tokens, after, strict=True)
        if token.text != "," or following not in (")", "]", "}")
    ]


def occurrences(fragment: str, code: str, start: int, stop: int) -> list[tuple[int, int]]:
    """Where a part of the code has a fragment, token by token: offsets."""
    tokens = tokens_of(code, start, stop)
    texts, needed = [token.text for token in tokens], [token.text for token in tokens_of(fragment, 0, len(fragment))]
    size = len(needed)
    matches = (number for number in range(len(texts) - size + 1) if texts[number : number + size] == needed)
    return [(tokens[number].start, tokens[number + size - 1].stop) for number in matches]


def changed_functions(fault: Fault) -> dict[str, CodeType]:
    """The functions that the fault changes, as they become; empty where it changes a table."""
    text = (SOURCE / fault.file).read_text()
    sound, broken = (
        functions_of(compile(each, fault.file, "exec", dont_inherit=True)) for each in (text, fault.plant(text))
    )
    return {name: code for name, code in broken.items() if content(sound[name]) != content(code)}


def functions_of(code: CodeType) -> dict[str, CodeType]:
    """The functions of a module or class, by their qualified names; what is inside a function belongs to it."""
    functions = {}
    for each in code.co_consts:
        if isinstance(each, CodeType) and each.co_flags & inspect.CO_NEWLOCALS:
            functions[each.co_qualname] = each
        elif isinstance(each, CodeType):
            functions |= functions_of(each)
    return functions


def content(code: CodeType) -> tuple[Any, ...]:
    """A function's code apart from its line numbers."""
    constants = (content(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.co_code, code.co_names, *constants


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """With the changed functions in place of the sound ones, wherever they have been imported to."""
    module: Any = importlib.import_module("heddle." + fault.file.removesuffix(".py").replace("/", "."))
    before: list[tuple[FunctionType, CodeType]] = []
    try:
        for name, code in changed_functions(fault).items():
            function: Any = module
            for part in name.split("."):
                function = inspect.getattr_static(function, part)
                function = getattr(function, "__func__", function)  # a static or class method
            function = inspect.unwrap(function.fget if isinstance(function, property) else function)
            before.append((function, function.__code__))
            function.__code__ = code
        yield
    finally:
        for function, code in before:
            function.__code__ = code
