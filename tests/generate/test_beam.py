"""Beam search: exhaustive where it can be, greedy with one beam, and the search of Hugging Face transformers."""

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heddle.config import BeamConfig, SamplingConfig, TransformerConfig
from heddle.convert import import_model
from heddle.errors import HeddleError
from heddle.generate import Hypothesis, beam_search, generate
from heddle.generate.beam import Search, largest
from heddle.generate.stream import DecodingRules
from heddle.model import Transformer, build
from heddle.weights import load
from tests.convert.conftest import make as make_published
from tests.models import BOTH, COMBINATIONS, config_of, name_of
from tests.running import unchecked

Make = Callable[..., Transformer]
END = 0
SOURCES = [[3, 1, 4, 1, 5], [4], [6, 5, 3, 5, 8, 9, 7]]
CAUSAL = [config for config in COMBINATIONS if not config.last()[1].prefix]  # others read a prompt in both directions
LARGE = {"initial": {"std": 0.3, "scale_residual": False}}


def model_of(config: TransformerConfig, **changes: Any) -> Transformer:
    return build(config.override({**LARGE, **changes}), seed=1).eval()


def inputs_of(model: Transformer, rows: Sequence[list[int]]) -> dict[str, Any]:
    """Rows of ids as what the model reads: sources, or prompts."""
    return {"prompts": [[]] * len(rows), "sources": rows} if model.encoder is not None else {"prompts": rows}


def searched(model: Transformer, rows: Sequence[list[int]], **config: Any) -> list[tuple[Hypothesis, ...]]:
    results = dict(beam_search(model, config=BeamConfig(**config), end_of_text=END, **inputs_of(model, rows)))
    return [results[number] for number in range(len(rows))]


@torch.inference_mode()
def logprob(model: Transformer, row: list[int], ids: Sequence[int]) -> float:
    """The log probability of a continuation in one pass, by the definition."""
    before, source = ([END], torch.tensor([row])) if model.encoder is not None else (row, None)
    tokens = [*before, *ids]
    with unchecked():
        scores: Tensor = model.logits(model(torch.tensor([tokens[:-1]]), source=source).hidden[0])
    scores = scores.double().log_softmax(-1)
    return sum(scores[len(before) - 1 + place, id].item() for place, id in enumerate(ids))


def every_text(ids: int, length: int) -> list[tuple[int, ...]]:
    """Every text of at most so many ids: those that end, and those that are cut off."""
    open_ = [id for id in range(ids) if id != END]
    ended = [(*text, END) for n in range(length) for text in itertools.product(open_, repeat=n)]
    return [*ended, *itertools.product(open_, repeat=length)]


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("family", ["decoder", "both"])
def test_wide_enough_it_is_exhaustive(family: str, penalty: float) -> None:
    model, length = model_of(config_of(family=family, head_bias=True), vocab_size=4), 3
    row = [2, 3, 1]
    (result,) = searched(model, [row], beams=4**length, best=6, max_tokens=length, length_penalty=penalty)
    scored = {text: logprob(model, row, text) / len(text) ** penalty for text in every_text(4, length)}
    best = sorted(scored, key=lambda text: -scored[text])[:6]
    assert [each.ids for each in result] == best
    for each in result:
        assert each.score == pytest.approx(scored[each.ids], abs=1e-5)
        assert each.logprob == pytest.approx(logprob(model, row, each.ids), abs=1e-5)
        assert each.finish == ("end" if each.ids[-1] == END else "length")


@pytest.mark.parametrize("config", [*CAUSAL[::12], *BOTH], ids=name_of)
def test_one_beam_is_greedy_and_sources_together_are_sources_alone(config: TransformerConfig) -> None:
    model = model_of(config)
    greedy: list[list[int]] = [[] for _ in SOURCES]
    sampling = SamplingConfig(temperature=0, max_tokens=5)
    for event in generate(model, sampling=sampling, end_of_text=END, **inputs_of(model, SOURCES)):
        greedy[event.row].append(event.token)
    assert [list(best.ids) for (best,) in searched(model, SOURCES, beams=1, max_tokens=5)] == greedy
    together = searched(model, SOURCES, beams=3, best=3, max_tokens=5)
    for row, texts in zip(SOURCES, together, strict=True):
        with unchecked():
            (alone,) = searched(model, [row], beams=3, best=3, max_tokens=5)
        scores = [each.score for each in alone]
        assert [each.score for each in texts] == pytest.approx(scores, abs=1e-4)
        if min(better - worse for better, worse in itertools.pairwise(scores)) > 1e-4:  # else their order may change
            assert [each.ids for each in texts] == [each.ids for each in alone]
        assert [each.logprob for each in texts] == pytest.approx(
            [logprob(model, row, each.ids) for each in texts], abs=1e-3
        )


PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt2": {"eos_token_id": 5, "bos_token_id": 5, "pad_token_id": 3},
    "bart": {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 4, "forced_eos_token_id": 2},
    "t5": {"eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0},
    "marian": {"eos_token_id": 0, "pad_token_id": 60, "decoder_start_token_id": 60, "forced_eos_token_id": 0},
}  # fmt: skip
SETTINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"beams": 4, "best": 3}, {"num_beams": 4, "num_return_sequences": 3}),
    (
        {"beams": 3, "best": 2, "length_penalty": 2.0, "early_stopping": True, "repetition_penalty": 1.4},
        {
            "num_beams": 3,
            "num_return_sequences": 2,
            "length_penalty": 2.0,
            "early_stopping": True,
            "repetition_penalty": 1.4,
        },
    ),
    (
        {"beams": 3, "best": 3, "length_penalty": -0.5, "early_stopping": "never", "no_repeat_ngram": 2},
        {
            "num_beams": 3,
            "num_return_sequences": 3,
            "length_penalty": -0.5,
            "early_stopping": "never",
            "no_repeat_ngram_size": 2,
        },
    ),
]


@pytest.mark.parametrize("banned", [[[7]], [[7], [8, 9]]], ids=["one id", "a run"])
@pytest.mark.parametrize("kind", PUBLISHED)
def test_texts_and_scores_are_those_of_transformers(kind: str, banned: list[list[int]], tmp_path: Path) -> None:
    published: Any = make_published(kind, **PUBLISHED[kind])
    with torch.no_grad():
        for name, parameter in published.named_parameters():  # so that texts differ from source to source
            parameter.mul_(3 if parameter.dim() > 1 and "positions" not in name else 1)  # Marian's are fixed
    published.generation_config.bad_words_ids = banned
    published.generation_config.forced_bos_token_id = 33 if kind == "bart" else None
    published.save_pretrained(tmp_path / "published")
    import_model(tmp_path / "published", tmp_path / "run")
    model, _ = load(tmp_path / "run")
    draw = torch.Generator().manual_seed(3)
    rows = [torch.randint(10, 59, (length,), generator=draw).tolist() for length in (3, 9)]
    for own_settings, published_settings in SETTINGS:
        results = dict(beam_search(model, config=BeamConfig(max_tokens=9, **own_settings), **inputs_of(model, rows)))
        for number, row in enumerate(rows):
            with torch.inference_mode():
                expected = published.generate(
                    torch.tensor([row]), attention_mask=torch.ones(1, len(row), dtype=torch.long), do_sample=False,
                    max_new_tokens=9, return_dict_in_generate=True, output_scores=True, **published_settings,
                )  # fmt: skip
            start = 1 if model.encoder is not None else len(row)
            for text, score, result in zip(
                expected.sequences.tolist(), expected.sequences_scores.tolist(), results[number], strict=True
            ):
                assert result.score == pytest.approx(score, abs=2e-5 * max(1, abs(score)))
                assert list(result.ids) == text[start : start + len(result.ids)]


def test_a_text_finishes_only_from_the_best_candidates(make: Make) -> None:
    """As in transformers: an end among the candidates beyond the beams' number neither counts nor takes a beam's place."""
    config = BeamConfig(beams=2, max_tokens=9)
    decoding = DecodingRules(make(), config, END)
    search = Search(decoding.new_sequence(0, [5]), config)
    assert search.extend([(-0.1, 0, 6), (-0.2, 0, END), (-0.3, 0, END), (-0.4, 0, 7)], decoding) == [0, 0]
    assert [node.id for node in search.beams] == [6, 7]
    assert [each.logprob for each in search.finished] == [-0.2]


def test_a_full_context_ends_a_search(make: Make) -> None:
    model = make(context=8)
    (result,) = [texts for _, texts in beam_search(model, [[1, 2, 3]], BeamConfig(beams=2, max_tokens=50))]
    assert {(len(each.ids), each.finish) for each in result} == {(6, "context")}, "the last id needs no place"


@pytest.mark.parametrize("early", [False, True, "never"])
def test_a_search_ends_when_it_may(make: Make, early: Any) -> None:
    """`never` finds a score at least as good as the other two, since it stops last."""
    model = make(context=64)
    with torch.no_grad():
        model.embedding.weight[END] *= 2
    scores = {}
    for how in (early, "never"):
        config = BeamConfig(beams=2, max_tokens=30, early_stopping=how)
        ((_, (best,)),) = beam_search(model, [[5, 6]], config, end_of_text=END)
        scores[how] = best.score
    assert scores["never"] >= scores[early]


@pytest.mark.parametrize("size", [1, 7, 640, 1280, 1300, 9999])
def test_the_largest_are_the_largest(size: int) -> None:
    scores = torch.randn(5, size, generator=torch.Generator().manual_seed(size))
    scores[1] = -torch.inf
    scores[2, : size // 2] = -torch.inf
    scores[3] = scores[3].sort(descending=True).values
    values, places = largest(scores, 10)
    expected, _ = scores.topk(min(10, size))
    assert torch.equal(values, expected)
    assert torch.equal(scores.gather(1, places), expected)
    assert all(len(set(row)) == len(row) for row in places.tolist())


def test_where_nothing_may_follow_a_search_has_the_texts_so_far(make: Make) -> None:
    """No id may occur twice, and there are but five."""
    model = build(make(vocab_size=5).config.override({"pad_vocab_to": 1}), seed=0).eval()
    config = BeamConfig(beams=2, max_tokens=9, no_repeat_ngram=1)
    ((_, (best,)),) = beam_search(model, [[1, 2]], config)
    assert (best.finish, sorted(best.ids)) == ("broken", [0, 3, 4])
    ((_, (best,)),) = beam_search(model, [[0, 1, 2, 3, 4]], config)
    assert (best.finish, best.ids, best.score) == ("broken", (), 0.0)


def test_broken_weights_are_named(make: Make) -> None:
    model = make()
    with torch.no_grad():
        model.embedding.weight[3] = math.nan
    with pytest.raises(HeddleError, match="the model's output is NaN"):
        list(beam_search(model, [[1, 2]], BeamConfig(beams=2, max_tokens=3)))


def test_impossible_searches_are_refused(make: Make) -> None:
    with pytest.raises(HeddleError, match="best = 3 is more than beams = 2"):
        BeamConfig.of({"beams": 2, "best": 3})
    with pytest.raises(HeddleError, match="2 sources for 1 prompts"):
        list(beam_search(make(), [[1]], BeamConfig(), sources=[[1], [2]]))
    with pytest.raises(HeddleError, match="has no encoder for a source"):
        list(beam_search(make(), [[1]], BeamConfig(), sources=[[1]]))
    with pytest.raises(HeddleError, match="reads a source: pass one"):
        list(beam_search(build(BOTH[1]), [[]], BeamConfig(), end_of_text=END))
    with pytest.raises(HeddleError, match=r"source 0 has 161 tokens, but the model's context is 160; shorten it$"):
        list(beam_search(build(BOTH[1]), [[]], BeamConfig(), end_of_text=END, sources=[[1] * 161]))
    with pytest.raises(HeddleError, match="source 0 has the id 13"):
        list(beam_search(build(BOTH[0]), [[]], BeamConfig(), end_of_text=END, sources=[[13]]))


def test_concurrent_batches_find_what_one_batch_finds(make: Make) -> None:
    """Three batches, two of them at the same time; the number of threads and the model's mode are restored."""
    config, threads = BeamConfig(beams=3, best=2, max_tokens=8), torch.get_num_threads()
    model = make().train()
    prompts = [[1 + number % 5, 2, number % 7] for number in range(9)]
    alone = dict(beam_search(model, prompts, config))
    torch.set_num_threads(2)
    try:
        together = dict(beam_search(model, prompts, config, rows=3))
        assert (torch.get_num_threads(), model.training) == (2, True)
    finally:
        torch.set_num_threads(threads)
    assert {n: [each.ids for each in texts] for n, texts in together.items()} == {
        n: [each.ids for each in texts] for n, texts in alone.items()
    }
