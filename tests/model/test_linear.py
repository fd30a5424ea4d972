"""Linear layers that choose their library: they compute the same, and nothing else about a model changes."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heddle.config import RecurrentConfig
from heddle.model import Transformer, build
from heddle.model import linear as module
from heddle.model.linear import Choosing, ChoosingHead, ChoosingLinear, use_few_rows
from heddle.native import library as native
from heddle.native.library import MOST_ROWS, library
from heddle.native.products import product
from heddle.weights import load, save
from tests.models import VOCABULARY, config_of

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler")


BLOCKS: dict[str, dict[str, Any]] = {
    "biases": {"kv_heads": 2},
    "no biases": {"kv_heads": 2, "bias": False, "ffn": "gated", "ffn_bias": False},
    "experts": {"kv_heads": 2, "ffn": "moe", "shared": 1},
    "recurrent": {"first": RecurrentConfig(cell="lstm"), "positions": "none"},
}


def made(
    block: str = "biases", family: str = "decoder", dtype: torch.dtype = torch.float32, **head: Any
) -> Transformer:
    config = config_of(family=family, dim=32, pad_vocab_to=8, **BLOCKS[block], **head)
    return build(config.override({"initial": {"std": 0.3, "scale_residual": False}}), seed=3, dtype=dtype).eval()


@torch.no_grad()
def scores(model: Transformer, rows: int = 2, length: int = 5) -> Tensor:
    tokens = torch.arange(rows * length).view(rows, length) % VOCABULARY
    source = None if model.encoder is None else tokens.flip(1)
    return model.logits(model(tokens, source=source).hidden)[..., :VOCABULARY]


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of inputs that this processor's own products multiply."""
    shapes: list[tuple[int, ...]] = []

    def watched(x: Tensor, *arguments: Any, real: Any = product, **keywords: Any) -> Tensor:
        shapes.append(tuple(x.shape))
        return real(x, *arguments, **keywords)

    monkeypatch.setattr(module, "product", watched)
    return shapes


def choosing(model: nn.Module) -> list[Choosing]:
    return [each for each in model.modules() if isinstance(each, Choosing) and each.few_rows]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("head", [{}, {"tied": False, "head_bias": True}, {"head_transform": True, "head_cap": 5.0}])
@pytest.mark.parametrize("rows", [1, MOST_ROWS // 5])
def test_few_rows_are_many_rows(block: str, head: dict[str, Any], rows: int, products: list[tuple[int, ...]]) -> None:
    model = made(block, **head)
    expected = scores(model, rows)
    assert not products
    assert use_few_rows(model) is model
    torch.testing.assert_close(scores(model, rows), expected, atol=2e-5, rtol=1e-5)
    assert len(products) >= len(choosing(model)) > 4
    used = len(products)
    many = scores(model, rows=MOST_ROWS + 1)
    assert torch.equal(many, scores(made(block, **head), rows=MOST_ROWS + 1))  # by the library for many rows
    assert len(products) == used


def test_an_encoder_and_its_decoder() -> None:
    model = made(family="both")
    expected = scores(model)
    assert len(choosing(use_few_rows(model))) == 2 * 6 + 2 * 10 + 1
    torch.testing.assert_close(scores(model), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("fast", [True, False])
def test_bf16(fast: bool, products: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch multiplies bf16 slowly, as it does without units for it, many rows are multiplied here, too."""
    monkeypatch.setattr(native, "multiplies_bf16", lambda: fast)
    model = made(dtype=torch.bfloat16)
    few, many = scores(model), scores(model, rows=MOST_ROWS)
    use_few_rows(model)
    torch.testing.assert_close(scores(model), few, atol=0.1, rtol=0.05)
    assert len(products) == len(choosing(model))
    torch.testing.assert_close(scores(model, rows=MOST_ROWS), many, atol=0.1, rtol=0.05)
    assert len(products) == len(choosing(model)) * (1 if fast else 2)


def test_nothing_that_is_named_or_saved_changes(tmp_path: Path) -> None:
    model = made(tied=False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = [(name, parameter) for name, parameter in model.named_parameters()]
    names = [name for name, _ in model.named_modules()]
    save(model, tmp_path / "plain")
    use_few_rows(model)
    save(model, tmp_path / "choosing")
    after = model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [name for name, _ in model.named_modules()] == names
    assert all(
        name == other and one is same
        for (name, one), (other, same) in zip(parameters, model.named_parameters(), strict=True)
    )
    assert isinstance(model.decoder.blocks[0].mixer.q, nn.Linear)
    for file in sorted((tmp_path / "plain").rglob("*.safetensors")):
        assert file.read_bytes() == (tmp_path / "choosing" / file.relative_to(tmp_path / "plain")).read_bytes()
    assert torch.equal(scores(load(tmp_path / "choosing", "cpu")[0].eval()), scores(made(tied=False)))


def stepped(model: Transformer) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model.logits(model(torch.arange(12)[None] % VOCABULARY).hidden).logsumexp(-1).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def behind_autograd(model: Transformer) -> None:
    """A step that writes to weights without a trace, as some optimizers do."""
    model.logits(model(torch.arange(12)[None] % VOCABULARY).hidden).logsumexp(-1).sum().backward()
    for parameter in model.parameters():
        parameter.data.sub_(parameter.grad, alpha=0.05)
        parameter.grad = None


def written(model: Transformer) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)


def loaded(model: Transformer) -> None:
    model.load_state_dict({name: tensor * 0.5 for name, tensor in model.state_dict().items()})


def assigned(model: Transformer) -> None:
    model.load_state_dict({name: tensor * 0.5 for name, tensor in model.state_dict().items()}, assign=True)


def replaced(model: Transformer) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.5


def quietly_in_training(model: Transformer) -> None:
    model.train()
    for parameter in model.parameters():
        parameter.data.mul_(0.5)
    model.eval()


CHANGES = [stepped, behind_autograd, written, loaded, assigned, replaced, quietly_in_training]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_never_stale(change: Callable[[Transformer], None], tied: bool) -> None:
    """Whatever changes them, the next prediction is that of the weights as they are."""
    model, twin = use_few_rows(made(tied=tied)), made(tied=tied)
    before = scores(model)
    for each in (model, twin):
        change(each)
    expected = scores(twin)
    assert (expected - before).abs().max() > 0.01
    torch.testing.assert_close(scores(model), expected, atol=2e-5, rtol=1e-5)


def test_gradients_are_those_of_the_ordinary_layers(products: list[tuple[int, ...]]) -> None:
    model, twin = use_few_rows(made()), made()
    for each in (model, twin):
        each.logits(each(torch.arange(12)[None] % VOCABULARY).hidden).logsumexp(-1).sum().backward()
    for actual, reference in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(actual.grad, reference.grad)
    assert not products


def test_training_mode_ends_it() -> None:
    model = use_few_rows(made())
    model.eval()
    assert choosing(model)
    model.train()
    assert not choosing(model)
    assert not choosing(use_few_rows(model))


def test_a_copy_has_weights_of_its_own() -> None:
    model = use_few_rows(made())
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.embedding.weight.mul_(0.5)
    assert not torch.equal(scores(twin), scores(model))
    assert torch.equal(scores(copy.deepcopy(model)), scores(model))


def test_hooks_still_see_what_passes() -> None:
    model, seen = use_few_rows(made()), []
    model.decoder.blocks[0].mixer.q.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    scores(model)
    assert seen == [(2, 5, 32)]


def test_what_it_does_not_multiply_goes_to_torch(products: list[tuple[int, ...]]) -> None:
    """Other dtypes, autocast, and weights that do not lie row by row."""
    double = use_few_rows(made(dtype=torch.float64))
    assert scores(double).dtype == torch.float64
    model = use_few_rows(made())
    with torch.autocast("cpu", torch.bfloat16):
        scores(model)
    assert not products
    layer = model.decoder.blocks[0].mixer.q
    expected = scores(model)
    count = len(products)
    layer.weight.data = layer.weight.data.T.contiguous().T
    torch.testing.assert_close(scores(model), expected, atol=2e-5, rtol=1e-5)
    assert len(products) == 2 * count - 1


def test_a_machine_without_a_compiler_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "library", lambda: None)
    assert not choosing(use_few_rows(made()))


def test_a_subclass_computes_what_it_says() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model = made()
    model.decoder.blocks[0].ffn.up.__class__ = Doubled
    expected = scores(model)
    use_few_rows(model)
    assert type(model.decoder.blocks[0].ffn.up) is Doubled
    assert type(model.decoder.blocks[1].ffn.up) is ChoosingLinear
    assert type(model.head) is ChoosingHead
    torch.testing.assert_close(scores(model), expected, atol=2e-5, rtol=1e-5)
