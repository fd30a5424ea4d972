"""Argument checks for public functions: one line that names the argument, instead of a failure deeper in the code.

`@checked()` reads the function's annotations, so each type is stated once; limits such as `steps=at_least(1)` add the rest.
It is for functions that users call, never for functions inside a training step or a compiled graph.
"""

import inspect
import os
import re
import reprlib
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar, Union, get_args, get_origin

from heddle.errors import HeddleError, article, did_you_mean

P = ParamSpec("P")
R = TypeVar("R")
LONGEST = 60  # characters of a value that an error shows
LONGEST_NAME, LONGEST_PATH = 255, 4095  # maximum bytes of a file's name and of a path on Linux
CONTAINERS = (list, tuple, range, set, frozenset, dict, deque)

WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a finite number",
    str: "a string",
    Path: "a path",
    types.NoneType: "None",
}
# How to get an instance of a class, by its name, for error messages.
SOURCES = {
    "Transformer": "heddle.build or heddle.load",
    "TransformerConfig": "heddle.preset, heddle.sized or TransformerConfig.of(table)",
    "Tokenizer": "heddle.train_tokenizer or heddle.load_tokenizer",
    "Tokenizes": "heddle.train_tokenizer or heddle.load_tokenizer",
    "TokenStore": "TokenStore.open or build_store",
    "RecordStore": "RecordStore.open or build_records",
    "Part": "TokenStore.open(...).train or .validation",
    "Batch": "next_token_batch",
    "Task": "heddle.tasks.make_task",
    "Cache": "model.new_cache",
    "RunConfig": "RunConfig.of(table)",
    "TrainConfig": "TrainConfig.of(table)",
    "VectorsConfig": "VectorsConfig.of(table)",
    "SamplingConfig": "SamplingConfig.of(table)",
    "BeamConfig": "BeamConfig.of(table)",
    "Accounts": "heddle.account.count",
    "AttentionPass": "heddle.look.trace(model, tokens, attention=...).attention",
    "Edit": "heddle.look.ablate, replace, steer or switch_off",
}


class Limit(NamedTuple):
    """A requirement on a value in addition to its type."""

    requirement: str
    accepts: Callable[[Any], bool]
    choices: tuple[str, ...] = ()  # the error suggests the nearest


def at_least(minimum: float) -> Limit:
    """A number of at least `minimum`."""
    return Limit(f"at least {minimum:,}", lambda value: bool(value >= minimum))


def between(minimum: float, maximum: float) -> Limit:
    """A number from `minimum` to `maximum`, both included."""
    return Limit(f"a number from {minimum:,} to {maximum:,}", lambda value: bool(minimum <= value <= maximum))


def one_of(choices: Iterable[str]) -> Limit:
    """One of these words."""
    words = tuple(choices)
    return Limit(f"one of {', '.join(words)}", lambda value: value in words, words)


POSITIVE = Limit("a number above 0", lambda value: bool(value > 0))
SEED = between(0, 2**63 - 1)
SOME = Limit("not empty", lambda value: len(value) > 0)


def wrong(where: str, argument: str, value: Any, needed: str, choices: Iterable[str] = ()) -> HeddleError:
    """The error for a bad argument, in one line: the function, the argument, its value and what it must be."""
    suggestion = did_you_mean(value, choices) if isinstance(value, str) else ""
    must_be = f"must be {needed.removesuffix(',')}"
    return HeddleError(f"{where}: {argument} = {short_repr(value)}: {must_be}.{suggestion}".removesuffix("."))


def short_repr(value: Any) -> str:
    """A value, shortened to one line."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and not hasattr(value, "dtype"):  # a data frame
        return f"{article(type(value).__name__)} of shape {list(shape)}"
    if isinstance(shape, tuple):
        kind = "a tensor" if "torch" in type(value).__module__ else "an array"
        return f"{kind} of {str(value.dtype).removeprefix('torch.')} and shape {list(shape)}"
    collection = isinstance(value, str | bytes | Collection)
    try:
        # `reprlib` formats only the beginning of a long list.
        text = " ".join((reprlib.repr if collection else repr)(value).split())
    except Exception:  # a third-party class may fail even here
        text, collection = "", False
    if 0 < len(text) <= LONGEST and not (text.startswith("<") and re.search("at 0x|[.]{3}", text)):
        return text
    return f"{text[:LONGEST]}…" if collection and len(text) > LONGEST else article(type(value).__name__)


def as_list(value: Any) -> list[Any] | None:
    """A column of numpy, pandas, polars or Arrow as a list; None for other values, such as a tensor."""
    if "torch" in type(value).__module__:
        return None
    for name in ("to_pylist", "to_list", "tolist"):
        if callable(method := getattr(value, name, None)):
            items = method()
            return items if isinstance(items, list) else None
    return None


def checked(**limits: Limit) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check a function's arguments against its annotations and these limits before it runs.

    A number must be finite; `True` is not a number and a string is not a list. Limits do not apply to None. Where a list is
    needed, a column of numpy, pandas, polars or Arrow is read as one. The items of a list are checked before the call, and
    those of an iterator when each is read.

    Raises:
        HeddleError: from the decorated function, for the first argument that does not fit.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.name not in ("self", "cls")
        ]
        skipped = len(inspect.signature(function).parameters) - len(parameters)
        kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        names = [parameter.name for parameter in parameters if parameter.kind not in kinds]
        assert set(limits) <= set(names), f"{function.__name__} has no {set(limits) - set(names)}"
        home = getattr(inspect.unwrap(function), "__globals__", {})
        checks: dict[str, Check] = {}

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not checks:  # lazily: an annotation may name a class that is defined later
                checks.update({p.name: check_of(p.annotation, home) for p in parameters if p.name in names})
            values: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}  # by place or by name
            places = (*zip(names, range(skipped, len(args)), strict=False), *((name, name) for name in kwargs))
            for name, key in places:
                check, value = checks.get(name), values[key]
                if check is None:
                    continue
                if not check.fits(value):
                    items = as_list(value)
                    if items is None or not check.fits(items):
                        raise wrong(qualified_name(function, args[:skipped]), name, value, check.needed, check.choices)
                    values[key] = value = items
                limit = limits.get(name)
                if limit is not None and value is not None and not limit.accepts(value):
                    raise wrong(qualified_name(function, args[:skipped]), name, value, limit.requirement, limit.choices)
                if check.item is not None:
                    values[key] = check.read(value, qualified_name(function, args[:skipped]), name)
            return function(*map(values.__getitem__, range(len(args))), **{name: values[name] for name in kwargs})

        return call

    return decorate


class RepeatedKeyError(ValueError):
    """A JSON object has a key twice."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The keys and values of a JSON object, for `object_pairs_hook` of `json`, which by default keeps the last of equal keys.

    Raises:
        RepeatedKeyError: a key occurs twice.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise RepeatedKeyError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return values


def qualified_name(function: Callable[..., Any], owner: Sequence[Any]) -> str:
    """A function's name for messages; that of a method starts with the class of its object."""
    names = [part.__name__ if isinstance(part, type) else type(part).__name__ for part in owner]
    return ".".join([*names, function.__name__]).removesuffix(".__init__")


def names_file(path: str) -> bool:
    """Whether a text can be a path: not empty, not too long, without a null character."""
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:  # a lone surrogate
        return False
    longest = max(map(len, encoded.split(os.fsencode(os.sep))))
    return 0 < len(encoded) <= LONGEST_PATH and longest <= LONGEST_NAME and b"\0" not in encoded


class Check(NamedTuple):
    """The requirement of an annotation on a value, and on each item of an iterator."""

    needed: str
    fits: Callable[[Any], bool]
    choices: tuple[str, ...] = ()
    item: "Check | None" = None

    def read(self, value: Any, where: str, argument: str) -> Any:
        """The value, or an iterator of it that checks each item."""
        lazy = isinstance(value, Iterable) and not isinstance(value, (str, bytes, *CONTAINERS))
        if self.item is None or not lazy or hasattr(value, "dtype"):
            return value
        return Items(value, self.item, where, argument)


class Items:
    """The items of an iterator, each checked when it is read."""

    def __init__(self, items: Iterable[Any], check: Check, where: str, argument: str) -> None:
        self.items, self.check, self.where, self.argument = items, check, where, argument

    def __iter__(self) -> Iterator[Any]:
        for number, item in enumerate(self.items):
            if not self.check.fits(item):
                raise wrong(self.where, f"{self.argument}[{number}]", item, self.check.needed, self.check.choices)
            yield item


ANYTHING = Check("anything", lambda value: True)
PATH = Check("a path", lambda value: isinstance(value, str | Path) and names_file(str(value)))


def check_of(annotation: Any, home: Mapping[str, Any]) -> Check:
    """The check for an annotation; unknown annotations accept every value."""
    if isinstance(annotation, str):
        annotation = eval(annotation, dict(home))
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return check_of(inner[0], home)
    if origin in (Union, types.UnionType):
        if {str, Path} <= set(inner):
            return _either([PATH, *(check_of(option, home) for option in inner if option not in (str, Path))])
        return _either([check_of(option, home) for option in inner])
    if origin is Literal:
        words = tuple(map(str, inner))
        return Check(
            f"one of {', '.join(words)}", lambda value: any(type(value) is type(o) and value == o for o in inner), words
        )
    if annotation is None:
        annotation = types.NoneType
    if hasattr(annotation, "dim_str"):
        return _array(annotation)
    if origin is Callable:
        return Check("a function", callable)
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return _collection(origin, [check_of(option, home) for option in inner if option is not ...])
    return _of_class(annotation) if isinstance(annotation, type) else ANYTHING


def _either(checks: list[Check]) -> Check:
    if any(check is ANYTHING for check in checks):
        return ANYTHING
    if len(checks) == 1:  # of every id in a list, for one: no detour
        return checks[0]
    last = [check for check in checks if check.needed == "None"]
    needed = " or ".join(dict.fromkeys(check.needed for check in (*(c for c in checks if c not in last), *last)))
    choices = tuple(word for check in checks for word in check.choices)
    item = next((check.item for check in checks if check.item is not None), None)
    return Check(needed, lambda value: any(check.fits(value) for check in checks), choices, item)


def _of_class(kind: type) -> Check:
    """A check for an instance of a class."""
    if kind is bool:
        return Check(WORDS[bool], lambda value: isinstance(value, bool))
    if kind is int:
        return Check(
            WORDS[int],
            lambda value: type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool)),
        )
    if kind is float:
        return Check(WORDS[float], _is_number)
    try:
        isinstance(None, kind)
    except TypeError:  # a protocol that isinstance cannot check
        return ANYTHING
    source = SOURCES.get(kind.__name__)
    needed = WORDS.get(kind, f"a {kind.__module__.split('.')[0]} {kind.__name__}")
    return Check(f"{needed} (from {source})" if source else needed, lambda value: isinstance(value, kind))


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:
        return False


def _collection(kind: type, inner: list[Check]) -> Check:
    """A check for a collection. The items of an iterator are checked when they are read, since reading consumes them."""
    if issubclass(kind, Mapping):
        return _table(kind, *(inner or (ANYTHING, ANYTHING)))
    # A tuple of fixed length has an annotation for each position.
    item = _either(inner) if inner else ANYTHING
    of = "" if item is ANYTHING else f" (each item {item.needed})"

    def fits(value: Any) -> bool:
        if not isinstance(value, kind) or isinstance(value, str | bytes):
            return False
        if hasattr(value, "columns") or (kind is Iterable and isinstance(value, Mapping)):
            return False  # a data frame, whose items would be the names of its columns
        if isinstance(value, CONTAINERS):
            return all(map(item.fits, value))
        items: Any = value
        # Arrays are read as lists, tensors number by number.
        if (hasattr(items, "dtype") or hasattr(items, "to_pylist")) and not hasattr(kind, "dtype"):
            numbers = item is ANYTHING or item.needed == WORDS[int]
            return "torch" in type(items).__module__ and kind is Iterable and numbers and len(items.shape) > 0
        if kind is not Collection:
            return True
        return all(map(item.fits, items))

    return Check(f"a list{of}", fits, item=item if kind is Iterable and item is not ANYTHING else None)


def _table(kind: type[Mapping[Any, Any]], key: Check, item: Check) -> Check:
    """A check for a mapping. Values are checked only in a dictionary, since other mappings may load them lazily."""
    of = "" if item is ANYTHING else f" (each value {item.needed})"

    def fits(value: Any) -> bool:
        if not isinstance(value, kind) or not all(map(key.fits, iter(value))):
            return False
        return not isinstance(value, dict) or all(map(item.fits, value.values()))

    return Check(f"a table of keys{of}", fits)


def _array(annotation: Any) -> Check:
    """A check for a tensor or array with the rank and dtype of a jaxtyping annotation."""
    dims = annotation.dim_str.split()
    rank = None if any(dim.startswith("*") or dim == "..." for dim in dims) else len(dims)
    names, kind = annotation.dtypes, annotation.array_type
    anything = not isinstance(names, list | tuple)

    def fits(value: Any) -> bool:
        if not isinstance(value, kind) or (rank is not None and len(value.shape) != rank):
            return False
        return anything or str(value.dtype).removeprefix("torch.") in names

    sort = "" if anything else " of whole numbers" if "int64" in names else " of floating-point numbers"
    return Check(f"a {kind.__name__.lower()}{sort} of shape [{' '.join(dims)}]", fits)
