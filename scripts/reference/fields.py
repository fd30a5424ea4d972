"""The fields of a config: type, default, and what the source says beside them."""

import ast
import inspect
import io
import json
import re
import tokenize
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel

from heddle.config.base import Config
from scripts.reference.text import code, prose, table

TINY, HUGE = 1e-5, 2**16  # limits beyond these refuse only what nobody means
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


class Row(NamedTuple):
    """A field of a config.

    Attributes:
        name: its key.
        type: as reStructuredText.
        default: in TOML; empty if there is none, or if the comment explains it.
        comment: the comment beside or below the field.
    """

    name: str
    type: str
    default: str
    comment: str


def rows(config: type[Config]) -> list[Row]:
    """The fields of a config, inherited ones included."""
    comments = {name: text for base in reversed(config.__mro__) for name, text in _comments(base).items()}
    return [
        Row(
            name,
            type_text(field.annotation, field.metadata),
            default_text(field.get_default(call_default_factory=True), field.is_required()),
            comments.get(name, ""),
        )
        for name, field in config.model_fields.items()
    ]


def field_table(config: type[Config]) -> str:
    """The fields of a config as a table."""
    cells = [(code(row.name), row.type, code(row.default), prose(row.comment)) for row in rows(config)]
    return table(("field", "type", "default", "meaning"), cells, name="fields") if cells else "It has no fields.\n"


def default_text(default: Any, required: bool = False) -> str:
    """A default as typed on the command line or in TOML."""
    if required:
        return "required"
    if default is None:
        return "none"
    if isinstance(default, Config):
        changes = default.model_dump(exclude_defaults=True) | {
            key: getattr(default, key) for key in ("kind",) if hasattr(default, key)
        }
        return json.dumps(changes) if changes else "its defaults"
    if isinstance(default, list | tuple | set | frozenset):
        return json.dumps([_plain(item) for item in default])
    return default if isinstance(default, str) and default else json.dumps(_plain(default))


def _plain(value: Any) -> Any:
    return value.model_dump(exclude_defaults=True) if isinstance(value, Config) else value


def type_text(annotation: Any, metadata: Any = ()) -> str:
    """An annotation as reStructuredText: choices as they are typed, limits as signs, configs as links."""
    limits = ", ".join(_limits(metadata))
    return f"{_type(annotation)}{' ' * bool(limits)}{limits}"


def _type(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(inner[0], inner[1:])
    if origin is Literal:
        return ", ".join(code(str(choice)) for choice in inner)
    if origin in (Union, types.UnionType):
        return " or ".join("none" if option is types.NoneType else _type(option) for option in inner)
    if origin in (tuple, list):
        item = " and ".join(_type(option) for option in inner if option is not ...)
        return f"list of {item}" if ... in inner or origin is list else f"list: {item}"
    if origin is dict or annotation is dict:
        return "table"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f":py:class:`~{annotation.__module__}.{annotation.__qualname__}`"
    names = {bool: "true or false", int: "integer", float: "number", str: "text", Path: "path"}
    return str(names.get(annotation, getattr(annotation, "__name__", str(annotation))))


def _limits(metadata: Any) -> Iterator[str]:
    for limit in metadata:
        for inner in (limit, *getattr(limit, "metadata", ())):
            values = {name: getattr(inner, name) for name in SIGNS if hasattr(inner, name)}
            yield from (
                f"{SIGNS[name]} {value:g}" for name, value in values.items() if TINY < abs(value) < HUGE or not value
            )


@cache
def _comments(config: type) -> dict[str, str]:
    """For each field of a class, the docstring under it, or the comment beside it or above it."""
    try:
        source = inspect.getsource(config)
    except (OSError, TypeError):
        return {}
    source = inspect.cleandoc("\n" + source)
    body = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)).body
    remarks = {
        token.start[0]: (token.string.lstrip("# "), not token.line[: token.start[1]].strip())
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(fmt:|type:|noqa)", token.string)
    }
    attributes = _attributes(config)
    comments = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            comments[node.target.id] = inspect.cleandoc(after.value.value)
        elif text := _beside(node, remarks) or attributes.get(node.target.id, ""):
            comments[node.target.id] = text
    return comments


def _beside(node: ast.AnnAssign, remarks: dict[int, tuple[str, bool]]) -> str:
    lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
    beside = [remarks[line][0] for line in lines if line in remarks]
    if beside:
        return " ".join(beside)
    above: list[str] = []
    line = node.lineno - 1
    while line in remarks and remarks[line][1]:
        above.insert(0, remarks[line][0])
        line -= 1
    return " ".join(above)


def _attributes(config: type) -> dict[str, str]:
    """The section `Attributes:` of a class's docstring."""
    section = (inspect.getdoc(config) or "").partition("\nAttributes:\n")[2].partition("\n\n")[0]
    parts = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)}
