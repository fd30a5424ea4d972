"""Shrink a large config to laptop size, so that its architecture can be tested in seconds."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import lcm
from typing import Any

from heddle.checks import checked
from heddle.config.layers import AttentionConfig, LatentConfig
from heddle.config.model import BlockConfig, StackConfig, TransformerConfig

LARGE = 20_000_000  # parameters; larger models are tested at laptop size
HEADS = (4, 8)
WINDOWS = (7, 12, 17, 22, 27, 32)  # all shorter than a context of 96

ATTENTION = AttentionConfig | LatentConfig

Part = dict[str, Any]
"""A part of a config, as JSON data."""


@dataclass(frozen=True)
class Sizes:
    """The mapping from the sizes of a large model to laptop size.

    Attributes:
        large: width of the model.
        small: width at laptop size, 16 per head, about 64.
        heads: small number of heads for each number in the model.
        windows: small window for each window in the model.
    """

    large: int
    small: int
    heads: dict[int, int]
    windows: dict[int, int]

    @classmethod
    def of(cls, config: TransformerConfig) -> "Sizes":
        """The sizes for one model."""
        blocks = [block for stack in config.stacks().values() for block in stack.blocks]
        parts = [part for block in blocks for part in (block.mixer, block.cross) if isinstance(part, ATTENTION)]
        heads = _shrink((part.heads for part in parts), HEADS)
        windows = _shrink((part.window for part in parts if part.window is not None), WINDOWS)
        dim = 16 * (lcm(*heads.values()) if heads else HEADS[0])
        return cls(config.dim, dim, heads, {window: min(window, small) for window, small in windows.items()})


@checked()
def laptop(config: TransformerConfig) -> TransformerConfig:
    """The same architecture at a width of about 64: one layer of each distinct kind, at least two.

    Qualitative choices stay: multi-head, grouped-query or multi-query attention; heads wider or narrower than dim / heads; layers
    with different heads or windows; the ratio of active experts; a padded vocabulary.
    """
    sizes = Sizes.of(config)
    data = config.to_dict()
    data |= {"vocab_size": min(config.vocab_size, 509), "context": min(config.context, 96), "dim": sizes.small}
    if config.pad_vocab_to > 1:
        data["pad_vocab_to"] = 8
    if config.source_vocab_size is not None:
        data["source_vocab_size"] = min(config.source_vocab_size, 503)
    if data["head"].get("scale", 1.0) != 1.0:
        data["head"]["scale"] = sizes.small**-0.5
    if "classes" in data["head"]:
        data["head"]["classes"] = min(data["head"]["classes"], 7)
    layers = {name: _layers(stack, sizes) for name, stack in config.stacks().items()}
    for name, stack in config.stacks().items():
        data[name] = _stack(stack, layers[name], sizes)
    result = TransformerConfig.of(data, where="laptop size")
    for name, stack in result.stacks().items():
        assert [block.to_dict() for block in stack.blocks] == layers[name], f"{name}: unexpected layers"
    return result


def _layers(stack: StackConfig, sizes: Sizes) -> list[Part]:
    """One small layer of each distinct kind, in order."""
    small = [_block(block, sizes) for block in stack.blocks]
    distinct = list({str(block): block for block in small}.values())
    return distinct if len(distinct) > 1 else 2 * distinct


def _stack(stack: StackConfig, layers: list[Part], sizes: Sizes) -> Part:
    """A stack of these layers, as a block config and overrides."""
    data = stack.to_dict()
    # The final norm follows the stack's block, so norm and placement come from there; serial wiring fits every placement.
    base = layers[0] | {key: data["block"][key] for key in ("norm", "placement")} | {"wiring": "serial"}
    for layer in layers:
        base = _without_unset(base, layer)
    entry = data["entry"]
    if stack.entry.combine == "concat":  # even, for sine and cosine
        share = stack.entry.positions_dim(sizes.large) * sizes.small // sizes.large
        entry = entry | {"position_dim": max(2, share // 2 * 2)}
    return data | {
        "depth": len(layers),
        "block": base,
        "entry": entry,
        "final_norm": stack.ends_in_norm(),
        "overrides": [
            {"layers": str(number), "block": _drop_none(layer)} for number, layer in enumerate(layers) if layer != base
        ],
    }


def _without_unset(base: Part, layer: Part) -> Part:
    """The base without values that are unset in this layer: an override can set a value, but not unset one."""
    if base.get("kind") != layer.get("kind"):  # the layer's table replaces the base's
        return base
    common = {key: value for key, value in base.items() if key in layer}
    for key, value in common.items():
        if layer[key] is None:
            common[key] = None
        elif isinstance(value, dict) and isinstance(layer[key], dict):
            common[key] = _without_unset(value, layer[key])
    return common


def _drop_none(data: Part) -> Part:
    """Drop unset values, which an override cannot express."""
    return {
        key: _drop_none(value) if isinstance(value, dict) else value for key, value in data.items() if value is not None
    }


def _block(block: BlockConfig, sizes: Sizes) -> Part:
    """One layer with small sizes."""
    data = block.to_dict()
    for place in ("mixer", "cross", "ffn"):
        part = data[place]
        if part is not None and part["kind"] in SHRINK:
            data[place] = part | SHRINK[part["kind"]](part, sizes)
    return data


def _attention(part: Part, sizes: Sizes) -> Part:
    heads, kv_heads = part["heads"], part["kv_heads"] or part["heads"]
    small_heads = sizes.heads[heads]
    default_dim = sizes.small // small_heads
    head_dim = _scale_like(part["head_dim"], sizes.large // heads, default_dim)
    return {
        "heads": small_heads,
        "kv_heads": None if kv_heads == heads else 1 if kv_heads == 1 else max(2, small_heads // (heads // kv_heads)),
        "head_dim": head_dim,
        "value_dim": _scale_like(part["value_dim"], part["head_dim"] or sizes.large // heads, head_dim or default_dim),
        "window": None if part["window"] is None else sizes.windows[part["window"]],
        "relative": None if part["relative"] is None else _relative(part["relative"], head_dim or default_dim),
    }


def _latent(part: Part, sizes: Sizes) -> Part:
    limits = {"rank": 24, "q_rank": 16, "head_dim": 8, "value_dim": 8}
    small = {name: None if part[name] is None else min(part[name], limit) for name, limit in limits.items()}
    rotary_dim = min(part["rotary_dim"], 4)
    relative = _relative(part["relative"], rotary_dim)
    return {**small, "heads": sizes.heads[part["heads"]], "rotary_dim": rotary_dim, "relative": relative}


def _relative(part: Part, width: int) -> Part:
    if part["kind"] == "buckets":
        return part | {"buckets": min(part["buckets"], 8), "furthest": min(part["furthest"], 20)}
    if part["kind"] == "rotary":
        rotated = int(width * part["fraction"])
        # A fraction of a wide head may be less than one channel pair of a small head.
        fraction = part["fraction"] if rotated and (rotated < width or rotated % 2 == 0) else 0.5
        return part | {"fraction": fraction, "scaling": _scaling(part["scaling"], (int(width * fraction) + 1) // 2)}
    return part


def _scaling(part: Part | None, pairs: int) -> Part | None:
    if part is None or "original" not in part:
        return part
    original, sizes = min(part["original"], 24), {}
    if "length" in part:
        sizes["length"] = max(part["length"] * original // part["original"], 1)
    for name in {"short", "long"} & part.keys():
        sizes[name] = [part[name][number * len(part[name]) // pairs] for number in range(pairs)]
    return part | {"original": original, **sizes}


def _convolution(part: Part, sizes: Sizes) -> Part:
    return _linear(part, sizes) | {"dilation": min(part["dilation"], 4)}


def _linear(part: Part, sizes: Sizes) -> Part:
    return {"taps": min(part["taps"], 4 + part["taps"] % 2)}  # odd stays odd, as encoders require


def _recurrent(part: Part, sizes: Sizes) -> Part:
    return {"hidden": _scale_like(part["hidden"], sizes.large, sizes.small)}


def _feed_forward(part: Part, sizes: Sizes) -> Part:
    return {"hidden": None if part["hidden"] is None else 96}


def _moe(part: Part, sizes: Sizes) -> Part:
    active = min(part["active"], 3)
    return {
        "active": active,
        "experts": active if part["active"] == part["experts"] else min(part["experts"], 8),
        "expert": part["expert"] | {"hidden": None if part["expert"]["hidden"] is None else 40},
        "shared": min(part["shared"], 2),
        "shared_hidden": None if part["shared_hidden"] is None else 24,
    }


SHRINK: dict[str, Callable[[Part, Sizes], Part]] = {
    "attention": _attention,
    "latent": _latent,
    "convolution": _convolution,
    "linear": _linear,
    "recurrent": _recurrent,
    "mlp": _feed_forward,
    "gated": _feed_forward,
    "moe": _moe,
}


def _shrink(values: Iterable[int], small: tuple[int, ...]) -> dict[int, int]:
    """Map each number to a small one: itself if small enough, else the next of `small`, so that distinct numbers stay distinct.

    If `small` runs out, the remaining numbers share its last.
    """
    distinct = sorted(set(values))
    large = [value for value in distinct if value > small[0]]
    return {value: value for value in distinct if value <= small[0]} | {
        value: small[min(rank, len(small) - 1)] for rank, value in enumerate(large)
    }


def _scale_like(size: int | None, default: int, small: int) -> int | None:
    """An optional size in the same relation to `small` as to the default: equal, narrower or wider."""
    if size is None:
        return None
    return small if size == default else small // 2 if size < default else small * 3 // 2
