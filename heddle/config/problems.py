"""The error for invalid settings: pydantic's problems in one line, by the names that the user wrote."""

from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from heddle.checks import short_repr
from heddle.config.key_names import unknown_keys
from heddle.errors import HeddleError, did_you_mean

UNKNOWN = "extra_forbidden"


def config_error(cls: type[BaseModel], error: ValidationError, where: str) -> HeddleError:
    """A HeddleError with every validation problem, in one line. Each key is named once, unknown ones first."""
    unknown: dict[str, tuple[list[str], Any]] = {}  # by table: its unknown keys, and its config class
    lines: dict[str, str] = {}
    problems = error.errors(include_url=False)
    for problem in problems:
        path = [str(part) for part in problem["loc"]]
        key, table = _key_and_table(cls, path, problem["type"] == UNKNOWN)
        if problem["type"] == UNKNOWN:
            unknown.setdefault(key.rpartition(".")[0], ([], table))[0].append(key)
        # A misspelt key is both unknown and, under its right name, missing; report the unknown one, which the user wrote.
        elif problem["type"] != "missing" or not any(each["type"] == UNKNOWN for each in problems):
            lines.setdefault(key, _line(problem, key, where))
    first_lines = [
        line
        for keys, table in unknown.values()
        for line in unknown_keys(keys, getattr(table, "model_fields", {}), f" in {where}")
    ]
    return HeddleError(*first_lines, *lines.values())


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
    return ".".join(names) or "config", table


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
        return f"{where}: {message}" if key == "config" else f"{where}: {key}: {message}"
    return f"{where}: {key} = {short_repr(problem.get('input'))}: {message[0].lower() + message[1:]}"


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
