"""The laws of an encoder, and of a decoder beside one: small models, every placement, wiring, kernel and mixer among them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heddle.config import (
    AttentionConfig,
    BlockConfig,
    BucketsConfig,
    ConvolutionConfig,
    EntryConfig,
    GatedConfig,
    LanguageHeadConfig,
    LayerNormConfig,
    RMSNormConfig,
    RotaryConfig,
    StackConfig,
    TransformerConfig,
)
from heddle.model import Transformer
from heddle.nn import Attention, Layout
from heddle.nn.state import EncoderOutput, Fixed
from tests.laws import laws
from tests.laws.models import CONTEXT, HEADS, VOCABULARY, awake, feed_forward, others_than, tokens_of

SOURCES = 13  # a vocabulary of its own
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"placement": "post", "positions": "sinusoidal", "scale": True},
    "bart": {"placement": "post", "positions": "learned", "norm": LayerNormConfig(), "kernel": "sdpa", "types": 2},
    "t5": {"norm": RMSNormConfig(), "relative": BucketsConfig(buckets=8, furthest=20), "kernel": "blockwise"},
    "two tables": {"placement": "sandwich", "positions": "sinusoidal", "source_vocab_size": SOURCES, "kv_heads": 2},
    "rotary, experts": {
        "placement": "output",
        "relative": RotaryConfig(base=100.0),
        "ffn": "moe",
        "kernel": "reference",
    },
    "window": {
        "placement": "literal",
        "positions": "learned",
        "window": 3,
        "kernel": "plain",
        "ffn": GatedConfig(hidden=6),
    },
    "convolution": {"mixer": ConvolutionConfig(taps=3), "positions": "none", "kernel": "flex", "ffn": "none"},
    "bare": {"placement": "bare", "positions": "sinusoidal_halves", "kernel": "auto", "cap": 2.0},
}


def stack_of(
    cross: bool,
    *,
    placement: str = "pre",
    positions: str = "none",
    scale: bool = False,
    types: int = 0,
    norm: Any = None,
    ffn: Any = "mlp",
    mixer: Any = None,
    kernel: str = "auto",
    cap: float | None = None,
    kv_heads: int | None = None,
    **more: Any,
) -> StackConfig:
    """Two layers, in a decoder with a look at the encoder's output."""
    both = {"kind": "attention", "heads": HEADS, "kernel": kernel, "cap": cap, "kv_heads": kv_heads}
    block = BlockConfig(
        mixer=mixer or AttentionConfig.of({**both, **more}),
        cross=AttentionConfig.of(both) if cross else None,
        ffn=feed_forward(ffn),
        placement=placement,
    )
    return StackConfig(
        depth=2, block=block, entry=EntryConfig(positions=positions, scale=scale, norm=norm, types=types)
    )


def model_of(name: str, *, encoder_only: bool = False) -> Transformer:
    """One of `MODELS`, awake: encoder and decoder, or the encoder alone."""
    options = dict(MODELS[name])
    sources = options.pop("source_vocab_size", None)
    return awake(
        TransformerConfig(
            vocab_size=VOCABULARY,
            source_vocab_size=None if encoder_only else sources,
            dim=16,
            context=CONTEXT,
            encoder=stack_of(False, **options),
            decoder=None if encoder_only else stack_of(True, **options),
            head=LanguageHeadConfig(bias=True),
        )
    )


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> Transformer:
    return model_of(request.param)


@pytest.fixture(scope="module")
def encoder(request: pytest.FixtureRequest) -> Transformer:
    return model_of(request.param, encoder_only=True)


both = pytest.mark.parametrize("model", MODELS, indirect=True)
alone = pytest.mark.parametrize("encoder", MODELS, indirect=True)
sides = pytest.mark.parametrize("side", ["right", "left"])


def seen_by_all(model: Transformer) -> bool:
    """Whether one layer of the encoder already shows every token to every other."""
    assert model.encoder is not None
    return all(
        isinstance(block.mixer, Attention) and block.mixer.pattern.reach is None for block in model.encoder.layers()
    )


# An encoder by itself


@alone
@pytest.mark.lecture("L1-76")
def test_an_encoder_sees_both_ways(encoder: Transformer) -> None:
    """Every output has a gradient to tokens before it and to tokens after it: to all, or as far as two layers reach."""
    assert encoder.encoder is not None
    x = encoder.embedding(tokens_of(1, 6)).detach().requires_grad_()
    hidden = encoder.encoder(x, Layout.plain(1, 6)).hidden
    direction = torch.randn(16, dtype=x.dtype, generator=torch.Generator().manual_seed(3))
    for place in range(6):
        (gradient,) = torch.autograd.grad(hidden[0, place] @ direction, x, retain_graph=True)
        reached = gradient[0].abs().amax(-1) > 0
        assert all(reached[other] for other in range(6) if seen_by_all(encoder) or abs(other - place) <= 2), place


@alone
@pytest.mark.lecture("L0-25", "L3-26")
def test_an_encoder_is_its_blocks(encoder: Transformer) -> None:
    laws.stack_is_its_blocks(encoder)


@alone
@sides
@torch.no_grad()
def test_padding_changes_nothing_in_an_encoder(encoder: Transformer, side: str) -> None:
    laws.padding_changes_nothing(encoder, side)


@alone
@torch.no_grad()
def test_packed_texts_are_separate_in_an_encoder(encoder: Transformer) -> None:
    laws.packed_is_separate(encoder)


@alone
def test_gradients_in_an_encoder_are_finite_and_pass_padding_by(encoder: Transformer) -> None:
    assert encoder.encoder is not None
    layout = Layout.padded((3, 6, 0), 6)
    real = layout.segment >= 0
    x = encoder.embedding(tokens_of(3, 6)).detach().requires_grad_()
    encoder.encoder(x, layout).hidden[real].square().sum().backward()
    assert x.grad is not None
    assert (x.grad[~real] == 0).all()
    assert (x.grad[real].abs().amax(-1) > 0).all()
    assert all(each.grad is None or each.grad.isfinite().all() for each in encoder.parameters())
    encoder.zero_grad()


# A decoder beside an encoder


def sources_of(model: Transformer, rows: int, length: int) -> Tensor:
    return tokens_of(rows, length, seed=7) + (2 if model.source_embedding is not None else 0)


@both
@pytest.mark.lecture("L1-77", "L1-78", "L1-82")
@torch.no_grad()
def test_later_targets_change_nothing(model: Transformer) -> None:
    """Causality in the target: changing token t leaves what stands before it, and changes what stands at it."""
    tokens, source = tokens_of(2, 5), sources_of(model, 2, 6)
    before = model(tokens, source=source).hidden
    for t in range(5):
        changed = tokens.clone()
        changed[:, t] = others_than(tokens[:, t])
        after = model(changed, source=source).hidden
        laws.same(model, after[:, :t], before[:, :t], f"before token {t}")
        assert not torch.equal(after[:, t], before[:, t])


@both
@pytest.mark.lecture("L1-78")
def test_every_target_looks_at_the_whole_source(model: Transformer) -> None:
    """Every output has a gradient to every token of the source."""
    tokens, source = tokens_of(1, 4), sources_of(model, 1, 5)
    table = model.embedding if model.source_embedding is None else model.source_embedding
    looked_up = []

    def keep(module: nn.Module, inputs: tuple[Tensor], vectors: Tensor) -> Tensor:
        looked_up.append(vectors.detach().requires_grad_())
        return looked_up[-1]

    hook = table.register_forward_hook(keep)
    hidden = model(tokens, source=source).hidden
    hook.remove()
    x = looked_up[0]  # the source's, which is read first
    direction = torch.randn(16, dtype=x.dtype, generator=torch.Generator().manual_seed(3))
    for place in range(4):
        (gradient,) = torch.autograd.grad(hidden[0, place] @ direction, x, retain_graph=True)
        assert (gradient[0].abs().amax(-1) > 0).all(), place


@both
@sides
@torch.no_grad()
def test_padded_sources_change_nothing(model: Transformer, side: str) -> None:
    """Sources filled up give what each gives alone, whichever ids fill them, and whatever the targets' own padding."""
    lengths, targets = (4, 6, 1), (3, 5, 4)
    source, tokens = sources_of(model, 3, 6), tokens_of(3, 5)
    layout, places = Layout.padded(lengths, 6, side), Layout.padded(targets, 5)
    real, there = layout.segment >= 0, places.segment >= 0
    hidden = model(tokens, places, source, layout).hidden
    for row in range(3):
        wanted = model(tokens[row, there[row]][None], source=source[row, real[row]][None]).hidden[0]
        laws.close(hidden[row, there[row]], wanted, what=f"row {row}")
    refilled = torch.where(real, source, others_than(source))
    laws.same(model, model(tokens, places, refilled, layout).hidden[there], hidden[there], "other padding")


@both
def test_without_a_source_there_is_nothing_to_see(model: Transformer) -> None:
    """A source of padding alone: cross-attention gives exactly 0, every gradient is finite, and its ids have none."""
    outputs: list[Tensor] = []
    assert model.decoder is not None
    crossing = [block.cross.kernel for block in model.decoder.layers() if block.cross is not None]
    hooks = [kernel.register_forward_hook(lambda module, inputs, output: outputs.append(output)) for kernel in crossing]
    layout = Layout.padded((0, 4), 4)
    hidden = model(tokens_of(2, 3), source=sources_of(model, 2, 4), source_layout=layout).hidden
    for hook in hooks:
        hook.remove()
    assert len(outputs) == 2
    for output in outputs:
        assert (output[0] == 0).all()
        assert (output[1] != 0).any()
    hidden.square().sum().backward()
    assert all(each.grad is None or each.grad.isfinite().all() for each in model.parameters())
    model.zero_grad()


def stepped(model: Transformer, tokens: Tensor, source: Tensor, layout: Layout, cuts: Sequence[int]) -> Tensor:
    """Hidden vectors through a cache, which reads the source in its first call."""
    cache = model.new_cache(tokens.shape[0])
    first, *bounds = [*cuts, tokens.shape[1]]
    pieces = [model(tokens[:, :first], source=source, source_layout=layout, cache=cache).hidden]
    pieces += [model(tokens[:, start:stop], cache=cache).hidden for start, stop in pairwise([first, *bounds])]
    return torch.cat(pieces, dim=1)


@both
@pytest.mark.lecture("L1-79", "L2-08")
@pytest.mark.parametrize("cuts", [(1, 2, 3, 4, 5), (3,), (4, 5)], ids=str)
@torch.no_grad()
def test_cached_is_uncached_beside_a_source(model: Transformer, cuts: tuple[int, ...]) -> None:
    """What training predicts with the target given is what decoding predicts step by step, with sources of any length."""
    tokens, source = tokens_of(3, 6), sources_of(model, 3, 5)
    layout = Layout.padded((5, 2, 4), 5)
    whole = model(tokens, source=source, source_layout=layout).hidden
    laws.close(stepped(model, tokens, source, layout, cuts), whole, what=f"cut at {cuts}")


@both
@torch.no_grad()
def test_forks_keep_their_source(model: Transformer) -> None:
    """Rows chosen and doubled go on with their own sources, and rows of another source, longer, can join them."""
    tokens, source, rows = tokens_of(3, 4), sources_of(model, 3, 5), [2, 0, 2]
    cache = model.new_cache(3)
    model(tokens, source=source, cache=cache)
    more, longer = tokens_of(3, 2, seed=9), sources_of(model, 1, 7)
    other = model.new_cache(1)
    model(tokens[:1], source=longer, cache=other)
    found = model(torch.cat((more, more[:1])), cache=cache.select(rows).join(other)).hidden
    wanted = model(torch.cat((tokens[rows], more), dim=1), source=source[rows]).hidden[:, 4:]
    laws.close(found[:3], wanted, what="the fork")
    beside = model(torch.cat((tokens[:1], more[:1]), dim=1), source=longer).hidden[:, 4:]
    laws.close(found[3:], beside, what="the row that joined")


# These laws can fail


def no_padding_in_sources(patch: pytest.MonkeyPatch) -> None:
    right = EncoderOutput.__init__
    patch.setattr(
        EncoderOutput,
        "__init__",
        lambda self, hidden, layout: right(self, hidden, Layout.plain(layout.rows, layout.width)),
    )


def forks_forget_whose_source_it_was(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fixed, "select", lambda self, rows: self)


@pytest.mark.parametrize(
    ("bug", "law"),
    [
        (no_padding_in_sources, lambda model: test_padded_sources_change_nothing.__wrapped__(model, "right")),
        (forks_forget_whose_source_it_was, lambda model: test_forks_keep_their_source.__wrapped__(model)),
    ],
    ids=["no padding in sources", "forks forget whose source it was"],
)
def test_a_planted_bug_is_found(bug: Any, law: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("transformer")
    with torch.no_grad():
        law(model)
        bug(monkeypatch)
        with pytest.raises(AssertionError):
            law(model)
