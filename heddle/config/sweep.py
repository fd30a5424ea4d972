"""Expands a table of settings into several runs: one for each value of a list, where a setting has a single value."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import product
from math import prod
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from heddle.checks import at_least, checked
from heddle.config.base import parse_overrides, resolve_alias
from heddle.config.model import TransformerConfig
from heddle.config.problems import Where, models_in, place_of
from heddle.config.run import RunConfig
from heddle.display import displayed
from heddle.errors import HeddleError

SEED = "train.seed"
STACKS = ("encoder", "decoder", "head", "initial")  # tables of [model] with any setting of the model's config
MAX_RUNS = 10_000  # runs in a series
MAX_LABEL = 150  # characters of a label, which is part of a directory's name


@displayed()
class Variant(NamedTuple):
    """One run of a series.

    Attributes:
        settings: its values of the settings that vary, by dotted path.
        config: all of its settings.
    """

    settings: dict[str, Any]
    config: RunConfig

    @property
    def label(self) -> str:
        """Its name in the series: `learning_rate=0.001,batch=8,seed0`."""
        words = [
            f"seed{value}" if path == SEED else f"{_short(path)}={_word(value)}"
            for path, value in self.settings.items()
        ]
        return ",".join(words)


@checked(seeds=at_least(1))
def variants(table: Mapping[str, Any], seeds: int | None = None, where: Where = "settings") -> list[Variant]:
    """All combinations of the listed values in a table of settings; a single variant if nothing is listed.

    Args:
        table: a run file as nested tables, in which a single-valued setting may have a list of values.
        seeds: number of seeds for each combination, counted from `train.seed`; None: only that one.
        where: the table's name in errors, or a function that says where a dotted key was written.

    Raises:
        HeddleError: a list is empty or has a value twice, the seeds are given twice, there are more than 10,000 combinations, or
            one is invalid.
    """
    tried: dict[str, Sequence[Any]] = dict(_tried(table))
    if seeds is not None:
        if SEED in tried:
            raise HeddleError(
                f"{place_of(where, SEED)}: seed = {tried[SEED]} and --seeds {seeds} both choose the seeds; leave one out"
            )
        first = RunConfig.of(_with(table, {path: values[0] for path, values in tried.items()}), where).train.seed
        tried[SEED] = range(first, first + seeds)
    for path, options in tried.items():
        if not options:
            raise HeddleError(f"{place_of(where, path)}: {_short(path)} = []: give at least one value")
    if (count := prod(map(len, tried.values()))) > MAX_RUNS:
        raise HeddleError(f"{place_of(where)}: {count:,} runs are too many for one series; the limit is {MAX_RUNS:,}")
    runs = []
    for values in product(*tried.values()):
        settings = dict(zip(tried, values, strict=True))
        runs.append(Variant(settings, RunConfig.of(_with(table, settings), where)))
    labels = [variant.label for variant in runs]
    repeated = next((label for label in labels if labels.count(label) > 1), None)
    if repeated is not None:
        raise HeddleError(f"{place_of(where)}: {repeated} occurs twice in the series; give each value once")
    if len(max(labels, key=len)) > MAX_LABEL:
        raise HeddleError(
            f"{place_of(where)}: {len(tried)} settings are too many to name a run by; put some into separate series"
        )
    return runs


def _with(table: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The table with one value in place of each list. A new `kind` does not clear its table: all runs share the other keys."""
    data = deepcopy(dict(table))
    for path, value in settings.items():
        *parents, leaf = path.split(".")
        below = data
        for name in parents:
            below = below.setdefault(name, {})
        below[leaf] = value
    return data


def _tried(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, list[Any]]]:
    """Each single-valued setting that has a list, as a dotted path, with its values."""
    for key, value in table.items():
        path = (*above, key)
        if isinstance(value, Mapping):
            yield from _tried(value, path)
        elif (values := _listed(value)) is not None and is_single_valued(path):
            yield ".".join(path), values


def _listed(value: Any) -> list[Any] | None:
    """The items of a list, or of `[muon, adamw]` as text, since words in TOML need quotes."""
    if isinstance(value, list | tuple):
        return [*value]
    if isinstance(value, str) and re.fullmatch(r"\[.*\]", value, re.DOTALL):
        return [parse_overrides([f"item={word.strip()}"])["item"] for word in value[1:-1].split(",") if word.strip()]
    return None


def is_single_valued(path: tuple[str, ...]) -> bool:
    """Whether a setting exists and is not itself a list: `("train", "learning_rate")`, but not `betas` or `sources`."""
    kinds: list[Any] = [RunConfig]
    for depth, part in enumerate(path):
        owners = [model for kind in kinds for model in models_in(kind)]
        if depth == 1 and path[0] == "model" and part in STACKS:
            owners = [TransformerConfig]
        names = [(owner.model_fields, resolve_alias(part, None, owner.model_fields)[0]) for owner in owners]
        kinds = [fields[name].annotation for fields, name in names if name in fields]
    return bool(kinds) and not any(map(_accepts_list, kinds))


def _accepts_list(annotation: Any) -> bool:
    if annotation is Any or annotation in (list, tuple):
        return True
    if get_origin(annotation) is Annotated:
        return _accepts_list(get_args(annotation)[0])
    if get_origin(annotation) in (list, tuple, set, frozenset):
        return True
    return get_origin(annotation) not in (dict, None) and any(
        _accepts_list(argument) for argument in get_args(annotation)
    )


def _short(path: str) -> str:
    """A path without its section, as on the command line."""
    section, _, name = path.partition(".")
    return name if name and section != "task" else path


def _word(value: Any) -> str:
    """A value as part of a directory's name."""
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^\w.+-]+", "_", text).strip("_")
