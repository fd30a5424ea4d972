"""A large model's choices at laptop size, so that they can be tried out in seconds."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import lcm
from typing import Any

from heddle.checks import checked
from heddle.config.layers import AttentionConfig, LatentConfig
from heddle.config.model import BlockConfig, StackConfig, TransformerConfig

LARGE = 20_000_000  # parameters; beyond it a preset is proved at laptop size
HEADS = (4, 8)
WINDOWS = (7, 12, 17, 22, 27, 32)  # all of them roll within a context of 96

SEEING = AttentionConfig | LatentConfig

Part = dict[str, Any]
"""A part of a config as plain data."""


@dataclass(frozen=True)
class Sizes:
    """What the sizes of a large model become.

    Attributes:
        large: its width.
        small: the width at laptop size, 16 for each head; 64 or so.
        heads: the small number of heads for each that some layer has.
        windows: the small window for each that some layer has.
    """

    large: int
    small: int
    heads: dict[int, int]
    windows: dict[int, int]

    @classmethod
    def of(cls, config: TransformerConfig) -> "Sizes":
        """The sizes for one model."""
        blocks = [block for stack in config.stacks().values() for block in stack.blocks]
        parts = [part for block in blocks for part in (block.mixer, block.cross) if isinstance(part, SEEING)]
        heads = _lower((part.heads for part in parts), HEADS)
        windows = _lower((part.window for part in parts if part.window is not None), WINDOWS)
        dim = 16 * (lcm(*heads.values()) if heads else HEADS[0])
        return cls(config.dim, dim, heads, {window: min(window, small) for window, small in windows.items()})


@checked()
def laptop(config: TransformerConfig) -> TransformerConfig:
    """The same choices in a model of width 64 or so: one layer of each distinct kind, at least two.

    What means something stays: whether key heads are as many as heads, some or one; a head wider or narrower than
    dim / heads; layers whose heads or windows differ; experts chosen to experts there; a table padded or not.
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
    made = TransformerConfig.of(data, where="laptop size")
    for name, stack in made.stacks().items():
        assert [block.to_dict() for block in stack.blocks] == layers[name], f"{name}: other layers than were meant"
    return made


def _layers(stack: StackConfig, sizes: Sizes) -> list[Part]:
    """One small layer of each distinct kind, in the order in which they come."""
    small = [_block(block, sizes) for block in stack.blocks]
    distinct = list({str(block): block for block in small}.values())
    return distinct if len(distinct) > 1 else 2 * distinct


def _stack(stack: StackConfig, layers: list[Part], sizes: Sizes) -> Part:
    """A stack of these layers, written as a block and what differs from it."""
    data = stack.to_dict()
    # The final norm is of the stack's own block, whose placement suits it; and serial wiring suits every placement.
    base = layers[0] | {each: data["block"][each] for each in ("norm", "placement")} | {"wiring": "serial"}
    for layer in layers:
        base = _without(base, layer)
    entry = data["entry"]
    if stack.entry.combine == "concat":  # an even number, for sine and cosine
        share = stack.entry.positions_dim(sizes.large) * sizes.small // sizes.large
        entry = entry | {"position_dim": max(2, share // 2 * 2)}
    return data | {
        "depth": len(layers),
        "block": base,
        "entry": entry,
        "final_norm": stack.ends_in_norm(),
        "overrides": [
            {"layers": str(number), "block": _said(layer)} for number, layer in enumerate(layers) if layer != base
        ],
    }


def _without(base: Part, layer: Part) -> Part:
    """The base without what this layer leaves open: an override can set what is open, but not leave open what is set."""
    if base.get("kind") != layer.get("kind"):  # then the layer's table replaces the base's
        return base
    kept = {key: value for key, value in base.items() if key in layer}
    for key, value in kept.items():
        if layer[key] is None:
            kept[key] = None
        elif isinstance(value, dict) and isinstance(layer[key], dict):
            kept[key] = _without(value, layer[key])
    return kept


def _said(data: Part) -> Part:
    """Without what is left open, which an override cannot say."""
    return {key: _said(value) if isinstance(value, dict) else value for key, value in data.items() if value is not None}


def _block(block: BlockConfig, sizes: Sizes) -> Part:
    """One layer with small sizes."""
    data = block.to_dict()
    for place in ("mixer", "cross", "ffn"):
        part = data[place]
        if part is not None and part["kind"] in SMALLER:
            data[place] = part | SMALLER[part["kind"]](part, sizes)
    return data


def _attention(part: Part, sizes: Sizes) -> Part:
    heads, kv_heads = part["heads"], part["kv_heads"] or part["heads"]
    few = sizes.heads[heads]
    natural = sizes.small // few
    head_dim = _like(part["head_dim"], sizes.large // heads, natural)
    return {
        "heads": few,
        "kv_heads": None if kv_heads == heads else 1 if kv_heads == 1 else max(2, few // (heads // kv_heads)),
        "head_dim": head_dim,
        "value_dim": _like(part["value_dim"], part["head_dim"] or sizes.large // heads, head_dim or natural),
        "window": None if part["window"] is None else sizes.windows[part["window"]],
        "relative": None if part["relative"] is None else _relative(part["relative"], head_dim or natural),
    }


def _latent(part: Part, sizes: Sizes) -> Part:
    narrow = {"rank": 24, "q_rank": 16, "head_dim": 8, "value_dim": 8}
    small = {name: None if part[name] is None else min(part[name], most) for name, most in narrow.items()}
    rotary_dim = min(part["rotary_dim"], 4)
    relative = _relative(part["relative"], rotary_dim)
    return {**small, "heads": sizes.heads[part["heads"]], "rotary_dim": rotary_dim, "relative": relative}


def _relative(part: Part, width: int) -> Part:
    if part["kind"] == "buckets":
        return part | {"buckets": min(part["buckets"], 8), "furthest": min(part["furthest"], 20)}
    if part["kind"] == "rotary":
        rotated = int(width * part["fraction"])
        # A share of a wide head need not have a pair of channels in this one.
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
    return {"taps": min(part["taps"], 4 + part["taps"] % 2)}  # odd stays odd: an encoder needs it so


def _recurrent(part: Part, sizes: Sizes) -> Part:
    return {"hidden": _like(part["hidden"], sizes.large, sizes.small)}


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


SMALLER: dict[str, Callable[[Part, Sizes], Part]] = {
    "attention": _attention,
    "latent": _latent,
    "convolution": _convolution,
    "linear": _linear,
    "recurrent": _recurrent,
    "mlp": _feed_forward,
    "gated": _feed_forward,
    "moe": _moe,
}


def _lower(values: Iterable[int], small: tuple[int, ...]) -> dict[int, int]:
    """A small number for each: its own where it is small, else the next of `small`, so that what differs still does.

    Numbers beyond as many as there are in `small` share the last.
    """
    distinct = sorted(set(values))
    large = [value for value in distinct if value > small[0]]
    return {value: value for value in distinct if value <= small[0]} | {
        value: small[min(rank, len(small) - 1)] for rank, value in enumerate(large)
    }


def _like(size: int | None, usual: int, small: int) -> int | None:
    """A size that may be left open: beside `small` as it was beside the usual one, equal, narrower or wider."""
    if size is None:
        return None
    return small if size == usual else small // 2 if size < usual else small * 3 // 2
