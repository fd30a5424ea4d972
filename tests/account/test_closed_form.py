"""How many numbers a model has, as a formula of its sizes: written from the lectures, it knows no module."""

from typing import Any

import pytest

from heddle.config import TransformerConfig, preset, preset_names
from tests.account.counts import parameters_of

NORMS = {"pre": 1, "post": 1, "sandwich": 2, "output": 1, "literal": 1, "bare": 1}  # around one branch
GATES = {"gru": 3, "lstm": 4}


def norm(kind: Any, d: int) -> int:
    """A gain, and a shift where there is one."""
    return {"layer": d * (1 + getattr(kind, "bias", False)), "rms": d, "none": 0}[kind.kind]


def attention(mixer: Any, d: int) -> int:
    """dHw + dKw + dKv + Hvd, which is 4d² where all heads are d/H wide, and a bias for each output."""
    heads, keys, width = mixer.heads, mixer.kv_heads or mixer.heads, mixer.head_dim or d // mixer.heads
    values = mixer.value_dim or width
    outputs = {"q": heads * width, "k": keys * width, "v": keys * values, "o": d}
    matrices = d * (outputs["q"] + outputs["k"] + outputs["v"] + heads * values)
    biases = sum(outputs[letter] for letter in mixer.biased())
    return matrices + biases + (2 * norm(mixer.qk_norm, width) if mixer.qk_norm is not None else 0)


def mixing(mixer: Any, d: int) -> int:
    """What stands where attention stands."""
    if mixer.kind == "attention":
        return attention(mixer, d)
    bias = getattr(mixer, "bias", False)
    if mixer.kind == "recurrent":
        width, gates = mixer.hidden or d, GATES[mixer.cell]
        return gates * width * (d + width) + width * d + bias * (2 * gates * width + d)
    return mixer.taps * d**2 + bias * d


def feed_forward(ffn: Any, d: int) -> int:
    """2dF and its biases, 3dF gated, or that for each expert beside a router of d for each."""
    if ffn.kind == "none":
        return 0
    if ffn.kind == "moe":
        return d * ffn.experts + (ffn.experts + ffn.shared) * feed_forward(ffn.expert, d)
    ups = 1 if ffn.kind == "mlp" else 2
    return (ups + 1) * d * ffn.width(d) + ffn.bias * (ups * ffn.width(d) + d)


def stack(config: Any, d: int, context: int) -> int:
    """Positions, blocks and their norms, the last norm."""
    entry, relative = config.entry, getattr(config.block.mixer, "relative", None)
    total = (context + entry.offset) * d if entry.positions == "learned" else 0
    total += entry.types * d + (norm(entry.norm, d) if entry.norm is not None else 0)
    for block in config.blocks:
        total += mixing(block.mixer, d) + feed_forward(block.ffn, d)
        total += attention(block.cross, d) if block.cross is not None else 0
        branches = 1 + (block.ffn.kind != "none") + (block.cross is not None)
        around = branches * NORMS[block.placement] if block.wiring != "parallel_one_norm" else 1
        total += around * norm(block.norm, d)
    total += norm(config.block.norm, d) if config.ends_in_norm() else 0
    return total + (relative.buckets * config.block.mixer.heads if relative and relative.kind == "buckets" else 0)


def head(config: TransformerConfig) -> int:
    """A matrix of its own where the table is not shared; d² + d on a pooled vector."""
    d, kind = config.dim, config.head
    if kind.kind != "language":
        layers = len(kind.dense) if isinstance(kind.dense, tuple) else int(kind.dense)
        return layers * (d**2 + d)
    rows = config.table_rows()
    return (not kind.tied) * rows * d + kind.bias * rows + kind.transform * (d**2 + 3 * d)


def closed_form(config: TransformerConfig) -> int:
    tables = config.table_rows() * config.dim
    tables += config.source_rows() * config.dim if config.source_vocab_size else 0
    return tables + sum(stack(each, config.dim, config.context) for each in config.stacks().values()) + head(config)


@pytest.mark.lecture("L1-59", "L0-77", "L2-34", "L3-02")
@pytest.mark.parametrize("name", preset_names())
def test_every_presets_count_is_a_formula(name: str) -> None:
    assert closed_form(preset(name)) == parameters_of(name).total


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("conv-lm", 8192 * 256 + 8 * (3 * 256**2 + 256 + 8 * 256**2 + 5 * 256 + 4 * 256) + 2 * 256),
        ("rnn-translate", 8000 * 256 + 4 * (7 * 256**2 + 7 * 256 + 2 * 256) + 2 * (4 * 256**2 + 6 * 256) + 4 * 256),
        ("laptop-rnn", 8192 * 256 + 2 * (9 * 256**2 + 9 * 256 + 2 * 256) + 2 * 256),
        ("laptop-linear", 2 * 8192 * 256 + 8 * 256**2),
        ("laptop-tiny", 256 * 128 + 4 * (4 * 128**2 + 3 * 128 * 384 + 2 * 128 + 2 * 32) + 128),
        ("laptop-window", 256 * 128 + 4 * (4 * 128**2 + 3 * 128 * 384 + 2 * 128 + 2 * 32) + 128),
        ("laptop-small", 8192 * 256 + 6 * (4 * 256**2 + 3 * 256 * 704 + 2 * 256 + 2 * 64) + 256),
        ("laptop-base", 16384 * 512 + 8 * (4 * 512**2 + 3 * 512 * 1408 + 2 * 512 + 2 * 64) + 512),
        ("laptop-moe", 256 * 128 + 4 * (4 * 128**2 + 8 * 128 + 9 * 3 * 128 * 192 + 2 * 128 + 2 * 32) + 128),
        ("laptop-encoder", 8192 * 256 + 4 * (4 * 256**2 + 3 * 256 * 704 + 2 * 256) + 256),
        ("laptop-translate", 8192 * 256 + 6 * (4 * 256**2 + 3 * 256 * 704) + 3 * (4 * 256**2 + 5 * 256) + 2 * 256),
    ],
)
def test_presets_without_a_paper(name: str, formula: int) -> None:
    """Written out by hand."""
    assert parameters_of(name).total == formula
