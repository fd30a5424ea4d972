"""The base of all configs: frozen data, strict keys, one-line errors, JSON and TOML, overrides."""

import json
import re
import tomllib
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from heddle.checks import checked, unique_keys, wrong
from heddle.config.key_names import ALIASES
from heddle.config.problems import Where, config_error
from heddle.display import config_html, config_lines, screen
from heddle.errors import HeddleError

NONE = ("none", "None", "null")  # spellings of None, for formats without null


class Verbatim:
    """Marks a text field, in `Annotated`, in which "none" is an ordinary text."""


def resolve_alias(key: str, value: Any, names: Container[str]) -> tuple[str, Any]:
    """Translate an alias to heddle's key and value, if `names` has the key and not the alias.

    A retain probability becomes the drop rate (D-03).
    """
    name = ALIASES.get(key)
    if name is None or key in names or name not in names:
        return key, value
    if key == "keep_prob" and isinstance(value, int | float):
        value = round(1 - value, 12)  # so that 0.9 gives the rate 0.1, not 0.09999999999999998
    return name, value


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # pydantic has no public name for it


class _OneLine(ModelMetaclass):
    """Makes `Config(...)` raise the same errors as `Config.of`. Pydantic builds nested configs without calling this."""

    if not TYPE_CHECKING:  # hidden from type checkers, so that editors complete a config's fields

        def __call__(cls, *args: Any, **values: Any) -> Any:
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                raise config_error(cls, error, cls.__name__) from None


class Config(BaseModel, metaclass=_OneLine):
    """Frozen, torch-free data. Unknown keys and invalid values raise at construction."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _normalize_keys(cls, data: Any) -> Any:
        """Translate aliases to keys, and "none" to None in fields where it is not a valid choice."""
        if not isinstance(data, dict):
            return data
        data = {
            key: None if isinstance(value, str) and value in NONE and _none_means_null(cls, key) else value
            for key, value in data.items()
        }
        for key, value in data.items():
            if isinstance(value, bool) and _is_number(cls, key):
                raise ValueError(f"{key} = {str(value).lower()}: must be a number")  # pydantic would read true as 1
        if not any(key in ALIASES for key in data):
            return data
        renamed: dict[str, Any] = {}
        spellings: dict[str, str] = {}
        for key, value in data.items():
            canonical, translated = resolve_alias(key, value, cls.model_fields)
            if canonical in renamed and renamed[canonical] != translated:
                pair = sorted((spellings[canonical], key), key=lambda name: name == canonical)
                values = " and ".join(f"{name} = {data[name]!r}" for name in pair)
                raise ValueError(f"{values} contradict each other; set only {canonical!r}")
            renamed[canonical], spellings[canonical] = translated, key
        return renamed

    @classmethod
    def of(cls, data: Mapping[str, Any], where: Where = "config") -> Self:
        """Validate plain data (from JSON, TOML or a dict).

        Args:
            data: a table of keys.
            where: its name in errors, or a function that says where a dotted key was written.

        Raises:
            HeddleError: one line with the key, the problem, and the nearest valid name.
        """
        if not isinstance(data, Mapping | cls):
            raise wrong(f"{cls.__name__}.of", "data", data, "a table of keys")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise config_error(cls, error, where) from None

    @classmethod
    @checked()
    def read(cls, path: str | Path) -> Self:
        """Read a `.json` or `.toml` file."""
        return cls.of(read_table(path), where=str(path))

    def __repr__(self) -> str:
        return screen(config_lines(self), ".to_dict()")

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return f"<b>{type(self).__name__}</b>{config_html(self)}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data from which `of` makes an equal config."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        """Indented JSON text, keys in the order of declaration."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def to_toml(self) -> str:
        """TOML text. TOML has no null, so fields that are None are left out; every such field defaults to None."""
        return write_toml(self.model_dump(mode="json", exclude_none=True))

    @checked()
    def override(self, changes: Mapping[str, Any], where: str = "config") -> Self:
        """A new config with dotted paths replaced, validated again: `override({"decoder.depth": 4})`.

        Args:
            changes: values by dotted path.
            where: the name of the config in errors.
        """
        data = self.to_dict()
        for path, value in changes.items():
            set_path(data, path, value)
        return type(self).of(data, where)


def read_table(path: str | Path) -> dict[str, Any]:
    """Read a JSON or TOML file into a dict; a file that cannot be read is a one-line error."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise HeddleError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise HeddleError(f"{path} is a directory, not a .toml or .json file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise HeddleError(f"{path}: cannot be read as text ({error})") from None
    try:
        data = json.loads(text, object_pairs_hook=unique_keys) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise HeddleError(f"{path}: not valid {'JSON' if path.suffix == '.json' else 'TOML'} ({error})") from None
    if not isinstance(data, dict):
        raise HeddleError(f"{path}: must be a table of keys, not {type(data).__name__}")
    return data


@checked()
def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """Parse `key=value` words into a dict. A value is read as TOML if it can be (3, 0.5, true, [1, 2]), else as text.

    Raises:
        HeddleError: some words have another form, or some keys occur twice.
    """
    changes: dict[str, Any] = {}
    problems = []
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            problems.append(f"{pair!r} is not of the form key=value")
            continue
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):  # ValueError covers TOMLDecodeError and numbers of thousands of digits
            value = text
        name = key.strip().replace("-", "_")
        if name in changes:
            problems.append(f"{name} is given twice, the second time as {pair!r}; give it once")
        changes[name] = value
    if problems:
        raise HeddleError(*problems)
    return changes


def set_path(data: dict[str, Any], path: str, value: Any) -> None:
    """Set `data["a"]["b"]` for the dotted path `a.b`. Missing tables are created; a value in place of a table raises."""
    *parents, leaf = path.split(".")
    for name in parents:
        table = data.setdefault(name, {})
        if table is None:
            table = data[name] = {}
        if not isinstance(table, dict):
            raise HeddleError(f"{path!r}: {name!r} is a value, not a table of keys")
        data = table
    leaf, value = resolve_alias(leaf, value, data)
    if leaf == "kind" and data.get("kind", value) != value:
        data.clear()  # the keys of another kind do not apply
    data[leaf] = value


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Deep merge of tables; a table of another `kind` replaces the whole table, since its keys differ."""
    merged = dict(base)
    for name, change in changes.items():
        key, value = resolve_alias(name, change, merged)
        old = merged.get(key)
        same_kind = (
            isinstance(old, Mapping)
            and isinstance(value, Mapping)
            and value.get("kind", old.get("kind")) == old.get("kind")
        )
        merged[key] = merge(old, value) if same_kind else value  # type: ignore[arg-type]
    return merged


def to_data(value: Any) -> Any:
    """Configs, tuples and mappings as plain tables, lists and scalars, without the None values of configs."""
    if isinstance(value, Config):
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, Mapping):
        return {key: to_data(inner) for key, inner in value.items()}
    return [to_data(inner) for inner in value] if isinstance(value, list | tuple) else value


def with_kind(data: Any, key: str, kind: str) -> Any:
    """`data` with a `kind` added to the table under `key`, if it has none."""
    if isinstance(data, dict) and isinstance(table := data.get(key), dict) and "kind" not in table:
        return {**data, key: {"kind": kind, **table}}
    return data


def write_toml(data: Mapping[str, Any], prefix: str = "") -> str:
    """Tables as TOML: values first, then one `[table]` per nested dict. JSON strings, numbers and lists are valid TOML."""
    lines = [
        f"{_toml_key(key)} = {_toml_value(value)}" for key, value in data.items() if not isinstance(value, Mapping)
    ]
    text = "".join(line + "\n" for line in lines)
    for key, value in data.items():
        if isinstance(value, Mapping):
            name = f"{prefix}{_toml_key(key)}"
            text += f"\n[{name}]\n" + write_toml(value, name + ".")
    return text


def _toml_key(key: str) -> str:
    """A bare key if TOML allows it, else a quoted one."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):  # inside a list, where TOML needs the inline form
        return "{" + ", ".join(f"{_toml_key(k)} = {_toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(v) for v in value) + "]"
    if value is None:
        raise HeddleError("none cannot be written as TOML, which has no null; write JSON")
    # JSON escapes characters beyond 16 bits as surrogates and leaves DEL unescaped; TOML allows neither.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _is_number(cls: type[BaseModel], key: str) -> bool:
    """Whether a field accepts only numbers, or None."""
    field = cls.model_fields.get(resolve_alias(key, None, cls.model_fields)[0])
    return field is not None and _plain_types(field.annotation) <= {int, float, NoneType}


def _plain_types(annotation: Any) -> set[Any]:
    """The types that an annotation allows, without their constraints."""
    if get_origin(annotation) is Annotated:
        return _plain_types(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return set().union(*map(_plain_types, get_args(annotation)))
    return {annotation}


def _none_means_null(cls: type[BaseModel], key: str) -> bool:
    """Whether "none" means None for this field: it may be None, and "none" is not a valid choice or text."""
    field = cls.model_fields.get(key)
    choices = () if field is None else get_args(field.annotation)
    words = [word for choice in choices if get_origin(choice) is Literal for word in get_args(choice)]
    verbatim = field is not None and any(isinstance(marker, Verbatim) for marker in field.metadata)
    return NoneType in choices and "none" not in words and not verbatim
