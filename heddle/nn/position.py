"""Positions: absolute ones are added to embeddings, rotary ones rotate queries and keys, relative ones are added to scores.

There are no buffers: everything that is not learned is computed from the positions, in fp32.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor, log, pi
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.config.layers import AttentionConfig
from heddle.config.positions import (
    AlibiConfig,
    BucketsConfig,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    RotaryConfig,
    YarnScaling,
)
from heddle.nn.layout import EVEN, Layout
from heddle.nn.numeric import on_device, wide_dtype
from heddle.nn.rotation import Rotation
from heddle.nn.setting import Setting

SHARED = (*EVEN, "padded")  # forms in which all rows have the same positions


def _position(layout: Layout) -> Int[Tensor, "b T"]:
    """The positions; a single row if all rows share them."""
    return layout.position[:1] if layout.form in SHARED else layout.position


class SinusoidalPositions(nn.Module):
    """Sines and cosines of the position at wavelengths from 2π to 10,000 · 2π (L3-11, L3-13; Vaswani et al. 2017, 3.5).

    Channel 2i is sin(position · 10,000^(-2i/D)) and channel 2i + 1 the cosine of the same angle; with `halves`, all sines come
    before all cosines, as in Marian's weights. A model in double precision passes its `dtype`.
    """

    def __init__(self, dim: int, halves: bool = False) -> None:
        super().__init__()
        self.dim = dim
        self.halves = halves

    def forward(self, position: Int[Tensor, "B T"], dtype: torch.dtype = torch.float32) -> Float[Tensor, "B T D"]:
        exponent = torch.arange(0, self.dim, 2, device=position.device, dtype=dtype) / self.dim
        angle = position[..., None].to(dtype) * 10_000.0**-exponent
        if self.halves:
            return torch.cat((angle.sin(), angle[..., : self.dim // 2].cos()), -1)
        return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)[..., : self.dim]


class Scaling(ABC):
    """Lowers rotary frequencies, so that a model can read a longer context than it was trained at."""

    @abstractmethod
    def __call__(self, frequency: Float[Tensor, " half"], base: float, dim: int) -> Float[Tensor, " half"]:
        """Rescale the frequencies base^(-2i/dim)."""

    @property
    def magnitude(self) -> float:
        """Factor on cosines and sines, and so on the length of the rotated queries and keys."""
        return 1.0


@dataclass(frozen=True)
class Linear(Scaling):
    """Divide positions by a factor (Chen et al. 2023)."""

    factor: float

    def __call__(self, frequency: Float[Tensor, " half"], base: float, dim: int) -> Float[Tensor, " half"]:
        return frequency / self.factor


@dataclass(frozen=True)
class NTK(Scaling):
    """Multiply the base by factor^(dim / (dim - 2)): the lowest frequency is divided by the factor, the highest unchanged."""

    factor: float

    def __call__(self, frequency: Float[Tensor, " half"], base: float, dim: int) -> Float[Tensor, " half"]:
        channel = torch.arange(0, dim, 2, device=frequency.device, dtype=frequency.dtype)
        return frequency * self.factor ** -(channel / max(dim - 2, 1))


@dataclass(frozen=True)
class Yarn(Scaling):
    """Interpolate low frequencies, keep high ones, blend between, and lengthen vectors (Peng et al. 2023, 3.2 to 3.4).

    Attributes:
        factor: new context length over `original`.
        original: context length at which the weights were trained.
        fast: channels with more rotations than this over `original` are kept.
        slow: channels with fewer rotations than this are divided by the factor.
        whole: round both ends of the ramp outwards to whole channels, as in the authors' code.
        length: factor on the rotated vectors; None: 0.1 · ln(factor) + 1 (their 3.4).
    """

    factor: float
    original: int
    fast: float = 32.0
    slow: float = 1.0
    whole: bool = True
    length: float | None = None

    def __call__(self, frequency: Float[Tensor, " half"], base: float, dim: int) -> Float[Tensor, " half"]:
        low, high = self._pair(self.fast, dim, base), self._pair(self.slow, dim, base)
        if self.whole:
            low, high = floor(low), ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        pair = torch.arange(len(frequency), device=frequency.device, dtype=frequency.dtype)
        # If both ends coincide, the ramp is a step.
        ramp = ((pair - low) / (high - low if high != low else 0.001)).clamp(0, 1)
        return frequency / self.factor * ramp + frequency * (1 - ramp)

    def _pair(self, rotations: float, dim: int, base: float) -> float:
        """The pair of channels, as a real number, that makes this many rotations over the original context."""
        return dim / 2 * log(self.original / (rotations * 2 * pi)) / log(base)

    @property
    def magnitude(self) -> float:
        return 0.1 * log(self.factor) + 1.0 if self.length is None else self.length


@dataclass(frozen=True)
class Llama3(Scaling):
    """Llama 3.1's rule: divide low frequencies by the factor, keep high ones, blend linearly between.

    Attributes:
        factor: new context length over `original`.
        original: context length at which the weights were trained.
        low: channels with fewer rotations than this over `original` are divided by the factor.
        high: channels with more rotations than this are kept.
    """

    factor: float
    original: int
    low: float = 1.0
    high: float = 4.0

    def __call__(self, frequency: Float[Tensor, " half"], base: float, dim: int) -> Float[Tensor, " half"]:
        rotations = self.original * frequency / (2 * pi)
        share_kept = ((rotations - self.low) / (self.high - self.low)).clamp(0, 1)
        return frequency / self.factor * (1 - share_kept) + frequency * share_kept


@dataclass(frozen=True)
class LongRope(Scaling):
    """Divide each frequency by its own factor, and lengthen vectors (Ding et al. 2024, 3.1).

    Attributes:
        factors: one for each pair of channels.
        length: factor on the rotated vectors.
    """

    factors: tuple[float, ...]
    length: float = 1.0

    def __call__(self, frequency: Float[Tensor, " half"], base: float, dim: int) -> Float[Tensor, " half"]:
        return frequency / on_device(self.factors, frequency.device, frequency.dtype)

    @property
    def magnitude(self) -> float:
        return self.length


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021, eq. 15): the score of a query and a key depends only on their distance.

    The first `rotated_dim` channels are rotated in pairs, i with i + rotated_dim/2 (or 2i with 2i + 1), by
    position · base^(-2i/rotated_dim); the others are unchanged. Angles are computed from the positions in fp32, once per
    forward pass for each distinct attention pattern. If `rotated_dim` is odd, the last pair has one channel more.

    Args:
        head_dim: d, width of a query head.
        base: the longest wavelength is nearly base · 2π.
        rotated_dim: how many channels are rotated; None: all.
        neighbours: pair channels 2i and 2i + 1 (the paper), not i and i + rotated_dim/2 (Llama, GPT-NeoX).
        scaling: how the frequencies are lowered; None: not at all.
    """

    def __init__(
        self,
        head_dim: int,
        base: float = 10_000.0,
        rotated_dim: int | None = None,
        neighbours: bool = False,
        scaling: Scaling | None = None,
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.base = base
        self.rotated_dim = head_dim if rotated_dim is None else rotated_dim
        self.neighbours = neighbours
        self.scaling = scaling

    def frequencies(self, device: torch.device | str | None = None) -> Float[Tensor, " half"]:
        """The angle, in radians, by which each pair of channels rotates from one position to the next."""
        exponent = torch.arange(0, self.rotated_dim, 2, device=device, dtype=torch.float32) / self.rotated_dim
        frequency = self.base**-exponent
        return frequency if self.scaling is None else self.scaling(frequency, self.base, self.rotated_dim)

    def forward(self, layout: Layout) -> Rotation:
        """The rotation of every position; a single row if all rows share their positions."""
        position = _position(layout)
        angle = position[:, None, :, None].float() * self.frequencies(position.device)
        cos, sin = angle.cos(), angle.sin()
        if self.scaling is not None and self.scaling.magnitude != 1.0:
            cos, sin = cos * self.scaling.magnitude, sin * self.scaling.magnitude
        cos, sin = (torch.stack(pair, -1 if self.neighbours else -2).flatten(-2) for pair in ((cos, cos), (-sin, sin)))
        return Rotation(cos, sin, self.neighbours)

    def extra_repr(self) -> str:
        rotated = f"{self.rotated_dim} of {self.head_dim}"
        return f"{rotated}, base={self.base:g}, neighbours={self.neighbours}, scaling={self.scaling}"


def _distance(queries: Layout, keys: Layout) -> Int[Tensor, "b T S"]:
    """How far each key is after its query (negative: before it); a single row if all rows share their positions."""
    return _position(keys)[:, None, :] - _position(queries)[:, :, None]


class Alibi(nn.Module):
    """Scores that fall linearly with distance, with a fixed slope per head (Press et al. 2021, section 3).

    If H is a power of two, head h has the slope 2^(-8(h+1)/H). Otherwise, as in the authors' code, the slopes are those of the
    power of two below, followed by every other slope of the power of two above. Without a causal mask, the distance counts
    equally on both sides.

    Args:
        heads: H.
        factor: on all slopes.
    """

    def __init__(self, heads: int, factor: float = 1.0) -> None:
        super().__init__()
        self.heads = heads
        self.factor = factor

    def slopes(self, device: torch.device | str | None = None) -> Float[Tensor, " H"]:
        """One slope per head."""
        power = 1 << (self.heads.bit_length() - 1)
        first = torch.arange(1, power + 1, device=device, dtype=torch.float32) * (8 / power)
        odd = 2 * torch.arange(self.heads - power, device=device, dtype=torch.float32) + 1
        return self.factor * 2.0 ** -torch.cat((first, odd * (4 / power)))

    def forward(self, queries: Layout, keys: Layout) -> Float[Tensor, "b H T S"]:
        distance = _distance(queries, keys).abs()
        return -self.slopes(distance.device)[:, None, None] * distance[:, None].float()

    def extra_repr(self) -> str:
        return f"heads={self.heads}, factor={self.factor:g}"


class Buckets(nn.Module):
    """A learned bias for each head and bucket of distances, added to the scores (T5; Raffel et al. 2020, 2.1).

    Half of the buckets have one distance each; the others grow logarithmically up to `furthest`, and all larger distances
    share the last one. With `both_ways`, half of all buckets are for keys after the query; otherwise such keys count as
    distance 0.

    Args:
        heads: H.
        buckets: number of buckets, both directions together.
        furthest: all distances from here on share the last bucket.
        both_ways: distinguish keys after the query, as encoders do.
    """

    def __init__(self, heads: int, buckets: int = 32, furthest: int = 128, both_ways: bool = False) -> None:
        super().__init__()
        self.furthest = furthest
        self.both_ways = both_ways
        self.weight = nn.Parameter(torch.zeros(buckets, heads))

    def bucket(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The bucket of a key that is `distance` positions after its query."""
        buckets = self.weight.shape[0] // (2 if self.both_ways else 1)
        exact = buckets // 2
        length = distance.abs() if self.both_ways else (-distance).clamp(min=0)
        share = (length.clamp(min=exact).float() / exact).log() / log(self.furthest / exact)
        wide = (exact + (share * (buckets - exact)).long()).clamp(max=buckets - 1)
        bucket = torch.where(length < exact, length, wide)
        return bucket + buckets * (distance > 0) if self.both_ways else bucket

    def forward(self, queries: Layout, keys: Layout) -> Float[Tensor, "b H T S"]:
        weight = self.weight.to(wide_dtype(self.weight.dtype))
        return F.embedding(self.bucket(_distance(queries, keys)), weight).permute(0, 3, 1, 2)

    def extra_repr(self) -> str:
        buckets, heads = self.weight.shape
        return f"heads={heads}, buckets={buckets}, furthest={self.furthest}, both_ways={self.both_ways}"


# From each scaling config to its module.
SCALINGS: dict[type, Callable[[Any], Scaling]] = {
    LinearScaling: lambda config: Linear(config.factor),
    NTKScaling: lambda config: NTK(config.factor),
    DynamicScaling: lambda config: NTK(config.stretch()),
    LongRopeScaling: lambda config: LongRope(config.factors(), config.magnitude),
    YarnScaling: lambda config: Yarn(
        config.factor, config.original, config.fast, config.slow, config.whole, config.magnitude
    ),
    Llama3Scaling: lambda config: Llama3(config.factor, config.original, config.low, config.high),
}


@dataclass(frozen=True)
class Relative:
    """The relative positions of a layer, comparable so that layers of a stack can share one module.

    Attributes:
        config: which kind.
        size: H, or d for rotary positions.
        causal: whether no token sees another after it, not even in a prefix.
        layer: the only layer that has them; None: any layer of the stack may share them.
    """

    config: RotaryConfig | AlibiConfig | BucketsConfig
    size: int
    causal: bool
    layer: int | None = None


def relative_of(config: AttentionConfig, setting: Setting) -> Relative | None:
    """The relative positions of an attention layer."""
    relative, causal = config.relative, setting.causal and not setting.prefix
    if isinstance(relative, RotaryConfig):
        return Relative(relative, config.width(setting.dim), causal)
    if isinstance(relative, BucketsConfig) and not relative.shared:
        return Relative(relative, config.heads, causal, setting.layer)
    return None if relative is None else Relative(relative, config.heads, causal)


def make_relative(relative: Relative) -> Rotary | Alibi | Buckets:
    """Build the module that computes relative positions."""
    config, size = relative.config, relative.size
    if isinstance(config, RotaryConfig):
        scaling = None if config.scaling is None else SCALINGS[type(config.scaling)](config.scaling)
        return Rotary(size, config.base, config.rotated_dim(size), config.pairing == "neighbours", scaling)
    if isinstance(config, BucketsConfig):
        return Buckets(size, config.buckets, config.furthest, both_ways=not relative.causal)
    return Alibi(size, config.factor)
