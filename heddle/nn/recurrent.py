"""Recurrent networks over the tokens: mixers with a state of fixed size, which the other networks do not have (L0-06)."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from heddle.config.layers import RecurrentConfig
from heddle.nn.layout import Layout
from heddle.nn.mask import Causal
from heddle.nn.numeric import wide_dtype
from heddle.nn.scope import Pattern, Scope
from heddle.nn.setting import Setting
from heddle.nn.state import STATELESS, Carry, State

Carried = tuple[Tensor, ...]  # each [B W]


def gru(inputs: Float[Tensor, "B gates"], h: Float[Tensor, "B W"], recalled: Float[Tensor, "B gates"]) -> Carried:
    """h' = (1 - z) n + z h with n = tanh(x_n + r · h_n), r and z sigmoids (Cho et al. 2014; as `torch.nn.GRU`)."""
    width = h.shape[-1]
    gates, candidate = inputs.split((2 * width, width), dim=-1)
    gates_recalled, candidate_recalled = recalled.split((2 * width, width), dim=-1)
    reset, keep = torch.sigmoid(gates + gates_recalled).chunk(2, dim=-1)
    return (torch.lerp(torch.tanh(torch.addcmul(candidate, reset, candidate_recalled)), h, keep),)


def lstm(
    inputs: Float[Tensor, "B gates"],
    h: Float[Tensor, "B W"],
    c: Float[Tensor, "B W"],
    recalled: Float[Tensor, "B gates"],
) -> Carried:
    """c' = f c + i g, h' = o tanh(c') with i, f, o sigmoids and g a tanh (Hochreiter and Schmidhuber 1997; as `torch.nn.LSTM`)."""
    first, forget, candidate, out = (inputs + recalled).chunk(4, dim=-1)
    c = torch.addcmul(torch.sigmoid(forget) * c, torch.sigmoid(first), torch.tanh(candidate))
    return torch.sigmoid(out) * torch.tanh(c), c


# Per cell: the equations of one step, the number of gates, the number of tensors carried; the first is the output.
CELLS: dict[str, tuple[Callable[..., Carried], int, int]] = {"gru": (gru, 3, 1), "lstm": (lstm, 4, 2)}


class Recurrent(nn.Module):
    """y_t = h_t W_o with h_t = cell(x_t, h_{t-1}), where h starts at 0 in every segment (L1-74).

    Padding leaves the state unchanged and has output 0. The state after each row's last real token is carried in fp32 or
    wider, since every token adds to it and bf16 would lose small terms. Matrix products are computed in the precision of x.

    Equations and gate order are those of `torch.nn.GRU` and `torch.nn.LSTM`.
    """

    def __init__(self, config: RecurrentConfig, setting: Setting) -> None:
        super().__init__()
        self.cell, gates, self.carries = CELLS[config.cell]
        self.pattern = Pattern(Causal())
        dim, hidden, bias = setting.dim, config.width(setting.dim), config.bias
        self.hidden = hidden
        self.input = nn.Linear(dim, gates * hidden, bias=bias)
        self.carry = nn.Linear(hidden, gates * hidden, bias=bias)
        self.output = nn.Linear(hidden, dim, bias=bias)

    def new_state(self) -> State:
        """An empty state for h and, in an LSTM, c."""
        return Carry()

    def forward(self, x: Float[Tensor, "B T D"], scope: Scope, state: State = STATELESS) -> Float[Tensor, "B T D"]:
        out, carried = self.unroll(x, scope.queries, state.read())
        state.update(carried, scope.queries, scope.keys)
        return out

    def unroll(self, x: Tensor, at: Layout, carried: Carried | None) -> tuple[Tensor, Carried]:
        """The outputs of all tokens, and the state after each row's last token."""
        wide = wide_dtype(x.dtype)
        carry = carried or tuple(x.new_zeros(x.shape[0], self.hidden, dtype=wide) for _ in range(self.carries))
        # Indexing would allocate a gradient of the full size for every token; unbind allocates a single one.
        inputs = self.input(x).to(wide).unbind(1)
        real = at.real if at.form in ("padded", "packed", "ragged") else None
        steps_real = None if real is None else real[:, :, None].unbind(1)
        steps_first = first_of_segment(at)[:, :, None].unbind(1) if at.form == "packed" else None
        outputs = []
        for t, token in enumerate(inputs):
            if steps_first is not None:
                carry = tuple(tensor.masked_fill(steps_first[t], 0) for tensor in carry)
            new = self.cell(token, *carry, recalled=self.carry(carry[0].to(x.dtype)).to(wide))
            if steps_real is not None:
                new = tuple(torch.where(steps_real[t], *pair) for pair in zip(new, carry, strict=True))
            carry = new
            outputs.append(carry[0])
        hidden = torch.stack(outputs, dim=1) if outputs else x.new_zeros(*x.shape[:2], self.hidden)
        y = self.output(hidden.to(x.dtype))
        return y if real is None else y.masked_fill(~real[:, :, None], 0), carry


def first_of_segment(at: Layout) -> Bool[Tensor, "B T"]:
    """Which tokens have another segment than the last real token before them in their row."""
    real = at.real
    index = torch.arange(at.width, device=at.segment.device)
    last = torch.where(real, index, -1).cummax(dim=1).values
    before = torch.cat((torch.full_like(last[:, :1], -1), last[:, :-1]), dim=1)
    previous = at.segment.gather(1, before.clamp(min=0))
    return real & (before >= 0) & (at.segment != previous)
