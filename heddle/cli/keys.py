"""The settings listed by `heddle train --help` and `heddle vectors train --help`, from the docstrings under their fields."""

import ast
import inspect
import json
import shutil
import textwrap
from typing import Any, Literal, get_args, get_origin

from heddle.config import data, parallel, run, tasks, train, vectors
from heddle.config.problems import models_in
from heddle.config.run import RunConfig
from heddle.config.vectors import VectorsConfig

# Each section with its config classes: several if the section is a union tagged by `kind`.
SECTIONS = {name: models_in(field.annotation) for name, field in RunConfig.model_fields.items()}
TITLES = {
    "data": "the text",
    "model": "the model",
    "task": "what it learns",
    "train": "the training",
    "parallel": "how processes of torchrun divide it",
}
MAX_WIDTH = 120  # columns


def keys() -> str:
    """All settings of `heddle train`, grouped by the tables of a run file."""
    width = min(MAX_WIDTH, shutil.get_terminal_size().columns)
    docstrings = _docstrings()
    parts = [
        "Settings, as key=value on the command line or under their table in a run file:",
        *(
            "\n".join([f"[{name}] {TITLES[name]}", *_lines(configs, docstrings, width)])
            for name, configs in SECTIONS.items()
        ),
    ]
    return "\n\n".join(parts)


def vector_keys() -> str:
    """All settings of `heddle vectors train`."""
    width = min(MAX_WIDTH, shutil.get_terminal_size().columns)
    heading = "Settings, as key=value on the command line or in a file:"
    return "\n\n".join((heading, "\n".join(_lines([VectorsConfig], _docstrings(), width))))


def _lines(configs: list[Any], docstrings: dict[str, dict[str, str]], width: int) -> list[str]:
    # In a union, `kind` is listed once, and every other key with the kinds that have it.
    kinds = [config.model_fields["kind"].default for config in configs] if len(configs) > 1 else []
    # A key with the same docstring in several kinds is listed once.
    kinds_by_key: dict[tuple[str, str], tuple[Any, list[str]]] = {}
    for kind, config in zip(kinds or [""], configs, strict=True):
        for key, field in config.model_fields.items():
            if key != "kind" or config is configs[0]:
                kinds_by_key.setdefault((key, docstrings[config.__name__].get(key, "")), (field, []))[1].append(kind)
    fields = [
        (key, field, f"with kind={' or '.join(key_kinds)}: {text}" if kinds and key != "kind" else text)
        for (key, text), (field, key_kinds) in kinds_by_key.items()
    ]
    key_width = max(len(key) for key, _, _ in fields)
    lines: list[str] = []
    for key, field, text in fields:
        default = _default_text(field.get_default(call_default_factory=True))
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        choices = tuple(kinds) if key == "kind" else choices
        facts = "; ".join([", ".join(choices)] * bool(choices) + [f"default: {default}"] * bool(default))
        indent = " " * (key_width + 4)
        entry = f"{text} [{facts}]" if facts else text
        lines += textwrap.wrap(entry, width, initial_indent=f"  {key:<{key_width}}  ", subsequent_indent=indent)
    return lines


def _default_text(default: Any) -> str:
    """A default as typed on the command line; empty for None and empty values, which the docstring explains."""
    if default is None or default in ((), {}):
        return ""
    return default if isinstance(default, str) else json.dumps(default)


def _docstrings() -> dict[str, dict[str, str]]:
    """The docstring under each field, by class name. pydantic could collect them, but would parse the source at every import."""
    docstrings: dict[str, dict[str, str]] = {}
    for node in (
        node
        for module in (data, parallel, run, tasks, train, vectors)
        for node in ast.parse(inspect.getsource(module)).body
    ):
        if isinstance(node, ast.ClassDef):
            pairs = zip(node.body, node.body[1:], strict=False)
            docstrings[node.name] = {
                ast.unparse(field.target): inspect.cleandoc(text.value.value)
                for field, text in pairs
                if isinstance(field, ast.AnnAssign)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            }
    return docstrings
