"""Every kind of model is counted: against torch's own counter on real tensors, real caches, and what real passes keep."""

import json
from io import StringIO
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from heddle.account import cache_size, count, counted, flops, parameters, render, saved_activations, states, walk
from heddle.account.forward import forward, prepared, source_for, without_values
from heddle.account.memory import _saved_bytes
from heddle.config import (
    BucketsConfig,
    ConvolutionConfig,
    CustomConfig,
    LayerNormConfig,
    LinearConfig,
    RecurrentConfig,
    TransformerConfig,
    preset,
)
from heddle.config.model import with_kernel
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.model.precision import cast
from tests.account.conftest import of_configs
from tests.models import EVERY, config_of

of_every_kind = of_configs(*EVERY, *range(20))


class Asks(nn.Module):
    """A feed-forward that looks at values, which it cannot without memory."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight if x.sum().item() > 0 else x


class AsksScores(nn.Module):
    """Attention scores that look at values, and multiply."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.eye(heads))

    def forward(self, scores: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        mixed = torch.einsum("gh,bhts->bgts", self.mix, scores)
        return mixed if int((queries - keys).max()) > 0 else scores


class MixesScores(AsksScores):
    """The same, without a look."""

    def forward(self, scores: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        return torch.einsum("gh,bhts->bgts", self.mix, scores)


def scored(name: str) -> TransformerConfig:
    """Attention whose scores, within the text and of a source, go through a user's own module."""
    scores = {"target": f"{__name__}:{name}"}
    return learned(family="both").override({"decoder.block.mixer.scores": scores, "decoder.block.cross.scores": scores})


def learned(**options: Any) -> TransformerConfig:
    """A small model with learned positions, as the lectures' sums assume."""
    return config_of(**{"positions": "learned", "kv_heads": 2, **options})


BUCKETS = BucketsConfig(buckets=8, furthest=16)
NAMED = {
    "decoder": learned(),
    "encoder": learned(family="encoder", head_bias=True, head_transform=True),
    "both": learned(family="both"),
    "two tables": learned(family="both", source_vocab_size=19, tied=False),
    "classifier": learned(family="encoder").override({"head": {"kind": "classifier", "classes": 3, "dense": True}}),
    "embedding": learned(family="encoder").override({"head": {"kind": "embedding", "dense": [{}]}}),
    "no head": learned(family="encoder").override({"head": {"kind": "none"}}),
    "token types": learned(family="encoder", types=2, entry_norm=LayerNormConfig()),
    "buckets": learned(family="both", relative=BUCKETS),
    "windows": learned().override({"decoder.overrides": [{"layers": "0", "block": {"mixer": {"window": 8}}}]}),
    "all windows": learned(window=8),
    "experts": learned(ffn="moe", shared=1, shared_gate=True),
    "convolution": learned(first=ConvolutionConfig(taps=3, dilation=2)),
    "gru": learned(first=RecurrentConfig(cell="gru", hidden=10)),
    "lstm": learned(first=RecurrentConfig(cell="lstm"), ffn="none"),
    "linear": learned(first=LinearConfig(taps=4), ffn="none"),
    "parallel": learned(wiring="parallel_one_norm"),
    "custom": learned(first=CustomConfig(target="tests.models:Own")),
    "asking": learned(ffn=CustomConfig(target=f"{__name__}:Asks")),
}


@of_every_kind
def test_every_parameter_has_a_place(config: TransformerConfig) -> None:
    known = parameters(config)
    assert known.total == sum(parameter.numel() for parameter in build(config).parameters())
    assert known.total == sum(known.parts.values()) == sum(known.groups.values())
    assert known.parts["other"] == 0
    if known.deck:
        assert known.total - known.deck[-1].value == sum(item.count for item in known.difference)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("both", {"cross-attention", "cross-attention biases"}),
        ("two tables", {"source embedding", "cross-attention", "cross-attention biases"}),
        ("encoder", {"head bias", "head transform"}),
        ("classifier", {"pooler", "classifier"}),
        ("embedding", {"pooler"}),
        ("token types", {"token types", "entry norm"}),
        ("buckets", {"relative positions", "cross-attention", "cross-attention biases"}),
        ("experts", {"router", "experts", "shared experts"}),
        ("convolution", {"convolution", "convolution biases"}),
        ("linear", {"convolution"}),
        ("lstm", {"recurrent", "recurrent biases"}),
        ("custom", {"custom mixer"}),
    ],
)
def test_parts_are_named_where_there_are_any(name: str, parts: set[str]) -> None:
    assert parameters(NAMED[name]).parts.keys() - parameters(NAMED["decoder"]).parts.keys() == parts


def moe(**more: object) -> TransformerConfig:
    """The mixture of the lecture's check, in one layer."""
    ffn = {
        "kind": "moe",
        "experts": 4,
        "active": 2,
        "shared": 1,
        "expert": {"kind": "mlp", "hidden": 32, "bias": False},
    }
    block = {"mixer": {"heads": 2}, "ffn": {**ffn, **more}}
    data = {"vocab_size": 5, "dim": 8, "context": 6, "decoder": {"depth": 1, "block": block}}
    return TransformerConfig.of(data)


@pytest.mark.lecture("L2-68", "C-16")
def test_a_token_goes_through_a_part_of_the_experts() -> None:
    known = parameters(moe())
    experts = known.parts["router"] + known.parts["experts"] + known.parts["shared experts"]
    assert experts == 2592
    assert known.total - known.active == 2592 - 1568
    assert known.parts["shared experts"] == known.parts["experts"] // 4 == 512


@pytest.mark.lecture("L2-68", "L2-67")
def test_only_the_chosen_experts_cost() -> None:
    few, many = (walk(moe(experts=number), 1, 6).by_part() for number in (4, 16))
    assert few["experts"] == many["experts"] == 2 * 6 * 2 * 512
    assert few["shared experts"] == 2 * 6 * 512
    assert (few["router"], many["router"]) == (2 * 6 * 8 * 4, 2 * 6 * 8 * 16)


@of_configs(*EVERY[1::2], *range(10, 20))
def test_equals_torchs_counter_on_real_tensors(config: TransformerConfig) -> None:
    """By their definitions: attention as `reference`, experts in a `loop`, recurrent layers token by token."""
    model = build(without_values(with_kernel(config, "reference"), (), dispatch="loop", balance=0.0)).eval()
    for batch, length in ((3, 11), (2, 1)):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            forward(model, batch, length)
        assert sum(walk(config, batch, length).by_part().values()) == counter.get_total_flops() > 0


@pytest.mark.parametrize("name", NAMED)
def test_without_memory_the_counter_says_the_same(name: str) -> None:
    cost = flops(NAMED[name], 2, 24)
    says = dict(cost.counted)
    says.pop("plain", None)
    assert set(says.values()) <= {cost.forward}
    if name == "custom":  # its mask has no gradient, so the backward pass is not twice the forward pass
        return
    # The state before the first token has no gradient: one product less in each recurrent layer.
    layers = [block.mixer for block in NAMED[name].last()[1].blocks if isinstance(block.mixer, RecurrentConfig)]
    gates = {"gru": 3, "lstm": 4}
    less = sum(2 * 2 * gates[mixer.cell] * mixer.width(16) ** 2 for mixer in layers)
    assert cost.training - less == counted(NAMED[name], 2, 24, "reference", training=True)


def tokens(batch: int, length: int) -> Tensor:
    return torch.zeros(batch, length, dtype=torch.long)


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, "fp32") for name, config in NAMED.items() if config.decoder is not None),
        *((name, "bf16") for name in ("both", "windows", "convolution", "gru", "lstm", "linear")),  # each kind of state
    ],
)
def test_a_cache_is_as_large_as_a_real_one(name: str, precision: str) -> None:
    model = cast(build(NAMED[name]), precision).eval()
    for batch, length in ((1, 1), (3, 37), (2, 70)):
        with torch.no_grad():
            cache = model.new_cache(batch)
            model(tokens(batch, length), source=source_for(model, tokens(batch, length)), cache=cache)
        size = cache_size(NAMED[name], batch, length, precision)
        assert size.held == cache.bytes()
        assert size.held == batch * (size.per_token * cache.capacity + size.bounded + size.memory)


def test_what_is_bounded_stays_as_it_is() -> None:
    for name in ("all windows", "gru", "lstm", "convolution", "linear"):
        short, long = (cache_size(NAMED[name], 1, length) for length in (20, 40))
        assert short.held == long.held == short.bounded > 0
        assert short.per_token == 0
    half = cache_size(NAMED["windows"], 1, 40)
    assert 2 * half.per_token == cache_size(NAMED["decoder"], 1, 40).per_token
    assert half.bounded == 9 * half.per_token  # eight tokens, and a slot for what need not be kept


def test_an_encoder_has_no_cache() -> None:
    assert count(NAMED["encoder"], length=8).memory.cache == ()
    with pytest.raises(HeddleError, match="cannot use a cache"):
        cache_size(NAMED["encoder"], 1, 8)


def really_kept(model: Transformer, batch: int, length: int) -> int:
    """Bytes that autograd saves in a real forward pass, each storage once, the parameters' left out."""
    own = {parameter.data_ptr() for parameter in model.parameters()}
    sizes: dict[int, int] = {}
    alive = []

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        hidden = model(tokens(batch, length), None, source_for(model, tokens(batch, length))).hidden
    assert hidden.requires_grad
    return sum(sizes.values())


@of_configs(*EVERY[::2], *range(10))
def test_what_is_kept_is_what_a_real_pass_keeps(config: TransformerConfig) -> None:
    own = any(getattr(block.mixer, "scores", None) for stack in config.stacks().values() for block in stack.blocks)
    kernel = "reference" if own else "plain"  # no other supports custom scores
    model = build(without_values(with_kernel(config, kernel), ()))
    predicted = _saved_bytes(prepared(config, 7, kernel), 2, 7, "fp32")  # of fewer layers and tokens: `test_repeats`
    assert predicted == really_kept(cast(model, "fp32", tables=False), 2, 7)


@pytest.mark.parametrize("name", NAMED)
def test_what_is_kept_in_bf16_is_what_a_real_pass_keeps(name: str) -> None:
    """Also in a recurrent layer, whose state is wider."""
    model = cast(build(without_values(NAMED[name], "asking" if name != "asking" else None)), "bf16", tables=False)
    assert saved_activations(NAMED[name], 2, 33, "bf16").bytes == really_kept(model, 2, 33)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("name", ["both", "buckets", "experts", "convolution", "lstm", "custom"])
def test_training_holds_what_the_real_optimizer_holds(name: str, optimizer: str, precision: str) -> None:
    from heddle.config import TrainConfig
    from heddle.train.optimizer import Optimizer

    model = build(NAMED[name])
    made = Optimizer(model, TrainConfig.of({"optimizer": optimizer}), 1e-3, precision)
    for working in model.parameters():
        working.grad = torch.zeros_like(working) if working.requires_grad else None
    of_copies = sum(w.grad.nbytes for w, _ in made.copies if w.grad is not None)
    made.collect()
    gradients = sum(m.grad.nbytes for m in made.masters.values() if m.grad is not None)
    made.step(1.0, 1.0)
    moments = sum(value.nbytes for key, value in made.state().items() if not key.startswith("step/"))
    expected = states(NAMED[name], optimizer, precision)
    assert expected.weights == sum(master.nbytes for master in made.masters.values())
    assert expected.copy == sum(working.nbytes for working, _ in made.copies)
    assert (expected.gradients, expected.moments) == (gradients + of_copies, moments)


@pytest.mark.parametrize("name", ["both", "classifier", "no head", "experts", "windows", "lstm", "linear"])
def test_a_whole_report_can_be_shown_and_written(name: str) -> None:
    report = count(NAMED[name], length=4, name=name)
    data = json.loads(json.dumps(report.to_dict()))
    stacks = {"encoder": NAMED[name].encoder, "decoder": NAMED[name].decoder}
    assert data["family"] == "-".join(stack for stack, config in stacks.items() if config is not None)
    page = StringIO()
    Console(width=150, file=page).print(*render(report), sep="\n")
    assert f"{report.parameters.total:,} parameters" in page.getvalue()
    # The lectures' sums stand there exactly where they speak of such a model; elsewhere a note says why not.
    assert bool(report.parameters.deck) == bool(report.flops.deck) == bool(report.memory.deck)
    assert any("sums assume one stack" in note for note in report.notes) == (not report.parameters.deck)


def test_which_models_the_lectures_sums_speak_of() -> None:
    spoken = {name for name, config in NAMED.items() if parameters(config).deck}
    assert spoken == {"decoder", "encoder", "token types", "windows", "all windows", "parallel"}


def test_what_cannot_run_without_memory_is_named() -> None:
    report = count(NAMED["asking"], length=8)
    assert report.flops.unknown == ("decoder.blocks.0.ffn", "decoder.blocks.1.ffn")
    assert any("decoder.blocks.0.ffn" in note and "cannot run on the meta device" in note for note in report.notes)
    assert report.parameters.parts["custom feed-forward"] == 2 * 16**2
    assert report.flops.parts["projections"] > 0


def test_own_scores_that_cannot_run_without_memory_are_named() -> None:
    report = count(scored("AsksScores"), length=8)
    names = [f"decoder.blocks.{layer}.{place}.scores" for layer in (0, 1) for place in ("mixer", "cross")]
    assert report.flops.unknown == tuple(names)
    (note,) = (note for note in report.notes if "cannot run on the meta device" in note)
    assert all(name in note for name in names)
    passed = saved_activations(scored("AsksScores"), 2, 8).bytes  # a run's plan needs it
    assert passed > saved_activations(learned(family="both"), 2, 8, kernel="reference").bytes


def test_products_of_own_scores_are_counted() -> None:
    """The heads are mixed for every pair of tokens: the lectures' scores, plus a product of H by H for each pair."""
    (plain, own) = (walk(config, 2, 8).by_part() for config in (learned(family="both"), scored("MixesScores")))
    heads = scored("MixesScores").decoder.block.mixer.heads
    assert own["scores"] - plain["scores"] == 2 * 2 * 2 * (
        2 * 8 * 8 * heads * heads
    )  # layers, attentions; multiply, add
    assert not walk(scored("MixesScores"), 2, 8).unknown()
    assert counted(scored("MixesScores"), 2, 8, "reference") == sum(own.values())


def test_a_recurrent_layer_sees_the_first_token_and_a_short_window_does_not() -> None:
    assert flops(NAMED["gru"], 1, 40).path == 1
    assert flops(NAMED["all windows"], 1, 40).path is None
    assert flops(NAMED["all windows"], 1, 15).path == 2
    assert flops(NAMED["windows"], 1, 40).path == 2


def test_the_window_preset_remembers_little() -> None:
    size = cache_size(preset("laptop-window"), 1, 256)
    assert size.per_token * 4 == cache_size(preset("laptop-tiny"), 1, 64).per_token
    assert size.bounded == 3 * 65 * size.per_token
