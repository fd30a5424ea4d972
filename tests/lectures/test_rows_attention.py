"""Attention: shapes, projections, two sequences in both designs, the leak without a mask, what its scores cost."""

from itertools import pairwise
from math import log
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.attention import peak
from heddle.account import attention_table, flops
from heddle.account.formulas import flash_bytes, score_bytes
from heddle.config import AttentionConfig, TransformerConfig, preset
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.nn import KERNELS, Attention, Causal, Everything, Layout, Mask, Setting
from tests.kernels import Sizes
from tests.running import unchecked

ATTENTION = {"kind": "attention", "heads": 2}
LAYER = {"mixer": ATTENTION}


def model_of(depth: int = 2, **stacks: Any) -> Transformer:
    """In float64, vocabulary 20, every parameter random, the head a matrix of its own so that it moves no embedding."""
    config = TransformerConfig.of({"vocab_size": 20, "dim": 8, "context": 16, "head": {"tied": False}, **stacks})
    model = build(config, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def translator() -> Transformer:
    return model_of(encoder={"depth": 2, "block": LAYER}, decoder={"depth": 2, "block": {**LAYER, "cross": ATTENTION}})


def reached(score: Tensor, table: Tensor) -> set[int]:
    """The ids whose vectors a score depends on."""
    (gradient,) = torch.autograd.grad(score, table, retain_graph=True)
    return set(gradient.abs().sum(1).nonzero()[:, 0].tolist())


@pytest.mark.lecture("L1-76", "L3-04")
def test_in_an_encoder_the_last_token_changes_the_first_output() -> None:
    model = model_of(encoder={"depth": 1, "block": LAYER})
    hidden = model(torch.tensor([[3, 4, 5, 6]])).hidden
    for place in range(4):
        assert reached(hidden[0, place, 0], model.embedding.weight) == {3, 4, 5, 6}


@pytest.mark.lecture("L1-79", "L1-82")
def test_a_translator_reads_the_whole_source_and_what_it_wrote() -> None:
    model = translator()
    source, layout = torch.tensor([[1, 2, 3, 9]]), Layout.padded((3,), 4)
    target = torch.tensor([[11, 12, 13, 14]])
    logits = model.logits(model(target, source=source, source_layout=layout).hidden)
    for place in range(4):
        # The row at `place` predicts the token behind it: it has seen the target so far, all of the source, and no padding.
        seen = reached(logits[0, place, 7], model.embedding.weight)
        assert seen == {1, 2, 3, *target[0, : place + 1].tolist()}


@pytest.mark.lecture("L1-82", "L1-83")
def test_a_decoder_alone_translates_on_the_same_terms() -> None:
    model = model_of(decoder={"depth": 2, "block": LAYER})
    assert not [name for name, _ in model.named_parameters() if "cross" in name]
    assert [name for name, _ in translator().named_parameters() if ".cross." in name]
    source, turn, target = [1, 2, 3], 10, [11, 12, 13]
    logits = model.logits(model(torch.tensor([[*source, turn, *target]])).hidden)
    for place in range(len(target) + 1):
        seen = reached(logits[0, len(source) + place, 7], model.embedding.weight)
        assert seen == {*source, turn, *target[:place]}


@pytest.mark.lecture("L1-78", "D-46")
def test_a_sources_keys_and_values_are_made_once() -> None:
    model, calls = translator(), []
    source = torch.tensor([[1, 2, 3]])
    for block in model.decoder.blocks:
        block.cross.k.register_forward_hook(lambda *_: calls.append(1))
    cache, steps = model.new_cache(1), []
    for token in (11, 12, 13):
        read = {} if steps else {"source": source}
        steps.append(model(torch.tensor([[token]]), cache=cache, **read).hidden[0, 0])
    assert len(calls) == 2, "one for each layer"
    whole = model(torch.tensor([[11, 12, 13]]), source=source).hidden[0]
    torch.testing.assert_close(torch.stack(steps), whole, rtol=0, atol=1e-12)


@pytest.mark.lecture("L3-20", "L3-25")
def test_one_product_for_three_projections() -> None:
    """Three in one product, split into heads by torch."""
    module = Attention(AttentionConfig(heads=2), Setting(8))
    x = torch.randn(3, 5, 8)
    weight = torch.cat([module.q.weight, module.k.weight, module.v.weight])
    bias = torch.cat([module.q.bias, module.k.bias, module.v.bias])
    rows = x.transpose(0, 1)  # torch's takes the length first
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected, _ = F.multi_head_attention_forward(
        rows, rows, rows, 8, 2, weight, bias, None, None, False, 0.0, module.o.weight, module.o.bias, attn_mask=later
    )
    output = module(x, module.pattern.scope(Layout.whole(3, 5)))
    torch.testing.assert_close(output, expected.transpose(0, 1), rtol=0, atol=1e-6)


@pytest.mark.lecture("L1-25")
def test_without_a_mask_the_next_token_leaks() -> None:
    """Random tokens over 8 symbols cannot be predicted. An encoder that is asked to reads them from the next place."""

    def loss(stack: str) -> float:
        block = {"mixer": {"kind": "attention", "heads": 4}}
        sizes = {"vocab_size": 8, "dim": 32, "context": 16, "initial": {"std": 0.1}}
        stacks = {stack: {"depth": 2, "block": block, "entry": {"positions": "learned"}}}
        model = build(TransformerConfig.of({**sizes, **stacks}))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        generator = torch.Generator().manual_seed(0)

        def surprise() -> Tensor:
            rows = torch.randint(8, (16, 17), generator=generator)
            return F.cross_entropy(model.logits(model(rows[:, :-1]).hidden).flatten(0, 1), rows[:, 1:].flatten())

        for _ in range(120):
            optimizer.zero_grad()
            surprise().backward()
            optimizer.step()
        with torch.no_grad():
            return sum(surprise().item() for _ in range(20)) / 20

    with unchecked():
        without_future, with_future = loss("decoder"), loss("encoder")
    assert without_future >= log(8) - 0.01
    assert log(8) / 16 < with_future < 0.2, "only the last place has nothing to read from"


def largest(kernel: str, length: int) -> int:
    attention = KERNELS[kernel](1.0)
    q, k, v = torch.randn(3, 1, 4, length, 32)
    layout = Layout.whole(1, length)
    with Sizes() as seen:
        attention(q, k, v, attention.lower(Mask(Everything(), layout, layout)))
    return seen.largest


@pytest.mark.lecture("L2-14", "C-10")
def test_the_definition_holds_a_square_of_scores() -> None:
    one = preset("gpt2-small").override({"decoder.depth": 1, "vocab_size": 100})
    near, far = (flops(one, 1, length).layer["scores"] for length in (1024, 2048))
    assert far / near == 4.0
    assert [largest("reference", length) for length in (256, 512, 1024)] == [262_144, 1_048_576, 4_194_304]


@pytest.mark.lecture("L2-15")
def test_a_square_that_fits_nowhere_is_refused_before_it_is_made() -> None:
    far = Layout.whole(1, 131_072)
    with pytest.raises(HeddleError, match=r"131072 × 131072 scores.*kernel = 'auto'"):
        KERNELS["reference"].lower(Mask(Causal(), far, far))
    for kernel in ("auto", "blockwise"):
        assert KERNELS[kernel].lower(Mask(Causal(), far, far)).allowed is None
    meta = Layout.whole(1, 131_072, "meta")
    assert KERNELS["reference"].lower(Mask(Causal(), meta, meta)).allowed is not None, "on meta it costs nothing"


@pytest.mark.lecture("L2-21", "C-08", "C-09")
@pytest.mark.parametrize(("length", "ratio"), [(64, 0.97), (1024, 15.5), (2048, 31.0), (4096, 62.1)])
def test_what_a_running_softmax_saves_doubles_with_the_length(length: int, ratio: float) -> None:
    """All scores in fp32 for 12 heads, over the output and two numbers per row of scores, d = 768: nothing on short texts."""
    assert score_bytes(length, 12) / flash_bytes(length, 768, 12) == pytest.approx(ratio, rel=0.003)
    (row,) = attention_table(preset("gpt2-small"), (length,))
    assert (row.scores, row.flash) == (score_bytes(length, 12), flash_bytes(length, 768, 12)), (
        "as `heddle count` prints"
    )


def most_held(kernel: str, length: int, device: str) -> int:
    """The peak of the bytes that a pass of one head allocates beyond its inputs: by CUDA's allocator, or by torch's profiler."""
    attention = KERNELS[kernel](1.0)
    q, k, v = torch.randn(3, 1, 1, length, 64, device=device)
    layout = Layout.whole(1, length, device)
    lowered = attention.lower(Mask(Everything(), layout, layout))
    with torch.no_grad():
        if device == "cuda":
            attention(q, k, v, lowered)  # what the first call sets up, cuBLAS's buffer, is not the pass's
        return peak(lambda: attention(q, k, v, lowered), device)


@pytest.mark.lecture("C-15")
def test_twice_the_length_holds_four_times_as_much_or_twice_with_a_running_softmax() -> None:
    """Measured: the peak of a pass beyond its inputs, here on the CPU; the bytes of the account have the same two ratios.

    The fused kernel has a buffer of constant size, half a MiB, so the ratio is that of what each doubling adds.
    """
    assert score_bytes(4096, 1) / score_bytes(2048, 1) == 4
    assert flash_bytes(4096, 64, 1) / flash_bytes(2048, 64, 1) == 2
    assert 3.5 < most_held("reference", 4096, "cpu") / most_held("reference", 2048, "cpu") < 4.1
    held = [most_held("sdpa", length, "cpu") for length in (1024, 2048, 4096)]
    assert 1.8 < (held[2] - held[1]) / (held[1] - held[0]) < 2.2
    assert held[2] - held[1] == pytest.approx(flash_bytes(2048, 64, 1), rel=0.05)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize(("kernel", "least", "most"), [("reference", 3.5, 4.1), ("sdpa", 1.8, 2.2)])
def test_memory_of_a_card_grows_alike(kernel: str, least: float, most: float) -> None:
    """C-15 too, without its mark: tests that settle a row run everywhere."""
    for short, long in pairwise((2048, 4096, 8192)):
        assert least < most_held(kernel, long, "cuda") / most_held(kernel, short, "cuda") < most


@pytest.mark.lecture("L2-09", "L2-37")
@pytest.mark.parametrize("dim", [4096, 8192])
def test_costs_of_wide_models_are_stated_in_n_and_d(dim: int) -> None:
    config = preset("gpt2-small").override(
        {"dim": dim, "decoder.depth": 1, "decoder.block.mixer.heads": dim // 128, "vocab_size": 100}
    )
    account = flops(config, 1, 1024)
    lines = {line.formula: (line.value, line.walked) for line in account.deck}
    assert lines["8nd²"] == (8 * 1024 * dim**2,) * 2
    assert lines["2n²d"] == (2 * 1024**2 * dim,) * 2
    assert lines["16nd²"] == (4 * 1024 * dim * (4 * dim),) * 2, "4·n·d·d_MLP with d_MLP = 4d"
