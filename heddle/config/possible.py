"""What cannot be seen from a layer alone: sizes against the model's width, and what a stack or an encoder cannot have."""

from typing import TYPE_CHECKING

from heddle.config.kernels import refusal
from heddle.config.layers import (
    AttentionConfig,
    ConvolutionConfig,
    DropoutConfig,
    LayerNormConfig,
    LinearConfig,
    NoNormConfig,
    NormConfig,
    RotaryConfig,
)

if TYPE_CHECKING:
    from heddle.config.model import BlockConfig, StackConfig

LOST = 1e-20  # an eps below it is none in fp32, whose gradients know its power of -3/2
EMPTY_BRANCHES = ("sandwich", "output", "bare")  # placements in which a branch that gives 0 makes a row of zeros


def stack_possible(name: str, stack: "StackConfig", dim: int) -> None:
    """Refuse a stack that a model of width `dim` cannot have.

    Raises:
        ValueError: one line that names the field.
    """
    entry = stack.entry
    if entry.positions_dim(dim) < 1:
        raise ValueError(f"{name}.entry: combine = 'concat' leaves no room for positions in dim = {dim}")
    if entry.positions.startswith("sinusoidal") and entry.positions_dim(dim) % 2:
        raise ValueError(
            f"{name}.entry: sinusoidal positions come in pairs; {entry.positions_dim(dim)} channels are odd"
        )
    for block in stack.blocks:
        if (
            name == "encoder"
            and isinstance(block.mixer, ConvolutionConfig | LinearConfig)
            and block.mixer.taps % 2 == 0
        ):
            raise ValueError(f"encoder: taps = {block.mixer.taps}: a centred convolution needs an odd number of them")
        for place in (block.mixer, block.cross):
            if isinstance(place, AttentionConfig):
                _attention_possible(place, dim)
    relatives = [block.mixer for block in stack.blocks if isinstance(block.mixer, AttentionConfig)]
    if len({mixer.heads for mixer in relatives if mixer.relative is not None and mixer.relative.kind == "buckets"}) > 1:
        raise ValueError(f"{name}: layers that share learned buckets of distances need equally many heads")
    _norms_possible(name, stack, dim)


def dropout_possible(name: str, stack: "StackConfig", dropout: DropoutConfig) -> None:
    """Refuse a kernel where it cannot drop attention weights in the model's convention.

    Raises:
        ValueError: one line that names the field.
    """
    for block in stack.blocks:
        for place in (block.mixer, block.cross):
            if isinstance(place, AttentionConfig) and (why := refusal(place.kernel, place.needs(dropout))) is not None:
                raise ValueError(f"{name}: {why}")


def _attention_possible(mixer: AttentionConfig, dim: int) -> None:
    if mixer.head_dim is None and dim % mixer.heads:
        raise ValueError(
            f"dim = {dim} is not divisible by heads = {mixer.heads} ({dim / mixer.heads:g} is not whole); "
            "give head_dim or change one of them"
        )
    if isinstance(mixer.relative, RotaryConfig):
        width, rotated = mixer.width(dim), mixer.relative.rotated_dim(mixer.width(dim))
        if rotated % 2 or not rotated:
            fraction = "" if rotated == width else f" · fraction = {rotated}"
            raise ValueError(
                f"rotary positions rotate pairs of channels; head_dim = {width}{fraction} is odd or 0: change one of them"
            )


def _norms_possible(name: str, stack: "StackConfig", dim: int) -> None:
    """A norm without eps has no value for a row of zeros (L0-50): none may come to one by design."""
    if stack.entry.norm is not None:
        _wide_enough(f"{name}.entry.norm", stack.entry.norm, dim)
    # A row of zeros is what attention gives to padding. Without a residual it is all that the next layers get.
    bare = any(block.placement == "bare" for block in stack.blocks)
    for block in (*stack.blocks, stack.block):
        _wide_enough(f"{name}.block.norm", block.norm, dim)
        if _unprotected(block.norm) and (bare or block.placement in EMPTY_BRANCHES):
            where = "bare" if bare else block.placement
            raise ValueError(
                f"{name}.block.norm.eps = 0 with placement = {where!r}: such a norm meets rows of zeros, which have no "
                f"value without eps; give eps of at least {LOST:g}"
            )
        _heads_normed(name, block, dim)


def _heads_normed(name: str, block: "BlockConfig", dim: int) -> None:
    for place, attention in (("mixer", block.mixer), ("cross", block.cross)):
        if not isinstance(attention, AttentionConfig) or attention.qk_norm is None:
            continue
        _wide_enough(f"{name}.block.{place}.qk_norm", attention.qk_norm, attention.width(dim))
        if _unprotected(attention.qk_norm):
            raise ValueError(
                f"{name}.block.{place}.qk_norm.eps = 0: a query or a key of zeros has no value without eps; "
                f"give eps of at least {LOST:g}"
            )


def _unprotected(norm: NormConfig) -> bool:
    return not isinstance(norm, NoNormConfig) and norm.eps < LOST


def _wide_enough(where: str, norm: NormConfig, width: int) -> None:
    """A single number has no deviation from its mean, and dropout makes it 0."""
    if width > 1:
        return
    if isinstance(norm, LayerNormConfig) and norm.unbiased:
        raise ValueError(f"{where}.unbiased divides by one less than the width, which is 1 here; take another norm")
    if _unprotected(norm):
        raise ValueError(f"{where}.eps = 0 leaves vectors of width 1 without a value; give eps of at least {LOST:g}")
