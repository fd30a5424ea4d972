"""Relative positions as data: rotary angles and their scaling, slopes, buckets of distances."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heddle.config.base import Config
from heddle.config.sizes import Factor, Length, Positive


class LinearScaling(Config):
    """Positions divided by a factor (Chen et al. 2023)."""

    kind: Literal["linear"] = "linear"
    factor: Factor


class NTKScaling(Config):
    """A larger base instead of smaller positions: base · factor^(d / (d - 2))."""

    kind: Literal["ntk"] = "ntk"
    factor: Factor


class YarnScaling(Config):
    """Interpolate low frequencies, keep high ones, blend between, and enlarge scores (Peng et al. 2023, 3.4)."""

    kind: Literal["yarn"] = "yarn"
    factor: Factor
    original: Length  # context length at which the weights were trained
    fast: Positive = 32.0  # channels with more rotations than this over `original` are kept
    slow: Positive = 1.0  # channels with fewer rotations than this are interpolated
    whole: bool = True  # round both ends of the ramp outwards to whole channels, as in the authors' code
    magnitude: Positive | None = None  # factor on the lengths of the rotated vectors; None: 0.1 · ln(factor) + 1

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.fast <= self.slow:
            raise ValueError(f"fast = {self.fast:g} must be larger than slow = {self.slow:g}")
        return self


class Llama3Scaling(Config):
    """Llama 3.1's rule: divide low frequencies by the factor, keep high ones, blend linearly between."""

    kind: Literal["llama3"] = "llama3"
    factor: Factor
    original: Length
    low: Positive = 1.0
    high: Positive = 4.0

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.high <= self.low:
            raise ValueError(f"high = {self.high:g} must be larger than low = {self.low:g}")
        return self


class DynamicScaling(Config):
    """Dynamic NTK for texts of `length` tokens: the NTK rule with a factor that grows with the length.

    Hugging Face transformers computes the factor anew whenever the text grows, so there a cached key keeps angles that differ
    from those of a pass over the whole text. Here one length applies to all texts, so a token's angles depend only on its position.
    """

    kind: Literal["dynamic"] = "dynamic"
    factor: Factor
    original: Length  # context length at which the weights were trained
    length: Length  # up to `original`, nothing changes

    def stretch(self) -> float:
        """The factor of the equivalent NTK rule."""
        return 1.0 if self.length <= self.original else self.factor * (self.length / self.original - 1) + 1


class LongRopeScaling(Config):
    """LongRoPE for texts of `length` tokens: a divisor for each pair's frequency (Ding et al. 2024, 3.1).

    Hugging Face transformers changes from `short` to `long` when a text grows beyond `original`, so there a cached key keeps
    angles that differ from those of a pass over the whole text. Here one length applies to all texts.
    """

    kind: Literal["longrope"] = "longrope"
    short: tuple[Positive, ...]  # one for each pair of rotated channels
    long: tuple[Positive, ...]
    original: Length  # context length at which the weights were trained
    length: Length  # up to `original`, `short` is used, and `long` beyond
    magnitude: Positive = 1.0  # factor on the lengths of the rotated vectors

    def factors(self) -> tuple[float, ...]:
        """The divisors in use."""
        return self.long if self.length > self.original else self.short


Scaling = Annotated[
    LinearScaling | NTKScaling | YarnScaling | Llama3Scaling | DynamicScaling | LongRopeScaling,
    Field(discriminator="kind"),
]


class RotaryConfig(Config):
    """Rotary positions (Su et al. 2021): pairs of channels of queries and keys are rotated by their position.

    `halves` pairs channel i with i + d/2 (Llama's and GPT-NeoX's published weights), `neighbours` 2i with 2i + 1 (the paper).
    """

    kind: Literal["rotary"] = "rotary"
    base: Annotated[float, Field(gt=1, le=1e12)] = 10_000.0
    pairing: Literal["halves", "neighbours"] = "halves"
    # Share of the head's channels to rotate, from the first. Channels are rotated in pairs, so an odd number of them rotates
    # one channel more, at the angles of the odd number (as in Hugging Face transformers).
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    scaling: Scaling | None = None

    def rotated_dim(self, head_dim: int) -> int:
        """How many channels of a head are rotated; if this is odd, one more is."""
        return int(head_dim * self.fraction)


class AlibiConfig(Config):
    """Scores fall linearly with distance, with a fixed slope per head (Press et al. 2021)."""

    kind: Literal["alibi"] = "alibi"
    factor: Positive = 1.0  # on all slopes; 1/√d in Falcon


class BucketsConfig(Config):
    """A learned bias per head and bucket of distances (T5; Raffel et al. 2020, 2.1)."""

    kind: Literal["buckets"] = "buckets"
    buckets: Annotated[int, Field(ge=4, le=2**16)] = 32
    furthest: Length = 128  # all distances from here on share the last bucket
    shared: bool = True  # one table for all layers of a stack with equal settings here; false: one for each (UMT5)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.furthest <= self.buckets // 2:
            raise ValueError(f"furthest = {self.furthest} must be larger than half of buckets = {self.buckets}")
        return self


Relative = Annotated[RotaryConfig | AlibiConfig | BucketsConfig, Field(discriminator="kind")]
