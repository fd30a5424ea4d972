"""Kernels: that they agree, what each is handed, what `auto` takes, exact zeros, and what is never held."""

import json
import weakref
from itertools import accumulate
from math import exp
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from heddle.config import AttentionConfig, DropoutConfig
from heddle.config.kernels import PLAIN_UP_TO, Needs
from heddle.errors import HeddleError
from heddle.nn import KERNELS, Attention, Causal, Dropout, Everything, Layout, Mask, Setting, masked_softmax
from heddle.nn.kernels import BLOCK, Blockwise, Kernel, Running, pick
from heddle.nn.mask import Rule, Window
from tests import programs
from tests.kernels import RULES, Sizes, called, outcome, plain_mask
from tests.lectures.golden import Case, same

kernels = pytest.mark.parametrize("name", KERNELS)


def inputs(rows: int, heads: int, length: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(3, rows, heads, length, 4, dtype=dtype)
    return q, k, v


@pytest.mark.lecture("L0-92")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_blocked_weights_are_exactly_zero(dtype: torch.dtype) -> None:
    scores = (20 * torch.randn(2, 3, 9, 9)).to(dtype)
    allowed = plain_mask(1, 9).dense()
    weights = masked_softmax(scores, allowed)
    assert weights.dtype == dtype
    assert (weights.masked_select(~allowed) == 0).all()
    assert (weights.masked_select(allowed) >= 0).all()
    torch.testing.assert_close(weights.double().sum(-1), torch.ones(2, 3, 9).double(), rtol=0, atol=2e-2)


@kernels
@pytest.mark.lecture("L0-92")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_blocked_values_count_for_exactly_nothing(name: str, dtype: torch.dtype) -> None:
    """However large they are: infinity times a small weight would be noticed."""
    q, k, v = inputs(1, 2, 6, dtype)
    kernel = KERNELS[name](0.5)
    lowered = kernel.lower(plain_mask(1, 6))
    before = kernel(q, k, v, lowered)
    k[:, :, 4:], v[:, :, 4:] = 1e4, 1e30
    assert torch.equal(kernel(q, k, v, lowered)[:, :, :4], before[:, :, :4])


@pytest.mark.lecture("L1-30", "D-53")
def test_masking_and_scaling_commute() -> None:
    scores, allowed = torch.randn(4, 6, 6), plain_mask(1, 6).dense()[0]
    blocked = ~allowed
    first = (scores.masked_fill(blocked, -torch.inf) * 0.37).softmax(-1)
    last = (scores * 0.37).masked_fill(blocked, -torch.inf).softmax(-1)
    assert torch.equal(first, last)
    assert torch.equal(masked_softmax(scores * 0.37, allowed), last)


def test_a_row_without_keys_has_weights_and_gradients_of_zero() -> None:
    scores = torch.randn(2, 3, requires_grad=True)
    allowed = torch.tensor([[False, False, False], [True, False, True]])
    weights = masked_softmax(scores, allowed)
    assert (weights[0] == 0).all()
    weights.square().sum().backward()
    assert scores.grad is not None
    assert scores.grad[0].tolist() == [0, 0, 0]
    assert scores.grad[1, 1] == 0
    assert scores.grad[1, 0] != 0


def test_large_scores_do_not_overflow() -> None:
    for value in (1e4, -1e4, 3e38):
        scores = torch.full((2, 3), value)
        assert torch.equal(masked_softmax(scores, torch.ones(2, 3, dtype=torch.bool)), torch.full((2, 3), 1 / 3))


@pytest.mark.parametrize("name", ["auto", "reference", "plain", "sdpa"])
@pytest.mark.lecture("L1-35", "D-47")
def test_masks_are_not_copied_for_each_head(name: str) -> None:
    packed = Layout.packed([[3, 4], [3, 4]], 7)
    allowed = KERNELS[name].lower(Mask(Causal(), packed, packed)).allowed
    assert allowed is not None
    assert allowed.shape == (2, 1, 7, 7)
    scores = torch.randn(2, 3, 7, 7)
    assert torch.equal(masked_softmax(scores, allowed), masked_softmax(scores, allowed.repeat(1, 3, 1, 1)))


@pytest.mark.parametrize("name", ["plain", "sdpa", "auto"])
def test_whole_sequences_need_no_written_mask(name: str) -> None:
    lower = KERNELS[name].lower
    assert lower(plain_mask(2, 5)).allowed is None
    assert lower(plain_mask(2, 5)).causal
    assert lower(plain_mask(2, 5)).dead is None
    padded = Layout.padded((5, 2), 5)
    assert lower(Mask(Causal(), padded, padded)).allowed is None
    everything = lower(Mask(Everything(), Layout.whole(2, 5), Layout.whole(2, 9)))
    assert (everything.causal, everything.allowed, everything.dead) == (False, None, None)


@pytest.mark.parametrize("name", ["auto", "reference", "plain", "sdpa"])
def test_one_next_token_of_equal_rows_shares_one_mask(name: str) -> None:
    lowered = KERNELS[name].lower(Mask(Causal(), *called((4, 4, 4), (1, 1, 1))))
    assert lowered.allowed is not None
    assert lowered.allowed.shape == (1, 1, 1, 64)
    assert lowered.allowed.sum() == 5


CLASSIC, SHARED = DropoutConfig(style="classic"), DropoutConfig(mask="batch")


@pytest.mark.parametrize(
    ("options", "dropout", "training", "expected"),
    [
        ({}, DropoutConfig(), True, "SDPA"),
        ({"dropout": 0.5}, DropoutConfig(), True, "SDPA"),
        ({"cap": 2.0}, DropoutConfig(), True, "Blockwise"),
        ({"cap": 2.0, "dropout": 0.5}, DropoutConfig(), True, "Plain"),
        ({"cap": 2.0, "dropout": 0.5}, DropoutConfig(), False, "Blockwise"),
        ({"dropout": 0.5}, CLASSIC, True, "Plain"),
        ({"dropout": 0.5}, CLASSIC, False, "Plain"),
        ({"dropout": 0.0}, CLASSIC, True, "SDPA"),
        ({"dropout": 0.5}, SHARED, True, "Plain"),
        ({"dropout": 0.5}, SHARED, False, "SDPA"),
        ({"cap": 2.0, "dropout": 0.5}, SHARED, False, "Blockwise"),
    ],
    ids=str,
)
@pytest.mark.parametrize("length", [16, 800])
@pytest.mark.lecture("L2-21")
def test_auto_runs_what_the_layer_needs(
    length: int, options: dict[str, float], dropout: DropoutConfig, training: bool, expected: str
) -> None:
    """On a CPU short sequences are plain products, whatever the layer needs."""
    config = AttentionConfig.of({"heads": 1, **options})
    attention = Attention(config, Setting(4, dropout=dropout)).train(training)
    ran = []
    for part in attention.kernel.modules():
        if isinstance(part, Kernel) and part is not attention.kernel:
            part.register_forward_hook(lambda module, inputs, output: ran.append(type(module).__name__))
    attention(torch.randn(1, length, 4), attention.pattern.scope(Layout.whole(1, length), training=training))
    assert ran == ["Plain" if length <= PLAIN_UP_TO["cpu"] else expected]


def operations(kernel: Kernel, heads: int, length: int) -> Sizes:
    q, k, v = inputs(1, heads, length)
    lowered = kernel.lower(plain_mask(1, length))
    with torch.no_grad(), Sizes() as sizes:
        kernel(q, k, v, lowered)
    return sizes


@kernels
@pytest.mark.lecture("L0-46")
def test_heads_are_computed_together(name: str) -> None:
    kernel = KERNELS[name](0.5)
    assert operations(kernel, 2, 8).operations == operations(kernel, 7, 8).operations
    q, k, v = inputs(2, 5, 8)
    lowered = kernel.lower(plain_mask(2, 8))
    alone = [kernel(q[:, [head]], k[:, [head]], v[:, [head]], lowered) for head in range(5)]
    torch.testing.assert_close(kernel(q, k, v, lowered), torch.cat(alone, dim=1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("length", [2 * BLOCK, 4 * BLOCK])
def test_plain_never_holds_all_scores(length: int) -> None:
    assert operations(KERNELS["plain"](0.5), 2, length).largest == 2 * BLOCK * length
    assert operations(KERNELS["reference"](0.5), 2, length).largest == 2 * length * length


@pytest.mark.parametrize("name", ["auto", "blockwise", "plain", "flex", "reference"])
def test_low_precision_caps_and_adds_in_fp32(name: str) -> None:
    """In bf16 a bias of 200 swallows a difference of 0.5 between scores."""
    q = torch.ones(1, 1, 2, 4, dtype=torch.bfloat16)
    k = torch.tensor([[0.0] * 4, [0.125] * 4], dtype=torch.bfloat16)[None, None]
    v = torch.tensor([[0.0], [1.0]], dtype=torch.bfloat16)[None, None]
    layout = Layout.whole(1, 2)
    kernel = KERNELS[name](1.0, cap=50.0)
    output = kernel(q, k, v, kernel.lower(Mask(Everything(), layout, layout), torch.full((1, 1, 2, 2), 200.0)))
    assert float(output[0, 0, 0, 0]) == pytest.approx(1 / (1 + exp(-0.5)), abs=4e-3)


# FlashAttention


@pytest.mark.lecture("L2-16", "L2-17", "L2-18", "L2-19")
@pytest.mark.parametrize("block", [1, 2])
def test_flash_online_softmax(block: int) -> None:
    case = Case("flash_online_softmax")
    q, k, v = (case.inputs[letter] for letter in "QKV")
    scores = (q @ k.T / 2).masked_fill(~plain_mask(1, 3).dense()[0, 0], -torch.inf)
    trace, running = case.outputs[f"trace_block{block}"], Running.start((3,), 4, q)
    for start in range(0, 3, block):
        keys = range(start, min(start + block, 3))
        before, running = running, running.add(scores[:, keys], v[keys])
        for step in trace:
            query = int(step["query"])
            if [int(key) for key in step["keys"]] == [key for key in keys if key <= query]:
                same(running.maximum[query, 0], torch.tensor(step["m"], dtype=torch.float64))
                rescale = (before.maximum - running.maximum).exp()[query, 0]
                same(rescale, torch.tensor(step["rescale"], dtype=torch.float64))
                same(running.total[query, 0], torch.tensor(step["l"], dtype=torch.float64))
                same(running.weighted[query], step["acc"])
                step["found"] = True
    assert all("found" in step for step in trace)
    same(running.output(), case.outputs["output"])
    same(running.logsumexp()[:, 0], case.outputs["logsumexp"])
    kernel = Blockwise(0.5, block=block)
    leaves = [tensor[None, None].requires_grad_() for tensor in (q, k, v)]
    output = kernel(*leaves, kernel.lower(plain_mask(1, 3)))
    same(output[0, 0].detach(), case.outputs["output"])
    saved = output.grad_fn.next_functions[0][0].saved_tensors
    same(saved[4].flatten(), case.outputs["logsumexp"])


@pytest.mark.lecture("L2-17")
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_all_block_sizes_agree(rule: Rule) -> None:
    layout = Layout.packed([[5, 4], [9]], 9)
    for mask in (Mask(rule, layout, layout), Mask(rule, Layout.whole(2, 9), Layout.whole(2, 9))):
        tensors = [torch.randn(2, heads, 9, 3, dtype=torch.float64) for heads in (4, 2, 2)]
        tensors.append(torch.randn(1, 4, 9, 9, dtype=torch.float64))
        weight = torch.randn(2, 4, 9, 3, dtype=torch.float64)
        whole = outcome(Blockwise(0.4, cap=2.0, block=9), mask, tensors, weight)
        for block in range(1, 13):
            outputs = outcome(Blockwise(0.4, cap=2.0, block=block), mask, tensors, weight)
            for actual, right in zip(outputs, whole, strict=True):
                torch.testing.assert_close(actual, right, rtol=0, atol=1e-12)


@pytest.mark.lecture("L2-19")
@pytest.mark.parametrize("size", [1e4, 1e30])
def test_large_scores_overflow_in_no_tile(size: float) -> None:
    q, k, v = inputs(1, 2, 9)
    q = q * size
    for rule in RULES.values():
        mask = Mask(rule, Layout.whole(1, 9), Layout.whole(1, 9))
        outputs = outcome(Blockwise(1.0, block=2), mask, [q, k, v], torch.ones(1))
        assert all(tensor.isfinite().all() for tensor in outputs)
        expected = outcome(KERNELS["reference"](1.0), mask, [q, k, v], torch.ones(1))
        torch.testing.assert_close(outputs[0], expected[0])


@pytest.mark.lecture("L2-16", "L2-18", "C-09", "C-10")
@pytest.mark.parametrize(("length", "largest"), [(256, 32_768), (512, 65_536), (1024, 131_072)])
def test_blockwise_never_holds_all_scores(length: int, largest: int) -> None:
    """Forward and backward, h = 4, d = 32, tiles of 64: twice the length is twice the largest tensor."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 4, length, 32)
    mask, weight = plain_mask(1, length), torch.randn(1, 4, length, 32)
    with Sizes() as sizes:
        outputs = outcome(Blockwise(32**-0.5, block=64), mask, [q, k, v], weight)
    assert sizes.largest == largest
    if length == 512:
        with Sizes() as sizes:
            expected = outcome(KERNELS["reference"](32**-0.5), mask, [q, k, v], weight)
        assert sizes.largest == 4 * length**2
        assert (outputs[0] - expected[0]).abs().max() < 1e-6


@pytest.mark.lecture("C-09")
def test_between_its_passes_blockwise_keeps_one_number_per_row_beside_the_output() -> None:
    q, k, v = (tensor.requires_grad_() for tensor in inputs(2, 3, 40))
    kernel = Blockwise(0.5, block=8)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        kernel(q, k, v, kernel.lower(plain_mask(2, 40)))
    storages = {tensor.untyped_storage().data_ptr() for tensor in (q, k, v)}
    beyond = [tensor for tensor in saved if tensor.untyped_storage().data_ptr() not in storages]
    assert sum(tensor.numel() for tensor in beyond) == 2 * 3 * 40 * (4 + 1)


def flops(kernel: Kernel, mask: Mask, training: bool = False) -> int:
    """Multiplications and additions of one head's matrix products, of queries, keys and values of width 4."""
    leaves = [
        torch.randn(1, 1, side.width, 4).requires_grad_(training) for side in (mask.queries, mask.keys, mask.keys)
    ]
    with FlopCounterMode(display=False) as counter:
        output = kernel(*leaves, kernel.lower(mask))
        if training:
            output.sum().backward()
    return counter.get_total_flops()


@pytest.mark.lecture("L2-20", "C-14")
def test_tiles_cost_what_the_whole_costs_and_causal_ones_about_half() -> None:
    square = Layout.whole(1, 1024)
    naive = flops(KERNELS["reference"](0.5), Mask(Causal(), square, square))
    assert naive == 2 * 2 * 1024**2 * 4
    assert flops(Blockwise(0.5, block=64), Mask(Everything(), square, square)) == naive
    assert flops(Blockwise(0.5, block=64), Mask(Causal(), square, square)) / naive == 0.53125 == (1024 + 64) / 2048


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["blockwise", "plain"])
def test_a_window_costs_only_the_keys_in_sight(name: str, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.nn.kernels.plain.BLOCK", 8)
    kernel: Kernel = Blockwise(0.4, block=8) if name == "blockwise" else KERNELS[name](0.4)
    layout = Layout.whole(1, 64)
    products = {"blockwise": 2 + 5 * training, "plain": 2 + 4 * training}[name]
    for window, first in ((5, 4), (8, 7), (100, 99)):
        mask = Mask(Causal() & Window(window), layout, layout)
        pairs = 0
        for start in range(0, 64, 8):
            left = max(0, start - first)
            # `blockwise` cuts keys where tiles begin
            pairs += 8 * (start + 8 - (left - left % 8 if name == "blockwise" else left))
        assert flops(kernel, mask, training) == products * 2 * 4 * pairs
    assert flops(kernel, Mask(Causal() & Window(100), layout, layout)) == flops(kernel, plain_mask(1, 64))


# What is refused


@pytest.mark.parametrize("name", ["blockwise", "flex"])
@pytest.mark.lecture("L0-64")
def test_kernels_that_never_hold_the_weights_refuse_to_drop_them(name: str) -> None:
    kernel, (q, k, v) = KERNELS[name](0.5, 0.1), inputs(1, 2, 5)
    lowered = kernel.lower(plain_mask(1, 5))
    with pytest.raises(HeddleError, match=f"kernel = '{name}' cannot drop attention weights"):
        kernel(q, k, v, lowered)
    torch.testing.assert_close(kernel.eval()(q, k, v, lowered), KERNELS[name](0.5)(q, k, v, lowered))


def test_torchs_kernel_refuses_what_it_cannot_do() -> None:
    lowered = KERNELS["sdpa"].lower(plain_mask(1, 5))
    with pytest.raises(HeddleError, match="kernel = 'sdpa' cannot cap scores"):
        KERNELS["sdpa"](0.5, cap=30.0)(*inputs(1, 2, 5), lowered)
    kernel = KERNELS["sdpa"](0.5, Dropout(0.5, classic=True))
    for training in (True, False):
        with pytest.raises(HeddleError, match="kernel = 'sdpa' supports only inverted dropout"):
            kernel.train(training)(*inputs(1, 2, 5), lowered)


def test_another_convention_of_dropout_also_changes_predictions() -> None:
    q, k, v = inputs(1, 2, 5)
    lowered = KERNELS["plain"].lower(plain_mask(1, 5))
    whole = KERNELS["plain"](0.5)(q, k, v, lowered)
    for name in ("plain", "auto", "reference"):
        kernel = KERNELS[name](0.5, Dropout(0.25, classic=True)).eval()
        torch.testing.assert_close(kernel(q, k, v, kernel.lower(plain_mask(1, 5))), 0.75 * whole)


@pytest.mark.parametrize("name", ["plain", "auto"])
def test_dropped_weights_have_their_gradients(name: str) -> None:
    """With cap, bias and a window, for the same drawn mask: gradcheck in float64."""
    kernel = KERNELS[name](0.6, 0.4, 1.5)
    lowered = kernel.lower(Mask(Causal() & Window(2), Layout.whole(1, 4), Layout.whole(1, 4)))
    q, k, v = (torch.randn(1, 2, 4, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))

    def run(*tensors: Tensor) -> Tensor:
        torch.manual_seed(1)
        return kernel(*tensors, lowered)

    assert torch.autograd.gradcheck(run, (q, k, v))
    assert not torch.equal(run(q, k, v), kernel.eval()(q, k, v, lowered))


class FixedDropout(Dropout):
    """Dropout that remembers the masks it drew, scaled as they were used."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self.masks: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.masks.append(super().forward(torch.ones_like(x)))
        return x * self.masks[-1]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(("cap", "rate"), [(1.5, 0.0), (None, 0.4), (1.5, 0.4)], ids=["cap", "dropped", "cap, dropped"])
def test_gradients_of_plain_are_autograds_of_the_formula(
    cap: float | None, rate: float, bias: bool, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """softmax(cap · tanh(q kᵀ · scale / cap) + bias) · mask, times v, in float64, over several blocks and shared keys."""
    monkeypatch.setattr("heddle.nn.kernels.plain.BLOCK", 4)
    q, k, v = (torch.randn(2, heads, 9, 3, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2))
    added = torch.randn(2, 4, 9, 9, dtype=torch.float64, requires_grad=True)
    leaves, weight = [q, k, v, *([added] if bias else [])], torch.randn(2, 4, 9, 3, dtype=torch.float64)
    layout, dropout = Layout.whole(2, 9), FixedDropout(rate)
    mask = Mask(Causal() if window is None else Causal() & Window(window), layout, layout)
    kernel = KERNELS["plain"](0.8, dropout, cap)
    output = kernel(q, k, v, kernel.lower(mask, added if bias else None))

    place = torch.arange(9)
    hidden = place > place[:, None]
    hidden = hidden if window is None else hidden | (place <= place[:, None] - window)
    keep = torch.ones(2, 4, 9, 9, dtype=torch.float64)
    for start, drawn in zip((0, 4, 8), dropout.masks, strict=bool(rate)):
        stop = min(start + 4, 9)
        keep[:, :, start:stop, stop - drawn.shape[-1] : stop] = drawn
    assert (keep == 0).any() == bool(rate)
    scores = q @ k.repeat_interleave(2, 1).transpose(2, 3) * 0.8
    scores = scores if cap is None else cap * (scores / cap).tanh()
    scores = (scores + added if bias else scores).masked_fill(hidden, -torch.inf)
    expected = (scores.softmax(-1) * keep) @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    pairs = zip(torch.autograd.grad((output * weight).sum(), leaves), torch.autograd.grad((expected * weight).sum(), leaves),
                strict=True)  # fmt: skip
    for actual, right in pairs:
        torch.testing.assert_close(actual, right, rtol=0, atol=1e-12)


@pytest.mark.thorough
def test_lowering_and_attending_are_one_graph() -> None:
    """And compute the reference, gradients too."""
    counts = json.loads(programs.traced("nn.graphs_of_kernels"))
    assert len(counts) == 12
    assert set(counts.values()) == {1}, counts


WHOLE, AFTER = Layout.whole(2, 40), Layout(torch.arange(20, 40).expand(2, -1), torch.zeros(2, 20).long(), "uniform")
PASSES: dict[str, tuple[Layout, Layout, Rule, Needs, str]] = {
    "causal": (WHOLE, WHOLE, Causal(), Needs(), "sdpa"),
    "causal, padded": (PADDED := Layout.padded([40, 9], 40), PADDED, Causal(), Needs(), "sdpa"),
    "encoder": (WHOLE, WHOLE, Everything(), Needs(), "sdpa"),
    "encoder, padded": (PADDED, PADDED, Everything(), Needs(), "flex"),
    "source, padded": (WHOLE, PADDED, Everything(), Needs(), "flex"),
    "window": (WHOLE, WHOLE, Causal() & Window(4), Needs(), "flex"),
    "packed": (PACK := Layout.packed([[9, 30], [40]], 40), PACK, Causal(), Needs(), "flex"),
    "prefix": (PREFIX := WHOLE.prefixed(torch.tensor([[3], [7]])), PREFIX, Causal(), Needs(), "flex"),
    "prefix, dropout": (PREFIX, PREFIX, Causal(), Needs(drops="inverted"), "sdpa"),
    "caps": (WHOLE, WHOLE, Causal(), Needs(cap=True), "flex"),
    "sinks": (WHOLE, WHOLE, Causal(), Needs(sinks=True), "flex"),
    "own scores": (WHOLE, WHOLE, Causal(), Needs(custom_scores=True), "reference"),
    "the prompt's next tokens": (AFTER, WHOLE, Causal(), Needs(), "sdpa"),
}


@pytest.mark.parametrize("case", PASSES)
def test_auto_generates_a_kernel_where_the_mask_leaves_something_out(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, keys, rule, needs, expected = PASSES[case]
    mask, square = Mask(rule, queries, keys), torch.zeros(1, 2, queries.width, keys.width)
    monkeypatch.setattr("heddle.config.kernels.PLAIN_UP_TO", {})
    assert pick("auto", needs, mask) is not KERNELS["flex"]
    monkeypatch.setattr("heddle.nn.kernels.table.generates", lambda device: True)
    assert pick("auto", needs, mask) is KERNELS[expected]
    assert pick("auto", needs, mask, square) is not KERNELS["flex"]
    assert pick("blockwise", needs, mask) is KERNELS["blockwise"]


@pytest.mark.parametrize(
    ("kernel", "least", "most"), [(Blockwise(0.1, block=32), 1.75, 2.05), (KERNELS["reference"](0.1), 3.5, 4.05)]
)
def test_memory_of_a_doubled_length(kernel: Kernel, least: float, most: float) -> None:
    """Forward and backward of `blockwise` need O(n · d) beyond the inputs, the definition O(n²); allocations counted."""

    def held(length: int) -> int:
        q, k, v = (torch.randn(1, 2, length, 32, requires_grad=True) for _ in range(3))
        lowered = kernel.lower(plain_mask(1, length))
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            torch.autograd.grad(kernel(q, k, v, lowered).sum(), (q, k, v))
        result = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
        events = sorted((event.start_ns(), event.nbytes()) for event in result if event.name() == "[memory]")
        return int(max(accumulate(size for _, size in events)))

    held(32)  # what a first pass sets aside once
    assert least < held(512) / held(256) < most


class Weights(TorchDispatchMode):
    """How many earlier softmaxes' results are still alive when the next one is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[weakref.ref[Tensor]] = []
        self.alive: list[int] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function is not torch.ops.aten._softmax.default:
            return function(*arguments, **(options or {}))
        self.alive.append(sum(each() is not None for each in self.made))
        result = function(*arguments, **(options or {}))
        self.made.append(weakref.ref(result))
        return result


@pytest.mark.parametrize("learns", [True, False])
def test_plain_keeps_weights_for_a_gradient_alone(learns: bool) -> None:
    """Without one a block's weights are gone when the next but one is made: no square is ever held."""
    q, k, v = inputs(1, 2, 4 * BLOCK)
    kernel = KERNELS["plain"](0.5)
    with Weights() as weights:
        kernel(q.requires_grad_(learns), k, v, kernel.lower(plain_mask(1, 4 * BLOCK)))
    assert weights.alive == ([0, 1, 2, 3] if learns else [0, 1, 1, 1])


def test_a_mask_for_the_batch_changes_no_prediction() -> None:
    """Nothing is dropped in evaluation, so that every kernel can serve, and `auto` takes the one it would take anyway."""
    q, k, v = inputs(1, 2, 5)
    for name in KERNELS:
        kernel = KERNELS[name](0.5, Dropout(0.3, shared=True)).eval()
        lowered = kernel.lower(plain_mask(1, 5))
        torch.testing.assert_close(kernel(q, k, v, lowered), KERNELS[name](0.5).eval()(q, k, v, lowered))


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("name", ["plain", "sdpa", "blockwise"])
def test_a_large_bias_is_not_rounded(name: str, learns: bool) -> None:
    """In bf16 numbers about 20 have steps of 0.125: a bias is added in fp32, by each kernel."""
    q, k, v = inputs(2, 3, 50, torch.bfloat16)
    bias = 20 + 2 * torch.randn(1, 3, 50, 50)
    mask, exact = plain_mask(2, 50), KERNELS["reference"](0.5)
    expected = exact(q.double(), k.double(), v.double(), exact.lower(mask, bias))
    kernel = KERNELS[name](0.5)
    actual = kernel(q.requires_grad_(learns), k, v, kernel.lower(mask, bias.requires_grad_(learns)))
    assert (actual.double() - expected).abs().mean() < 0.005 * expected.abs().mean()
    if learns:
        actual.sum().backward()
        assert bias.grad.isfinite().all()
