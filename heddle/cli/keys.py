"""The keys of `heddle train --help` and `heddle vectors train --help`: name, default, and the docstring under the field."""

import ast
import inspect
import json
import shutil
import textwrap
from typing import Any, Literal, get_args, get_origin

from heddle.config import data, run, tasks, train, vectors
from heddle.config.base import models_in
from heddle.config.run import RunConfig
from heddle.config.vectors import VectorsConfig

# Each section with the configs that it may be: of a choice that is tagged by `kind`, every one.
SECTIONS = {name: models_in(field.annotation) for name, field in RunConfig.model_fields.items()}
TITLES = {"data": "the text", "model": "the model", "task": "what it learns", "train": "the training"}
WIDEST = 120  # columns


def keys() -> str:
    """Every key, grouped by the tables of a run file."""
    width = min(WIDEST, shutil.get_terminal_size().columns)
    written = _written()
    parts = [
        "Settings, as key=value on the command line or under their table in a run file:",
        *(_section(name, configs, written, width) for name, configs in SECTIONS.items()),
    ]
    return "\n\n".join(parts)


def vector_keys() -> str:
    """Every key of `heddle vectors train`."""
    width = min(WIDEST, shutil.get_terminal_size().columns)
    said = "Settings, as key=value on the command line or in a file:"
    return "\n\n".join((said, "\n".join(_lines([VectorsConfig], _written(), width))))


def _section(name: str, configs: list[Any], written: dict[str, dict[str, str]], width: int) -> str:
    return "\n".join([f"[{name}] {TITLES[name]}", *_lines(configs, written, width)])


def _lines(configs: list[Any], written: dict[str, dict[str, str]], width: int) -> list[str]:
    # Of a section that is one of several, `kind` is shown once, and the other keys with the kind that has them.
    kinds = [config.model_fields["kind"].default for config in configs] if len(configs) > 1 else []
    # A key with the same text in several kinds is shown once, with all of them.
    having: dict[tuple[str, str], tuple[Any, list[str]]] = {}
    for kind, config in zip(kinds or [""], configs, strict=True):
        for key, field in config.model_fields.items():
            if key != "kind" or config is configs[0]:
                having.setdefault((key, written[config.__name__].get(key, "")), (field, []))[1].append(kind)
    fields = [
        (key, field, f"with kind={' or '.join(found)}: {text}" if kinds and key != "kind" else text)
        for (key, text), (field, found) in having.items()
    ]
    first = max(len(key) for key, _, _ in fields)
    lines: list[str] = []
    for key, field, text in fields:
        default = _shown(field.get_default(call_default_factory=True))
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        choices = tuple(kinds) if key == "kind" else choices
        facts = "; ".join([", ".join(choices)] * bool(choices) + [f"default: {default}"] * bool(default))
        indent = " " * (first + 4)
        said = f"{text} [{facts}]" if facts else text
        lines += textwrap.wrap(said, width, initial_indent=f"  {key:<{first}}  ", subsequent_indent=indent)
    return lines


def _shown(default: Any) -> str:
    """A default as one would type it. For None or an empty value, the docstring says what happens."""
    if default is None or default in ((), {}):
        return ""
    return default if isinstance(default, str) else json.dumps(default)


def _written() -> dict[str, dict[str, str]]:
    """The docstring under each field, by class. pydantic could keep it, but would read the source at every import."""
    found: dict[str, dict[str, str]] = {}
    for node in (
        node for module in (data, run, tasks, train, vectors) for node in ast.parse(inspect.getsource(module)).body
    ):
        if isinstance(node, ast.ClassDef):
            pairs = zip(node.body, node.body[1:], strict=False)
            found[node.name] = {
                ast.unparse(field.target): inspect.cleandoc(text.value.value)
                for field, text in pairs
                if isinstance(field, ast.AnnAssign)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            }
    return found
