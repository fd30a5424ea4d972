"""Rotary positions in published configs: up to three places, two spellings, and scaling of the angles; both ways."""

from collections.abc import Mapping
from math import log, sqrt
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.config.positions import DynamicScaling, LongRopeScaling, NTKScaling, RotaryConfig
from heddle.errors import HeddleError

BASE = 10_000.0
# The fields that a family's defaults need for `our_rotary`.
DEFAULTS: dict[str, Any] = {"rope_theta": None, "rope_parameters": None, "rope_scaling": None}
# In Hugging Face transformers both change which channels rotate; all else about rotary positions is in the tables.
FIXED = {"partial_rotary_factor": 1.0, "rope_interleaved": False}
TABLES = ("rope_scaling", "rope_parameters")  # the first is the older place

# Each kind in Hugging Face transformers: its fields, and heddle's names for them.
ORIGINAL = {"original_max_position_embeddings": "original"}
KINDS: dict[str, dict[str, str]] = {
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {"factor": "factor", **ORIGINAL, "low_freq_factor": "low", "high_freq_factor": "high"},
    "yarn": {
        "factor": "factor", **ORIGINAL, "beta_fast": "fast", "beta_slow": "slow", "truncate": "whole",
        "attention_factor": "magnitude",
    },
    "dynamic": {"factor": "factor"},
    "longrope": {
        "short_factor": "short", "long_factor": "long", **ORIGINAL, "attention_factor": "magnitude", "factor": "factor",
    },
}  # fmt: skip
NEEDED = {
    "linear": ("factor",), "yarn": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "dynamic": ("factor",), "longrope": ("short_factor", "long_factor"),
}  # fmt: skip
# Other fields of a table: some handled elsewhere, and one that no version of Hugging Face transformers reads.
BESIDE = ("rope_type", "type", "rope_theta", "mscale", "mscale_all_dim", "finetuned")


def our_rotary(f: Mapping[str, Any], usual: float = BASE, fraction: float = 1.0) -> dict[str, Any]:
    """The data of a `RotaryConfig`, from the three places where versions of Hugging Face transformers write it.

    Args:
        f: the fields of `DEFAULTS`, and `max_position_embeddings`.
        usual: the default base.
        fraction: the share of a head's channels that rotates, which the tables may repeat.

    Raises:
        HeddleError: the angles are scaled in a way that heddle does not support, or two places disagree.
    """
    tables = {name: _table(f[name], name) for name in TABLES}
    bases = {name: table["rope_theta"] for name, table in tables.items() if "rope_theta" in table}
    bases |= {} if f["rope_theta"] is None else {"rope_theta": f["rope_theta"]}
    if any(base != next(iter(bases.values())) for base in bases.values()):
        said = ", ".join(f"{name} {base}" for name, base in bases.items())
        raise HeddleError(f"config.json names different rotary bases: {said}")
    read = [_scaling(table, name, f, fraction) for name, table in tables.items() if table.keys() - {"rope_theta"}]
    if any(each != read[0] for each in read):
        raise HeddleError(f"{' and '.join(TABLES)} in config.json disagree about rotary positions")
    base = next(iter(bases.values()), usual)
    return {"kind": "rotary", "base": base, "fraction": fraction, "scaling": read[0] if read else None}


def said_fraction(f: Mapping[str, Any], usual: float, *names: str) -> float:
    """The share of a head's channels that rotates, from the fields `names` and the two tables.

    Raises:
        HeddleError: two places disagree.
    """
    tables = [f[name] for name in TABLES if isinstance(f[name], Mapping)]
    said = [*(f[name] for name in names), *(table.get("partial_rotary_factor") for table in tables)]
    fractions = [value for value in said if value is not None]
    if any(value != fractions[0] for value in fractions):
        raise HeddleError(f"config.json names different fractions: {', '.join(map(str, said))}")
    return next(iter(fractions), usual)


def _table(said: Any, name: str) -> dict[str, Any]:
    """The table in one of the places, without null values."""
    if not isinstance(said or {}, Mapping):
        raise HeddleError(f"{name} = {said!r} in config.json: must be a table")
    return {key: value for key, value in (said or {}).items() if value is not None}


def _scaling(table: Mapping[str, Any], name: str, f: Mapping[str, Any], fraction: float) -> dict[str, Any] | None:
    """A table converted to heddle's."""
    spelling = "rope_type" if "rope_type" in table else "type"
    kind = table.get(spelling, "default")
    if table.get("type", kind) != kind:
        raise HeddleError(f"{name} in config.json names both rope_type = {kind!r} and type = {table['type']!r}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise HeddleError(f"{name}.{spelling} = {kind!r} in config.json: heddle has {', '.join(KINDS)}")
    for key, value in table.items():
        if key == "partial_rotary_factor" and value != fraction:
            raise HeddleError(f"{name}.{key} = {value!r} in config.json: heddle has only {fraction!r} here")
        if key not in (*KINDS[kind], *BESIDE, "partial_rotary_factor"):
            raise HeddleError(
                f"{name}.{key} = {value!r} in config.json: heddle does not know what this changes in {kind}"
            )
    if kind == "default":
        return None
    for key in NEEDED[kind]:
        if key not in table:
            raise HeddleError(f"{name} in config.json has no {key}, which {kind} requires")
    said = {"original_max_position_embeddings": f["max_position_embeddings"], **table}
    if kind == "yarn":
        said = {key: value for key, value in said.items() if value or not key.startswith("beta_")}
        said |= _magnitude(said, name)
    read = {"kind": kind, **{ours: said[theirs] for theirs, ours in KINDS[kind].items() if theirs in said}}
    if kind in ("dynamic", "longrope"):
        # Their angles depend on the length of the text. heddle takes those of a text as long as the model's context.
        read |= {"original": f["max_position_embeddings"], **read, "length": f["max_position_embeddings"]}
    return _longrope(read, name) if kind == "longrope" else read


def _longrope(read: dict[str, Any], name: str) -> dict[str, Any]:
    """LongRoPE's table, with the factor on cosines and sines that follows from how much longer texts become."""
    factor, original = read.pop("factor", None), read["original"]
    if "magnitude" in read:
        return read
    for key, value in {
        "factor": factor,
        "original_max_position_embeddings": original,
        "length": read["length"],
    }.items():
        if not (value is None and key == "factor") and (not isinstance(value, int | float) or not value > 0):
            raise HeddleError(f"{name}.{key} = {value!r} in config.json: must be a number above 0")
    grown = read["length"] / original if factor is None else factor
    return {**read, "magnitude": sqrt(1 + log(grown) / log(original)) if grown > 1 and original > 1 else 1.0}


def _magnitude(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The factor on YaRN's cosines and sines, if two other fields define it."""
    each, all_dim = table.get("mscale"), table.get("mscale_all_dim")
    if "attention_factor" in table or not (each and all_dim):
        return {}
    numbers = {"factor": table.get("factor"), "mscale": each, "mscale_all_dim": all_dim}
    for key, value in numbers.items():
        if not isinstance(value, int | float) or value <= 0:
            raise HeddleError(f"{name}.{key} = {value!r} in config.json: must be a number above 0")
    grown = log(max(numbers["factor"], 1.0)) / 10
    return {"attention_factor": (each * grown + 1) / (all_dim * grown + 1)}


def of_one_length(config: TransformerConfig) -> list[str]:
    """Where angles depend on a text's length in Hugging Face transformers, and not in heddle, one line each."""
    relatives = [getattr(block.mixer, "relative", None) for stack in config.stacks().values() for block in stack.blocks]
    scalings = [each.scaling for each in relatives if isinstance(each, RotaryConfig)]
    return [
        f"{each.kind}: every text has the rotary angles of a text of {each.length} tokens; in Hugging Face transformers they "
        f"change once a text is longer than {each.original}"
        for each in dict.fromkeys(scalings)
        if isinstance(each, DynamicScaling | LongRopeScaling)
    ]


def plain_base(relative: RotaryConfig, rotated_dim: int) -> float:
    """The base, including the NTK rules, which are just a larger base: base · factor^(d / (d - 2))."""
    scaling = relative.scaling
    if not isinstance(scaling, NTKScaling | DynamicScaling) or rotated_dim <= 2:
        return relative.base
    factor = scaling.factor if isinstance(scaling, NTKScaling) else scaling.stretch()
    return float(relative.base * factor ** (rotated_dim / (rotated_dim - 2)))


def _written(relative: RotaryConfig) -> dict[str, Any]:
    """The kind of scaling and its fields, without the rules that are just a larger base.

    A rule that depends on the length in Hugging Face transformers is written with equal values for every length.
    """
    scaling = relative.scaling
    if scaling is None or isinstance(scaling, NTKScaling | DynamicScaling):
        return {"rope_type": "default"}
    said = {theirs: getattr(scaling, ours, None) for theirs, ours in KINDS[scaling.kind].items()}
    if isinstance(scaling, LongRopeScaling):
        said |= {key: list(scaling.factors()) for key in ("short_factor", "long_factor")}
    return {"rope_type": scaling.kind, **{key: value for key, value in said.items() if value is not None}}


def their_rotary(relative: RotaryConfig, head_dim: int, partial: bool = False) -> dict[str, Any]:
    """The fields for Hugging Face transformers before and after 5.0, and for vLLM, which reads `rope_parameters`.

    Args:
        relative: the rotary positions.
        head_dim: d.
        partial: whether the family can rotate only a fraction of the channels.
    """
    base, slowed = plain_base(relative, relative.rotated_dim(head_dim)), _written(relative)
    share = {"partial_rotary_factor": relative.fraction} if partial else {}
    return {
        "rope_theta": base,
        "rope_parameters": {"rope_theta": base, **slowed, **share},
        "rope_scaling": None if slowed["rope_type"] == "default" else slowed,
    }
