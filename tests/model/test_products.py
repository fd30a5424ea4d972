"""Products by oneDNN: the same numbers as torch's, in training and in prediction, and never where they would not be taken."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heddle.config import TrainConfig
from heddle.config.train import ProductKind
from heddle.data import next_token_batch
from heddle.model import Transformer, build, products
from heddle.model.linear import ChoosingHead, ChoosingLinear, faster_products, use_few_rows, use_products
from heddle.model.products import (
    PRODUCT_KINDS,
    batched,
    faster_kinds,
    has_onednn,
    linear,
    of_inputs,
    of_weights,
    product,
)
from heddle.tasks import CrossEntropy
from heddle.train import Optimizer, train_step
from tests.models import VOCABULARY, config_of

pytestmark = pytest.mark.skipif(not has_onednn(), reason="this torch has no oneDNN")
SETS = [each for size in range(len(PRODUCT_KINDS) + 1) for each in combinations(PRODUCT_KINDS, size)]


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("by_onednn", SETS, ids="-".join)
@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (7, 7), (1, 9)])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("leading", [(5,), (2, 3), (1,)])
def test_it_is_torchs_linear(
    by_onednn: tuple[ProductKind, ...], shape: tuple[int, int], biased: bool, leading: Any
) -> None:
    """Output and the three gradients; the witness computes in float64."""
    inputs = [drawn(*leading, shape[1]), drawn(*shape), *([drawn(shape[0])] if biased else [])]
    above = drawn(*leading, shape[0])
    leaves = [each.clone().requires_grad_() for each in inputs]
    exact = [each.double().requires_grad_() for each in inputs]
    out = linear(leaves[0], leaves[1], leaves[2] if biased else None, by_onednn)
    expected = F.linear(*exact)
    torch.testing.assert_close(out, expected.float(), atol=1e-5, rtol=1e-5)
    out.backward(above)
    expected.backward(above.double())
    for got, right in zip(leaves, exact, strict=True):
        torch.testing.assert_close(got.grad, right.grad.float(), atol=1e-5, rtol=1e-5)


def test_only_what_is_wanted_has_a_gradient() -> None:
    x, weight = drawn(4, 6), drawn(5, 6).requires_grad_()
    linear(x, weight, None, PRODUCT_KINDS).sum().backward()
    assert x.grad is None
    assert weight.grad is not None
    x, weight = drawn(4, 6).requires_grad_(), drawn(5, 6)
    linear(x, weight, None, PRODUCT_KINDS).sum().backward()
    assert weight.grad is None
    assert x.grad is not None


@pytest.mark.parametrize("base", [False, True])
def test_pairs_of_matrices(base: bool) -> None:
    a, b, c = drawn(3, 4, 7), drawn(3, 5, 7), drawn(3, 4, 5)
    exact = 2.0 * a.double() @ b.double().mT + (0.5 * c.double() if base else 0.0)
    for by_onednn in ((), ("update",)):
        actual = batched(a, b, by_onednn, c, 0.5, 2.0) if base else batched(a, b, by_onednn) * 2.0
        torch.testing.assert_close(actual, exact.float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", PRODUCT_KINDS)
def test_each_kind_is_asked_of_onednn_alone(kind: ProductKind, monkeypatch: pytest.MonkeyPatch) -> None:
    multiplied: list[str] = []
    real = products.onednn

    def watched_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        multiplied.append("x")
        return real(x, weight, bias)

    monkeypatch.setattr(products, "onednn", watched_product)
    x, weight, gradient = drawn(4, 6), drawn(5, 6), drawn(4, 5)
    calls: dict[ProductKind, Callable[[Any], Tensor]] = {
        "forward": lambda by_onednn: product(x, weight, None, by_onednn),
        "inputs": lambda by_onednn: of_inputs(gradient, weight, by_onednn),
        "weights": lambda by_onednn: of_weights(gradient, x, by_onednn),
        "update": lambda by_onednn: batched(x[None], x[None], by_onednn),
    }
    for name, call in calls.items():
        call((kind,))
        assert len(multiplied) == (name == kind), name
        multiplied.clear()


@pytest.mark.parametrize(
    "matrices",
    [
        (drawn(3, 4).double(), drawn(5, 4).double()),
        (drawn(3, 4).bfloat16(), drawn(5, 4).bfloat16()),
        (drawn(3, 4).to("meta"), drawn(5, 4).to("meta")),
    ],
    ids=["float64", "bf16", "meta"],
)
def test_what_onednn_does_not_take_is_torchs(matrices: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "onednn", lambda *matrices: pytest.fail("asked"))
    assert linear(*matrices, None, PRODUCT_KINDS).shape == (3, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(drawn(3, 4), drawn(5, 4), None, PRODUCT_KINDS).dtype == torch.bfloat16


def made(**head: Any) -> Transformer:
    return build(config_of(dim=32, ffn="gated", kv_heads=2, pad_vocab_to=8, **head), seed=3)


HEADS: list[dict[str, Any]] = [
    {},
    {"tied": False, "head_bias": True, "head_cap": 5.0},
    {"head_transform": True, "head_scale": 0.5},
]


def prepared(head: dict[str, Any], by_onednn: tuple[ProductKind, ...]) -> Transformer:
    model = made(**head)
    use_products(model, by_onednn)
    return model.train()


def train(model: Transformer, precision: str = "fp32") -> list[float]:
    """The losses of three steps."""
    optimizer = Optimizer(model, TrainConfig(), 1e-3, precision)
    batch = next_token_batch(np.random.default_rng(0).integers(0, VOCABULARY, (4, 17)))
    return [train_step(CrossEntropy(model), optimizer, batch, 2, 1.0, 1.0)[0] for _ in range(3)]


@pytest.mark.parametrize("head", HEADS, ids=["tied", "biased and capped", "transformed"])
def test_a_model_learns_the_same(head: dict[str, Any]) -> None:
    """Every gradient and three losses; and what it then predicts is what a model without the choice predicts."""
    plain, model = prepared(head, ()), prepared(head, PRODUCT_KINDS)
    batch = next_token_batch(np.random.default_rng(0).integers(0, VOCABULARY, (4, 17)))
    for each in (plain, model):
        CrossEntropy(each)(batch).total.backward()
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            one.grad, other.grad, atol=1e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
        one.grad = other.grad = None
    assert train(model) == pytest.approx(train(plain), abs=1e-4)
    assert list(model.state_dict()) == list(plain.state_dict())
    tokens = torch.arange(10)[None]
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(
            model.logits(model(tokens).hidden), plain.logits(plain(tokens).hidden), atol=1e-5, rtol=1e-5
        )


def test_every_layer_and_the_head_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the loss's product: 2 layers of 7, each with three products, and the head's three."""
    calls = 0
    real = products.onednn

    def watched_product(*args: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return real(*args)

    model = made()
    use_products(model, PRODUCT_KINDS)
    assert isinstance(model.language_head(), ChoosingHead)
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert all(isinstance(layer, ChoosingLinear) for layer in layers)
    monkeypatch.setattr(products, "onednn", watched_product)
    optimizer = Optimizer(model.train(), TrainConfig(), 1e-2, "fp32")
    train_step(CrossEntropy(model), optimizer, next_token_batch(np.zeros((2, 9), dtype=np.int64)), 1, 1.0, 1.0)
    assert calls == 3 * len(layers) + 3


def test_bf16_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "onednn", lambda *args: pytest.fail("asked"))
    train(prepared(HEADS[0], PRODUCT_KINDS), "bf16")


def test_a_users_own_layer_is_left_alone() -> None:
    class Own(nn.Linear):
        pass

    model = made()
    model.decoder.blocks[0].mixer.q = Own(32, 32)
    use_products(model, PRODUCT_KINDS)
    assert type(model.decoder.blocks[0].mixer.q) is Own


def test_packs_and_products_live_together() -> None:
    model = made()
    use_products(model, PRODUCT_KINDS)
    use_few_rows(model.eval())
    assert model.language_head().by_onednn == PRODUCT_KINDS
    assert model.train().language_head().by_onednn == PRODUCT_KINDS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, float]], None]:
    """Time that passes only where a product is computed by one of the two."""
    now = 0.0
    cost: dict[str, float] = {}

    def spent(name: str, real: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*args: Any) -> Tensor:
            nonlocal now
            now += cost[name] if args[-1] else 1.0
            return real(*args)

        return call

    monkeypatch.setattr(products.time, "thread_time", lambda: now)  # type: ignore[attr-defined]
    functions = {"forward": "product", "inputs": "of_inputs", "weights": "of_weights", "update": "batched"}
    for name, function in functions.items():
        monkeypatch.setattr(products, function, spent(name, getattr(products, function)))
    monkeypatch.setattr(products, "LEAST_WORK", 0)
    return cost.update


@pytest.mark.usefixtures("new_machine")
def test_the_faster_one_is_chosen_for_each_kind(clock: Callable[[dict[str, float]], None]) -> None:
    clock({"forward": 0.5, "inputs": 0.98, "weights": 2.0, "update": 0.8})
    assert faster_kinds([(8, 4), (4, 8), (8, 4)], 16, [(8, 4)]) == ("forward", "update")
    assert faster_kinds([(8, 4), (4, 8), (8, 4)], 16) == ("forward",)
    clock({"inputs": 0.8, "weights": 0.1})
    assert faster_products(made(), 16) == PRODUCT_KINDS


def test_a_tiny_model_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be measured is not chosen, so that small runs are the same every time."""
    monkeypatch.setattr(products, "_times", lambda call: pytest.fail("measured"))
    assert faster_products(made(), 64) == ()


def test_measuring_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """For real: every kind of product is timed once for its shape, and no random number is used up."""
    timed, real = [], products._times

    def watched(call: Any) -> tuple[float, float]:
        timed.append(real(call))
        return timed[-1]

    monkeypatch.setattr(products, "_times", watched)
    before = torch.random.get_rng_state()
    faster_kinds([(512, 512)] * 4, 1024, [(512, 512)])
    assert len(timed) == len(PRODUCT_KINDS)
    assert all(seconds > 0 for pair in timed for seconds in pair)
    assert torch.equal(torch.random.get_rng_state(), before)
