"""Where tests get their models: few in which every pair of choices occurs, and random ones out of every choice there is.

`COMBINATIONS` are small decoders, in which each option of each axis meets each of every other unless the two refuse each other;
`FEW` of them have every option once. `ENCODERS` and `BOTH` are few. `drawn(seed)` is any model that validates: what can be
chosen is read off the config classes.
A choice among names, yes and no, kinds, or something and nothing is drawn as soon as a class has it. A number cannot be: `VALUES`
says which ones are drawn, and a field that is missing there is an error, so that nothing is forgotten.
"""

import itertools
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import torch
from torch import Tensor, nn

from heddle.config import (
    AlibiConfig,
    AttentionConfig,
    BlockConfig,
    BucketsConfig,
    Config,
    ConvolutionConfig,
    DenseConfig,
    EntryConfig,
    GatedConfig,
    GroupsConfig,
    LanguageHeadConfig,
    LatentConfig,
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
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.nn import Layout

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
    "branch_scale": (1.0, 0.4),
    # The first layer has attention; this one is in the second.
    "second": (
        None,
        ConvolutionConfig(taps=3, dilation=2),
        LinearConfig(taps=4),
        RecurrentConfig(cell="gru"),
        RecurrentConfig(cell="lstm", hidden=5, bias=False),
    ),
    "window": (None, 3, 6),
    "cap": (None, 2.0),
    "sinks": (False, True),
    "kv_heads": (None, 2, 1),
    "head_dim": (None, 6),
    "value_dim": (None, 3),
    "qk_norm": (None, RMSNormConfig(), LayerNormConfig()),
    "qk_norm_over": ("head", "all"),
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
    "activation": ("gelu", "gelu_tanh", "relu", "relu_squared", "silu"),  # the others are in `LAYERED`
    "hidden": (None, 7),
    "ffn_bias": (True, False),
    "expert": ("gated", "mlp"),
    "gate": ("softmax", "sigmoid"),
    "renormalise": (False, True),
    "router_bias": (False, True),
    "limit": (None, 0.7),
    "plus_one": (False, True),
    "groups": (None, GroupsConfig(count=2), GroupsConfig(count=2, by="two"), GroupsConfig(count=2, active=2, by="two")),
    "shared": (0, 2),
    "shared_gate": (False, True),
    "skip": ("block", "internal"),
    "dispatch": ("grouped", "loop"),
    "bias_rate": (0.0, 0.01),
    "positions": ("none", "learned", "sinusoidal", "sinusoidal_halves beside", "learned beside"),
    "entry_norm": (None, LayerNormConfig(), RMSNormConfig()),
    "entry_scale": (False, True, 0.6),
    "token_dim": (None, 12),
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
    {"qk_norm_over": ("all",), "qk_norm": (None,)},
    {"kernel": ("sdpa",), "cap": (2.0,)},
    {"kernel": ("sdpa",), "sinks": (True,)},
    {"kernel": ("blockwise", "flex"), "dropout": (0.5,)},
    {"tied": (True,), "positions": ("sinusoidal_halves beside", "learned beside")},
    {"token_dim": (12,), "positions": ("sinusoidal_halves beside", "learned beside")},
    {"token_dim": (12,), "tied": (True,)},  # unless the head has a transform, as one of `ENCODERS`
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


def pairwise(axes: Axes) -> list[dict[str, Any]]:
    """Few rows in which every option of every axis meets every option of every other axis. The same rows every time."""
    cells = [(name, number) for name, options in axes.items() for number in range(len(options))]
    place, draw, rows = {cell: number for number, cell in enumerate(cells)}, random.Random(0), list[dict[str, Any]]()
    friends = _friends(axes, cells)
    left = [*friends]  # of each cell, those that it has not met, as bits
    for first in sorted(cells):
        while later := [cell for cell in cells[place[first] + 1 :] if left[place[first]] >> place[cell] & 1]:
            pair = {place[first], place[min(later)]}
            tries = [_row_with(axes, place, pair, friends, left, draw) for _ in range(6)]
            best = max(tries, key=lambda row: sum((left[cell] & _bits(row)).bit_count() for cell in row))
            for cell in best:
                left[cell] &= ~_bits(best)
            rows.append({name: axes[name][number] for name, number in map(cells.__getitem__, sorted(best))})
    return rows


def every_option(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A few of these rows, which together have every option."""
    cells = [{(name, repr(option)) for name, option in row.items()} for row in rows]
    missing, chosen = set[tuple[str, str]]().union(*cells), list[int]()
    while missing:
        chosen.append(max(range(len(rows)), key=lambda number: len(cells[number] & missing)))
        missing -= cells[chosen[-1]]
    return [rows[number] for number in sorted(chosen)]


def _friends(axes: Axes, cells: Sequence[tuple[str, int]]) -> list[int]:
    """The cells, an option of an axis each, that go together with each cell: bits by their numbers."""
    friends = [0] * len(cells)
    for (one, (name, first)), (two, (other, second)) in itertools.combinations(enumerate(cells), 2):
        if name != other and goes_with(name, axes[name][first], {other: axes[other][second]}):
            friends[one] |= 1 << two
            friends[two] |= 1 << one
    return friends


def _bits(numbers: Collection[int]) -> int:
    return sum(1 << number for number in numbers)


def _row_with(
    axes: Axes,
    place: Mapping[tuple[str, int], int],
    required: set[int],
    friends: Sequence[int],
    left: Sequence[int],
    draw: random.Random,
) -> set[int]:
    """A row of cells with the required ones in it and greedily as many that have not met as possible."""
    row = set(required)
    chosen, possible = _bits(row), -1
    for cell in row:
        possible &= friends[cell]
    for name in draw.sample(list(axes), len(axes)):
        numbers = [place[name, number] for number in range(len(axes[name]))]
        if row.isdisjoint(numbers):
            numbers = [number for number in numbers if possible >> number & 1]
            best = max(draw.sample(numbers, len(numbers)), key=lambda number: (left[number] & chosen).bit_count())
            row.add(best)
            chosen, possible = chosen | 1 << best, possible & friends[best]
    return row


def config_of(
    *,
    family: str = "decoder",
    source_vocab_size: int | None = None,
    tied: bool = True,
    head_bias: bool = False,
    head_transform: bool = False,
    head_scale: float = 1.0,
    head_cap: float | None = None,
    pad_vocab_to: int = 1,
    dim: int = 16,
    **options: Any,
) -> TransformerConfig:
    """A tiny model, from the options of `AXES`: a decoder, an `encoder`, or `both`, whose stacks are alike."""
    names = ("encoder", "decoder") if family == "both" else (family,)
    return TransformerConfig(
        vocab_size=VOCABULARY,
        source_vocab_size=source_vocab_size,
        pad_vocab_to=pad_vocab_to,
        dim=dim,
        context=CONTEXT,
        head=LanguageHeadConfig(tied=tied, bias=head_bias, transform=head_transform, scale=head_scale, cap=head_cap),
        **{name: stack_of(crosses=len(names) == 2 and name == "decoder", **options) for name in names},
    )


def stack_of(
    *,
    crosses: bool = False,
    kernel: str = "auto",
    norm: Any = None,
    placement: str = "pre",
    wiring: str = "serial",
    branch_scale: float = 1.0,
    first: Any = None,
    second: Any = None,
    ffn: Any = "mlp",
    positions: str = "rotary",
    relative: Any = None,
    entry_norm: Any = None,
    entry_scale: bool | float = False,
    token_dim: int | None = None,
    types: int = 0,
    final_norm: bool | None = None,
    dropout: float = 0.0,
    depth: int = 2,
    prefix: bool = False,
    **more: Any,
) -> StackConfig:
    """The stack of such a model; `first` is the mixer where it is not attention, `crosses` adds cross-attention.

    For short, `positions` may be `rotary`, or `both` learned and rotary.
    """
    feeding = {name: more.pop(name) for name in FEEDING if name in more}
    turning = {name: more.pop(name) for name in ("pairing", "fraction", "scaling") if name in more}
    if positions in ("rotary", "both"):
        positions, relative = {"rotary": "none", "both": "learned"}[positions], relative or RotaryConfig(base=100.0)
    if isinstance(relative, RotaryConfig):
        relative = relative.model_copy(update=turning)
    attention = {"kind": "attention", "heads": HEADS, "kernel": kernel, "dropout": dropout, **more}
    block = BlockConfig(
        mixer=first or AttentionConfig.of({**attention, "relative": relative}),
        cross=AttentionConfig.of({**attention, "window": None}) if crosses else None,
        ffn=feed_forward(ffn, **feeding),
        norm=norm or LayerNormConfig(),
        placement=placement,
        wiring=wiring,
        branch_scale=branch_scale,
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
        token_dim=token_dim,
        types=types,
        dropout=dropout,
    )
    fields = {} if second is None else {key: value for key, value in second.to_dict().items() if value is not None}
    overrides = (Override(layers="1", block={"mixer": fields}),) if fields else ()
    return StackConfig(depth=depth, block=block, entry=entry, final_norm=final_norm, overrides=overrides, prefix=prefix)


FEEDING = [
    "activation",
    "hidden",
    "ffn_bias",
    "expert",
    "gate",
    "renormalise",
    "router_bias",
    "limit",
    "plus_one",
    "groups",
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
    groups: GroupsConfig | None = None,
    limit: float | None = None,
    plus_one: bool = False,
    **routing: Any,
) -> Any:
    """The feed-forward of a kind, or the given one as it is."""
    if not isinstance(ffn, str | None):
        return ffn
    if ffn == "none":
        return NoFeedForwardConfig()
    plain = {"activation": activation, "hidden": hidden, "bias": ffn_bias}
    gated = {
        **plain,
        "hidden": hidden or 10,
        "limit": limit,
        "plus_one": plus_one,
    }  # its own default is a multiple of 256
    kinds = {"mlp": MLPConfig.of(plain), "gated": GatedConfig.of(gated)}
    if ffn != "moe":
        return kinds[ffn or "mlp"]
    return MoEConfig(
        experts=3 if groups is None else 4,
        groups=groups,
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


# Stacks without attention, and stacks with attention in the first layer.
ALONE = [
    config_of(first=ConvolutionConfig(taps=3, dilation=4), positions="none"),
    config_of(first=LinearConfig(taps=4), positions="learned"),
    config_of(first=LatentConfig(heads=4, rank=6, head_dim=3, rotary_dim=4, bias=True), positions="none", ffn="gated"),
    config_of(
        first=LatentConfig(heads=2, rank=5, q_rank=7, head_dim=4, rotary_dim=6, value_dim=3, kernel="blockwise"),
        positions="none",
        prefix=True,
    ),
    config_of(first=RecurrentConfig(cell="gru", hidden=6), positions="sinusoidal"),
    config_of(first=RecurrentConfig(cell="lstm"), positions="none", ffn="none"),
]
# Decoders whose prefixes see both ways: distances after a token count too, and experts are chosen for what comes later.
PREFIXED = [
    config_of(prefix=True, positions="none", relative=BucketsConfig(buckets=8, furthest=20)),
    config_of(prefix=True, positions="both", kv_heads=2, ffn="moe", kernel="blockwise"),
]


def layered(*blocks: dict[str, Any], **options: Any) -> TransformerConfig:
    """A decoder whose layers differ: each has the changes of its block."""
    changes = [Override(layers=str(number), block=block) for number, block in enumerate(blocks)]
    return config_of(depth=len(blocks), **options).override({"decoder.overrides": changes})


def feeding(activation: str, kind: str) -> dict[str, Any]:
    """A feed-forward with an activation, as a change of a layer."""
    part = {"kind": kind.removesuffix(" experts"), "hidden": 6, "activation": activation}
    experts = {"kind": "moe", "experts": 3, "expert": part}
    return {"ffn": experts if kind.endswith("experts") else part}


def rotating(fraction: float = 1.0, **scaling: Any) -> dict[str, Any]:
    """Rotary positions, as a change of a layer."""
    return {"mixer": {"relative": {"kind": "rotary", "base": 100.0, "fraction": fraction, "scaling": scaling}}}


OWN_BUCKETS = {"kind": "buckets", "buckets": 8, "furthest": 20, "shared": False}
# What acts on each number or token alone needs no pair with every other choice: layers of one model have one each.
LAYERED = [
    layered(
        *(
            feeding(name, kind)
            for name, kind in [
                ("quick_gelu", "gated"),
                ("relu6", "mlp"),
                ("leaky_relu", "mlp experts"),
                ("mish", "gated experts"),
                ("sigmoid", "mlp"),
                ("tanh", "gated"),
                ("linear", "gated experts"),
            ]
        )
    ),
    layered(
        rotating(kind="dynamic", factor=2.0, original=4, length=9),
        rotating(kind="dynamic", factor=2.0, original=9, length=4, fraction=0.4),
        rotating(kind="longrope", short=[1.0] * 4, long=[1.0, 1.5, 2.0, 3.0], original=4, length=9, magnitude=1.2),
        rotating(kind="longrope", short=[1.0, 1.5, 2.0], long=[9.0] * 3, original=9, length=4, fraction=0.7),
        head_dim=8,
    ),
    layered(
        {"placement": "pre_ffn", "mixer": {"relative": OWN_BUCKETS, "window": 3}},
        {"mixer": {"relative": OWN_BUCKETS}},
        {"mixer": {"relative": {**OWN_BUCKETS, "shared": True}}},
        {"mixer": {"relative": OWN_BUCKETS}},
        final_norm=True,
        head_transform=True,
    ),
]
_ROWS = pairwise(AXES)
_PAIRED = [config_of(**row) for row in _ROWS]
FEW = [_PAIRED[_ROWS.index(row)] for row in every_option(_ROWS)]
# These are there for their pairs of options; tests of them are `thorough`.
FOR_PAIRS = [config for config in _PAIRED if config not in FEW]
COMBINATIONS = [*_PAIRED, *ALONE, *PREFIXED, *LAYERED]


ALIKE: list[dict[str, Any]] = [
    {"placement": "post", "positions": "sinusoidal", "entry_scale": True},  # Vaswani et al. 2017
    {
        "placement": "post",
        "positions": "learned",
        "entry_norm": LayerNormConfig(),
        "kernel": "sdpa",
        "types": 2,
    },  # BART
    {"entry_norm": RMSNormConfig(), "positions": "none", "relative": AXES["relative"][3], "kernel": "blockwise"},  # T5
    {"placement": "sandwich", "positions": "sinusoidal", "kv_heads": 2, "token_dim": 6, "head_transform": True},
    {"placement": "output", "ffn": "moe", "kernel": "reference"},
    {"placement": "literal", "positions": "learned", "window": 3, "kernel": "plain", "ffn": "gated"},
    {"first": ConvolutionConfig(taps=3), "positions": "none", "kernel": "flex", "ffn": "none"},
    {"placement": "bare", "positions": "sinusoidal_halves", "cap": 2.0},
    {"first": LatentConfig(heads=2, rank=5, head_dim=4, rotary_dim=2), "positions": "none", "ffn": "gated"},
]
ENCODERS = [config_of(family="encoder", head_bias=True, **options) for options in ALIKE]
# Each third one reads a source of other ids, 13 of them.
BOTH = [
    config_of(family="both", head_bias=True, source_vocab_size=None if number % 3 else 13, **options)
    for number, options in enumerate(ALIKE)
]

EVERY = [*COMBINATIONS, *ENCODERS, *BOTH]


def name_of(config: TransformerConfig) -> str:
    """A combination in a few words, for the name of a test."""
    stack = config.last()[1]
    kinds = [block.mixer.kind for block in stack.blocks]
    words = [*dict.fromkeys(kinds), stack.block.norm.kind, stack.block.placement, stack.block.wiring]
    mixer: Any = stack.blocks[0].mixer
    if kinds[0] == "attention":
        relative = [] if mixer.relative is None else [mixer.relative.kind]
        words[0] = "+".join([mixer.kernel, *relative, f"kv{mixer.key_heads()}"])
    return "-".join([*words, stack.block.ffn.kind, stack.entry.positions])


# Random models

# One of some options; of a hypothesis strategy the first is the simplest. A drawn model is the same for the same picks.
Pick = Callable[[Sequence[Any]], Any]

RATES = (0.0, 0.3)
# What cannot be read off an annotation: numbers, texts, and tuples of names, by field.
VALUES: dict[str, tuple[Any, ...]] = {
    "AlibiConfig.factor": (1.0, 0.35),
    "AttentionConfig.heads": (4, 2, 1, 3),
    "AttentionConfig.kv_heads": (2, 1, 3),
    "AttentionConfig.head_dim": (8, 6, 5, 2, 1),
    "AttentionConfig.value_dim": (5, 8),
    "AttentionConfig.scale": (0.4,),
    "AttentionConfig.bias": (("q", "k", "v"), ("o",), ()),
    "AttentionConfig.cap": (5.0,),
    "AttentionConfig.window": (4, 1),
    "AttentionConfig.dropout": RATES,
    "BlockConfig.branch_scale": (1.0, 0.4),
    "BlockConfig.dropout": RATES,
    "BucketsConfig.buckets": (8, 5, 4),
    "BucketsConfig.furthest": (20, 6, 3),
    "ClassifierHeadConfig.classes": (3, 1),
    "ClassifierHeadConfig.dropout": RATES,
    "ClassifierHeadConfig.threshold": (0.5,),
    "ClassifierHeadConfig.names": ((),),  # they name what is computed and change nothing of it
    "ConvolutionConfig.taps": (3, 1, 4),
    "ConvolutionConfig.dilation": (1, 2),
    "CustomConfig.target": ("tests.models:Own",),
    "CustomConfig.options": ({}, {"bias": False}, {"any other": 1.5}),
    # How texts are generated changes nothing of what the model computes.
    "DecodingDefaults.max_tokens": (7,),
    "DecodingDefaults.min_tokens": (1,),
    "DecodingDefaults.repetition_penalty": (1.2,),
    "DecodingDefaults.no_repeat_ngram": (3,),
    "DecodingDefaults.temperature": (0.7,),
    "DecodingDefaults.top_k": (5,),
    "DecodingDefaults.top_p": (0.9,),
    "DecodingDefaults.min_p": (0.1,),
    "DecodingDefaults.typical_p": (0.9,),
    "DecodingDefaults.beams": (2,),
    "DecodingDefaults.length_penalty": (0.6,),
    "DynamicScaling.factor": (1.0, 4.0),
    "DynamicScaling.original": (16, 4),
    "DynamicScaling.length": (20, 8),
    "EmbeddingHeadConfig.pooling": (("first", "mean"),),
    "EmbeddingHeadConfig.dense": ((), (DenseConfig(outputs=5),)),
    "EmbeddingHeadConfig.length": (10,),
    "EmbeddingHeadConfig.prompts": ({}, {"query": "query: "}),
    "EmbeddingHeadConfig.prompt": (None,),
    "EntryConfig.position_dim": (4, 3, 16),
    "EntryConfig.offset": (0, 2),
    "EntryConfig.scale": (0.5,),
    "EntryConfig.types": (0, 2),
    "EntryConfig.token_dim": (16, 6, 5),
    "EntryConfig.dropout": RATES,
    "GatedConfig.hidden": (12, 3),
    "GatedConfig.dropout": RATES,
    "GatedConfig.limit": (0.7, 7.0),
    "InitialConfig.std": (0.02, 0.2),
    "InitialConfig.position_std": (0.01,),
    "LanguageHeadConfig.eps": (1e-12, 1e-3),
    "LanguageHeadConfig.scale": (1.0, 0.25),
    "LanguageHeadConfig.cap": (3.0,),
    "LatentConfig.heads": (4, 2, 1),
    "LatentConfig.rank": (6, 2),
    "LatentConfig.q_rank": (5,),
    "LatentConfig.head_dim": (4, 3),
    "LatentConfig.rotary_dim": (4, 2),
    "LatentConfig.value_dim": (5,),
    "LatentConfig.scale": (0.4,),
    "LatentConfig.eps": (1e-6, 1e-3),
    "LatentConfig.dropout": RATES,
    "LayerNormConfig.eps": (1e-5, 1e-3, 0.0),
    "LinearConfig.taps": (3, 1, 4),
    "LinearScaling.factor": (1.0, 4.0),
    "Llama3Scaling.factor": (1.0, 4.0),
    "Llama3Scaling.original": (16, 100),
    "Llama3Scaling.low": (1.0, 2.0),
    "Llama3Scaling.high": (4.0, 8.0),
    "LongRopeScaling.short": ((1.0, 2.0),),
    "LongRopeScaling.long": ((1.0, 4.0),),
    "LongRopeScaling.original": (16, 4),
    "LongRopeScaling.length": (20, 8),
    "LongRopeScaling.magnitude": (1.0, 1.2),
    "MLPConfig.hidden": (7, 3),
    "MLPConfig.dropout": RATES,
    "MoEConfig.experts": (4, 2, 1),
    "MoEConfig.active": (2, 1, 4),
    "GroupsConfig.count": (2,),
    "GroupsConfig.active": (1, 2),
    "MoEConfig.shared": (0, 1, 2),
    "MoEConfig.shared_hidden": (5,),
    "MoEConfig.scale": (1.0, 2.5),
    "MoEConfig.balance": (0.0, 0.01),
    "MoEConfig.z": (0.0, 0.001),
    "MoEConfig.bias_rate": (0.0, 0.01),
    "NTKScaling.factor": (1.0, 4.0),
    "ChatTemplateConfig.date": (None, "2024-07-26"),
    "ChatTemplateConfig.template": ("{{ messages[0].content }}",),
    "ChatTemplateConfig.tokens": ({}, {"bos_token": "<s>"}),
    "ScoresConfig.target": ("tests.models:OwnScores",),
    "ScoresConfig.options": ({}, {"rate": 0.3}),
    "SpecialIds.roles": ({}, {"mask_token": "[MASK]"}),
    "Override.layers": ("0", "-1", "::2", "1:", "5"),
    "RecurrentConfig.hidden": (9, 3),
    "RMSNormConfig.eps": (1e-6, 1e-3, 0.0),
    "RotaryConfig.base": (10_000.0, 100.0, 1.5),
    "RotaryConfig.fraction": (1.0, 0.5, 0.7, 0.1),
    "SpecialIds.banned": ((), ((3,), (4, 5))),
    "SpecialIds.begin": (1,),
    "SpecialIds.decoder_start": (0,),
    "SpecialIds.end": (2, (2, 6)),
    "SpecialIds.forced_begin": (4,),
    "SpecialIds.forced_end": (2, (2, 5)),
    "SpecialIds.padding": (0,),
    "StackConfig.depth": (1, 2, 3),
    "TransformerConfig.architecture": ("LlamaForCausalLM",),
    "TransformerConfig.vocab_size": (7, 31),
    "TransformerConfig.source_vocab_size": (13,),
    "TransformerConfig.pad_vocab_to": (1, 8),
    "TransformerConfig.dim": (16, 24, 12, 15, 1),
    "TransformerConfig.context": (12, 40),
    "YarnScaling.factor": (1.0, 4.0),
    "YarnScaling.original": (16, 100),
    "YarnScaling.fast": (32.0, 1.0),
    "YarnScaling.slow": (1.0, 0.5),
    "YarnScaling.magnitude": (1.2,),
}
# How often a kind or a value is drawn among its alternatives: most choices are attention's, and then rotary positions'; scores of
# a user's own leave one kernel.
OFTEN = {"AttentionConfig": 4, "RotaryConfig": 3, "AttentionConfig.scores = None": 4}
TRIES = 200


class Stuck(Exception):
    """Nothing possible was picked, however often: a part was refused each time."""


class Own(nn.Module):
    """Somebody else's module: as a mixer the mean of what came before in the same text, as a feed-forward a linear map."""

    def __init__(self, dim: int, bias: bool = True, **ignored: float) -> None:
        super().__init__()
        self.map = nn.Linear(dim, dim, bias=bias)

    def forward(self, x: Tensor, layout: Layout | None = None) -> Tensor:
        if layout is not None:
            segment = layout.segment
            seen = ((segment[:, :, None] == segment[:, None, :]) & (segment >= 0)[:, :, None]).tril()
            x = seen.to(x.dtype) / seen.sum(-1, keepdim=True).clamp(min=1) @ x
        return self.map(x).tanh()


class OwnScores(nn.Module):
    """Somebody else's attention scores: they fall with the distance, and each head has a factor."""

    def __init__(self, heads: int, rate: float = 0.1) -> None:
        super().__init__()
        self.rate, self.factor = rate, nn.Parameter(torch.linspace(0.5, 1.5, heads))

    def forward(self, scores: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        return self.factor[:, None, None] * scores - self.rate * (queries - keys).abs()


def _key(option: Any) -> str:
    """What tells an option from others; the `repr` of a config is cut to a screen."""
    return f"{type(option).__name__} {option.to_json()}" if isinstance(option, Config) else repr(option)


@cache
def options(cls: type[Config], name: str) -> list[Any]:
    """All that can stand in a field: values, and classes of configs that are drawn in turn.

    Raises:
        LookupError: it takes numbers or texts, and `VALUES` does not say which.
    """
    key = f"{cls.__name__}.{name}"
    choices = list(_options(cls.model_fields[name].annotation, key))
    return list({_key(option): option for option in choices}.values())


def _options(annotation: Any, key: str) -> Iterator[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _options(get_args(annotation)[0], key)
    elif origin in (Union, UnionType):
        for each in get_args(annotation):
            yield from _options(each, key)
    elif origin is Literal:
        yield from get_args(annotation)
    elif annotation is NoneType:
        yield None
    elif annotation is bool:
        yield from (False, True)
    elif isinstance(annotation, type) and issubclass(annotation, Config):
        yield annotation
    elif key not in VALUES:
        raise LookupError(f"{key} takes {annotation}: no row in VALUES of tests/models.py says what to draw")
    else:
        yield from VALUES[key]


def classes(cls: type[Config] = TransformerConfig) -> list[type[Config]]:
    """The class and all that can stand in it, each once."""
    subclasses = [cls]
    for each in subclasses:
        for name in each.model_fields:
            if f"{each.__name__}.{name}" not in SPECIAL:
                kinds = [option for option in options(each, name) if isinstance(option, type)]
                subclasses += [kind for kind in kinds if kind not in subclasses]
    return subclasses


def draw(cls: type[Config], pick: Pick) -> dict[str, Any]:
    """Plain data of a class, each field on its own; often, but not always, of something possible."""
    data: dict[str, Any] = {}
    for name in cls.model_fields:
        key = f"{cls.__name__}.{name}"
        if key in SPECIAL:
            data[name] = SPECIAL[key](pick)
            continue
        option = options(cls, name)[0] if name == "kind" else pick(weighted(cls, name))
        data[name] = part(option, pick) if isinstance(option, type) else option
    return data


@cache
def weighted(cls: type[Config], name: str) -> list[Any]:
    """All that can stand in a field, each as often as it is to be drawn."""
    named = [
        (getattr(option, "__name__", f"{cls.__name__}.{name} = {option}"), option) for option in options(cls, name)
    ]
    return [option for word, option in named for _ in range(OFTEN.get(word, 1))]


def part(cls: type[Config], pick: Pick) -> dict[str, Any]:
    """Plain data of a class that is possible by itself, such as an attention that no kernel refuses."""
    for _ in range(TRIES):
        data = draw(cls, pick)
        if cls is StackConfig or possible(cls, data):
            return data
    raise Stuck(f"{cls.__name__} was refused {TRIES} times")


def possible(cls: type[Config], data: dict[str, Any]) -> bool:
    """Whether a class takes the data."""
    try:
        cls.of(data)
    except HeddleError:
        return False
    return True


def refusal(cls: type[Config], data: dict[str, Any]) -> str:
    """What is said against the data, or nothing: then it comes back as it was. Any other error than a refusal goes through."""
    try:
        config = cls.of(data)
    except HeddleError as error:
        return str(error)
    assert cls.of(config.to_dict()) == config
    return ""


def overrides(pick: Pick) -> list[dict[str, Any]]:
    """Layers that differ in some of what a block has: no, one or two changes."""
    return [part(each, pick) for each in pick(((), (), (Override,), (Override, Override)))]


def crossing(pick: Pick) -> dict[str, Any] | None:
    """What looks at the encoder's output, mostly without what only looking at oneself knows."""
    if not pick((False, True)):
        return None
    attention = part(AttentionConfig, pick)
    return attention | {"window": None, "relative": None} if pick((True, True, True, True, False)) else attention


def change(pick: Pick) -> dict[str, Any]:
    """What an override changes: whole parts of a block, or single fields of them."""
    block = part(BlockConfig, pick)
    names = pick(([*block], ["mixer"], ["ffn"], ["norm", "dropout"], ["cross", "mixer"]))
    return without_none({name: block[name] for name in names})


def without_none(data: dict[str, Any]) -> dict[str, Any]:
    """Without what is None, which an override cannot say."""
    return {
        name: without_none(value) if isinstance(value, dict) else value
        for name, value in data.items()
        if value is not None
    }


# Fields that are no choice by themselves.
SPECIAL: dict[str, Callable[[Pick], Any]] = {
    "StackConfig.prefix": lambda pick: pick((False, False, False, False, False, True)),  # most layers do not go with it
    "StackConfig.overrides": overrides,
    "Override.block": change,
    "BlockConfig.cross": crossing,
}


def model_of(pick: Pick) -> dict[str, Any]:
    """Plain data of a whole model. Mostly its stacks fit together; whether it is possible, the config says."""
    data = draw(TransformerConfig, pick)
    if not pick((True, True, True, False)):
        return data
    if data["encoder"] is None and data["decoder"] is None:
        data["decoder"] = part(StackConfig, pick)
    both = data["encoder"] is not None and data["decoder"] is not None
    for name in ("encoder", "decoder"):
        stack = data[name]
        for block in [stack["block"], *[each["block"] for each in stack["overrides"]]] if stack else []:
            if not (both and name == "decoder"):
                block.pop("cross", None)
            elif block is stack["block"] and block["cross"] is None:
                block |= {"cross": part(AttentionConfig, pick) | {"window": None, "relative": None}}
                block["wiring"] = "serial"
    if not both:
        data["source_vocab_size"] = None
    if all(data[name] is None or data[name]["entry"]["positions"] != "learned" for name in ("encoder", "decoder")):
        data["initial"]["position_std"] = None
    return data


@cache
def drawn(seed: int) -> TransformerConfig:
    """A model that validates; the same for the same seed."""
    return validated(random.Random(seed).choice)


def validated(pick: Pick) -> TransformerConfig:
    """The first model that validates."""
    while True:
        try:
            return TransformerConfig.of(model_of(pick))
        except (HeddleError, Stuck):
            continue
