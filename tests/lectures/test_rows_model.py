"""Whole models: what stands for f, one name for each option, words and vectors, heads, experts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import heddle
from heddle import nn as parts
from heddle.config import MLPConfig, TransformerConfig
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.nn import Attention, Causal, Layout, Pattern, Setting
from heddle.nn.block import WIRINGS
from heddle.nn.moe import MoE

ROOT = Path(__file__).parents[2]
TEXT = "the warp is held and the weft is thrown. " * 40
ATTENTION = {"kind": "attention", "heads": 2}
SIZES = {"vocab_size": 30, "dim": 16, "context": 16}


def config_of(block: dict[str, Any], stack: str = "decoder", **more: Any) -> TransformerConfig:
    sizes = {**SIZES, **{key: more.pop(key) for key in (*SIZES, "head", "initial") if key in more}}
    return TransformerConfig.of({**sizes, stack: {"depth": 2, "block": block, **more}})


MIXERS = {
    "transformer": ATTENTION,
    "convolution": {"kind": "convolution", "taps": 3},
    "recurrent": {"kind": "recurrent"},
    "linear": {"kind": "linear", "taps": 4},
    "own": {"kind": "custom", "target": "tests.lectures.own:Averaging"},
}


@pytest.mark.lecture("L0-04", "L0-07")
@pytest.mark.parametrize("family", MIXERS)
def test_any_function_of_the_past_trains_is_kept_and_writes(family: str, tmp_path: Path) -> None:
    tokenizer = heddle.train_tokenizer("characters", [TEXT])
    block = {"mixer": MIXERS[family]} | ({"ffn": {"kind": "none"}} if family == "linear" else {})
    model = heddle.build(config_of(block, vocab_size=tokenizer.vocab_size))
    losses = heddle.fit(model, tokenizer, TEXT, steps=20, learning_rate=1e-2).losses
    assert losses[-1] < losses[0] - 0.3
    written = heddle.generate_text(model, tokenizer, "the w", max_tokens=8, temperature=0)
    heddle.save(model, tmp_path / "run", tokenizer)
    again, words = heddle.load(tmp_path / "run")
    assert heddle.generate_text(again, words, "the w", max_tokens=8, temperature=0) == written != ""


def random(model: Transformer, seed: int = 0) -> Transformer:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.copy_(noise / parameter.shape[-1] ** 0.5)
    return model.eval()


@pytest.mark.lecture("L0-96")
def test_one_pass_costs_less_than_a_tenth_of_a_pass_for_each_prefix() -> None:
    """Already of every fourth prefix of 128 tokens, counted by torch; and it says the same after each."""
    block = {"mixer": {"kind": "attention", "heads": 4}}
    model = random(build(config_of(block, dim=64, context=128, entry={"positions": "learned"}), dtype=torch.float64))
    tokens = torch.randint(30, (1, 128))
    with torch.no_grad():
        with FlopCounterMode(display=False) as once:
            together = model.logits(model(tokens).hidden)[0]
        with FlopCounterMode(display=False) as often:
            alone = [model.logits(model(tokens[:, :length]).hidden[0, -1]) for length in range(4, 129, 4)]
    torch.testing.assert_close(together[3::4], torch.stack(alone), rtol=0, atol=1e-11)
    assert 0 < 10 * once.get_total_flops() < often.get_total_flops()


SPELLINGS = {
    "depth": ("L", "n_layer", "n_layers"),
    "dim": ("D", "d_model", "n_embd", "h_dim"),
    "heads": ("N", "n_heads", "n_head"),
    "vocab_size": ("V", "n_vocab"),
    "context": ("T", "S", "n_ctx", "block_size"),
}


@pytest.mark.lecture("L1-60", "D-50")
@pytest.mark.parametrize(("ours", "alias"), [(ours, alias) for ours, names in SPELLINGS.items() for alias in names])
def test_every_spelling_of_a_size_is_the_same_config_and_two_may_not_contradict(ours: str, alias: str) -> None:
    places = {"depth": "decoder", "heads": "decoder.block.mixer"}
    names = {name: name for name in SPELLINGS} | {ours: alias}

    def config(more: dict[str, int]) -> TransformerConfig:
        sizes = {names["dim"]: 8, names["vocab_size"]: 11, names["context"]: 16, "decoder": {
            names["depth"]: 2, "block": {"mixer": {"kind": "attention", names["heads"]: 2}}}}  # fmt: skip
        table: Any = sizes
        for key in filter(None, places.get(ours, "").split(".")):
            table = table[key]
        table.update(more)
        return TransformerConfig.of(sizes)

    written = config({})
    usual = {"dim": 8, "vocab_size": 11, "context": 16}
    assert written == TransformerConfig.of(
        {**usual, "decoder": {"depth": 2, "block": {"mixer": {"kind": "attention", "heads": 2}}}}
    )
    assert alias not in written.to_json().replace('"', " ").split(), "written with heddle's names alone"
    same = {"depth": 2, "dim": 8, "heads": 2, "vocab_size": 11, "context": 16}[ours]
    assert config({ours: same}) == written
    with pytest.raises(HeddleError, match=f"{alias} = {same} and {ours} = 4 contradict each other"):
        config({ours: 4})


@pytest.mark.lecture("L3-10", "L0-23")
def test_token_vectors_are_learned_and_may_be_given_and_kept() -> None:
    """Learned by default; any table of the right shape can be put in, and kept as it is."""
    model = build(config_of({"mixer": ATTENTION}, head={"tied": False}))
    vectors = torch.randn(30, 16)
    model.embedding.load_state_dict({"weight": vectors})
    for frozen in (False, True):
        model.embedding.weight.requires_grad_(not frozen)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], weight_decay=0.0)
        model.zero_grad()
        model.logits(model(torch.tensor([[1, 2, 3]])).hidden)[..., 0].sum().backward()
        before = model.embedding.weight.detach().clone()
        optimizer.step()
        changed = (model.embedding.weight != before).any(1).nonzero()[:, 0].tolist()
        assert changed == ([] if frozen else [1, 2, 3])
    one_hot = F.one_hot(torch.tensor([4]), 30).float() @ model.embedding.weight
    assert torch.equal(model.embedding(torch.tensor([[4]]))[0], one_hot)


@pytest.mark.lecture("L3-12")
def test_a_word_at_two_places_is_one_vector_and_two_inputs() -> None:
    texts = ["you are walking very slowly", "My cat seems to like you"]
    tokenizer = heddle.train_tokenizer("words", texts)
    first, second = (tokenizer.encode(text) for text in texts)
    assert first[0] == second[5]
    assert len(set(first + second)) == len(first + second) - 1
    sizes = {"vocab_size": tokenizer.vocab_size, "entry": {"positions": "learned"}}
    model = random(build(config_of({"mixer": ATTENTION}, **sizes), dtype=torch.float64))
    words = [model.embedding(torch.tensor([ids])) for ids in (first, second)]
    assert torch.equal(words[0][0, 0], words[1][0, 5])
    inputs = [model.decoder.entry(each, Layout.whole(1, each.shape[1])) for each in words]
    places = model.decoder.entry.positions.weight
    torch.testing.assert_close(inputs[0][0, 0] - inputs[1][0, 5], places[0] - places[5], rtol=0, atol=1e-15)
    assert not torch.equal(places[0], places[5])


@pytest.mark.lecture("L3-14")
def test_the_four_building_blocks_stand_alone() -> None:
    x, layout = torch.randn(1, 3, 8), Layout.whole(1, 3)
    attention = WIRINGS["serial"](config_of({"mixer": ATTENTION}).decoder.block, Setting(8)).mixer
    assert isinstance(attention, parts.Attention)
    assert attention(x, Pattern(Causal(), kernel="auto").scope(layout, layout)).shape == x.shape
    assert parts.MLP(MLPConfig(hidden=32), Setting(8))(x).hidden.shape == x.shape
    norm = parts.LayerNorm(8)
    norm.load_state_dict({"weight": torch.ones(8), "bias": torch.zeros(8)})
    torch.testing.assert_close(norm(x), F.layer_norm(x, (8,)))
    residual = parts.Residual("none", torch.nn.Identity)
    torch.testing.assert_close(residual.leave(x, residual.enter(x), x), 2 * x)


@pytest.mark.lecture("L2-55")
def test_a_head_on_fixed_features_is_logistic_regression() -> None:
    """Its loss is convex: from two beginnings it comes to the same one, that of the same function without the model."""
    model = random(build(config_of({"mixer": ATTENTION}, head={"tied": False}), dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    tokens, targets = torch.randint(30, (2, 8, 16), generator=generator)
    features = model(tokens).hidden.detach()

    def fitted(seed: int, head: Tensor, scores: Callable[[Tensor], Tensor]) -> float:
        with torch.no_grad():
            head.copy_(torch.randn(head.shape, generator=torch.Generator().manual_seed(seed), dtype=head.dtype))
        optimizer = torch.optim.LBFGS([head], max_iter=300, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            surprise = F.cross_entropy(scores(features).flatten(0, 1), targets.flatten())
            surprise = surprise + 1e-3 * head.square().sum()  # without it the best weights may be infinitely large
            surprise.backward()
            return surprise

        optimizer.step(loss)
        return loss().item()

    first, second = (fitted(seed, model.head_weight(), model.logits) for seed in (1, 2))
    matrix = torch.zeros(30, 16, dtype=torch.float64, requires_grad=True)
    alone = fitted(3, matrix, lambda features: features @ matrix.T)
    assert abs(first - second) < 1e-4
    assert abs(first - alone) < 1e-4
    assert first < torch.log(torch.tensor(30.0)).item()


@pytest.mark.lecture("D-26")
@pytest.mark.parametrize("tied", [True, False])
def test_scores_have_a_bias_only_when_asked_to(tied: bool) -> None:
    config = config_of({"mixer": ATTENTION}, head={"tied": tied})
    assert "head.bias" not in dict(build(config, "meta").named_parameters())
    model = random(build(config.override({"head.bias": True}), dtype=torch.float64))
    hidden = model(torch.tensor([[1, 2, 3]])).hidden
    torch.testing.assert_close(model.logits(hidden), hidden @ model.head_weight().T + model.head.bias)


MOE = {"kind": "moe", "experts": 4, "active": 2, "expert": {"kind": "mlp", "hidden": 12}}


@pytest.mark.lecture("L2-65")
def test_experts_leave_attention_as_it_is() -> None:
    def attention(ffn: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        model = build(config_of({"mixer": ATTENTION, "ffn": ffn}), "meta")
        return {name: tuple(each.shape) for name, each in model.named_parameters() if ".mixer" in name}

    assert attention(MOE) == attention({"kind": "mlp"})


@pytest.mark.lecture("L2-70", "L2-76", "D-22")
@pytest.mark.parametrize("skip", ["block", "internal"])
def test_a_router_reads_the_normed_state_and_one_skip_is_added(skip: str) -> None:
    block = WIRINGS["serial"](
        config_of({"mixer": ATTENTION, "ffn": {**MOE, "skip": skip}}).decoder.block, Setting(16)
    ).double()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter)
    assert isinstance(block.ffn, MoE)
    seen: dict[str, Tensor] = {}
    block.ffn.router.register_forward_hook(lambda module, inputs, output: seen.update(routed=inputs[0]))
    block.ffn_residual.before.register_forward_hook(lambda module, inputs, output: seen.update(z=inputs[0], u=output))
    layout = Layout.whole(1, 5)
    scope, x = Pattern(Causal(), kernel="auto").scope(layout, layout), torch.randn(1, 5, 16, dtype=torch.float64)
    block(x, scope)
    assert torch.equal(seen["routed"], seen["u"])
    for weights in (block.ffn.experts.up, block.ffn.experts.down):
        torch.nn.init.zeros_(weights)
    for bias in (block.ffn.experts.up_bias, block.ffn.experts.down_bias):
        if bias is not None:
            torch.nn.init.zeros_(bias)
    assert torch.equal(block(x, scope)[0], seen["z" if skip == "block" else "u"])


@pytest.mark.lecture("L0-97", "D-15")
def test_papers_are_cited_by_their_authors() -> None:
    """GPT-2 is by Radford et al.; the name that deck 000 prints belongs to another paper."""
    written = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))}
    for page in ("README.md", "docs/lectures.md"):
        assert "Radford et al. 2019" in written[ROOT / page]
    assert not [path for path, text in written.items() if "Rashed" in text]
    assert "Vaswani et al. 2017" in str(Attention.__doc__)
    assert "Srivastava et al. 2014" in str(parts.Dropout.__doc__)
