"""Every kernel computes the definition, wherever the tokens stand, in every precision."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from heddle.nn import KERNELS, Cache, Causal, Everything, Layout, Mask
from tests.laws.laws import close


def called(*calls: tuple[int, ...]) -> tuple[Layout, Layout]:
    """Queries and keys of the last of these calls to a cache."""
    cache = Cache([], len(calls[0]))
    queries = [cache.advance(counts) for counts in calls][-1]
    assert cache.keys is not None
    return queries, cache.keys[None]


def with_itself(layout: Layout) -> tuple[Layout, Layout]:
    return layout, layout


PLACES = {
    "plain": with_itself(Layout.plain(2, 5)),
    "one token": with_itself(Layout.plain(2, 1)),
    "right-padded": with_itself(Layout.padded((5, 3, 0), 5)),
    "left-padded": with_itself(Layout.padded((5, 3, 0), 5, "left")),
    "packed": with_itself(Layout.packed([[2, 3], [1, 1, 2], []], 5)),
    "first call": called((5, 5)),
    "first call, ragged": called((5, 3, 0)),
    "next tokens": called((4, 4), (3, 3)),
    "next token": called((4, 4), (1, 1)),
    "next tokens, ragged": called((4, 6, 0), (3, 1, 0)),
    "padded keys": (Layout.plain(2, 5), Layout.padded((5, 3), 5)),
    "keys padded in front": (Layout.plain(2, 5), Layout.padded((5, 3), 5, "left")),
    "fewer queries": (Layout.plain(2, 3), Layout.plain(2, 5)),
    "more queries": (Layout.plain(2, 5), Layout.padded((3, 0), 3)),
}
LONG = {
    "130": with_itself(Layout.plain(1, 130)),
    "257": with_itself(Layout.plain(1, 257)),
    "257, right-padded": with_itself(Layout.padded((257, 129, 1), 257)),
    "130, packed": with_itself(Layout.packed([[100, 30], [1, 128]], 130)),
    "800": with_itself(Layout.plain(1, 800)),  # here `auto` changes its mind
}


def mask_is_its_questions(mask: Mask) -> None:
    """`dense` is what `__call__` answers for every pair of slots."""
    rows, queries, keys = mask.queries.rows, mask.queries.width, mask.keys.width
    dense = mask.dense().expand(rows, 1, queries, keys)
    for row in range(rows):
        for query in range(queries):
            for key in range(keys):
                answer = mask(torch.tensor(row), torch.tensor(query), torch.tensor(key))
                assert bool(answer) == bool(dense[row, 0, query, key]), (row, query, key)


def kernel_keeps_to_the_mask(
    kernel: str, rule: Causal | Everything, queries: Layout, keys: Layout, dtype: torch.dtype
) -> None:
    """One kernel against the plain definition in float64: outputs and gradients, for these layouts."""
    generator = torch.Generator().manual_seed(6)
    shapes = ((4, queries.width, 6), (2, keys.width, 6), (2, keys.width, 3))
    exact = [torch.randn(queries.rows, *shape, generator=generator, dtype=torch.float64) for shape in shapes]
    inputs = [tensor.to(dtype) for tensor in exact]
    mask = Mask(rule, queries, keys)
    weights = torch.randn(queries.rows, 4, queries.width, 3, generator=generator, dtype=torch.float64)

    def run(name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        module = KERNELS[name](0.4)
        output = module(*leaves, module.lower(mask))
        assert output.dtype == leaves[0].dtype
        return [output.detach(), *torch.autograd.grad((output * weights.to(output.dtype)).sum(), leaves)]

    # Stated tolerances. The definition gets the same rounded inputs; what is left is rounding inside.
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 6e-2}[dtype]
    wanted = definition([tensor.double() for tensor in inputs], mask, weights)
    for what, found, right in zip(("output", "dq", "dk", "dv"), run(kernel, inputs), wanted, strict=True):
        scale = max(1.0, float(right.abs().max()))
        close(found.double() / scale, right / scale, tolerance, f"{kernel} {what}")


def definition(inputs: Sequence[Tensor], mask: Mask, weights: Tensor) -> list[Tensor]:
    """Attention as a sum written out query by query: the output, and its gradients weighted by `weights`."""
    q, k, v = (tensor.detach().requires_grad_() for tensor in inputs)
    allowed = mask.dense().expand(q.shape[0], 1, q.shape[2], k.shape[2])
    group = q.shape[1] // k.shape[1]
    rows = []
    for row in range(q.shape[0]):
        heads = []
        for head in range(q.shape[1]):
            shared = head // group
            # exp of the score where the key is allowed, 0 elsewhere; scores are small enough not to need a maximum.
            power = (0.4 * q[row, head] @ k[row, shared].T).exp() * allowed[row, 0]
            total = power.sum(-1, keepdim=True)
            heads.append((power / torch.where(total == 0, 1.0, total)) @ v[row, shared])
        rows.append(torch.stack(heads))
    output = torch.stack(rows)
    return [output.detach(), *torch.autograd.grad((output * weights).sum(), (q, k, v))]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", [Causal(), Everything()], ids=["causal", "everything"])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_keep_to_the_mask(
    kernel: str, place: tuple[Layout, Layout], rule: Causal | Everything, dtype: torch.dtype
) -> None:
    kernel_keeps_to_the_mask(kernel, rule, *place, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("place", LONG.values(), ids=LONG)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_keep_to_the_mask_over_several_blocks(
    kernel: str, place: tuple[Layout, Layout], dtype: torch.dtype
) -> None:
    kernel_keeps_to_the_mask(kernel, Causal(), *place, dtype)


@pytest.mark.parametrize("rule", [Causal(), Everything()], ids=["causal", "everything"])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_the_mask_is_its_questions(place: tuple[Layout, Layout], rule: Causal | Everything) -> None:
    mask_is_its_questions(Mask(rule, *place))
