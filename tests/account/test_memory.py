"""Memory: predicted bytes equal those of real models, caches, optimizers and forward passes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heddle.account import attention_table, cache_size, memory, saved_activations, states, training_bytes, walk
from heddle.account.formulas import flash_bytes, score_bytes
from heddle.account.memory import _tensors, parameter_bytes
from heddle.account.quadratic import doublings
from heddle.config import TrainConfig, TransformerConfig, preset
from heddle.model import Transformer, build
from heddle.model.precision import cast

GIB = 2**30
SMALL = preset("gpt2-small")
TINY = SMALL.override({"vocab_size": 97, "dim": 32, "context": 200, "decoder.depth": 2, "decoder.block.mixer.heads": 4})
VARIANTS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "grouped heads": {"decoder.block.mixer.kv_heads": 2},
    "gated and rms": {"decoder.block.ffn": {"kind": "gated", "hidden": 40}, "decoder.block.norm": {"kind": "rms"}},
    "value width": {"decoder.block.mixer.value_dim": 5},
    "rotary": {"decoder.block.mixer.relative": {}, "decoder.entry.positions": "none"},
    "dropout": {"decoder.block.dropout": 0.1, "decoder.entry.dropout": 0.1},
}


def tokens(batch: int, length: int) -> Tensor:
    return torch.zeros(batch, length, dtype=torch.long)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["gpt2", "grouped heads", "value width"])
def test_the_cache_is_as_large_as_a_real_one(name: str, precision: str) -> None:
    config = TINY.override(VARIANTS[name])
    model = cast(build(config), precision)
    for batch, length in ((1, 1), (2, 64), (3, 65)):
        cache = model.new_cache(batch)
        with torch.no_grad():
            model(tokens(batch, length), cache=cache)
        size = cache_size(config, batch, length, precision)
        assert size.held == cache.bytes() == size.per_token * batch * cache.capacity


def test_the_cache_of_gpt2() -> None:
    size = cache_size(SMALL, 1, 1024, "bf16")
    assert (size.per_token, size.held) == (12 * 2 * 768 * 2, 1024 * 12 * 2 * 768 * 2)
    grouped = SMALL.override({"decoder.block.mixer.kv_heads": 3})
    assert cache_size(grouped, 1, 64, "bf16").per_token == size.per_token // 4


def really_kept(model: Transformer, batch: int, length: int) -> int:
    """Bytes that autograd saves in a real forward pass, each address once, the parameters' left out."""
    own = {tensor.data_ptr() for module in model.modules() for _, tensor in _tensors(module)}
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        hidden = model(tokens(batch, length)).hidden
    assert hidden.requires_grad
    return sum(sizes.values())


@pytest.mark.parametrize("kernel", ["auto", "reference", "plain", "sdpa"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_kept_is_what_a_real_pass_keeps(name: str, precision: str, kernel: str) -> None:
    config = TINY.override({**VARIANTS[name], "decoder.block.mixer.kernel": kernel})
    model = cast(build(config), precision, tables=False)
    assert saved_activations(config, 2, 150, precision).bytes == really_kept(model, 2, 150)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["Mean", "Keeping"])
def test_what_a_users_own_mixer_keeps_is_counted(name: str, precision: str) -> None:
    """Its buffers, and its tensors in ordinary attributes, are part of the model, not of what a pass keeps."""
    mixer = {"kind": "custom", "target": f"tests.model.modules:{name}"}
    block = {"mixer": mixer, "norm": {"kind": "rms"}}
    config = TransformerConfig.of({**TINY.to_dict(), "decoder": {"depth": 1, "block": block}})
    model = cast(build(config), precision, tables=False)
    assert saved_activations(config, 2, 24, precision).bytes == really_kept(model, 2, 24)


class Hiding(nn.Module):
    """A mixer whose tensor is in a list, where nothing can move it to another device."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.map = nn.Linear(dim, dim)
        self.scales = [torch.ones(dim)]

    def forward(self, x: Tensor, layout: object) -> Tensor:
        return self.map(x) * self.scales[0]


def test_what_cannot_run_on_a_cpu_without_memory_is_left_out() -> None:
    mixer = {"kind": "custom", "target": f"{__name__}:Hiding"}
    block = {"mixer": mixer, "ffn": {"kind": "none"}, "norm": {"kind": "none"}}
    config = TransformerConfig.of({**TINY.to_dict(), "decoder": {"depth": 1, "block": block}})
    assert walk(config, 2, 24).by_part()["custom mixer"] == 2 * 2 * 24 * 32**2
    assert saved_activations(config, 2, 24).bytes == 2 * 24 * 8  # the ids, for the gradient of the table


def test_what_is_kept_grows_as_the_kernel_says() -> None:
    one = SMALL.override({"decoder.depth": 1})
    assert (
        saved_activations(one, 1, 8192, "fp32", "sdpa").bytes
        == 2 * saved_activations(one, 1, 4096, "fp32", "sdpa").bytes
    )
    naive = saved_activations(one, 1, 8192, "fp32", "reference").bytes
    assert naive > 3.7 * saved_activations(one, 1, 4096, "fp32", "reference").bytes
    # Scores are kept once and the weights once more, and the mask beside them.
    assert naive > score_bytes(8192, 12)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
@pytest.mark.parametrize("name", ["gpt2", "grouped heads", "gated and rms"])
def test_training_holds_what_the_real_optimizer_holds(name: str, optimizer: str, precision: str) -> None:
    from heddle.train.optimizer import Optimizer

    config = TINY.override(VARIANTS[name])
    model = build(config)
    real = Optimizer(model, TrainConfig.of({"optimizer": optimizer}), 1e-3, precision)
    model(tokens(1, 8)).hidden.sum().backward()
    for parameter in model.parameters():  # positions and tables get whole gradients, as a loss gives them
        assert parameter.grad is not None
    of_copies = sum(w.grad.nbytes for w, _ in real.copies if w.grad is not None)
    real.collect()
    gradients = sum(m.grad.nbytes for m in real.masters.values() if m.grad is not None)
    real.step(1.0, 1.0)
    moments = sum(value.nbytes for key, value in real.state().items() if not key.startswith("step/"))
    expected = states(config, optimizer, precision)
    assert expected.weights == sum(master.nbytes for master in real.masters.values())
    assert expected.copy == sum(working.nbytes for working, _ in real.copies)
    assert expected.gradients == gradients + of_copies
    assert expected.moments == moments
    assert expected.total == expected.weights + expected.copy + expected.gradients + expected.moments


def test_sixteen_bytes_for_each_weight_in_fp32() -> None:
    assert states(SMALL, "adamw", "fp32").total == 16 * 124_439_808


def test_training_bytes_grow_with_everything() -> None:
    adamw = TrainConfig(optimizer="adamw")
    base = training_bytes(TINY, 2, "fp32", adamw)
    assert base > states(TINY, "adamw", "fp32").total + saved_activations(TINY, 2, 200).bytes
    assert training_bytes(TINY, 4, "fp32", adamw) > base
    assert training_bytes(TINY, 2, "fp32", TrainConfig()) < base
    assert training_bytes(SMALL, 2, "fp32", adamw) > base


def test_a_moving_average_holds_the_weights_once_more() -> None:
    """All of them that are trained: of frozen weights there is no average."""
    plain = training_bytes(TINY, 2, "fp32", TrainConfig())
    assert training_bytes(TINY, 2, "fp32", TrainConfig(ema=0.9)) - plain == states(TINY, "muon", "fp32").weights
    frozen = {"groups": [{"parameters": "*", "frozen": True}, {"parameters": "decoder.*", "frozen": False}]}
    model = build(TINY, "meta")
    ema = [training_bytes(TINY, 2, "fp32", TrainConfig.of({**frozen, **more})) for more in ({}, {"ema": 0.9})]
    trained = sum(each.nbytes for name, each in model.named_parameters() if name.startswith("decoder."))
    assert ema[1] - ema[0] == trained


def test_without_momentum_nothing_is_remembered() -> None:
    with_it, without = (
        training_bytes(TINY, 2, "fp32", TrainConfig(optimizer="sgd", momentum=each)) for each in (0.9, 0.0)
    )
    assert with_it - without == states(TINY, "sgd", "fp32").moments == states(TINY, "sgd", "fp32").weights


def test_lengths_of_the_report_are_in_order_and_once() -> None:
    assert doublings(3000) == (1024, 2048, 3000, 4096, 8192, 131_072)
    assert doublings(8192) == (1024, 2048, 4096, 8192, 131_072)


def test_short_rows_and_few_targets_need_less() -> None:
    """Half as long a row keeps what it keeps; with a tenth of the targets, a tenth of the logits is held. The heap takes more."""
    train, wide = TrainConfig(), TINY.override({"vocab_size": 5000})
    whole = training_bytes(wide, 4, "fp32", train)
    assert training_bytes(wide, 4, "fp32", train, 200, 1.0) == whole
    short = training_bytes(wide, 4, "fp32", train, 100)
    kept_less = saved_activations(wide, 4, 200).bytes - saved_activations(wide, 4, 100).bytes
    logits = 4 * 4 * wide.table_rows() + 4 * wide.dim  # of a target
    assert whole - short == pytest.approx(1.45 * kept_less + 1.15 * 400 * logits, abs=2)
    assert whole - training_bytes(wide, 4, "fp32", train, None, 0.1) == pytest.approx(1.15 * 720 * logits, abs=2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_of_a_model_that_predicts(precision: str) -> None:
    model = cast(build(TINY), precision)
    assert parameter_bytes(TINY, precision) == sum(parameter.nbytes for parameter in model.parameters())


@pytest.mark.lecture("C-08", "L2-12", "D-36")
def test_naive_scores() -> None:
    rows = attention_table(SMALL, (1024, 2048, 4096, 8192))
    assert [row.scores for row in rows] == [50_331_648, 201_326_592, 805_306_368, 3_221_225_472]
    assert all(row.scores == score_bytes(row.length, 12) for row in rows)
    (many,) = attention_table(SMALL, (1024,), batch=4)
    assert many.scores == 4 * rows[0].scores


@pytest.mark.lecture("C-08")
def test_scores_are_what_the_reference_kernel_makes() -> None:
    model = build(TINY.override({"decoder.block.mixer.kernel": "reference"}))
    seen: list[int] = []
    scores = model.get_submodule("decoder.blocks.0.mixer.kernel.scores")
    scores.register_forward_hook(lambda m, i, o: seen.append(o.nbytes))
    model(tokens(3, 50))
    (row,) = attention_table(TINY, (50,), batch=3)
    assert seen == [row.scores]


@pytest.mark.lecture("C-09", "L2-16", "D-38")
def test_blockwise_state() -> None:
    rows = attention_table(SMALL, (1024, 2048, 4096, 8192))
    assert [row.flash for row in rows] == [3_244_032, 6_488_064, 12_976_128, 25_952_256]
    assert all(row.flash == flash_bytes(row.length, 768, 12) for row in rows)


@pytest.mark.lecture("C-11", "L2-10")
@pytest.mark.parametrize(("dim", "heads", "scores", "qkvo"), [(4096, 32, 1024, 4), (8192, 64, 2048, 8)])
def test_a_long_context(dim: int, heads: int, scores: int, qkvo: int) -> None:
    config = SMALL.override({"dim": dim, "decoder.depth": 1, "decoder.block.mixer.heads": heads})
    (row,) = attention_table(config, (131_072,), precision="bf16")
    assert row.scores == scores * GIB
    assert row.scores // heads == 32 * GIB
    assert row.qkvo == qkvo * GIB


def test_the_report_is_of_one_pass() -> None:
    held = memory(TINY, 2, 100)
    assert (held.batch, held.length) == (2, 100)
    assert held.logits == {"fp32": 2 * 100 * 97 * 4, "bf16": 2 * 100 * 97 * 2}
    assert [(k.kernel, k.precision) for k in held.activations] == [
        ("plain", "fp32"), ("plain", "bf16"), ("sdpa", "fp32"), ("sdpa", "bf16"),
    ]  # fmt: skip
    assert all(line.difference == 0 for line in held.deck)
    assert 100 in [row.length for row in held.attention]


@pytest.mark.lecture("C-12", "L2-40")
def test_feed_forward_numbers_are_those_of_the_real_layer() -> None:
    config: TransformerConfig = TINY.override({"decoder.block.ffn": {"kind": "gated", "hidden": 40}})
    model = build(config)
    seen: list[int] = []
    up = model.get_submodule("decoder.blocks.0.ffn.up")
    up.register_forward_hook(lambda m, i, o: seen.append(o.numel()))
    model(tokens(2, 30))
    walked = [p.numbers for p in walk(config, 2, 30).products("feed-forward") if p.name.endswith("0.ffn.up")]
    assert seen == walked == [2 * 30 * 40]
