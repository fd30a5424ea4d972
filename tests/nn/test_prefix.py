"""Prefix language models: what a prefix sees, in every kernel and every kind of row, and in a cache as in one pass."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils import _pytree

from heddle.config import AttentionConfig, TransformerConfig
from heddle.config.model import with_kernel
from heddle.errors import HeddleError
from heddle.model import Stack
from heddle.nn import KERNELS, Attention, Causal, Layout, Setting
from heddle.nn.cache import Cache
from heddle.nn.mask import Mask
from tests.models import PREFIXED, awake, config_of, name_of, others_than, tokens_of

WIDTH = 9
# Each document's first token, the place after its last, and its prefix; what lies between documents is padding.
ROWS = {
    "whole": [[(0, 9, 4)], [(0, 9, 9)]],
    "padded": [[(0, 6, 2)], [(0, 9, 5)]],
    "padded in front": [[(3, 9, 2)], [(0, 9, 0)]],
    "packed": [[(0, 4, 3), (4, 9, 2)], [(0, 7, 1)]],
}
every_kind = pytest.mark.parametrize("kind", ROWS)
models = pytest.mark.parametrize("config", PREFIXED, ids=name_of)


def layout_of(kind: str) -> Layout:
    rows = ROWS[kind]
    sizes = [[stop - start for start, stop, _ in row] for row in rows]
    if kind == "whole":
        plain = Layout.whole(2, WIDTH)
    elif kind == "packed":
        plain = Layout.packed(sizes, WIDTH)
    else:
        plain = Layout.padded([size for (size,) in sizes], WIDTH, "left" if "front" in kind else "right")
    return plain.prefixed(torch.tensor([[prefix for *_, prefix in row] + [0] * (2 - len(row)) for row in rows]))


def seen_by_hand(row: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """Bool[T T], pair by pair: in the same document, not later or both in its prefix."""
    seen = np.zeros((WIDTH, WIDTH), dtype=bool)
    for start, stop, prefix in row:
        for query in range(start, stop):
            for key in range(start, stop):
                seen[query, key] = key <= query or (query < start + prefix and key < start + prefix)
    return seen


@every_kind
@pytest.mark.parametrize("kernel", KERNELS)
@torch.no_grad()
def test_attention_is_a_softmax_under_the_mask_made_by_hand(kernel: str, kind: str) -> None:
    """numpy's, head by head and row by row, in float64."""
    heads, dim = 2, 8
    setting = Setting(dim, prefix=True)
    ours = Attention(AttentionConfig(heads=heads, kernel=kernel), setting).double()
    x = torch.randn(2, WIDTH, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    output = ours(x, ours.pattern.scope(layout_of(kind))).numpy()
    part = {name: value.numpy() for name, value in ours.state_dict().items()}
    for number, row in enumerate(ROWS[kind]):
        seen = seen_by_hand(row)
        q, k, v = (x[number].numpy() @ part[f"{name}.weight"].T + part[f"{name}.bias"] for name in "qkv")
        mixed = np.zeros((WIDTH, dim))
        for head in range(heads):
            columns = slice(head * dim // heads, (head + 1) * dim // heads)
            scores = np.exp(q[:, columns] @ k[:, columns].T / np.sqrt(dim / heads)) * seen
            mixed[:, columns] = scores / np.maximum(scores.sum(1, keepdims=True), 1e-300) @ v[:, columns]
        expected = mixed @ part["o.weight"].T + part["o.bias"]
        np.testing.assert_allclose(output[number], expected, rtol=0, atol=1e-13)


@every_kind
def test_the_mask_is_the_one_made_by_hand_and_no_fast_path_takes_it_for_a_triangle(kind: str) -> None:
    layout = layout_of(kind)
    mask = Mask(Causal(), layout, layout)
    assert torch.equal(mask.dense()[:, 0], torch.from_numpy(np.stack([seen_by_hand(row) for row in ROWS[kind]])))
    assert (mask.is_causal(), mask.is_open(), mask.window(), mask.rows) == (False, False, None, 2)
    (first, second), (whole,) = layout.split(1), layout.split(2)
    for piece, rows in ((first, slice(0, 1)), (second, slice(1, 2)), (whole, slice(0, 2))):
        assert torch.equal(Mask(Causal(), piece, piece).dense(), mask.dense()[rows])
    leaves, tree = _pytree.tree_flatten(layout.to("cpu"))
    assert torch.equal(_pytree.tree_unflatten(leaves, tree).sees_to, layout.sees_to)


@models
@torch.no_grad()
def test_a_prefix_sees_itself_and_nothing_after_it(config: TransformerConfig) -> None:
    model, tokens = awake(config), tokens_of(1, 8)
    layout = Layout.whole(1, 8).prefixed(torch.tensor([[5]]))
    before = model(tokens, layout).hidden

    def moved(place: int) -> list[bool]:
        changed = tokens.clone()
        changed[:, place] = others_than(tokens[:, place])
        return (model(changed, layout).hidden != before).any(-1)[0].tolist()

    assert moved(4) == [True] * 8
    assert moved(0) == [True] * 8
    assert moved(5) == [False] * 5 + [True] * 3
    assert moved(7) == [False] * 7 + [True]


@models
@torch.no_grad()
def test_without_a_prefix_the_model_is_the_causal_one(config: TransformerConfig) -> None:
    """The same bits, by the same fast paths. Only learned distances differ: half of their buckets are for later keys."""
    model, tokens = awake(config), tokens_of(2, 8)
    one = Layout.whole(2, 8).prefixed(torch.tensor([[1], [0]]))
    torch.testing.assert_close(model(tokens, one).hidden, model(tokens).hidden, rtol=0, atol=1e-12)
    if config.decoder.block.mixer.relative.kind == "rotary":
        causal = awake(config.override({"decoder.prefix": False}))
        assert torch.equal(model(tokens).hidden, causal(tokens).hidden)


@models
@torch.no_grad()
def test_a_cached_prompt_is_a_prefix_whatever_rows_are_beside(config: TransformerConfig) -> None:
    """Ragged prompts, a row that joins later, one that is forked: each as one pass with the first call's tokens as prefix."""
    model, tokens, width = awake(config), tokens_of(3, 12), 12
    prompts, later = [4, 7], 5
    cache = model.new_cache(2)
    model(tokens[:2, :7], cache.advance(prompts), cache=cache)
    model(torch.stack([tokens[0, 4:6], tokens[1, 7:9]]), cache=cache)  # two at once: causal
    other = model.new_cache(1)
    model(tokens[2:, :later], cache=other)
    joined = cache.select([1, 0, 1]).join(other)
    lengths, of = [9, 6, 9, later], [1, 0, 1, 2]
    fed = torch.stack([tokens[row, length : length + 1] for row, length in zip(of, lengths, strict=True)])
    output = model(fed, cache=joined).hidden[:, 0]
    ends = torch.tensor([[prompts[0]], [prompts[1]], [later]])
    whole = model(tokens, Layout.whole(3, width).prefixed(ends)).hidden
    expected = torch.stack([whole[row, length] for row, length in zip(of, lengths, strict=True)])
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_row_that_starts_beside_others_has_its_own_prefix() -> None:
    """Rows without tokens that join a cache in use are read in the same call in which the others continue."""
    model, tokens = awake(PREFIXED[0]), tokens_of(2, 8)
    cache = model.new_cache(1)
    model(tokens[:1, :3], cache=cache)
    both = cache.join(model.new_cache(1))
    fed = torch.zeros(2, 4, dtype=torch.long)
    fed[0, :2], fed[1] = tokens[0, 3:5], tokens[1, :4]
    output = model(fed, both.advance([2, 4]), cache=both).hidden
    whole = model(tokens, Layout.whole(2, 8).prefixed(torch.tensor([[3], [4]]))).hidden
    torch.testing.assert_close(output[0, :2], whole[0, 3:5], rtol=0, atol=1e-12)
    torch.testing.assert_close(output[1], whole[1, :4], rtol=0, atol=1e-12)


@torch.no_grad()
def test_learned_distances_in_a_prefix_tell_before_from_after() -> None:
    """As in T5's encoder: half of the buckets are for keys after the query."""
    (distances,) = awake(PREFIXED[0]).decoder.relative
    values = distances(Layout.whole(1, 5), Layout.whole(1, 5))[0]
    assert (values[:, 2, 3] != values[:, 2, 1]).all()
    assert (values[:, 2, 3] != values[:, 2, 2]).all()


def test_single_tokens_and_causal_models_have_no_horizon() -> None:
    """So that a decoding step, and every step of a causal model, runs the operations that it ran before."""
    cache = Cache([], 2, prefix=True)
    assert cache.advance([1, 1]).horizon is None
    assert cache.advance([3, 3]).horizon is None
    assert Cache([], 2).advance([3, 3]).horizon is None
    assert Cache([], 2, prefix=True).advance([3, 1]).sees_to.tolist() == [[2, 2, 2], [0, 1, 2]]
    assert Cache([], 2, prefix=True).select([0]).advance([2]).sees_to.tolist() == [[1, 1]]


@pytest.mark.parametrize("kernel", ["plain", "sdpa", "blockwise", "flex"])
def test_without_a_prefix_a_kernel_still_recognises_the_triangle(kernel: str) -> None:
    config = with_kernel(PREFIXED[0].override({"decoder.block.mixer.relative": None}), kernel)
    (scope, _) = awake(config).decoder.scopes(Layout.whole(2, 4))
    assert scope.mask.causal
    (scope, _) = awake(config).decoder.scopes(Layout.whole(2, 4).prefixed(torch.tensor([[2], [3]])))
    assert not scope.mask.causal


def test_what_has_no_prefixes_refuses_them() -> None:
    layout = Layout.whole(1, 4).prefixed(torch.tensor([[2]]))
    for config in (config_of(), config_of(family="encoder")):
        with pytest.raises(
            HeddleError, match=r"^this layout has prefixes, but the model is causal: set decoder.prefix"
        ):
            awake(config)(tokens_of(1, 4), layout)
    both_ways = Stack(PREFIXED[0].decoder, 16, 8, causal=False)
    with pytest.raises(HeddleError, match="this layout has prefixes"):
        both_ways(torch.zeros(1, 4, 16), layout)


def gradient_of(config: TransformerConfig, layout: Layout) -> list[Tensor]:
    model = awake(config)
    model(tokens_of(2, WIDTH), layout).hidden[layout.real].square().sum().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@models
@every_kind
def test_kernels_teach_the_same(config: TransformerConfig, kind: str) -> None:
    expected, *others = (
        gradient_of(with_kernel(config, kernel), layout_of(kind))
        for kernel in ("reference", "plain", "sdpa", "blockwise")
    )
    for gradients in others:
        for actual, reference in zip(gradients, expected, strict=True):
            torch.testing.assert_close(
                actual, reference, rtol=0, atol=1e-10 * float(reference.abs().max().clamp(min=1))
            )
