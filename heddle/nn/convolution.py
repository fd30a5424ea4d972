"""Convolution over the tokens: a mixer that looks back a fixed number of steps. With dilation 1 and no bias, a linear function."""

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

OUTSIDE = PADDING - 1  # the segment of what lies before and after a row


def distances(taps: int, dilation: int = 1, centred: bool = False) -> range:
    """How many steps back each tap looks, the nearest first; of centred ones half look ahead, which is less than 0."""
    ahead = taps // 2 if centred else 0
    return range(-ahead * dilation, (taps - ahead) * dilation, dilation)


class Convolution(nn.Module):
    """y_t = Σ_k x_{t - k·dilation} W_k + b, where tokens of another segment count as 0 (L0-05; golden `causal_convolution`).

    `weight[k]` stores W_k with its output first, as `nn.Linear` does. A linear model of the last `taps` tokens (L0-03) is
    this with dilation 1 and no bias.

    In an encoder it is centred: tap k looks (k - taps // 2)·dilation back, so half of them look ahead.

    Raises:
        HeddleError: centred with an even number of taps.
    """

    def __init__(self, config: ConvolutionConfig | LinearConfig, setting: Setting) -> None:
        super().__init__()
        taps, dim = config.taps, setting.dim
        self.centred = not setting.causal
        if self.centred and taps % 2 == 0:
            raise HeddleError(f"a centred convolution needs an odd number of taps, not {taps}: set taps = {taps + 1}")
        self.distances = distances(taps, config.dilation, self.centred)
        self.pattern = Pattern(Causal() if setting.causal else Everything(), self.reach or None)
        self.weight = nn.Parameter(torch.empty(taps, dim, dim))
        self.bias = nn.Parameter(torch.empty(dim)) if config.bias else None

    @property
    def reach(self) -> int:
        """How many steps back the furthest tap looks."""
        return self.distances[-1]

    def new_state(self) -> State:
        """What it remembers of a row: the tokens it can reach.

        Raises:
            HeddleError: it looks ahead, so its tokens cannot come one after another.
        """
        if self.centred and self.reach:
            raise HeddleError("a centred convolution looks ahead and cannot be cached: use it in an encoder")
        return Rolling(self.reach) if self.reach else STATELESS

    def forward(self, x: Float[Tensor, "B T D"], scope: Scope, state: State = STATELESS) -> Float[Tensor, "B T D"]:
        (seen,) = state.update((x[:, None],), scope.queries, scope.keys)
        whole = seen.shape[2] == x.shape[1]
        taken = self._shifted(x, scope.queries) if whole else self._looked_up(seen[:, 0], scope.queries)
        # One product for all taps, so that their sum is as exact as any other product's, whatever the precision.
        weight = self.weight.transpose(0, 1).flatten(1).to(x.dtype)
        return F.linear(taken, weight, None if self.bias is None else self.bias.to(x.dtype))

    def _shifted(self, x: Float[Tensor, "B T D"], at: Layout) -> Float[Tensor, "B T taps_times_D"]:
        """Each token's taps side by side, in rows that hold all there is."""
        back, ahead, width = self.reach, -self.distances[0], x.shape[1]
        padded = F.pad(x, (0, 0, back, ahead))
        pieces = [padded[:, back - distance : back - distance + width] for distance in self.distances]
        # Looking back, a token meets another segment only where rows are packed.
        if at.form == "packed" or (at.form == "padded" and self.centred):
            segment = F.pad(at.segment, (back, ahead), value=OUTSIDE)
            theirs = [segment[:, back - distance : back - distance + width] for distance in self.distances]
            pieces = [
                piece.masked_fill((own != at.segment)[:, :, None], 0) for piece, own in zip(pieces, theirs, strict=True)
            ]
        return torch.cat(pieces, dim=-1)

    def _looked_up(self, seen: Float[Tensor, "B S D"], at: Layout) -> Float[Tensor, "B T taps_times_D"]:
        """Each token's taps side by side, found by their positions among the remembered tokens and the new ones."""
        start, device = at.position[:, :1, None], seen.device
        wanted: Int[Tensor, "B T taps"] = at.position[:, :, None] - torch.tensor(list(self.distances), device=device)
        slot = torch.where(wanted < start, wanted % self.reach, self.reach + wanted - start)
        row = torch.arange(at.rows, device=device)[:, None, None]
        # What lies before the row's first token is found in a slot that nothing was written to, which is 0.
        return seen[row, slot].flatten(2)
