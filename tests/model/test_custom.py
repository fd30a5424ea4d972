"""A user's own mixer or feed-forward: it keeps what its constructor gave it, and computes in its own precision."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from heddle.config import TransformerConfig
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.model.build import materialise
from heddle.model.precision import cast
from heddle.prove.checks import kernels
from heddle.prove.subject import Subject
from tests.model import modules
from tests.refusing import refusal

MIXERS = ["Mean", "Keeping", "Asking", "Tied", "Counting"]


def custom(name: str, **options: Any) -> dict[str, Any]:
    return {"kind": "custom", "target": f"tests.model.modules:{name}", "options": options}


def config(mixer: Any = "Keeping", ffn: Any = None, depth: int = 1, **block: Any) -> TransformerConfig:
    parts = {"mixer": custom(mixer) if isinstance(mixer, str) else mixer, **block}
    parts |= {} if ffn is None else {"ffn": custom(ffn) if isinstance(ffn, str) else ffn}
    return TransformerConfig.of(
        {"vocab_size": 11, "dim": 8, "context": 24, "decoder": {"depth": depth, "block": parts}}
    )


def tokens() -> torch.Tensor:
    return torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(3))


def held(module: nn.Module) -> dict[str, torch.Tensor]:
    """All tensors of a module: weights, buffers, and plain ones."""
    plain = {name: value for name, value in vars(module).items() if isinstance(value, torch.Tensor)}
    return {**dict(module.named_parameters()), **dict(module.named_buffers()), **plain}


def same(first: nn.Module, second: nn.Module) -> bool:
    one, other = held(first), held(second)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def as_written(name: str, seed: int) -> nn.Module:
    """The module as its own constructor makes it, without heddle."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return getattr(modules, name)(8)


@pytest.mark.parametrize("name", MIXERS)
def test_a_mixer_is_what_its_constructor_makes(name: str) -> None:
    assert same(build(config(name), seed=5).decoder.blocks[0].mixer.inner, as_written(name, 5))


def test_a_feed_forward_is_what_its_constructor_makes() -> None:
    model = build(config({"heads": 2}, "Feed"), seed=5)
    assert same(model.decoder.blocks[0].ffn.inner, as_written("Feed", 5))
    assert model(tokens()).hidden.isfinite().all()


def test_what_a_users_module_computes_is_what_it_computes_alone() -> None:
    """The whole model beside the same sum written out: norms before the branches, a norm at the end."""
    model = build(config("Keeping", "Feed"), seed=5).eval()
    block, x = model.decoder.blocks[0], model.embedding(tokens())
    mixer, ffn = as_written("Keeping", 5), block.ffn.inner
    x = x + mixer(nn.functional.layer_norm(x, (8,)), None)
    x = x + ffn(nn.functional.layer_norm(x, (8,)))
    torch.testing.assert_close(model(tokens()).hidden, nn.functional.layer_norm(x, (8,)))


def test_a_seed_gives_its_weights_in_every_layer() -> None:
    state = torch.get_rng_state()
    one, same_seed, other = (build(config(depth=2), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    first, second = (block.mixer.inner for block in one.decoder.blocks)
    assert same(first, same_seed.decoder.blocks[0].mixer.inner)
    assert not torch.equal(first.map.weight, second.map.weight)
    assert not torch.equal(first.map.weight, other.decoder.blocks[0].mixer.inner.map.weight)


@pytest.mark.parametrize("name", MIXERS)
def test_on_meta_all_of_it_is_shapes(name: str) -> None:
    state = torch.get_rng_state()
    shapes = build(config(name, "Feed"), "meta")
    assert torch.equal(torch.get_rng_state(), state)
    for module in (shapes, *shapes.modules()):
        assert all(tensor.is_meta for tensor in held(module).values())
    assert shapes(tokens().to("meta")).hidden.shape == (2, 9, 8)
    real = build(config(name, "Feed"))
    assert {key: (value.shape, value.dtype) for key, value in shapes.state_dict().items()} == {
        key: (value.shape, value.dtype) for key, value in real.state_dict().items()
    }


def test_taking_memory_keeps_what_no_file_holds() -> None:
    model = build(config(), "meta").eval()
    materialise(model, "cpu", seed=5)
    inner = model.decoder.blocks[0].mixer.inner
    assert not inner.training
    assert same(inner, as_written("Keeping", 5).eval())


def test_a_default_device_is_none_of_its_business() -> None:
    with torch.device("meta"):
        model = build(config())
    assert same(model.decoder.blocks[0].mixer.inner, as_written("Keeping", 0))


def test_another_dtype_is_for_real_numbers_alone() -> None:
    wide, narrow = (
        build(config(), dtype=dtype).decoder.blocks[0].mixer.inner for dtype in (torch.float32, torch.bfloat16)
    )
    for name, tensor in held(wide).items():
        actual = held(narrow)[name]
        if tensor.is_floating_point() and name != "scale":  # no module of torch casts a plain tensor
            assert torch.equal(actual, tensor.bfloat16()), name
        else:
            assert torch.equal(actual, tensor), name
    assert narrow.turn.dtype == torch.complex64


BF16 = [
    ("Keeping", None),
    ("Keeping", "Feed"),
    ({"heads": 2}, "Feed"),
    ("Mean", {"kind": "gated", "hidden": 12}),
    ("Still", None),
]


@pytest.mark.parametrize(("mixer", "ffn"), BF16, ids=str)
@pytest.mark.parametrize("tables", [True, False])
def test_a_users_module_stays_in_fp32_beside_bf16(mixer: Any, ffn: Any, tables: bool) -> None:
    wide = build(config(mixer, ffn, depth=2), seed=1).eval()
    narrow = cast(copy.deepcopy(wide), "bf16", tables)
    for name, tensor in narrow.state_dict().items():
        assert ".inner." not in name or torch.equal(tensor, wide.state_dict()[name]), name
    matrices = [name for name, p in narrow.named_parameters() if p.dtype == torch.bfloat16 and "embedding" not in name]
    actual, exact = narrow(tokens()).hidden, wide(tokens()).hidden
    assert actual.dtype == narrow.working_dtype() == (torch.bfloat16 if matrices else torch.float32)
    assert bool(matrices) == (ffn != "Feed" or mixer != "Keeping")
    assert (actual.float() - exact).norm() < 0.02 * exact.norm()


def test_what_has_no_weights_is_given_fp32() -> None:
    model = cast(build(config("Still")), "bf16")
    model(tokens())
    assert set(model.decoder.blocks[0].mixer.inner.seen) == {torch.float32}


def test_blocks_of_users_modules_alone_predict_as_they_were_trained() -> None:
    """Training leaves tables in fp32; if prediction cast them, these blocks would compute on rounded vectors."""
    trained = cast(build(config("Keeping", "Feed")), "bf16", tables=False).eval()
    predicting = cast(build(config("Keeping", "Feed")), "bf16").eval()
    assert torch.equal(trained.logits(trained(tokens()).hidden), predicting.logits(predicting(tokens()).hidden))


def test_it_learns_in_bf16() -> None:
    model = cast(build(config("Keeping", "Feed", depth=2)), "bf16", tables=False).train()
    model.logits(model(tokens()).hidden).float().logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_the_cache_serves_it_in_bf16() -> None:
    model = cast(build(config("Keeping", depth=2)), "bf16").eval()
    cache = model.new_cache(2)
    with torch.no_grad():
        steps = torch.cat([model(tokens()[:, t : t + 1], cache=cache).hidden for t in range(9)], dim=1)
        torch.testing.assert_close(steps, model(tokens()).hidden, rtol=0.05, atol=0.05)


def test_all_kernels_are_compared_on_the_same_module() -> None:
    """The proof builds the model once per kernel; a plain tensor is in no state dict."""
    both = config("Keeping", "Feed", depth=2).override(
        {"decoder.overrides": [{"layers": "1", "block": {"mixer": {"kind": "attention", "heads": 2}}}]}
    )
    compared = list(kernels(Subject(build(both))))
    assert len(compared) >= 3
    for each in compared:
        torch.testing.assert_close(each.actual["output"], each.expected["output"])


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("tests.model.modules:make", "is not a subclass of torch.nn.Module"),
        ("tests.model.modules:Plain", "is not a subclass of torch.nn.Module"),
        ("builtins:print", "is not a subclass of torch.nn.Module"),
        ("os:urandom", "is not a subclass of torch.nn.Module"),
        (
            "tests.model.modules:Missing",
            "has no attribute 'Missing'; it must be importable and callable as Missing(dim",
        ),
        (
            "tests.model.nothing:Mixer",
            "ModuleNotFoundError: No module named 'tests.model.nothing'; it must be importable",
        ),
        (
            "tests.model.modules:Broken",
            "ZeroDivisionError: no module of width 8; it must be importable and callable as",
        ),
    ],
)
@pytest.mark.parametrize("place", ["mixer", "ffn"])
def test_what_is_no_module_is_not_called(target: str, message: str, place: str, device: str) -> None:
    part = {"kind": "custom", "target": target}
    settings = config(part) if place == "mixer" else config({"heads": 2}, part)
    line = refusal(lambda: build(settings, device))
    assert f"target = {target!r}" in line
    assert message in line
    assert modules.CALLED == []


def test_options_that_it_does_not_know() -> None:
    with pytest.raises(HeddleError, match=r"TypeError: .*'windows'"):
        build(config(custom("Keeping", windows=3)))
    inner = build(config(custom("Keeping", taps=5))).decoder.blocks[0].mixer.inner
    assert inner.conv.weight.shape == (8, 8, 5)


GAVE = [
    (custom("Short"), "returned [2, 8, 8]"),
    (custom("Short", width=True), "returned [2, 9, 1]"),
    (custom("Pair"), "returned tuple"),
]


@pytest.mark.parametrize(("mixer", "gave"), GAVE, ids=["length", "width", "tuple"])
@pytest.mark.parametrize("wiring", ["serial", "parallel"])
def test_another_shape_is_refused(mixer: Any, gave: str, wiring: str) -> None:
    """Also where the sum would have spread it over all channels."""
    with pytest.raises(HeddleError) as caught:
        build(config(mixer, wiring=wiring))(tokens())
    assert f"{mixer['target']!r} must return the shape of its input: got x [2, 9, 8], {gave}" in str(caught.value)


def test_a_transformer_made_directly_is_whole() -> None:
    torch.manual_seed(5)
    model = Transformer(config())
    inner = model.decoder.blocks[0].mixer.inner
    assert torch.equal(inner.decay, as_written("Keeping", 0).decay)
    assert torch.equal(inner.mask, torch.tril(torch.ones(64, 64)))
