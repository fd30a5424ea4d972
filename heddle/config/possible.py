"""Checks across layers: sizes against the model's width, and settings that a stack or an encoder cannot have."""

from typing import TYPE_CHECKING

from heddle.config.kernels import refusal
from heddle.config.layers import (
    AttentionConfig,
    ConvolutionConfig,
    DropoutConfig,
    LatentConfig,
    LayerNormConfig,
    LinearConfig,
    NoNormConfig,
    NormConfig,
)
from heddle.config.positions import BucketsConfig, LongRopeScaling, RotaryConfig, YarnScaling

if TYPE_CHECKING:
    from heddle.config.model import BlockConfig, StackConfig

LOST = 1e-20  # an eps below this overflows fp32 gradients, which contain its power of -3/2
EMPTY_BRANCHES = ("sandwich", "output", "bare")  # placements in which a branch output of 0 makes a row of zeros


def stack_possible(name: str, stack: "StackConfig", dim: int) -> None:
    """Refuse a stack that does not fit a model of width `dim`.

    Raises:
        ValueError: one line with the field and the problem.
    """
    if stack.prefix:
        _prefix_possible(name, stack)
    entry = stack.entry
    if entry.positions_dim(dim) < 1:
        raise ValueError(f"{name}.entry: combine = 'concat' leaves no room for positions in dim = {dim}")
    if entry.positions.startswith("sinusoidal") and entry.positions_dim(dim) % 2:
        raise ValueError(
            f"{name}.entry: sinusoidal positions need an even number of channels, not {entry.positions_dim(dim)}"
        )
    for block in stack.blocks:
        if (
            name == "encoder"
            and isinstance(block.mixer, ConvolutionConfig | LinearConfig)
            and block.mixer.taps % 2 == 0
        ):
            raise ValueError(f"encoder: taps = {block.mixer.taps}: a centred convolution needs an odd number of taps")
        for part in (block.mixer, block.cross):
            if isinstance(part, AttentionConfig):
                _attention_possible(f"{name}.block.{'mixer' if part is block.mixer else 'cross'}", part, dim)
    relatives = [block.mixer for block in stack.blocks if isinstance(block.mixer, AttentionConfig)]
    shared = [mixer for mixer in relatives if isinstance(mixer.relative, BucketsConfig) and mixer.relative.shared]
    if len({mixer.heads for mixer in shared}) > 1:
        raise ValueError(f"{name}: layers that share learned buckets of distances need the same number of heads")
    _norms_possible(name, stack, dim)


def _prefix_possible(name: str, stack: "StackConfig") -> None:
    """Refuse a prefix if a layer could not see all of it."""
    if name == "encoder":
        raise ValueError("encoder.prefix: an encoder sees all tokens in both directions already; leave it out")
    for block in stack.blocks:
        if block.cross is not None:
            raise ValueError(f"{name}.prefix: the encoder already reads the source in both directions; leave it out")
        if not isinstance(block.mixer, AttentionConfig | LatentConfig):
            raise ValueError(
                f"{name}.prefix needs attention in every layer, and mixer.kind = {block.mixer.kind!r} looks only back: "
                "leave one of them out"
            )
        if block.mixer.window is not None:
            raise ValueError(
                f"{name}.prefix needs attention without a window, and a layer has window = {block.mixer.window}: "
                "leave one of them out"
            )


def dropout_possible(name: str, stack: "StackConfig", dropout: DropoutConfig) -> None:
    """Refuse a kernel that cannot drop attention weights in the model's convention.

    Raises:
        ValueError: one line with the field and the problem.
    """
    for block in stack.blocks:
        for part in (block.mixer, block.cross):
            if (
                isinstance(part, AttentionConfig | LatentConfig)
                and (why := refusal(part.kernel, part.needs(dropout))) is not None
            ):
                raise ValueError(f"{name}: {why}")


def _attention_possible(path: str, mixer: AttentionConfig, dim: int) -> None:
    if mixer.head_dim is None and dim % mixer.heads:
        raise ValueError(
            f"dim = {dim} is not divisible by heads = {mixer.heads} ({dim / mixer.heads:g} is not whole) in {path}; "
            "give head_dim or change one of them"
        )
    if isinstance(mixer.relative, RotaryConfig):
        width, rotated = mixer.width(dim), mixer.relative.rotated_dim(mixer.width(dim))
        if not rotated or (rotated % 2 and rotated == width):
            fraction = "" if rotated == width else f" · fraction = {rotated}"
            raise ValueError(
                f"rotary positions rotate pairs of channels, and head_dim = {width}{fraction} has no room for them: "
                "change one of them"
            )
        scaling, pairs = mixer.relative.scaling, (rotated + 1) // 2
        if isinstance(scaling, YarnScaling) and rotated % 2:
            raise ValueError(
                f"yarn blends frequencies over an even number of rotated channels, and head_dim = {width} · fraction = {rotated}: "
                "change one of them"
            )
        if isinstance(scaling, LongRopeScaling) and {len(scaling.short), len(scaling.long)} != {pairs}:
            raise ValueError(
                f"scaling.short and scaling.long have {len(scaling.short)} and {len(scaling.long)} numbers, but {pairs} "
                "pairs of channels are rotated"
            )


def _norms_possible(name: str, stack: "StackConfig", dim: int) -> None:
    """Refuse a norm without eps where rows of zeros can reach it, since it has no value for them (L0-50)."""
    if stack.entry.norm is not None:
        _wide_enough(f"{name}.entry.norm", stack.entry.norm, dim)
    # Attention outputs a row of zeros for padding, which without a residual is the next layer's whole input.
    bare = any(block.placement == "bare" for block in stack.blocks)
    for block in (*stack.blocks, stack.block):
        _wide_enough(f"{name}.block.norm", block.norm, dim)
        if _unprotected(block.norm) and (bare or block.placement in EMPTY_BRANCHES):
            placement = "bare" if bare else block.placement
            raise ValueError(
                f"{name}.block.norm.eps = 0 with placement = {placement!r}: the norm receives rows of zeros, for which it has no "
                f"value without eps; set eps to at least {LOST:g}"
            )
        _heads_normed(name, block, dim)


def _heads_normed(name: str, block: "BlockConfig", dim: int) -> None:
    for place, attention in (("mixer", block.mixer), ("cross", block.cross)):
        if not isinstance(attention, AttentionConfig) or attention.qk_norm is None:
            continue
        heads = 1 if attention.qk_norm_over == "head" else attention.key_heads()
        _wide_enough(f"{name}.block.{place}.qk_norm", attention.qk_norm, heads * attention.width(dim))
        if _unprotected(attention.qk_norm):
            raise ValueError(
                f"{name}.block.{place}.qk_norm.eps = 0: the norm has no value for a query or a key of zeros; "
                f"set eps to at least {LOST:g}"
            )


def _unprotected(norm: NormConfig) -> bool:
    return not isinstance(norm, NoNormConfig) and norm.eps < LOST


def _wide_enough(field: str, norm: NormConfig, width: int) -> None:
    """Refuse norms without a value at width 1, where the deviation from the mean is 0 and dropout can zero the input."""
    if width > 1:
        return
    if isinstance(norm, LayerNormConfig) and norm.unbiased:
        raise ValueError(f"{field}.unbiased divides by the width minus 1, which is 0 here; use another norm")
    if _unprotected(norm):
        raise ValueError(f"{field}.eps = 0 has no value for vectors of width 1; set eps to at least {LOST:g}")
