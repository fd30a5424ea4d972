"""Scores of heads: the worked examples' numbers, heads planted by hand, and a text of any length."""

from importlib import import_module
from math import log
from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.config import ConvolutionConfig, NoNormConfig
from heddle.errors import HeddleError
from heddle.look import attention, find_heads, received, score_heads, strongest, trace
from heddle.look.heads import FIELDS, HeadScores, previous_occurrences
from heddle.model import Transformer
from tests.look.test_attention import golden
from tests.models import VOCABULARY, awake, config_of, tokens_of

PLACES = 24
heads = import_module("heddle.look.heads")


@pytest.mark.lecture("L1-37")
def test_diagonal_of_the_worked_example() -> None:
    scores = score_heads(golden("multihead_dk"))
    assert float(scores.diagonal[0]) == pytest.approx(0.116426249511, abs=1e-6)
    weights = golden("multihead_dk").weights()[0]
    for head in range(2):
        assert float(scores.previous[head]) == pytest.approx(float((weights[head, 1, 0] + weights[head, 2, 1]) / 2))
        assert float(scores.following[head]) == pytest.approx(float((weights[head, 0, 1] + weights[head, 1, 2]) / 2))
        assert float(scores.first[head]) == pytest.approx(float(weights[head, 1:, 0].mean()))
        entropy = -(weights[head] * weights[head].log()).sum(-1).mean() / log(3)
        assert float(scores.entropy[head]) == pytest.approx(float(entropy))


@pytest.mark.lecture("L1-36")
def test_a_map_is_not_symmetric() -> None:
    weights = golden("multihead_dk").weights()[0]
    asymmetry = score_heads(golden("multihead_dk")).asymmetry
    for head in range(2):
        expected = (weights[head] - weights[head].T).norm() / weights[head].norm()
        assert float(expected) > 0
        assert float(asymmetry[head]) == pytest.approx(float(expected))


@pytest.mark.lecture("L1-38")
def test_strongest_pairs_of_the_worked_example() -> None:
    pairs = strongest(golden("multihead_dk"), 0, 3)
    assert pairs[0][:2] == (1, 2)  # rows count from 0
    assert pairs[0][2] == pytest.approx(0.81728579031, abs=1e-10)
    assert [pair[2] for pair in pairs] == sorted((pair[2] for pair in pairs), reverse=True)
    assert all(query != key for query, key, _ in strongest(golden("multihead_dk"), 1, 9))


@pytest.mark.lecture("L1-39", "L1-40")
def test_attention_received_in_the_worked_example() -> None:
    totals = received(golden("multihead_dk"))
    expected = torch.tensor([0.310305217446, 0.222718144577, 0.466976637977])
    torch.testing.assert_close(totals[0], expected, rtol=0, atol=1e-6)
    assert float(totals[0].sum()) == pytest.approx(1)
    causal = golden("multihead_causal_dk")
    weights = causal.weights()[0]
    torch.testing.assert_close(received(causal), (weights.sum(1) / torch.tensor([3.0, 2.0, 1.0])).float())


def planted() -> Transformer:
    """Layer 0, head 0 reads the token before into slots of its own; layer 1, head 1 looks for a token after one like the last.

    Token, position and "token before" are one-hot, each in slots of its own; the other heads see everything alike.
    """
    dim = 2 * VOCABULARY + PLACES
    slots = {
        "depth": 2,
        "positions": "learned",
        "norm": NoNormConfig(),
        "ffn": "none",
        "bias": False,
        "final_norm": False,
    }
    config = config_of(dim=60, head_dim=PLACES, **slots).override({"context": PLACES, "decoder.block.mixer.heads": 2})
    model = awake(config, torch.float32)
    token, place = slice(0, VOCABULARY), slice(VOCABULARY, VOCABULARY + PLACES)
    before = slice(VOCABULARY + PLACES, dim)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embedding.weight[:, token] = torch.eye(VOCABULARY)
        model.decoder.entry.positions.weight[:, place] = torch.eye(PLACES)
        first, second = (block.mixer for block in model.decoder.blocks)
        rows = torch.arange(PLACES)
        first.q.weight[rows[:-1], VOCABULARY + 1 + rows[:-1]] = 300.0  # position p asks for channel p - 1
        first.k.weight[rows, VOCABULARY + rows] = 1.0
        copy(first, 0, token, before, 1.0)
        ids = torch.arange(VOCABULARY)
        second.q.weight[PLACES + ids, ids] = 300.0
        second.k.weight[PLACES + ids, VOCABULARY + PLACES + ids] = 1.0
        copy(second, 1, token, token, 10.0)
    return model


def copy(mixer: torch.nn.Module, head: int, source: slice, target: slice, factor: float) -> None:
    """A head that writes what it reads in some slots into others."""
    at = head * PLACES + torch.arange(VOCABULARY)
    mixer.v.weight[at, torch.arange(source.start, source.stop)] = 1.0
    mixer.o.weight[torch.arange(target.start, target.stop), at] = factor


def test_planted_heads_are_found() -> None:
    model = planted()
    heads = find_heads(model, length=PLACES // 2, ids=range(VOCABULARY), rows=8)
    assert list(heads) == ["decoder.0.mixer", "decoder.1.mixer"]
    first, second = heads.values()
    assert float(first.previous[0]) > 0.99
    assert float(second.induction[1]) > 0.5  # ids occur more than once by chance, and then both are looked at
    assert (first.names()[0], second.names()[1]) == ("previous", "induction")
    assert first.names()[1] not in ("previous", "induction")
    assert float(first.induction[1]) < 0.3
    assert float(first.entropy[1]) > 0.999  # sees everything alike


def test_the_planted_induction_head_predicts() -> None:
    tokens = torch.tensor([[6, 1, 5, 3, 8, 2, 9, 4, 1, 5, 3, 8, 2, 9]])
    assert trace(planted(), tokens).logits[0, 8:].argmax(-1).tolist() == [5, 3, 8, 2, 9, 4]


def test_scores_of_parts_add_up_to_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = awake(config_of(window=6, kernel="blockwise")), tokens_of(2, 30)
    call = trace(model, tokens, attention="decoder.0.mixer").attention["decoder.0.mixer"]
    whole, columns = score_heads(call, tokens), received(call)
    monkeypatch.setattr(attention, "BLOCK_WEIGHTS", 4 * 30 * 2 * 3)
    parts = score_heads(call, tokens)
    for name in FIELDS:
        torch.testing.assert_close(getattr(whole, name), getattr(parts, name), msg=name)
    torch.testing.assert_close(columns, received(call))
    assert strongest(call, 1, 5) == strongest(call, 1, 9)[:5]


def test_the_strongest_pairs_are_those_of_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = awake(config_of()), tokens_of(2, 30)
    call = trace(model, tokens, attention="decoder.0.mixer").attention["decoder.0.mixer"]
    weights = call.weights()[1, 2].clone().fill_diagonal_(0)
    monkeypatch.setattr(attention, "BLOCK_WEIGHTS", 4 * 30 * 2 * 3)
    pairs = strongest(call, 2, 7, batch=1)
    best = weights.flatten().topk(7)
    assert [30 * query + key for query, key, _ in pairs] == best.indices.tolist()
    assert [value for *_, value in pairs] == pytest.approx(best.values.tolist())


def test_a_stripe_is_seen_by_a_quarter_of_the_queries() -> None:
    """Every token looks at itself: of eight keys, the last is seen by one query and received all, the one before by two."""
    model = planted()
    mixer, rows = model.decoder.blocks[0].mixer, torch.arange(PLACES)
    with torch.no_grad():
        mixer.q.weight.zero_()
        mixer.q.weight[rows, VOCABULARY + rows] = 300.0
    call = trace(model, tokens_of(1, 8), attention="decoder.0.mixer").attention["decoder.0.mixer"]
    scores = score_heads(call)
    assert float(scores.diagonal[0]) > 0.999
    assert float(scores.stripe[0]) == pytest.approx(0.5, abs=1e-3)


def test_a_name_is_that_of_the_largest_share_and_of_equal_ones_the_earliest() -> None:
    shares = {name: torch.zeros(5) for name in FIELDS}
    shares["previous"] = torch.tensor([0.5, 0.39, 0.39, 0.4, 0.1])
    shares["first"] = torch.tensor([0.5, 0.1, 0.0, 0.3, 0.7])
    shares["entropy"] = torch.tensor([0.2, 0.95, 0.9, 0.95, 0.95])
    assert HeadScores(**shares).names() == ["previous", "spread", "mixed", "previous", "first"]


def test_special_ids_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless they are named."""
    config, seen = config_of().override({"ids": {"begin": 2, "end": 5, "padding": 7}}), set[int]()
    model = awake(config)

    def watched(model: Transformer, tokens: Tensor, **more: Any) -> Any:
        seen.update(tokens.flatten().tolist())
        return trace(model, tokens, **more)

    monkeypatch.setattr(heads, "trace", watched)
    find_heads(model, length=60, rows=4)
    assert seen == {*range(VOCABULARY)} - {2, 5, 7}
    seen.clear()
    find_heads(model, length=60, rows=4, ids=[2, 3])
    assert seen == {2, 3}


def test_what_came_after_the_same_token() -> None:
    tokens: Tensor = torch.tensor([[4, 7, 4, 7, 9, 4], [1, 1, 1, 2, 3, 1]])
    assert previous_occurrences(tokens).tolist() == [[-1, -1, 0, 1, -1, 2], [-1, 0, 1, -1, -1, 2]]
    model = awake(config_of())
    call = trace(model, tokens[:1], attention="decoder.0.mixer").attention["decoder.0.mixer"]
    weights, scores = call.weights()[0], score_heads(call, tokens[:1])
    torch.testing.assert_close(scores.duplicate, (weights[:, [2, 3, 5], [0, 1, 2]].mean(-1)).float())
    torch.testing.assert_close(scores.induction, (weights[:, [2, 3, 5], [1, 2, 3]].mean(-1)).float())


def test_encoders_and_models_without_heads() -> None:
    assert list(find_heads(awake(config_of(family="encoder")))) == ["encoder.0.mixer", "encoder.1.mixer"]
    assert list(find_heads(awake(config_of(family="both")))) == ["decoder.0.mixer", "decoder.1.mixer"]
    with pytest.raises(HeddleError, match="no self-attention"):
        find_heads(awake(config_of(first=ConvolutionConfig(taps=3), positions="none")))
