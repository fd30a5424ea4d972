"""Modules that are used alone, without `build`: no number of theirs is what happened to be in memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from heddle.config import TransformerConfig
from heddle.config.layers import ConvolutionConfig
from heddle.model import Transformer
from heddle.nn.convolution import Convolution
from heddle.nn.embedding import Embedding
from heddle.nn.norm import LayerNorm, RMSNorm
from heddle.nn.position import Buckets
from heddle.nn.setting import Setting
from tests.models import EVERY, name_of

MODULES = {
    "layer norm": lambda: LayerNorm(4),
    "rms norm": lambda: RMSNorm(4),
    "embedding": lambda: Embedding(5, 4),
    "convolution": lambda: Convolution(ConvolutionConfig(taps=3), Setting(4)),
    "relative bias": lambda: Buckets(2),
}


@pytest.fixture
def dirty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that holds NaN wherever nothing was written."""
    empty = torch.empty

    def filled(*sizes: Any, **named: Any) -> torch.Tensor:
        made = empty(*sizes, **named)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", filled)


def finite(module: nn.Module) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in module.state_dict().values())


@pytest.mark.parametrize("name", MODULES)
def test_a_module_alone_has_its_initial_values(dirty: None, name: str) -> None:
    make: Callable[[], nn.Module] = MODULES[name]
    assert finite(make())


def test_norms_alone_norm(dirty: None) -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(LayerNorm(4)(x), nn.LayerNorm(4)(x))
    torch.testing.assert_close(RMSNorm(4)(x), nn.RMSNorm(4, eps=1e-6)(x))


@pytest.mark.parametrize("config", EVERY, ids=name_of)
def test_a_whole_model_without_build_has_finite_weights(dirty: None, config: TransformerConfig) -> None:
    assert finite(Transformer(config))
