"""Muon: updates by orthogonalised momentum (Jordan et al. 2024), on any machine.

torch's Muon always multiplies in bf16, one matrix at a time. This one multiplies in a given precision, batches matrices of equal
shape, and updates stacks of matrices such as experts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heddle.config.train import ProductKind
from heddle.model.products import batched
from heddle.parallel.dealing import Dealer
from heddle.parallel.parts import Parts

Iteration = tuple[tuple[float, float, float], ...]  # (a, b, c) of each step x <- a x + b (x xᵀ) x + c (x xᵀ)² x

# torch's, from Jordan's post: five equal steps, which bring singular values between 0.15 % and 100 % of the Frobenius norm
# to 0.7 … 1.2.
FIVE: Iteration = ((3.4445, -4.7750, 2.0315),) * 5
# Each step is the best polynomial for the range that the step before leaves (Amsel et al. 2025, "Polar Express", Theorem 3.1,
# from 1 % up). Three steps bring singular values between 1 % and 100 % of the largest to 0.73 … 1.27.
THREE: Iteration = (
    (8.0934, -23.6204, 17.4462),
    (3.6366, -2.7219, 0.5365),
    (2.6613, -1.9772, 0.4526),
)
# Elements in a batch of matrices: enough to use the machine fully, little compared with training's memory.
STACK = 1 << 23
EPS = 1e-7


class Muon(torch.optim.Optimizer):
    """Updates matrices by their orthogonalised momentum, with decoupled weight decay.

    The update is that of `torch.optim.Muon` (Nesterov momentum, a rate scaled by √max(1, rows / columns)); the orthogonalising
    iteration is an argument. Each matrix [..., m, n] of a stack is updated as if it were alone.

    Args:
        parameters: parameters of two or more dimensions.
        lr: learning rate.
        weight_decay: share of a weight, times `lr`, that each step subtracts.
        momentum: share of the momentum that each step keeps.
        dtype: dtype of the products.
        iteration: coefficients of each step; `THREE` or `FIVE`.
        tight: divide by a bound of the spectral norm first (see `orthogonalise`).
        by_onednn: which of its products oneDNN computes (see `heddle.model.products`).
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        dtype: torch.dtype = torch.float32,
        iteration: Iteration = THREE,
        tight: bool = True,
        by_onednn: tuple[ProductKind, ...] = (),
    ) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self.dtype, self.iteration, self.tight, self.by_onednn = dtype, iteration, tight, by_onednn
        self.cut: list[nn.Parameter] = []
        self.dealer: Dealer | None = None

    def deal(self, parts: Parts) -> None:
        """Deal the matrices of which each process has a part among the processes, so that each iterates some of them."""
        self.cut = parts.matrices(self.param_groups[0]["params"])
        self.dealer = parts.dealer(self.cut) if self.cut else None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._average(parameters, group)
                dealt = set(map(id, self.cut))
                self._update([parameter for parameter in parameters if id(parameter) not in dealt], group)
                self._update_dealt(group)

    def _average(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Decay the weights, and take the gradients into the momentum."""
        buffers = []
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            buffers.append(self.state[parameter]["momentum_buffer"])
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])

    def _update_dealt(self, group: dict[str, Any]) -> None:
        """Update the matrices of which this process has a part."""
        if self.dealer is None:
            return
        gradients = [parameter.grad for parameter in self.cut if parameter.grad is not None]
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in self.cut]
        ahead = [each.to(self.dtype) for each in torch._foreach_lerp(gradients, buffers, group["momentum"])]
        matrices = self.dealer.gather(ahead)
        made = list(matrices)
        for pieces in _stacks([matrix.shape for matrix in matrices]):
            flat = [matrices[piece.index][None] for piece in pieces]
            stack = self._stacked([x if x.shape[1] <= x.shape[2] else x.mT for x in flat])
            updates = orthogonalise(stack, self.iteration, self.tight, self.by_onednn)
            for piece, update in zip(pieces, updates, strict=True):
                made[piece.index] = update if update.shape == made[piece.index].shape else update.mT
        parts = self.dealer.scatter(made, ahead[0])
        for parameter, update, (rows, columns) in zip(self.cut, parts, self.dealer.shapes, strict=True):
            parameter.add_(update, alpha=-group["lr"] * sqrt(max(1.0, rows / columns)))

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Update whole matrices."""
        lr, momentum = group["lr"], group["momentum"]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
        for pieces in _stacks([parameter.shape for parameter in parameters]):
            # Nesterov momentum, computed within the stack, so that the gradients are never all copied at once.
            cuts = [[_cut(tensors[p.index], p) for p in pieces] for tensors in (gradients, buffers, parameters)]
            ahead = torch._foreach_lerp(cuts[0], cuts[1], momentum)
            stack = self._stacked([x if x.shape[1] <= x.shape[2] else x.mT for x in ahead])
            made = orthogonalise(stack, self.iteration, self.tight, self.by_onednn).to(parameters[0].dtype)
            updates = dict[float, tuple[list[Tensor], list[Tensor]]]()
            for matrices, update in zip(cuts[2], made.split([len(x) for x in ahead]), strict=True):
                rows, columns = matrices.shape[1:]
                targets, changes = updates.setdefault(sqrt(max(1.0, rows / columns)), ([], []))
                targets.append(matrices)
                changes.append(update if rows <= columns else update.mT)
            for scale, (targets, changes) in updates.items():
                torch._foreach_add_(targets, changes, alpha=-lr * scale)

    def _stacked(self, matrices: list[Tensor]) -> Float[Tensor, "N m n"]:
        """Stacks of matrices as one, in the dtype of the products."""
        stack = matrices[0].new_empty(sum(map(len, matrices)), *matrices[0].shape[1:], dtype=self.dtype)
        torch._foreach_copy_(stack.split([len(each) for each in matrices]), matrices)
        return stack


def orthogonalise(
    matrices: Float[Tensor, "N m n"], iteration: Iteration, tight: bool, by_onednn: tuple[ProductKind, ...] = ()
) -> Float[Tensor, "N m n"]:
    """Bring the singular values of each matrix near 1 by a Newton-Schulz iteration, in the matrices' dtype.

    The iteration needs singular values of at most 1. Dividing by the Frobenius norm ensures that, but for a matrix of rank 128
    with equal singular values it makes them eleven times smaller than necessary. `tight` divides by ‖(x xᵀ)²‖^¼ instead, the
    Schatten 8-norm, which is less than twice the largest singular value there; the first step computes that product anyway.

    Args:
        matrices: any finite values; m <= n saves work.
        iteration: coefficients of each step.
        tight: divide by the Schatten 8-norm, not by the Frobenius norm.
        by_onednn: which products oneDNN computes.
    """
    norm = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True, dtype=torch.float32).clamp(min=EPS)
    x: Tensor = matrices * norm.reciprocal().to(matrices.dtype)
    for number, (a, b, c) in enumerate(iteration):
        gram = batched(x, x, by_onednn)
        # The Gram matrix is symmetric, so its square is a product with its transpose.
        if tight and number == 0:
            square = batched(gram, gram, by_onednn)
            fourth = torch.linalg.vector_norm(square, dim=(1, 2), keepdim=True, dtype=torch.float32)
            # The margin is for rounding. A matrix of zeros stays zero.
            bound = (1.02 * fourth.sqrt()).clamp(min=EPS)  # of the largest singular value, squared
            x = x * bound.rsqrt().to(x.dtype)
            factor = (gram * (b / bound)).addcmul_(square, c / bound**2).to(x.dtype)
        else:
            factor = batched(gram, gram, by_onednn, base=gram, beta=b, alpha=c)
        x = batched(factor, x.mT, by_onednn, base=x, beta=a)
    return x


@dataclass(frozen=True)
class _Piece:
    """Matrices `start` … `stop` of the parameter with number `index`."""

    index: int
    start: int
    stop: int


def _cut(tensor: Tensor, piece: _Piece) -> Float[Tensor, "N m n"]:
    """The piece of a parameter, its gradient or its momentum, as a stack of matrices that shares its memory."""
    return tensor.view(-1, *tensor.shape[-2:])[piece.start : piece.stop]


def _stacks(shapes: Sequence[torch.Size]) -> list[list[_Piece]]:
    """Which matrices to iterate together: those of equal shape, transposed or not, up to `STACK` elements."""
    groups: dict[tuple[int, ...], list[_Piece]] = {}
    for index, shape in enumerate(shapes):
        most = max(1, STACK // shape[-2:].numel())
        count = shape[:-2].numel()
        groups.setdefault(tuple(sorted(shape[-2:])), []).extend(
            _Piece(index, start, min(start + most, count)) for start in range(0, count, most)
        )
    stacks: list[list[_Piece]] = []
    for (rows, columns), pieces in groups.items():
        room = 0
        for piece in pieces:
            size = (piece.stop - piece.start) * rows * columns
            if size > room:
                stacks.append([])
                room = max(STACK, size)
            stacks[-1].append(piece)
            room -= size
    return stacks
