"""Convolution over the tokens: a mixer with a fixed reach."""

from math import sqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.config.layers import ConvolutionConfig, LinearConfig
from heddle.errors import HeddleError
from heddle.nn.layout import PADDING, Layout
from heddle.nn.mask import Causal, Everything
from heddle.nn.scope import Pattern, Scope
from heddle.nn.setting import Setting
from heddle.nn.state import STATELESS, Rolling, State

OUTSIDE = PADDING - 1  # the segment before the first and after the last slot of a row


def distances(taps: int, dilation: int = 1, centred: bool = False) -> range:
    """How many steps back each tap looks, in ascending order; negative for taps that look ahead, half of them if centred."""
    ahead = taps // 2 if centred else 0
    return range(-ahead * dilation, (taps - ahead) * dilation, dilation)


class Convolution(nn.Module):
    """y_t = Σ_k x_{t - k·dilation} W_k + b, where tokens of another segment count as 0 (L0-05; golden `causal_convolution`).

    `weight[k]` stores W_k with the output axis first, as `nn.Linear` does. With dilation 1 and no bias this is a linear model
    of the last `taps` tokens (L0-03). In an encoder the convolution is centred: tap k looks (k - taps // 2)·dilation back, so
    half of the taps look ahead.

    Raises:
        HeddleError: centred with an even number of taps.
    """

    def __init__(self, config: ConvolutionConfig | LinearConfig, setting: Setting) -> None:
        super().__init__()
        taps, dim = config.taps, setting.dim
        self.centred = not setting.causal
        if self.centred and taps % 2 == 0:
            raise HeddleError(f"a centred convolution needs an odd number of taps, got {taps}; set taps = {taps + 1}")
        self.distances = distances(taps, config.dilation, self.centred)
        self.pattern = Pattern(Causal() if setting.causal else Everything(), self.reach or None)
        bound = 1 / sqrt(taps * dim)  # as in torch's convolutions, for a module used alone
        self.weight = nn.Parameter(nn.init.uniform_(torch.empty(taps, dim, dim), -bound, bound))
        self.bias = nn.Parameter(torch.zeros(dim)) if config.bias else None

    @property
    def reach(self) -> int:
        """How many steps back the furthest tap looks."""
        return self.distances[-1]

    def new_state(self) -> State:
        """An empty state for the tokens within reach.

        Raises:
            HeddleError: the convolution is centred.
        """
        if self.centred and self.reach:
            raise HeddleError("a centred convolution looks ahead, so it cannot be cached; use it in an encoder")
        return Rolling(self.reach) if self.reach else STATELESS

    def forward(self, x: Float[Tensor, "B T D"], scope: Scope, state: State = STATELESS) -> Float[Tensor, "B T D"]:
        (seen,) = state.update((x[:, None],), scope.queries, scope.keys)
        complete = seen.shape[2] == x.shape[1]
        taps = self._shifted(x, scope.queries) if complete else self._looked_up(seen[:, 0], scope.queries)
        # One matrix product for all taps: their sum is accumulated as precisely as in any other product.
        weight = self.weight.transpose(0, 1).flatten(1).to(x.dtype)
        return F.linear(taps, weight, None if self.bias is None else self.bias.to(x.dtype))

    def _shifted(self, x: Float[Tensor, "B T D"], at: Layout) -> Float[Tensor, "B T taps_times_D"]:
        """Each token's taps, concatenated, if `x` holds whole rows."""
        back, ahead, width = self.reach, -self.distances[0], x.shape[1]
        padded = F.pad(x, (0, 0, back, ahead))
        pieces = [padded[:, back - distance : back - distance + width] for distance in self.distances]
        # Looking back, a token can meet another segment only in packed rows.
        if at.form == "packed" or (at.form == "padded" and self.centred):
            segment = F.pad(at.segment, (back, ahead), value=OUTSIDE)
            segments = [segment[:, back - distance : back - distance + width] for distance in self.distances]
            pieces = [
                piece.masked_fill((other != at.segment)[:, :, None], 0)
                for piece, other in zip(pieces, segments, strict=True)
            ]
        return torch.cat(pieces, dim=-1)

    def _looked_up(self, seen: Float[Tensor, "B S D"], at: Layout) -> Float[Tensor, "B T taps_times_D"]:
        """Each token's taps, concatenated, looked up by position among cached and new tokens."""
        start, device = at.position[:, :1, None], seen.device
        ends = self.distances.start, self.distances.stop, self.distances.step
        tap_positions: Int[Tensor, "B T taps"] = at.position[:, :, None] - torch.arange(*ends, device=device)
        slot = torch.where(tap_positions < start, tap_positions % self.reach, self.reach + tap_positions - start)
        row = torch.arange(at.rows, device=device)[:, None, None]
        # Positions before the row's first token map to slots that were never written and hold 0.
        return seen[row, slot].flatten(2)
