"""The error for invalid settings: pydantic's problems in one line, by the names that the user wrote."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from heddle.checks import short_repr
from heddle.config.key_names import ALIASES, unknown_keys
from heddle.errors import HeddleError, did_you_mean

UNKNOWN = "extra_forbidden"
WORDS = "the command line"
EXPECTED = "Input should be "  # how pydantic begins
ALL = "config"  # the name of what is not in one key


@dataclass(frozen=True)
class Origin:
    """Where settings were written: in a file, and over it on the command line.

    Attributes:
        file: its name.
        words: the dotted keys of the command line, by heddle's names.
    """

    file: str
    words: tuple[str, ...]

    def __call__(self, key: str = "") -> str:
        """Where a key, or what is in a table, was written; without a key, all of it."""
        if any(key == word or key.startswith(f"{word}.") for word in self.words):
            return WORDS
        inside = any(not key or word.startswith(f"{key}.") for word in self.words)
        return f"{self.file} and {WORDS}" if inside else self.file


def origin(file: str | None, words: Iterable[str]) -> "Where":
    """Where settings were written that a command line sets over those of a file, if there is one."""
    if file is None:
        return "settings"
    canonical = (word.rpartition(".") for word in words)
    return Origin(file, tuple(f"{table}{dot}{ALIASES.get(leaf, leaf)}" for table, dot, leaf in canonical))


# The name of the settings in errors, or where each key of them was written.
Where = str | Callable[[str], str]


def place_of(where: Where, key: str = "") -> str:
    """Where a key was written, in words."""
    return where if isinstance(where, str) else where(key)


def config_error(cls: type[BaseModel], error: ValidationError, where: Where) -> HeddleError:
    """A HeddleError with every validation problem, in one line. Each key is named once, unknown ones first."""
    unknown: dict[
        tuple[str, str], tuple[list[str], Any]
    ] = {}  # by table and place: its unknown keys, and its config class
    firsts: dict[str, ErrorDetails] = {}  # by key
    problems = error.errors(include_url=False)
    for problem in problems:
        path = [str(part) for part in problem["loc"]]
        key, table = _key_and_table(cls, path, problem["type"] == UNKNOWN)
        if problem["type"] == UNKNOWN:
            table_and_place = key.rpartition(".")[0], place_of(where, key)
            unknown.setdefault(table_and_place, ([], table))[0].append(key)
        # A misspelt key is both unknown and, under its right name, missing; report the unknown one, which the user wrote.
        elif problem["type"] != "missing" or not any(each["type"] == UNKNOWN for each in problems):
            first = firsts.setdefault(key, problem)
            first["msg"] = _either(first, problem)
    lines = [_line(problem, key, place_of(where, "" if key == ALL else key)) for key, problem in firsts.items()]
    first_lines = [
        line
        for (name, place), (keys, table) in unknown.items()
        for line in unknown_keys(
            keys, getattr(table, "model_fields", {}), f" in {place}", keys_beside(cls, name) if name else None
        )
    ]
    return HeddleError(*first_lines, *lines)


def _either(first: ErrorDetails, other: ErrorDetails) -> str:
    """The message of the first problem of a key; with both, if they are those of a union such as a number or "auto"."""
    messages = [problem["msg"].partition(", unable")[0] for problem in (first, other)]
    same_place = first is not other and first["loc"][:-1] == other["loc"][:-1]
    of_union = same_place and bool(other["loc"]) and isinstance(other["loc"][-1], str)  # not two items of a list
    if not of_union or not all(message.startswith(EXPECTED) for message in messages):
        return first["msg"]
    return f"{messages[0]}, or {messages[1].removeprefix(EXPECTED)}"


def _key_and_table(cls: Any, path: list[str], is_unknown: bool) -> tuple[str, Any]:
    """The dotted key of a problem, and the config class of the table that it is in.

    A union adds tags and types to the location; only fields, which the user wrote, are in the key.
    """
    names: list[str] = []
    table: Any = cls
    model: Any = cls
    for place, part in enumerate(path):
        if part in getattr(model, "model_fields", {}) or (is_unknown and place == len(path) - 1):
            names.append(part)
        table, model = model, _step(model, part)
    return ".".join(names) or ALL, table


def _line(problem: ErrorDetails, key: str, where: str) -> str:
    """One problem other than an unknown key."""
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if problem["type"] == "missing":
        return f"{where}: {key!r} is missing"
    if problem["type"] == "union_tag_invalid":
        expected = [tag.strip("' ") for tag in problem["ctx"]["expected_tags"].split(",")]
        kind = problem["ctx"]["tag"]
        return f"{where}: {key}.kind = {kind!r} is not one of {', '.join(expected)}.{did_you_mean(kind, expected)}"
    if problem["type"] == "value_error":
        return f"{where}: {message}" if key == ALL else f"{where}: {key}: {message}"
    return f"{where}: {key} = {short_repr(problem.get('input'))}: {message[0].lower() + message[1:]}"


def keys_beside(cls: type[BaseModel], name: str) -> dict[str, str]:
    """The keys of the other tables of a config that is nothing but tables, such as a run's, and what to write for them."""
    tables = {table: models_in(field.annotation) for table, field in cls.model_fields.items()}
    if not all(tables.values()) or name not in tables:
        return {}
    keys = {
        key: f"{table}.{key}" for table in reversed(tables) for model in tables[table] for key in model.model_fields
    }
    return {key: path for key, path in keys.items() if key != "kind"}


def models_in(annotation: Any) -> list[Any]:
    """Every config class in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in models_in(inner)]


def _kind(model: Any) -> str | None:
    field = model.model_fields.get("kind")
    return None if field is None else field.default


def _step(model: Any, part: str) -> Any:
    """Follow one part of an error's location: a field, a union's tag, or a list index."""
    if isinstance(model, list):
        return next((option for option in model if _kind(option) == part), model)
    if part.isdigit():  # a list index: the model of its items
        return model
    field = getattr(model, "model_fields", {}).get(part)
    if field is None:
        return None
    models = models_in(field.annotation)
    return models[0] if len(models) == 1 else models
