"""Rotary positions in published configs, read and written: up to three places, two spellings, and scaling of the angles."""

from collections.abc import Mapping
from math import log, sqrt
from typing import Any

from heddle.config.model import TransformerConfig
from heddle.config.positions import DynamicScaling, LongRopeScaling, NTKScaling, RotaryConfig
from heddle.convert.fields import Data, Fields, Part, one_block
from heddle.errors import HeddleError

BASE = 10_000.0
# The fields that a family's defaults need for `heddle_rotary`.
DEFAULTS: dict[str, Any] = {"rope_theta": None, "rope_parameters": None, "rope_scaling": None}
# Both change which channels rotate in Hugging Face transformers. All other settings of rotary positions are in the tables.
FIXED = {"partial_rotary_factor": 1.0, "rope_interleaved": False}
TABLES = ("rope_scaling", "rope_parameters")  # the first is the older place

# Each kind of scaling in Hugging Face transformers: its fields, and heddle's names for them.
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
# Other fields of a table, which are handled elsewhere; no version of Hugging Face transformers reads `finetuned`.
OTHERS = ("rope_type", "type", "rope_theta", "mscale", "mscale_all_dim", "finetuned")


def heddle_rotary(f: Mapping[str, Any], default_base: float = BASE, fraction: float = 1.0) -> dict[str, Any]:
    """The data of a `RotaryConfig`, from the three places in which versions of Hugging Face transformers store it.

    Args:
        f: the fields of `DEFAULTS`, and `max_position_embeddings`.
        default_base: the default base.
        fraction: the fraction of a head's channels that rotates, which the tables may repeat.

    Raises:
        HeddleError: heddle does not support the scaling of the angles, or two places disagree.
    """
    tables = {name: _table(f[name], name) for name in TABLES}
    bases = {name: table["rope_theta"] for name, table in tables.items() if "rope_theta" in table}
    bases |= {} if f["rope_theta"] is None else {"rope_theta": f["rope_theta"]}
    if any(base != next(iter(bases.values())) for base in bases.values()):
        places = ", ".join(f"{name} {base}" for name, base in bases.items())
        raise HeddleError(f"config.json has different rotary bases: {places}")
    read = [_scaling(table, name, f, fraction) for name, table in tables.items() if table.keys() - {"rope_theta"}]
    if any(each != read[0] for each in read):
        raise HeddleError(f"{' and '.join(TABLES)} in config.json disagree about rotary positions")
    base = next(iter(bases.values()), default_base)
    return {"kind": "rotary", "base": base, "fraction": fraction, "scaling": read[0] if read else None}


def read_fraction(f: Mapping[str, Any], default: float, *names: str) -> float:
    """The fraction of a head's channels that rotates, from the fields `names` and the two tables.

    Raises:
        HeddleError: two places disagree.
    """
    tables = [f[name] for name in TABLES if isinstance(f[name], Mapping)]
    values = [*(f[name] for name in names), *(table.get("partial_rotary_factor") for table in tables)]
    fractions = [value for value in values if value is not None]
    if any(value != fractions[0] for value in fractions):
        raise HeddleError(f"config.json has different rotary fractions: {', '.join(map(str, values))}")
    return next(iter(fractions), default)


def _table(table: Any, name: str) -> dict[str, Any]:
    """A table without null values."""
    if not isinstance(table or {}, Mapping):
        raise HeddleError(f"{name} = {table!r} in config.json: must be a table")
    return {key: table for key, table in (table or {}).items() if table is not None}


def _scaling(table: Mapping[str, Any], name: str, f: Mapping[str, Any], fraction: float) -> dict[str, Any] | None:
    """A table as the data of heddle's scaling, or None without scaling."""
    spelling = "rope_type" if "rope_type" in table else "type"
    kind = table.get(spelling, "default")
    if table.get("type", kind) != kind:
        raise HeddleError(f"{name} in config.json has both rope_type = {kind!r} and type = {table['type']!r}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise HeddleError(f"{name}.{spelling} = {kind!r} in config.json: heddle supports {', '.join(KINDS)}")
    for key, value in table.items():
        if key == "partial_rotary_factor" and value != fraction:
            raise HeddleError(f"{name}.{key} = {value!r} in config.json: heddle supports only {fraction!r} here")
        if key not in (*KINDS[kind], *OTHERS, "partial_rotary_factor"):
            raise HeddleError(
                f"{name}.{key} = {value!r} in config.json: heddle does not know what this changes in {kind}"
            )
    if kind == "default":
        return None
    for key in NEEDED[kind]:
        if key not in table:
            raise HeddleError(f"{name} in config.json has no {key}, which {kind} requires")
    fields = {"original_max_position_embeddings": f["max_position_embeddings"], **table}
    if kind == "yarn":
        fields = {key: value for key, value in fields.items() if value or not key.startswith("beta_")}
        fields |= _magnitude(fields, name)
    read = {
        "kind": kind,
        **{heddle: fields[published] for published, heddle in KINDS[kind].items() if published in fields},
    }
    if kind in ("dynamic", "longrope"):
        # Their angles depend on the length of the text. heddle uses those for a text as long as the context.
        read |= {"original": f["max_position_embeddings"], **read, "length": f["max_position_embeddings"]}
    return _longrope(read, name) if kind == "longrope" else read


def _longrope(read: dict[str, Any], name: str) -> dict[str, Any]:
    """LongRoPE's table, with the factor on cosines and sines computed from the extension of the context."""
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
    """The factor on YaRN's cosines and sines, if `mscale` and `mscale_all_dim` define it."""
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
    """Notes on angles that depend on the length of a text in Hugging Face transformers, but not in heddle."""
    relatives = [getattr(block.mixer, "relative", None) for stack in config.stacks().values() for block in stack.blocks]
    scalings = [each.scaling for each in relatives if isinstance(each, RotaryConfig)]
    return [
        f"{each.kind}: all texts use the rotary angles for {each.length} tokens; in Hugging Face transformers the angles "
        f"change once a text is longer than {each.original}"
        for each in dict.fromkeys(scalings)
        if isinstance(each, DynamicScaling | LongRopeScaling)
    ]


def plain_base(relative: RotaryConfig, rotated_dim: int) -> float:
    """The base with any NTK scaling, which is equivalent to the larger base · factor^(d / (d - 2))."""
    scaling = relative.scaling
    if not isinstance(scaling, NTKScaling | DynamicScaling) or rotated_dim <= 2:
        return relative.base
    factor = scaling.factor if isinstance(scaling, NTKScaling) else scaling.stretch()
    return float(relative.base * factor ** (rotated_dim / (rotated_dim - 2)))


def _scaling_fields(relative: RotaryConfig) -> dict[str, Any]:
    """The kind of scaling and its fields. Scalings that are equivalent to a larger base are left out.

    A scaling that depends on the length in Hugging Face transformers is written with equal values for every length.
    """
    scaling = relative.scaling
    if scaling is None or isinstance(scaling, NTKScaling | DynamicScaling):
        return {"rope_type": "default"}
    fields = {published: getattr(scaling, heddle, None) for published, heddle in KINDS[scaling.kind].items()}
    if isinstance(scaling, LongRopeScaling):
        fields |= {key: list(scaling.factors()) for key in ("short_factor", "long_factor")}
    return {"rope_type": scaling.kind, **{key: value for key, value in fields.items() if value is not None}}


def published_rotary(relative: RotaryConfig, head_dim: int, partial: bool = False) -> dict[str, Any]:
    """The fields for Hugging Face transformers before and after 5.0, and for vLLM, which reads `rope_parameters`.

    Args:
        relative: the rotary positions.
        head_dim: d.
        partial: whether the family can rotate only a fraction of the channels.
    """
    base, slowed = plain_base(relative, relative.rotated_dim(head_dim)), _scaling_fields(relative)
    share = {"partial_rotary_factor": relative.fraction} if partial else {}
    return {
        "rope_theta": base,
        "rope_parameters": {"rope_theta": base, **slowed, **share},
        "rope_scaling": None if slowed["rope_type"] == "default" else slowed,
    }


def angles(base: float = BASE, share: float | None = None, names: tuple[str, ...] = ("partial_rotary_factor",)) -> Part:
    """The fields of a decoder's rotary positions.

    Args:
        base: the default base.
        share: the default fraction of a head's channels that rotates. None: the family rotates all of them.
        names: the fields of this fraction; export writes the first.
    """

    def read(f: Fields, data: Data) -> None:
        fraction = 1.0 if share is None else read_fraction(f, share, *names)
        mixer = data["decoder"]["block"]["mixer"]
        mixer["relative"] = mixer.get("relative", {}) | heddle_rotary(f, base, fraction)

    def write(config: TransformerConfig) -> Data:
        mixer = one_block(config).mixer
        fractions = {} if share is None else {names[0]: mixer.relative.fraction}
        return fractions | published_rotary(mixer.relative, mixer.width(config.dim), partial=share is not None)

    return Part({**DEFAULTS, **({} if share is None else dict.fromkeys(names))}, read, write)
