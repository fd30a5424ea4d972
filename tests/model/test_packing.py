"""Prepacked weights: they compute the same, are never stale, and are seen by nobody else."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heddle.config import RecurrentConfig
from heddle.model import Transformer, build, packing
from heddle.model.packing import Pack, Prepacked, PrepackedHead, PrepackedLinear, pack, packable, unpack
from heddle.weights import load, save
from tests.models import VOCABULARY, config_of

needs_packing = pytest.mark.skipif(not packable(), reason="this torch or machine cannot pack weights")
pytestmark = needs_packing


BLOCKS: dict[str, dict[str, Any]] = {
    "biases": {"kv_heads": 2},
    "no biases": {"kv_heads": 2, "bias": False, "ffn": "gated", "ffn_bias": False},
    "experts": {"kv_heads": 2, "ffn": "moe", "shared": 1},
    "recurrent": {"first": RecurrentConfig(cell="lstm"), "positions": "none"},
}


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models are worth packing here."""
    monkeypatch.setattr(packing, "LEAST_MODEL", 0)
    monkeypatch.setattr(packing, "LEAST_WEIGHT", 0)


def always(plain: Any, laid: Any) -> tuple[bool, ...]:
    return (True, True, True)


def never(plain: Any, laid: Any) -> tuple[bool, ...]:
    return (False, False, False)


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


def packs(model: nn.Module) -> list[Pack]:
    return [module.pack for module in model.modules() if isinstance(module, Prepacked) and module.pack is not None]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("head", [{}, {"tied": False, "head_bias": True}, {"head_transform": True, "head_cap": 5.0}])
@pytest.mark.parametrize("rows", [1, 30])
def test_packed_is_unpacked(block: str, head: dict[str, Any], rows: int) -> None:
    model = made(block, **head)
    expected = scores(model, rows)
    assert pack(model, timing=always) is model
    used = 0

    def watched(x: Tensor, laid: Tensor | None, bias: Tensor | None, real: Any = packing.onednn) -> Tensor:  # type: ignore[attr-defined]
        nonlocal used
        used += 1
        return real(x, laid, bias)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "onednn", watched)
        torch.testing.assert_close(scores(model, rows), expected, atol=2e-5, rtol=1e-5)
    assert used >= len(packs(model)) > 4


def test_an_encoder_and_its_decoder() -> None:
    model = made(family="both")
    expected = scores(model)
    pack(model, timing=always)
    assert len(packs(model)) == 2 * 6 + 2 * 10 + 1
    torch.testing.assert_close(scores(model), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.skipif(torch.bfloat16 not in packable(), reason="no bf16 units")
def test_bf16() -> None:
    model = made(dtype=torch.bfloat16)
    expected = scores(model)
    pack(model, timing=always)
    assert packs(model)
    torch.testing.assert_close(scores(model), expected, atol=0.1, rtol=0.05)


def test_nothing_that_is_named_or_saved_changes(tmp_path: Path) -> None:
    model = made(tied=False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = [(name, parameter) for name, parameter in model.named_parameters()]
    names = [name for name, _ in model.named_modules()]
    save(model, tmp_path / "plain")
    pack(model, timing=always)
    save(model, tmp_path / "packed")
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
        assert file.read_bytes() == (tmp_path / "packed" / file.relative_to(tmp_path / "plain")).read_bytes()
    assert torch.equal(scores(load(tmp_path / "packed", "cpu")[0].eval()), scores(made(tied=False)))


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
    """Whatever changes them, the next prediction is that of the weights as they are, packed again or not."""
    model, twin = made(tied=tied), made(tied=tied)
    pack(model, timing=always)
    before = scores(model)
    for each in (model, twin):
        change(each)
    expected = scores(twin)
    assert (expected - before).abs().max() > 0.01
    torch.testing.assert_close(scores(model), expected, atol=2e-5, rtol=1e-5)
    assert not packs(model)  # and the memory is given back
    pack(model, timing=always)
    assert packs(model)
    torch.testing.assert_close(scores(model), expected, atol=2e-5, rtol=1e-5)


def test_vectors_that_change_in_place_are_read_again() -> None:
    layer = pack(made(), timing=always).decoder.blocks[0].mixer.q
    with torch.inference_mode():
        x = torch.randn(1, 32)
        once = layer(x)
        torch.testing.assert_close(layer(x.mul_(2)) - layer.bias, 2 * (once - layer.bias), atol=2e-5, rtol=1e-5)


def test_gradients_are_those_of_the_real_weights() -> None:
    model, twin = made(), made()
    pack(model, timing=always)
    for each in (model, twin):
        each.logits(each(torch.arange(12)[None] % VOCABULARY).hidden).logsumexp(-1).sum().backward()
    for actual, reference in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(actual.grad, reference.grad)


def test_training_mode_drops_the_packs() -> None:
    model = pack(made(), timing=always)
    model.eval()
    assert packs(model)
    model.train()
    assert not packs(model)


def test_a_copy_has_weights_of_its_own() -> None:
    model = pack(made(), timing=always)
    twin = copy.deepcopy(model)
    assert not packs(twin)
    assert packs(model)
    with torch.no_grad():
        twin.embedding.weight.mul_(0.5)
    assert not torch.equal(scores(twin), scores(model))
    pack(twin, timing=always)
    torch.testing.assert_close(scores(copy.deepcopy(model)), scores(model), atol=2e-5, rtol=1e-5)


def test_hooks_still_see_what_passes() -> None:
    model, seen = pack(made(), timing=always), []
    model.decoder.blocks[0].mixer.q.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    scores(model)
    assert seen == [(2, 5, 32)]


def test_what_is_not_faster_is_not_packed() -> None:
    model = made()
    expected = scores(model)
    calls = 0

    def watched(plain: Any, laid: Any) -> tuple[bool, ...]:
        nonlocal calls
        calls += 1
        return never(plain, laid)

    pack(model, timing=watched)
    shapes = calls
    assert shapes == len({pack.weight.shape for pack in packs(model)}) > 1
    assert all(pack.prepacked is None for pack in packs(model))
    assert torch.equal(scores(model), expected)
    pack(model, timing=watched)
    assert calls == shapes  # it is not timed again


@pytest.mark.parametrize(("rows", "served"), [(1, True), (2, False), (8, False), (9, True), (500, True)])
def test_each_number_of_rows_has_its_own_answer(rows: int, served: bool) -> None:
    model = pack(made(), timing=lambda plain, laid: (True, False, True))
    assert all(pack.serves(rows) is served for pack in packs(model))


@pytest.mark.parametrize("packed_is_slower", [True, False])
def test_the_faster_side_wins(packed_is_slower: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real timing, with a clock on which one side takes twice as long."""
    weights = [torch.randn(8, 4)] * 2
    laid = [packing.prepacked_weight(weight) for weight in weights]
    now = 0.0

    def slowed(call: Any, seconds: float) -> Any:
        def product(*args: Any) -> Tensor:
            nonlocal now
            now += seconds
            return call(*args)

        return product

    monkeypatch.setattr(packing.time, "perf_counter", lambda: now)  # type: ignore[attr-defined]
    packed = slowed(packing.onednn, 0.002 if packed_is_slower else 0.001)  # type: ignore[attr-defined]
    plain = slowed(torch.nn.functional.linear, 0.001 if packed_is_slower else 0.002)
    monkeypatch.setattr(packing, "onednn", packed)
    monkeypatch.setattr(packing.F, "linear", plain)  # type: ignore[attr-defined]
    assert packing.faster_rows(weights, laid) == (not packed_is_slower,) * 3


def test_no_room_no_packs() -> None:
    model = made()
    needed = sum(parameter.nbytes for name, parameter in model.named_parameters() if parameter.dim() == 2)
    assert not packs(pack(model, memory=needed // 2, timing=always))
    assert packs(pack(model, memory=2 * needed, timing=always))
    unpack(model)
    assert not packs(model)


def test_small_models_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LEAST_MODEL", 1 << 20)
    model = pack(made(), timing=always)
    assert not any(isinstance(module, Prepacked) for module in model.modules())


def test_meta_and_other_dtypes_are_left_alone() -> None:
    config = made().config
    for model in (build(config, device="meta"), build(config, dtype=torch.float64)):
        pack(model, timing=always)
        assert not any(isinstance(module, Prepacked) for module in model.modules())
    with torch.inference_mode():
        model = build(config)  # such weights do not count how often they are written to
    assert not packs(pack(model, timing=always))


def test_nothing_happens_where_torch_cannot_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert packable() == ()
    assert not packs(pack(made(), timing=always))


def test_a_subclass_computes_what_it_says() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model = made()
    model.decoder.blocks[0].ffn.up.__class__ = Doubled
    expected = scores(model)
    pack(model, timing=always)
    assert type(model.decoder.blocks[0].ffn.up) is Doubled
    assert type(model.decoder.blocks[1].ffn.up) is PrepackedLinear
    assert type(model.head) is PrepackedHead
    torch.testing.assert_close(scores(model), expected, atol=2e-5, rtol=1e-5)
