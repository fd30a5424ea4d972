"""Every choice there is, small: each pair of choices occurs in at least one model, unless the two refuse each other."""

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from heddle.config import (
    AlibiConfig,
    AttentionConfig,
    BlockConfig,
    BucketsConfig,
    ConvolutionConfig,
    EntryConfig,
    GatedConfig,
    LanguageHeadConfig,
    LayerNormConfig,
    LinearConfig,
    LinearScaling,
    Llama3Scaling,
    MLPConfig,
    MoEConfig,
    NoFeedForwardConfig,
    NoNormConfig,
    NTKScaling,
    Override,
    RecurrentConfig,
    RMSNormConfig,
    RotaryConfig,
    StackConfig,
    TransformerConfig,
    YarnScaling,
)
from heddle.model import Transformer, build

VOCABULARY = 11
CONTEXT = 160
HEADS = 4

Axes = Mapping[str, Sequence[Any]]

# A new choice in the config is one more option here; it then inherits every law. Choices inside a choice (an expert's
# activation, a rotation's scaling) are axes of their own, so that few models cover them.
AXES: dict[str, Sequence[Any]] = {
    "kernel": ("auto", "reference", "blockwise", "plain", "sdpa", "flex"),
    "norm": (
        LayerNormConfig(),
        LayerNormConfig(bias=False, eps=0),
        LayerNormConfig(eps=1e-6, unbiased=True, eps_outside=True),
        RMSNormConfig(),
        NoNormConfig(),
    ),
    "placement": ("pre", "post", "sandwich", "output", "literal", "bare"),
    "wiring": ("serial", "parallel", "parallel_one_norm"),
    # The first layer pays attention; this stands in the second.
    "second": (
        None,
        ConvolutionConfig(taps=3, dilation=2),
        LinearConfig(taps=4),
        RecurrentConfig(cell="gru"),
        RecurrentConfig(cell="lstm", hidden=5, bias=False),
    ),
    "window": (None, 3, 6),
    "cap": (None, 2.0),
    "kv_heads": (None, 2, 1),
    "head_dim": (None, 6),
    "value_dim": (None, 3),
    "qk_norm": (None, RMSNormConfig(), LayerNormConfig()),
    "bias": (True, False, ("q", "v")),
    "scale": ("head_dim", "dim", 0.7),
    "relative": (None, RotaryConfig(base=100.0), AlibiConfig(), BucketsConfig(buckets=8, furthest=20)),
    "pairing": ("halves", "neighbours"),
    "fraction": (1.0, 0.7),
    "scaling": (
        None,
        LinearScaling(factor=3),
        NTKScaling(factor=3),
        YarnScaling(factor=3, original=8),
        Llama3Scaling(factor=3, original=8),
    ),
    "ffn": ("mlp", "gated", "moe", "none"),
    "activation": ("gelu", "gelu_tanh", "relu", "relu_squared", "silu"),
    "hidden": (None, 7),
    "ffn_bias": (True, False),
    "expert": ("gated", "mlp"),
    "gate": ("softmax", "sigmoid"),
    "renormalise": (False, True),
    "shared": (0, 2),
    "shared_gate": (False, True),
    "skip": ("block", "internal"),
    "dispatch": ("grouped", "loop"),
    "bias_rate": (0.0, 0.01),
    "positions": ("none", "learned", "sinusoidal", "sinusoidal_halves beside", "learned beside"),
    "entry_norm": (None, LayerNormConfig(), RMSNormConfig()),
    "entry_scale": (False, True),
    "types": (0, 2),
    "tied": (True, False),
    "head_bias": (False, True),
    "head_transform": (False, True),
    "head_scale": (1.0, 0.25),
    "head_cap": (None, 30.0),
    "final_norm": (None, True, False),
    "pad_vocab_to": (1, 8),
    "dropout": (0.0, 0.5),  # in evaluation nothing is dropped, whatever the rate
}

PARALLEL = ("parallel", "parallel_one_norm")
# Options of two axes that are never in one model, because it is refused. Every axis has an option that goes with all.
REFUSED: list[dict[str, Sequence[Any]]] = [
    {"wiring": PARALLEL, "placement": [name for name in AXES["placement"] if name != "pre"]},
    {"wiring": PARALLEL, "ffn": ("none",)},
    {"wiring": PARALLEL, "skip": ("internal",)},
    {"kernel": ("sdpa",), "cap": (2.0,)},
    {"kernel": ("blockwise", "flex"), "dropout": (0.5,)},
    {"tied": (True,), "positions": ("sinusoidal_halves beside", "learned beside")},
    # Without eps a row of zeros has no value (L0-50), and that is what padding gets from attention.
    {"norm": (LayerNormConfig(bias=False, eps=0),), "placement": ("sandwich", "output", "bare")},
]


def goes_with(axis: str, option: Any, row: Mapping[str, Any]) -> bool:
    """Whether an option can join what a row has already."""
    for pair in REFUSED:
        if axis in pair and option in pair[axis]:
            (other,) = pair.keys() - {axis}
            if other in row and row[other] in pair[other]:
                return False
    return True


def pairs_of(axes: Axes) -> set[tuple[tuple[str, int], tuple[str, int]]]:
    """Every two options of two axes that go together, by their numbers."""
    cells = [(name, number) for name, options in axes.items() for number in range(len(options))]
    return {
        (first, second)
        for first, second in itertools.combinations(cells, 2)
        if first[0] != second[0]
        and goes_with(first[0], axes[first[0]][first[1]], {second[0]: axes[second[0]][second[1]]})
    }


def pairwise(axes: Axes) -> list[dict[str, Any]]:
    """Few rows in which every option of every axis meets every option of every other axis. The same rows every time."""
    draw, left, rows = random.Random(0), pairs_of(axes), []
    while left:
        wanted = min(left)
        tries = [_drawn(axes, wanted, draw) for _ in range(20)]
        found = [left.intersection(itertools.combinations(row.items(), 2)) for row in tries]
        best = max(range(len(tries)), key=lambda number: len(found[number]))
        left -= found[best]
        rows.append({name: axes[name][number] for name, number in tries[best].items()})
    return rows


def _drawn(axes: Axes, wanted: tuple[tuple[str, int], ...], draw: random.Random) -> dict[str, int]:
    """A row by numbers, in the order of the axes, with the wanted ones in it."""
    chosen = dict(wanted)
    row = {name: axes[name][number] for name, number in wanted}
    for name in draw.sample(list(axes), len(axes)):
        if name not in row:
            chosen[name] = draw.choice(
                [number for number, option in enumerate(axes[name]) if goes_with(name, option, row)]
            )
            row[name] = axes[name][chosen[name]]
    return {name: chosen[name] for name in axes}


def config_of(
    *,
    kernel: str = "auto",
    norm: Any = None,
    placement: str = "pre",
    wiring: str = "serial",
    first: Any = None,
    second: Any = None,
    ffn: Any = "mlp",
    positions: str = "rotary",
    relative: Any = None,
    entry_norm: Any = None,
    entry_scale: bool = False,
    types: int = 0,
    tied: bool = True,
    head_bias: bool = False,
    head_transform: bool = False,
    head_scale: float = 1.0,
    head_cap: float | None = None,
    final_norm: bool | None = None,
    pad_vocab_to: int = 1,
    dropout: float = 0.0,
    depth: int = 2,
    dim: int = 16,
    **more: Any,
) -> TransformerConfig:
    """A tiny model, from the options of `AXES`; `first` stands in place of attention.

    For short, `positions` may be `rotary`, or `both` learned and rotary.
    """
    feeding = {name: more.pop(name) for name in FEEDING if name in more}
    turning = {name: more.pop(name) for name in ("pairing", "fraction", "scaling") if name in more}
    if positions in ("rotary", "both"):
        positions, relative = {"rotary": "none", "both": "learned"}[positions], relative or RotaryConfig(base=100.0)
    if isinstance(relative, RotaryConfig):
        relative = relative.model_copy(update=turning)
    attention = {"kind": "attention", "heads": HEADS, "kernel": kernel, "relative": relative, "dropout": dropout}
    block = BlockConfig(
        mixer=first or AttentionConfig.of({**attention, **more}),
        ffn=feed_forward(ffn, **feeding),
        norm=norm or LayerNormConfig(),
        placement=placement,
        wiring=wiring,
        dropout=dropout,
    )
    kind, *beside = positions.split(" ")
    entry = EntryConfig(
        positions=kind,
        combine="concat" if beside else "sum",
        position_dim=6 if beside else None,
        offset=2 if kind == "learned" and beside else 0,
        norm=entry_norm,
        scale=entry_scale,
        types=types,
        dropout=dropout,
    )
    given = {} if second is None else {key: value for key, value in second.to_dict().items() if value is not None}
    overrides = (Override(layers="1", block={"mixer": given}),) if given else ()
    stack = StackConfig(depth=depth, block=block, entry=entry, final_norm=final_norm, overrides=overrides)
    return TransformerConfig(
        vocab_size=VOCABULARY,
        pad_vocab_to=pad_vocab_to,
        dim=dim,
        context=CONTEXT,
        decoder=stack,
        head=LanguageHeadConfig(tied=tied, bias=head_bias, transform=head_transform, scale=head_scale, cap=head_cap),
    )


FEEDING = [
    "activation",
    "hidden",
    "ffn_bias",
    "expert",
    "gate",
    "renormalise",
    "shared",
    "shared_gate",
    "skip",
    "dispatch",
    "bias_rate",
]


def feed_forward(
    ffn: Any,
    activation: str = "gelu",
    hidden: int | None = None,
    ffn_bias: bool = True,
    expert: str = "gated",
    shared: int = 0,
    shared_gate: bool = False,
    **routing: Any,
) -> Any:
    """The feed-forward of a kind, or the given one as it is."""
    if not isinstance(ffn, str | None):
        return ffn
    if ffn == "none":
        return NoFeedForwardConfig()
    plain = {"activation": activation, "hidden": hidden, "bias": ffn_bias}
    gated = {**plain, "hidden": hidden or 10}  # its own default is a multiple of 256
    kinds = {"mlp": MLPConfig.of(plain), "gated": GatedConfig.of(gated)}
    if ffn != "moe":
        return kinds[ffn or "mlp"]
    return MoEConfig(
        experts=3,
        expert=kinds[expert],
        shared=shared,
        shared_gate=shared_gate and shared > 0,
        shared_hidden=5 if shared else None,
        balance=0.01,
        z=0.001,
        **routing,
    )


def awake(config: TransformerConfig, dtype: torch.dtype = torch.float64, seed: int = 0) -> Transformer:
    """A model in evaluation whose every parameter matters: initial weights are small, gains are 1 and shifts are 0."""
    model = build(config, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.3 if parameter.ndim == 1 else 1.3 / parameter.shape[-1] ** 0.5
            noise = torch.empty(parameter.shape).normal_(0.0, spread, generator=generator)
            parameter.copy_(noise + parameter if parameter.ndim == 1 else noise)
    return model.eval()


def tokens_of(rows: int, length: int, seed: int = 1) -> Tensor:
    """Random ids [B T] below `VOCABULARY`."""
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def others_than(tokens: Tensor) -> Tensor:
    """Ids that differ from the given ones at every place."""
    return (tokens + 1) % VOCABULARY


def distances(config: TransformerConfig, length: int) -> set[int]:
    """How many steps back a token can be told of, through all layers, below `length`."""
    found = {0}
    for block in config.decoder.blocks:
        mixer: Any = block.mixer
        steps = range(length)
        if mixer.kind == "attention" and mixer.window is not None:
            steps = range(min(mixer.window, length))
        elif mixer.kind in ("convolution", "linear"):
            dilation = getattr(mixer, "dilation", 1)
            steps = range(0, mixer.taps * dilation, dilation)
        found = {one + other for one in found for other in steps if one + other < length}
    return found


# Stacks without any attention, beside those in which it stands in the first layer.
ALONE = [
    config_of(first=ConvolutionConfig(taps=3), positions="none"),
    config_of(first=LinearConfig(taps=4), positions="learned"),
    config_of(first=RecurrentConfig(cell="gru", hidden=6), positions="sinusoidal"),
    config_of(first=RecurrentConfig(cell="lstm"), positions="none", ffn="none"),
]
COMBINATIONS = [*(config_of(**row) for row in pairwise(AXES)), *ALONE]


def name_of(config: TransformerConfig) -> str:
    """A combination in a few words, for the name of a test."""
    stack = config.decoder
    kinds = [block.mixer.kind for block in stack.blocks]
    words = [*dict.fromkeys(kinds), stack.block.norm.kind, stack.block.placement, stack.block.wiring]
    mixer: Any = stack.block.mixer
    if kinds[0] == "attention":
        relative = [] if mixer.relative is None else [mixer.relative.kind]
        words[0] = "+".join([mixer.kernel, *relative, f"kv{mixer.key_heads()}"])
    return "-".join([*words, stack.block.ffn.kind, stack.entry.positions])
