"""What an encoder's tokens are told, and a decoder's of their source; that padding and later tokens are not, is in test_laws.py."""

import pytest
import torch
from torch import Tensor, nn

from heddle.config import TransformerConfig
from heddle.model import Transformer
from heddle.nn import Attention, Layout
from tests.laws.laws import subject_of
from tests.models import BOTH, ENCODERS, name_of, tokens_of

alone = pytest.mark.parametrize("config", ENCODERS, ids=name_of)
both = pytest.mark.parametrize("config", BOTH, ids=name_of)


def seen_by_all(model: Transformer) -> bool:
    """Whether one layer of the encoder already shows every token to every other."""
    assert model.encoder is not None
    return all(
        isinstance(block.mixer, Attention) and block.mixer.pattern.reach is None for block in model.encoder.layers()
    )


@alone
@pytest.mark.lecture("L1-76")
def test_an_encoder_sees_both_ways(config: TransformerConfig) -> None:
    """Every output has a gradient to tokens before it and to tokens after it: to all, or as far as two layers reach."""
    encoder = subject_of(config).model
    x = encoder.embedding(tokens_of(1, 6)).detach().requires_grad_()
    hidden = encoder.encoder(x, Layout.whole(1, 6)).hidden
    direction = torch.randn(16, dtype=x.dtype, generator=torch.Generator().manual_seed(3))
    for place in range(6):
        (gradient,) = torch.autograd.grad(hidden[0, place] @ direction, x, retain_graph=True)
        reached = gradient[0].abs().amax(-1) > 0
        assert all(reached[other] for other in range(6) if seen_by_all(encoder) or abs(other - place) <= 2), place


def sources_of(model: Transformer, rows: int, length: int) -> Tensor:
    return tokens_of(rows, length, seed=7) + (2 if model.source_embedding is not None else 0)


@both
@pytest.mark.lecture("L1-78")
def test_every_target_looks_at_the_whole_source(config: TransformerConfig) -> None:
    """Every output has a gradient to every token of the source."""
    model = subject_of(config).model
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
def test_without_a_source_there_is_nothing_to_see(config: TransformerConfig) -> None:
    """A source of padding alone: cross-attention gives exactly 0, every gradient is finite, and its ids have none."""
    model, outputs = subject_of(config).model, []
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
