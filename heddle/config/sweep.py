"""Several runs from one table of settings: a list, where a setting takes one value, gives a run for each of its values."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import product
from math import prod
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from heddle.checks import at_least, checked
from heddle.config.base import known_as, models_in, parse_overrides
from heddle.config.model import TransformerConfig
from heddle.config.run import RunConfig
from heddle.display import displayed
from heddle.errors import HeddleError

SEED = "train.seed"
STACKS = ("encoder", "decoder", "head", "initial")  # tables of [model] with any setting of the model's config
MOST = 10_000  # runs in a series
LONGEST = 150  # characters of a label, which is part of a directory's name


@displayed()
class Variant(NamedTuple):
    """One run of a series.

    Attributes:
        settings: the values that it has of those tried, by dotted path.
        config: all of its settings.
    """

    settings: dict[str, Any]
    config: RunConfig

    @property
    def label(self) -> str:
        """A name for it among the others: `learning_rate=0.001,batch=8,seed0`."""
        words = [
            f"seed{value}" if path == SEED else f"{_short(path)}={_word(value)}"
            for path, value in self.settings.items()
        ]
        return ",".join(words)


@checked(seeds=at_least(1))
def variants(table: Mapping[str, Any], seeds: int | None = None, where: str = "settings") -> list[Variant]:
    """All combinations of the values that a table of settings tries; one variant without settings if it tries none.

    Args:
        table: a run file as nested tables, in which a setting that takes one value may have a list of them.
        seeds: how many seeds to try with each combination, counted from `train.seed`; None: only that one.
        where: the table's name in errors.

    Raises:
        HeddleError: a list is empty or has a value twice, the seeds are given twice, there are more than 10,000 combinations, or
            one is refused.
    """
    tried: dict[str, Sequence[Any]] = dict(_tried(table))
    if seeds is not None:
        if SEED in tried:
            raise HeddleError(f"{where}: seed = {tried[SEED]} and --seeds {seeds} both choose the seeds; leave one out")
        first = RunConfig.of(_with(table, {path: values[0] for path, values in tried.items()}), where).train.seed
        tried[SEED] = range(first, first + seeds)
    for path, options in tried.items():
        if not options:
            raise HeddleError(f"{where}: {_short(path)} = []: give at least one value")
    if (count := prod(map(len, tried.values()))) > MOST:
        raise HeddleError(f"{where}: {count:,} runs are too many for one series; {MOST:,} may be")
    found = []
    for values in product(*tried.values()):
        settings = dict(zip(tried, values, strict=True))
        found.append(Variant(settings, RunConfig.of(_with(table, settings), where)))
    labels = [variant.label for variant in found]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise HeddleError(f"{where}: {twice} occurs twice in the series; give each value once")
    if len(max(labels, key=len)) > LONGEST:
        raise HeddleError(
            f"{where}: {len(tried)} settings are too many to name a run by; put some into separate series"
        )
    return found


def _with(table: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The table with one value in place of each list. A kind does not clear its table, since the runs share the other keys."""
    data = deepcopy(dict(table))
    for path, value in settings.items():
        *parents, leaf = path.split(".")
        below = data
        for name in parents:
            below = below.setdefault(name, {})
        below[leaf] = value
    return data


def _tried(table: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, list[Any]]]:
    """Each path whose value is a list although the setting takes one value."""
    for key, value in table.items():
        path = (*above, key)
        if isinstance(value, Mapping):
            yield from _tried(value, path)
        elif (values := _listed(value)) is not None and takes_one_value(path):
            yield ".".join(path), values


def _listed(value: Any) -> list[Any] | None:
    """The items of a list, or of the words `[muon, adamw]`, which TOML would need quotes for."""
    if isinstance(value, list | tuple):
        return [*value]
    if isinstance(value, str) and re.fullmatch(r"\[.*\]", value, re.DOTALL):
        return [parse_overrides([f"item={word.strip()}"])["item"] for word in value[1:-1].split(",") if word.strip()]
    return None


def takes_one_value(path: tuple[str, ...]) -> bool:
    """Whether a setting exists and takes no list, such as `("train", "learning_rate")`; `betas` and `sources` take one."""
    kinds: list[Any] = [RunConfig]
    for depth, part in enumerate(path):
        owners = [model for kind in kinds for model in models_in(kind)]
        if depth == 1 and path[0] == "model" and part in STACKS:
            owners = [TransformerConfig]
        names = [(owner.model_fields, known_as(part, None, owner.model_fields)[0]) for owner in owners]
        kinds = [fields[name].annotation for fields, name in names if name in fields]
    return bool(kinds) and not any(map(_takes_list, kinds))


def _takes_list(annotation: Any) -> bool:
    if annotation is Any or annotation in (list, tuple):
        return True
    if get_origin(annotation) is Annotated:
        return _takes_list(get_args(annotation)[0])
    if get_origin(annotation) in (list, tuple, set, frozenset):
        return True
    return get_origin(annotation) not in (dict, None) and any(_takes_list(each) for each in get_args(annotation))


def _short(path: str) -> str:
    """A path without its section, as on the command line."""
    section, _, rest = path.partition(".")
    return rest if rest and section != "task" else path


def _word(value: Any) -> str:
    """A value as part of a directory's name."""
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^\w.+-]+", "_", text).strip("_")
