"""What the lessons 7 to 14 rest on: exercises beside the worked examples, and differences of the lectures' resources, computed."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from heddle.account import parameter_count
from heddle.config import AttentionConfig, TransformerConfig, preset
from heddle.lessons.definition import RIGHT, block
from heddle.lessons.edges import EDGES, edges
from heddle.lessons.exercises import exercise
from heddle.lessons.faults import FAULTS
from heddle.lessons.late_exercises import LLAMAS
from heddle.lessons.tasks import COUNT_END, REPEATS, countdown
from heddle.lessons.training import learn
from heddle.lessons.worked import worked, worked_weights
from heddle.look import trace
from heddle.model import Transformer, build
from heddle.nn import Attention, Layout, Setting
from tests.lectures.golden import Case, same
from tests.lessons.pages import pages

LATE = {page.front["lesson"]: page for page in pages() if page.front["lesson"] >= 7}


def test_the_exercises_are_the_worked_examples() -> None:
    dropout, attention, moe, norm = (Case(name) for name in ("dropout", "attention_dropout", "moe", "layernorm"))
    for classic, training in ((True, True), (True, False), (False, True), (False, False)):
        name = f"{'classic' if classic else 'inverted'}_{'train' if training else 'predict'}"
        result = exercise("dropout").right(dropout.inputs["x"], dropout.inputs["mask"], 0.25, training, classic)
        same(result, dropout.outputs[name])
    weights = attention.inputs["S"].masked_fill(torch.ones(3, 3).triu(1) > 0, -torch.inf).softmax(-1)
    same(exercise("dropout").right(weights, attention.inputs["mask"], 0.25, True, False), attention.outputs["dropped"])
    same(exercise("gates").right(moe.inputs["u"] @ moe.weights["R"].T, 2), moe.outputs["gates_deck"])
    result = exercise("annotated norm").right(norm.inputs["x"], norm.weights["gain"], norm.weights["shift"])
    same(result, norm.outputs["annotated_transformer_unbiased_std_plus_eps"])


def test_the_running_softmax_is_the_worked_trace() -> None:
    flash = Case("flash_online_softmax")
    scores = flash.inputs["Q"] @ flash.inputs["K"].T / 2
    for tile in (1, 2):
        for query in range(3):
            m, total, weighted = exercise("running").right(
                scores[query, : query + 1], flash.inputs["V"][: query + 1], tile
            )
            steps = [each for each in flash.outputs[f"trace_block{tile}"] if int(each["query"]) == query]
            assert len(steps) == len(m)
            for place, step in enumerate(steps):
                expected = torch.tensor([step["m"], step["l"], *step["acc"]], dtype=torch.float64)
                same(torch.cat([m[place : place + 1], total[place : place + 1], weighted[place]]), expected)


@pytest.mark.parametrize("name", LLAMAS)
def test_the_closed_form_counts_the_built_model(name: str) -> None:
    assert exercise("llama").right(*LLAMAS[name]) == parameter_count(preset(name))


def test_edges_are_those_of_the_masks() -> None:
    assert "t2→p0" in EDGES
    assert all("t2→p0" not in edges(family) for family in ("encoder", "decoder", "encoder-decoder"))
    assert "s2→e0" in edges("encoder")
    assert "s2→e0" in edges("encoder-decoder")
    assert "s2→e0" not in edges("decoder")
    assert {"s2→p0", "t0→p0"} <= set(edges("decoder")) & set(edges("encoder-decoder"))


def test_the_signs_that_come_again_follow_the_same_neighbours() -> None:
    ids, targets = REPEATS.draw(50, torch.Generator().manual_seed(0))
    for row, target_row in zip(ids.tolist(), targets.tolist(), strict=True):
        assert len(set(row[:10])) == 10
        for place in range(10, 13):
            assert target_row[place] == row[row.index(row[place]) + 1]
        assert set(target_row[:10]) == {-100}


@pytest.mark.parametrize(("padding", "ends"), [("length", True), ("id", False)])
def test_texts_end_only_if_the_end_was_a_target(padding: Any, ends: bool) -> None:
    stack = {"depth": 1, "entry": {"positions": "learned"}, "block": {"mixer": {"heads": 2}}}
    model = build(TransformerConfig.of({"vocab_size": 12, "dim": 32, "context": 12, "decoder": stack}), seed=3)
    assert learn(model, countdown(padding), 60).loss < 0.2
    with torch.no_grad():
        best = model.logits(model(torch.tensor([[2, 1, 0]])).hidden)[0, -1].argmax().item()
    assert (best == COUNT_END) == ends


def bare_attention(dim: int, heads: int, **options: Any) -> Attention:
    """Attention without a mask and biases."""
    config = AttentionConfig.of({"heads": heads, "bias": False, **options})
    return Attention(config, Setting(dim, causal=False)).double()


@pytest.mark.lecture("L1-93")
def test_the_readings_first_attention_has_no_parameters() -> None:
    """softmax(XXᵀ)X is heddle's attention with identities for all matrices and without a scale; its rows are averages."""
    x = 0.4 * torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    attention = bare_attention(6, 1, scale=1.0)
    for matrix in (attention.q, attention.k, attention.v, attention.o):
        matrix.weight.data.copy_(torch.eye(6))
    result = attention(x[None], attention.pattern.scope(Layout.whole(1, 5)))[0]
    torch.testing.assert_close(result, (x @ x.T).softmax(-1) @ x)
    assert bool((result <= x.amax(0) + 1e-12).all())
    assert bool((result >= x.amin(0) - 1e-12).all())


@pytest.mark.lecture("L3-35")
def test_the_illustrated_transformer() -> None:
    """Its five steps, eight heads of 64, are heddle's; its sines and cosines stand in halves, which no product of places sees."""
    generator = torch.Generator().manual_seed(0)
    embedded = torch.randn(2, 512, dtype=torch.float64, generator=generator)  # 1, 2: two words, as vectors
    attention = bare_attention(512, 8)
    for matrix in (attention.q, attention.k, attention.v, attention.o):
        matrix.weight.data.normal_(0, 0.04, generator=generator)
    q, k, v = (m.weight.T.split(64, dim=1) for m in (attention.q, attention.k, attention.v))
    z = [((embedded @ a) @ (embedded @ b).T / 8).softmax(-1) @ (embedded @ c) for a, b, c in zip(q, k, v, strict=True)]
    assert [tuple(each.shape) for each in z] == [(2, 64)] * 8  # 3, 4
    whole = attention(embedded[None], attention.pattern.scope(Layout.whole(1, 2)))[0]
    torch.testing.assert_close(whole, torch.cat(z, 1) @ attention.o.weight.T)  # 5
    table = exercise("sinusoids").right(10, 64)
    halves = torch.cat([table[:, 0::2], table[:, 1::2]], 1)
    assert (table - halves).abs().max() > 1.9
    torch.testing.assert_close(halves @ halves.T, table @ table.T)
    assert "illustrated transformer" in LATE[14].text


def recurrent_translator(seed: int) -> Transformer:
    """Two recurrent networks, of which the second looks at all states of the first."""
    part = {"mixer": {"kind": "recurrent", "cell": "gru"}, "ffn": {"kind": "none"}}
    stacks = {"encoder": {"depth": 1, "block": part}, "decoder": {"depth": 1, "block": {**part, "cross": {"heads": 1}}}}
    sizes = {"vocab_size": 11, "dim": 48, "context": 16, "initial": {"std": 0.15}}
    return build(TransformerConfig.of({**sizes, **stacks}), seed=seed)


@pytest.mark.thorough
@pytest.mark.lecture("L3-37")
def test_attention_before_transformers_lets_a_recurrent_decoder_look_back() -> None:
    """Six digits in reverse: with all states in sight they are right, with the last digit alone only the first is."""
    generator, shares = torch.Generator().manual_seed(0), []
    for first_seen in (0, 5):
        model = recurrent_translator(seed=0)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        for _ in range(200 if first_seen == 0 else 60):
            source = torch.randint(10, (64, 6), generator=generator)
            target = source.flip(1)
            inputs = torch.cat([torch.full((64, 1), 10), target[:, :-1]], 1)
            logits = model.logits(model(inputs, source=source[:, first_seen:]).hidden)
            optimizer.zero_grad()
            F.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()
            optimizer.step()
        shares.append((logits.argmax(-1) == target).double().mean().item())
        if first_seen == 0:
            maps = trace(model, inputs, attention="decoder.0.cross", source=source).attention["decoder.0.cross"]
            weights = maps.weights()[:, 0].mean(0)
    assert shares[0] > 0.9
    assert shares[1] < 0.4
    assert weights.shape == (6, 6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(6))
    assert weights[0].argmax() >= 3  # the first word comes from the end of the source
    assert weights[5].argmax() <= 2


@pytest.mark.lecture("L3-38")
def test_the_first_transformers_block_has_its_norms_after_the_sums() -> None:
    """The block of the second text by J. Jordan is torch's with norm_first=False; heddle's default is the one with True."""
    Z, weights = worked("Z")[0][None], worked_weights()
    mask = torch.nn.Transformer.generate_square_subsequent_mask(3, dtype=torch.float64)
    results = {}
    for norm_first in (False, True):
        layer = torch.nn.TransformerEncoderLayer(
            4, 2, 16, dropout=0.0, activation=F.gelu, batch_first=True, norm_first=norm_first, dtype=torch.float64
        ).eval()
        own = {name.removeprefix("attention."): value for name, value in weights.items()}
        state = {
            "self_attn.in_proj_weight": torch.cat([own[f"{n}.weight"] for n in "qkv"]),
            "self_attn.in_proj_bias": torch.cat([own[f"{n}.bias"] for n in "qkv"]),
            "self_attn.out_proj.weight": own["o.weight"], "self_attn.out_proj.bias": own["o.bias"],
        }  # fmt: skip
        places = {"linear1": "up", "linear2": "down", "norm1": "norm1", "norm2": "norm2"}
        state |= {
            f"{place}.{kind}": own[f"{name}.{kind}"] for place, name in places.items() for kind in ("weight", "bias")
        }
        layer.load_state_dict(state)
        with torch.no_grad():
            results[norm_first] = layer(Z, src_mask=mask)
    torch.testing.assert_close(results[True], block(Z, weights, 2, RIGHT), rtol=0, atol=1e-11)
    after = block(Z, weights, 2, FAULTS["norms after the sums"].steps())
    torch.testing.assert_close(results[False], after, rtol=0, atol=1e-11)
    assert (results[False] - results[True]).abs().max().item() == pytest.approx(6.717, abs=1e-3)
    assert preset("vaswani-base").encoder.block.placement == "post"  # type: ignore[union-attr]
