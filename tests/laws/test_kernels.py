"""Every kernel computes the definition, wherever the tokens stand, in every precision."""

import pytest
import torch

from heddle.nn import KERNELS, Cache, Causal, Everything, Layout, Mask
from tests.laws import laws


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rule", [Causal(), Everything()], ids=["causal", "everything"])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_keep_to_the_mask(
    kernel: str, place: tuple[Layout, Layout], rule: Causal | Everything, dtype: torch.dtype
) -> None:
    laws.kernel_keeps_to_the_mask(kernel, rule, *place, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("place", LONG.values(), ids=LONG)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_keep_to_the_mask_over_several_blocks(
    kernel: str, place: tuple[Layout, Layout], dtype: torch.dtype
) -> None:
    laws.kernel_keeps_to_the_mask(kernel, Causal(), *place, dtype)


@pytest.mark.parametrize("rule", [Causal(), Everything()], ids=["causal", "everything"])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_the_mask_is_its_questions(place: tuple[Layout, Layout], rule: Causal | Everything) -> None:
    laws.mask_is_its_questions(Mask(rule, *place))
