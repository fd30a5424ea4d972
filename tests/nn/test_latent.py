"""Latent attention against its formula in numpy, and what its cache remembers."""

import numpy as np
import pytest
import torch

from heddle.config import LatentConfig, RotaryConfig, TransformerConfig
from heddle.model import build
from heddle.nn import Layout
from heddle.nn.latent import Latent
from heddle.nn.position import make_relative
from heddle.nn.setting import Setting
from tests import refusing
from tests.models import awake, config_of

CONFIG = LatentConfig(
    heads=2,
    rank=5,
    q_rank=7,
    head_dim=3,
    rotary_dim=4,
    value_dim=6,
    relative=RotaryConfig(base=50.0, pairing="neighbours"),
)


def turned(x: np.ndarray) -> np.ndarray:
    """[T 4], each pair of neighbours as a complex number times exp(i · angle)."""
    angle = np.arange(len(x))[:, None] * 50.0 ** (-np.array([0.0, 2.0]) / 4)
    pairs = (x[:, ::2] + 1j * x[:, 1::2]) * np.exp(1j * angle)
    return np.stack((pairs.real, pairs.imag), -1).reshape(x.shape)


def normed(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * gain


def test_it_is_the_formula_of_the_paper() -> None:
    torch.manual_seed(0)
    module = Latent(CONFIG, Setting(8)).double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.5)
    w = {name: tensor.detach().numpy() for name, tensor in module.named_parameters()}
    x = torch.randn(1, 9, 8, dtype=torch.float64)
    h = x[0].numpy()
    queries = normed(h @ w["q_down.weight"].T, w["q_norm.weight"]) @ w["q.weight"].T
    latent, shared = normed(h @ w["down.weight"].T, w["down_norm.weight"]), turned(h @ w["r.weight"].T)
    outputs = []
    for head in range(2):
        q = queries[:, head * 7 : head * 7 + 7]
        k = latent @ w["k.weight"][head * 3 : head * 3 + 3].T
        v = latent @ w["v.weight"][head * 6 : head * 6 + 6].T
        scores = (q[:, :3] @ k.T + turned(q[:, 3:]) @ shared.T) / np.sqrt(7)
        scores[np.triu_indices(9, 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        outputs.append(weights / weights.sum(-1, keepdims=True) @ v)
    expected = np.concatenate(outputs, -1) @ w["o.weight"].T
    layout = Layout.whole(1, 9)
    assert module.pattern.relative is not None
    with torch.no_grad():
        out = module(x, module.pattern.scope(layout, relative=make_relative(module.pattern.relative)))
    assert np.abs(out[0].numpy() - expected).max() < 1e-6  # angles are fp32


def test_its_cache_holds_rank_and_rotary_dim_numbers_per_token() -> None:
    model = awake(config_of(first=CONFIG, positions="none"))
    cache = model.new_cache(1, multiple=1)
    model(torch.tensor([[1, 2, 3]]), cache=cache)
    shapes = [tuple(buffer.shape) for buffer in cache.states[0].mixer.buffers]
    assert shapes == [(1, 1, 3, 5), (1, 1, 3, 4)]


@pytest.mark.parametrize(("change", "words"), [({"rotary_dim": 3}, "rotary_dim = 3"), ({"heads": 0}, "heads")])
def test_what_it_cannot_be_is_refused(change: dict[str, int], words: str) -> None:
    data = CONFIG.to_dict() | change
    assert words in refusing.refusal(lambda: LatentConfig.of(data))


def test_a_window_is_no_option_of_it() -> None:
    config = config_of(first=CONFIG, positions="none").to_dict()
    config["decoder"]["block"]["mixer"]["window"] = 3
    assert "window" in refusing.refusal(lambda: build(TransformerConfig.of(config)))
