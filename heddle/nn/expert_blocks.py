"""Experts on a device that the host does not wait for: tokens in blocks of one size, each block with its expert.

How many tokens an expert has is known on the device only. Each expert's tokens fill whole blocks, whose number has a bound that the
host knows, and a batched product computes all blocks, each with the weights of its expert.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from heddle.nn.activations import ACTIVATIONS, SLOPES, Gating

UP, DOWN, GATE = 0, 1, 2  # indices into the lists of stacked weights and biases; the gate may be missing
ROWS = 16  # of a block are a multiple of this, which tensor cores multiply whole


def block_shape(pairs: int, experts: int) -> tuple[int, int]:
    """How many blocks there are at most for this many pairs of token and expert, and rows in each.

    With as many rows as an expert has pairs on average, at most two blocks for each expert are in use.
    """
    rows = max(ROWS, -(-pairs // experts // ROWS) * ROWS)
    return -(-pairs // rows) + experts, rows


@dataclass(frozen=True)
class Blocks:
    """Where each pair of token and expert is among the rows of all blocks.

    Attributes:
        expert: Int[b], each block's expert.
        slot: Int[P], the row of each pair, sorted by expert; padding's pairs have one row together, after all blocks.
        token: Int[P], the token of each pair, in the same order.
        rows: rows of a block.
    """

    expert: Int[Tensor, " b"]
    slot: Int[Tensor, " P"]
    token: Int[Tensor, " P"]
    rows: int

    @classmethod
    def of(cls, order: Int[Tensor, " P"], active: int, load: Int[Tensor, " E"]) -> "Blocks":
        """From the order of the pairs by expert, `active` for each token, and each expert's number of pairs."""
        pairs, experts = len(order), len(load)
        count, rows = block_shape(pairs, experts)
        ends = ((load + rows - 1) // rows).cumsum(0)
        expert = torch.searchsorted(ends, torch.arange(count, device=load.device), right=True).clamp(max=experts - 1)
        # Pair i of an expert whose pairs start at `start` is row i - start of the expert's first block.
        first = ends - (load + rows - 1) // rows
        shift = first * rows - (load.cumsum(0) - load)
        pair = torch.arange(pairs, device=load.device)
        chosen = torch.searchsorted(load.cumsum(0), pair, right=True)
        slot = pair + shift[chosen.clamp(max=experts - 1)]
        return cls(expert, slot.masked_fill(chosen == experts, count * rows), order // active, rows)

    def spread(self, tensor: Float[Tensor, "P D"]) -> Float[Tensor, "b rows D"]:
        """The pairs' rows in their blocks; rows that no pair has are 0."""
        rows = tensor.new_zeros(len(self.expert) * self.rows + 1, tensor.shape[1])
        return rows.index_copy_(0, self.slot, tensor)[:-1].unflatten(0, (-1, self.rows))

    def affine(self, rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Each block by the weight of its expert [E m n], and its bias [E m]: Float[b rows m]."""
        weights = weight[self.expert].mT
        return torch.bmm(rows, weights) if bias is None else torch.baddbmm(bias[self.expert][:, None], rows, weights)

    def by_expert(self, blocks: Float[Tensor, "b *shape"], experts: int) -> Float[Tensor, "E *shape"]:
        """The sum of each expert's blocks, as a product with ones and zeros: the same bits every time."""
        member = (self.expert == torch.arange(experts, device=blocks.device)[:, None]).to(blocks.dtype)
        return (member @ blocks.flatten(1)).view(experts, *blocks.shape[1:])


def collect(rows: Tensor, place: Tensor, gates: Tensor | None = None) -> Tensor:
    """Each token's K rows, weighted and summed in the order of its choice, so that other tokens cannot change the sum.

    `embedding_bag` does this in one pass; indexing and `sum` took fifty times as long on a CPU.
    """
    weights = None if gates is None else gates.to(rows.dtype)
    return F.embedding_bag(place, rows, per_sample_weights=weights, mode="sum")


def experts_in_blocks(
    x: Float[Tensor, "n D"],
    gates: Float[Tensor, "n K"],
    choice: Int[Tensor, "n K"],
    load: Int[Tensor, " E"],
    weights: list[Tensor],
    biases: list[Tensor],
    gating: Gating,
    keep: bool,
) -> list[Tensor]:
    """The routed sum and, for its gradient, the order of the pairs, each choice's row, the rows' outputs, and the hidden layers
    before the activation, by row."""
    order = choice.flatten().argsort(stable=True)
    blocks = Blocks.of(order, choice.shape[1], load)
    place = torch.empty_like(choice)
    place.view(-1)[order] = blocks.slot
    rows = blocks.spread(x.index_select(0, blocks.token))
    before = [
        blocks.affine(rows, weights[number], biases[number] if biases else None)
        for number in (UP, GATE)[: len(weights) - 1]
    ]
    product = gating(before[1], before[0]) if len(before) > 1 else ACTIVATIONS[gating.activation](before[0])
    outputs = blocks.affine(product, weights[DOWN], biases[DOWN] if biases else None)
    outputs = F.pad(outputs.flatten(0, 1), (0, 0, 0, 1))  # the row of padding's pairs
    hidden = torch.stack([each.flatten(0, 1) for each in before]) if keep else x.new_empty(0)
    return [collect(outputs, place, gates), order, place, outputs, hidden]


def gradient_in_blocks(
    above: Tensor,
    x: Tensor,
    gates: Tensor,
    load: Tensor,
    order: Tensor,
    place: Tensor,
    outputs: Tensor,
    before: Tensor,
    weights: list[Tensor],
    biased: bool,
    gating: Gating,
) -> list[Tensor]:
    """Gradients of x, the gates, the weights and the biases. The hidden layer after the activation is recomputed."""
    blocks, experts = Blocks.of(order, gates.shape[1], load), len(load)
    ahead = above.index_select(0, blocks.token)
    gate_gradient = (ahead.to(gates.dtype) * outputs.index_select(0, blocks.slot)).sum(-1)
    gate_gradients = torch.empty_like(gates)
    gate_gradients.view(-1)[order] = gate_gradient
    row_gradient = blocks.spread((ahead * gates.flatten()[order][:, None]).to(x.dtype))
    rows, slope = blocks.spread(x.index_select(0, blocks.token)), torch.bmm(row_gradient, weights[DOWN][blocks.expert])
    inner, *opened = (each.unflatten(0, (-1, blocks.rows)) for each in before)
    if opened:
        seen, factor = gating.factors(opened[0], inner)
        acted = ACTIVATIONS[gating.activation](seen)
        product = acted * factor
        steps = [acted * slope, row_gradient, SLOPES[gating.activation](slope * factor, seen)]
        if gating.limit is not None:  # beyond a bound the gradient is 0
            steps[UP] = steps[UP] * (inner.abs() <= gating.limit)
            steps[GATE] = steps[GATE] * (opened[0] <= gating.limit)
    else:
        product = ACTIVATIONS[gating.activation](inner)
        steps = [SLOPES[gating.activation](slope, inner), row_gradient]
    x_rows = torch.bmm(steps[UP], weights[UP][blocks.expert])
    if opened:
        x_rows = torch.baddbmm(x_rows, steps[GATE], weights[GATE][blocks.expert])
    x_rows = F.pad(x_rows.flatten(0, 1), (0, 0, 0, 1))
    # The inputs of up, down and gate, and the gradients of their outputs.
    pairs = zip(steps, (rows, product, rows), strict=False)
    gradients = [blocks.by_expert(torch.bmm(step.mT, entered), experts) for step, entered in pairs]
    bias_gradients = [blocks.by_expert(step.sum(1), experts) for step in steps] if biased else []
    return [collect(x_rows, place), gate_gradients, *gradients, *bias_gradients]
