"""Every combination that can be built, small: each pair of choices occurs in at least one model."""

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from heddle.config import (
    AttentionConfig,
    BlockConfig,
    EntryConfig,
    GatedConfig,
    HeadConfig,
    LayerNormConfig,
    MLPConfig,
    RMSNormConfig,
    RotaryConfig,
    StackConfig,
    TransformerConfig,
)
from heddle.model import Transformer, build

VOCABULARY = 11
CONTEXT = 160
HEADS = 4

# A new choice in the config is one more option here; it then inherits every law.
AXES: dict[str, Sequence[Any]] = {
    "kernel": ("auto", "reference", "plain", "sdpa"),
    "norm": (LayerNormConfig(), LayerNormConfig(bias=False, eps=1e-3), RMSNormConfig()),
    "placement": ("pre", "post"),
    "ffn": (
        MLPConfig(),
        MLPConfig(activation="gelu_tanh", bias=False),
        MLPConfig(activation="relu", hidden=7),
        MLPConfig(activation="relu_squared", bias=False),
        MLPConfig(activation="silu"),
        GatedConfig(hidden=10),
        GatedConfig(hidden=6, activation="gelu", bias=True),
    ),
    "positions": ("none", "learned", "rotary", "both"),
    "kv_heads": (None, 2, 1),
    "head_dim": (None, 6),
    "value_dim": (None, 3),
    "qk_norm": (None, RMSNormConfig(), LayerNormConfig()),
    "bias": (True, False),
    "scale": ("head_dim", "dim", 0.7),
    "tied": (True, False),
    "final_norm": (None, True, False),
    "pad_vocab_to": (1, 8),
    "dropout": (0.0, 0.5),  # in evaluation nothing is dropped, whatever the rate
}


def pairwise(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Few rows in which every option of every axis meets every option of every other axis. The same rows every time."""
    draw = random.Random(0)
    cells = [(name, number) for name, options in axes.items() for number in range(len(options))]
    left = {pair for pair in itertools.combinations(cells, 2) if pair[0][0] != pair[1][0]}
    rows = []
    while left:
        wanted = dict(min(left))
        tries = [{name: draw.randrange(len(options)) for name, options in axes.items()} | wanted for _ in range(40)]
        found = [left & set(itertools.combinations(row.items(), 2)) for row in tries]
        best = max(range(len(tries)), key=lambda number: len(found[number]))
        left -= found[best]
        rows.append({name: axes[name][number] for name, number in tries[best].items()})
    return rows


def config_of(
    *,
    kernel: str = "auto",
    norm: LayerNormConfig | RMSNormConfig | None = None,
    placement: Literal["pre", "post"] = "pre",
    ffn: MLPConfig | GatedConfig | None = None,
    positions: str = "rotary",
    tied: bool = True,
    final_norm: bool | None = None,
    pad_vocab_to: int = 1,
    dropout: float = 0.0,
    depth: int = 2,
    dim: int = 16,
    **mixer: Any,
) -> TransformerConfig:
    """A tiny model, from the options of `AXES`."""
    relative = RotaryConfig(base=100.0) if positions in ("rotary", "both") else None
    attention = AttentionConfig.of(
        {"heads": HEADS, "kernel": kernel, "relative": relative, "dropout": dropout, **mixer}
    )
    block = BlockConfig(
        mixer=attention,
        ffn=ffn or MLPConfig(),
        norm=norm or LayerNormConfig(),
        placement=placement,
        dropout=dropout,
    )
    entry = EntryConfig(positions="learned" if positions in ("learned", "both") else "none", dropout=dropout)
    stack = StackConfig(depth=depth, block=block, entry=entry, final_norm=final_norm)
    return TransformerConfig(
        vocab_size=VOCABULARY,
        pad_vocab_to=pad_vocab_to,
        dim=dim,
        context=CONTEXT,
        decoder=stack,
        head=HeadConfig(tied=tied),
    )


def awake(config: TransformerConfig, dtype: torch.dtype = torch.float64, seed: int = 0) -> Transformer:
    """A model in evaluation whose every parameter matters: initial weights are small, gains are 1 and shifts are 0."""
    model = build(config, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.3 if parameter.ndim == 1 else 1.3 / parameter.shape[1] ** 0.5
            noise = torch.empty(parameter.shape).normal_(0.0, spread, generator=generator)
            parameter.copy_(noise + parameter if parameter.ndim == 1 else noise)
    return model.eval()


def tokens_of(rows: int, length: int, seed: int = 1) -> Tensor:
    """Random ids [B T] below `VOCABULARY`."""
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def others_than(tokens: Tensor) -> Tensor:
    """Ids that differ from the given ones at every place."""
    return (tokens + 1) % VOCABULARY


COMBINATIONS = [config_of(**row) for row in pairwise(AXES)]


def name_of(config: TransformerConfig) -> str:
    """A combination in a few words, for the name of a test."""
    block, mixer = config.decoder.block, config.decoder.block.mixer
    positions = "+".join([config.decoder.entry.positions, *(["rotary"] if mixer.relative else [])])
    words = [mixer.kernel, block.norm.kind, block.placement, block.ffn.kind, block.ffn.activation, positions]
    return "-".join([*words, f"kv{mixer.key_heads()}"])
