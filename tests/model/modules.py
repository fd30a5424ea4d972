"""Modules as users write them, with everything that a module can hold; none of them knows of heddle."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LONGEST = 64
CALLED: list[str] = []


class Mean(nn.Module):
    """The mean of the past, by a mask that is a buffer."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.map = nn.Linear(dim, dim)
        self.register_buffer("mask", torch.tril(torch.ones(LONGEST, LONGEST)))

    def forward(self, x: Tensor, layout: Any) -> Tensor:
        width = x.shape[1]
        mask = self.mask[:width, :width]
        return self.map((mask / mask.sum(-1, keepdim=True)) @ x)


class Keeping(Mean):
    """A mean of the past, a norm, a convolution; weights drawn and given, buffers of every kind, and a plain tensor."""

    def __init__(self, dim: int, taps: int = 3) -> None:
        super().__init__(dim)
        self.norm = nn.LayerNorm(dim)
        self.conv = nn.Conv1d(dim, dim, taps)
        self.decay = nn.Parameter(torch.linspace(0.5, 0.9, dim))
        self.register_buffer("shift", torch.tensor(7))
        self.register_buffer("small", torch.arange(dim, dtype=torch.int8))
        self.register_buffer("even", torch.arange(dim) % 2 == 0)
        self.register_buffer("turn", torch.polar(torch.ones(dim), torch.linspace(0, 1, dim)))
        self.register_buffer("ramp", torch.linspace(0, 1, dim), persistent=False)
        self.scale = torch.full((dim,), 2.0)
        self.taps = taps

    def forward(self, x: Tensor, layout: Any) -> Tensor:
        local = self.conv(F.pad(x.transpose(1, 2), (self.taps - 1, 0))).transpose(1, 2)
        fixed = self.ramp + self.even * self.small / (self.shift + 9) + self.turn.real
        return super().forward(self.norm(x), layout) * self.decay * self.scale + local * fixed


class Feed(nn.Module):
    """A feed-forward with a norm inside and a plain tensor."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.map = nn.Linear(dim, dim)
        self.scale = torch.full((dim,), 3.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.map(self.norm(x)).relu() * self.scale


class Still(nn.Module):
    """No weights and no buffers."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor, layout: Any) -> Tensor:
        self.seen.append(x.dtype)
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]


class Asking(Mean):
    """Its constructor looks at values, which are not there on the meta device."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.rates = torch.linspace(0, 1, 3).tolist()
        self.scale = torch.full((dim,), 2.0)
        self.map.weight.data.normal_()


class Tied(nn.Module):
    """One matrix by two names."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor, layout: Any) -> Tensor:
        return self.second(self.first(x))


class Counting(nn.Module):
    """Remembers, in buffers, what training showed it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.map = nn.Linear(dim, dim)
        self.register_buffer("passes", torch.tensor(0))
        self.register_buffer("average", torch.zeros(dim))

    def forward(self, x: Tensor, layout: Any) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.passes += 1  # type: ignore[assignment]
                self.average.lerp_(x.mean((0, 1)), 0.1)
        return self.map(x - self.average)


class Short(nn.Module):
    """Gives one token less than it was given."""

    def __init__(self, dim: int, width: bool = False) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor, layout: Any) -> Tensor:
        return x[..., :1] if self.width else x[:, 1:]


class Pair(nn.Module):
    """Gives two things, as torch's own attention and recurrent networks do."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, layout: Any) -> tuple[Tensor, None]:
        return x, None


class Broken(nn.Module):
    """Cannot be made."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        raise ZeroDivisionError(f"no module\nof width {dim}")


def make(dim: int) -> nn.Module:
    """No class, though it would give a module."""
    CALLED.append("make")
    return Mean(dim)


class Plain:
    """A class, but of no modules."""

    def __init__(self, dim: int) -> None:
        CALLED.append("Plain")
