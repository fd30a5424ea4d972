"""Embeddings from pairs: the loss is the field's, texts of a group are compared with nothing else, and toys are learned."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import heddle
from heddle.config import ContrastiveConfig, RunConfig, TransformerConfig
from heddle.data.batch import IGNORED, Batch
from heddle.data.corpus import Corpus
from heddle.data.encode import records_of
from heddle.data.sources.examples import Example
from heddle.errors import HeddleError
from heddle.model import build
from heddle.runs import prepare, show_step
from heddle.runs.lint import lint_run
from heddle.tasks import DataSpec, ExampleIndices
from heddle.tasks.contrastive import ContrastiveTask
from heddle.tasks.rows.records import GroupedRecords
from heddle.text import train_tokenizer
from heddle.train import evaluate
from heddle.weights import load, read_config
from tests.running import SIZES, TRAIN, unchecked
from tests.runs.test_resume import train, written

TOKENIZER = train_tokenizer("bytes", [], special=("[CLS]", "[SEP]"))
BLOCK = {"mixer": {"heads": 2, "relative": {"kind": "rotary"}}}
CONFIG = TransformerConfig.of(
    {
        "vocab_size": TOKENIZER.vocab_size, "dim": 16, "context": 12, "encoder": {"depth": 1, "block": BLOCK},
        "head": {"kind": "embedding", "normalise": True}, "initial": {"std": 0.5},
    }
)  # fmt: skip
MODEL = build(CONFIG).eval()
WORDS = [("red", "rot"), ("green", "grün"), ("blue", "blau"), ("black", "schwarz"), ("white", "weiß"), ("grey", "grau"),
         ("pink", "rosa")]  # fmt: skip


def task(negatives: bool = False, count: int = 7, rows: int = 2, **settings: Any) -> ContrastiveTask:
    texts = [
        {"text": one, "pair": other, **({"negative": one[:2]} if negatives else {})} for one, other in WORDS[:count]
    ]
    records = records_of([Example(each, None, "") for each in texts], TOKENIZER)
    spec = DataSpec(Corpus(records, records), CONFIG, rows, 3, tokenizer=TOKENIZER)
    return ContrastiveTask(ContrastiveConfig(**{"group": 3, "temperature": 0.2, **settings}), spec)


def vectors(made: ContrastiveTask, group: int) -> list[np.ndarray]:
    """The vectors of the texts of a held-out group, each computed alone, in fp64: [K N E]."""
    (records,) = made.rows(held_out=True).records(np.array([group]))
    columns = made.spec.records(held_out=True).columns
    result = []
    for name in made.names:
        rows = [torch.tensor([made.frame.single_row(columns[name][record])]) for record in records.tolist()]
        alone = [MODEL.head(MODEL(row).hidden, None, MODEL.embedding.weight)[0].detach() for row in rows]
        result.append(torch.stack(alone).double().numpy())
    return result


def formula(x: list[np.ndarray], temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """The definition, pair by pair, in fp64: nats, and the rank of the right pair."""
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in x]
    candidates = np.concatenate(unit[1:])
    nats, ranks = [], []
    for n in range(len(unit[0])):
        forth, back = unit[0][n] @ candidates.T / temperature, unit[1][n] @ unit[0].T / temperature
        nats.append(sum(np.log(np.exp(scores).sum()) - scores[n] for scores in (forth, back)) / 2)
        ranks.append(1 + (forth > forth[n]).sum())
    return np.array(nats), np.array(ranks)


@pytest.mark.parametrize("negatives", [False, True])
def test_the_loss_is_that_of_the_formula(negatives: bool) -> None:
    """In two groups of 3 and 4 pairs, of texts that were embedded one by one; and by torch's own cross-entropy."""
    made = task(negatives)
    batch = made.batch(ExampleIndices(np.arange(2), held_out=True))
    assert [len(group) for group in made.rows(held_out=True).records(np.arange(2))] == [3, 4]
    assert batch.targets.tolist() == [[0, 1, 2, IGNORED], [0, 1, 2, 3]]
    losses = [formula(vectors(made, group), 0.2) for group in range(2)]
    nats, ranks = (np.concatenate([each[part] for each in losses]) for part in range(2))
    objective = made.objective(MODEL)
    with torch.no_grad():
        loss = objective(batch)
    assert float(loss.total) == pytest.approx(nats.sum(), rel=1e-5)
    assert float(loss.count) == 7
    scored = evaluate(MODEL, made, rows=2)
    assert scored.loss == pytest.approx(nats.mean(), rel=1e-5)
    assert scored.metrics == pytest.approx(
        {"accuracy": (ranks == 1).mean(), "mean_reciprocal_rank": (1 / ranks).mean()}, rel=1e-6
    )
    x = [torch.from_numpy(F.normalize(torch.from_numpy(each)).numpy()) for each in vectors(made, 1)]
    own = torch.arange(4)
    both = F.cross_entropy(x[0] @ torch.cat(x[1:]).T / 0.2, own) + F.cross_entropy(x[1] @ x[0].T / 0.2, own)
    assert float(objective.by_row(batch)["loss"][1]) / 4 == pytest.approx(float(both / 2), rel=1e-5)


REPEATED = [("red", "warm"), ("blue", "cold"), ("pink", "warm"), ("red", "rot"), ("cold", "blue"), ("grey", "grey")]


def without_equals(rows: list[tuple[str, ...]], vectors: list[np.ndarray], temperature: float) -> np.ndarray:
    """The definition over those candidates only that are wrong as texts, in fp64: nats of each pair."""
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in vectors]
    sides = {"forth": [(row[0], row[1]) for row in rows], "back": [(row[1], row[0]) for row in rows]}
    nats = np.zeros(len(rows))
    for number, (name, pairs) in enumerate(sides.items()):
        for n, (text, _) in enumerate(pairs):
            right = {text, *(other for one, other in pairs if one == text)}
            candidates = [(row[1 - number], unit[1 - number][m]) for m, row in enumerate(rows) if m != n]
            if name == "forth":
                candidates += [(row[k], unit[k][m]) for m, row in enumerate(rows) for k in range(2, len(row))]
            wrong = [
                unit[number][n] @ vector / temperature for candidate, vector in candidates if candidate not in right
            ]
            own_score = unit[number][n] @ unit[1 - number][n] / temperature
            nats[n] += (np.log(np.exp([own_score, *wrong]).sum()) - own_score) / 2
    return nats


@pytest.mark.parametrize("negatives", [False, True])
def test_equal_texts_are_no_negatives_of_each_other(negatives: bool) -> None:
    """Answers that others have too, questions asked twice, a question that is an answer, negatives that are right."""
    rows: list[tuple[str, ...]] = [*REPEATED]
    if negatives:
        rows = [(*row, near) for row, near in zip(rows, ["rot", "warm", "red", "cold", "warm", "rot"], strict=True)]
    records = records_of([Example(dict(zip(("text", "pair", "negative"), row)), None, "") for row in rows], TOKENIZER)  # noqa: B905
    spec = DataSpec(Corpus(records, records), CONFIG, 1, 3, tokenizer=TOKENIZER)
    made = ContrastiveTask(ContrastiveConfig(group=6, temperature=0.2), spec)
    batch = made.batch(ExampleIndices(np.arange(1), held_out=True))
    (order,) = made.rows(held_out=True).records(np.arange(1))
    nats = without_equals([rows[record] for record in order], vectors(made, 0), 0.2)
    objective = made.objective(MODEL)
    with torch.no_grad():
        assert float(objective(batch).total) == pytest.approx(nats.sum(), rel=1e-5)
        assert float(objective.by_row(batch)["loss"][0]) == pytest.approx(nats.sum(), rel=1e-5)
        unmasked = objective(Batch(**{**batch.parts(), "texts": None}))
    assert float(unmasked.total) > 1.05 * nats.sum()


def test_few_answers_to_many_questions_are_scored_by_what_is_wrong() -> None:
    """A model that embeds each answer apart from the others finds the right one of every question, however often it is there."""
    texts = [{"text": f"q{number}", "pair": WORDS[number % 4][1]} for number in range(24)]
    records = records_of([Example(each, None, "") for each in texts], TOKENIZER)
    made = ContrastiveTask(
        ContrastiveConfig(group=24), DataSpec(Corpus(records, records), CONFIG, 1, tokenizer=TOKENIZER)
    )
    batch = made.batch(ExampleIndices(np.arange(1), held_out=True))
    (order,) = made.rows(held_out=True).records(np.arange(1))
    answers = torch.eye(4)[torch.from_numpy(order % 4)]
    features = torch.stack([answers, answers], dim=1)[None]
    assert made.objective(MODEL).counts(features, batch)["accuracy"].item() == 24
    wrong = torch.stack([answers, answers.roll(1, -1)], dim=1)[None]
    assert made.objective(MODEL).counts(wrong, batch)["accuracy"].item() == 0


def test_ties_count_against_the_right_pair() -> None:
    made = task()
    batch = made.batch(ExampleIndices(np.array([1]), held_out=True))
    same = torch.ones(1, 4, 2, 5)
    counts = made.objective(MODEL).counts(same, batch)
    assert counts["accuracy"].item() == 0
    assert counts["mean_reciprocal_rank"].item() == pytest.approx(4 / 4)


@pytest.mark.parametrize("accumulate", [2, 4])
def test_micro_batches_change_nothing(accumulate: int) -> None:
    """Whole groups are in each, so the negatives are the same."""
    batch, objective = (
        task(rows=4, group=2, count=6).batch(ExampleIndices(np.arange(4))),
        task(group=2).objective(MODEL),
    )
    with torch.no_grad():
        parts = [objective(part).total for part in batch.split(accumulate)]
        assert float(torch.stack(parts).sum()) == pytest.approx(float(objective(batch).total), rel=1e-6)


@pytest.mark.parametrize(("count", "size", "sizes"), [(7, 3, {3, 4}), (12, 3, {3}), (5, 8, {5}), (31, 16, {31})])
def test_each_pair_is_in_one_group_of_an_epoch(count: int, size: int, sizes: set[int]) -> None:
    ones = np.ones(count, dtype=np.int64)
    rows = GroupedRecords(task().spec, ones, ones, held_out=False, size=size)
    epochs = [rows.records(np.arange(rows.groups) + epoch * rows.groups) for epoch in range(2)]
    for groups in epochs:
        assert sorted(np.concatenate(groups).tolist()) == list(range(count))
        assert {len(group) for group in groups} == sizes
        assert rows.largest == max(sizes)
    if rows.groups > 1:
        assert [sorted(group.tolist()) for group in epochs[0]] != [sorted(group.tolist()) for group in epochs[1]]


def numbers(count: int) -> list[tuple[str, str]]:
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    draw = random.Random(0)
    digits = {"".join(draw.choices("0123456789", k=3)) for _ in range(count)}
    return [(" ".join(names[int(digit)] for digit in each), each) for each in sorted(digits)]


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_a_toy_is_learned(family: str) -> None:
    """Numbers in words and in digits: pairs that were never seen are found among those of their group."""
    data = numbers(400)
    tokenizer = heddle.tokenizer_for("contrastive", data, "bytes")
    model = heddle.model_for("contrastive", tokenizer, depth=1, context=24, dim=32, family=family)
    assert model.config.head.pooling == {"encoder": "mean", "decoder": "last"}[family]
    settings = {"steps": 60, "batch": 2, "learning_rate": 1e-2, "progress": False}
    with unchecked():
        history = heddle.fit(model, tokenizer, data, task=ContrastiveConfig(group=16), validation=0.2, **settings)
    assert history.evaluation.metrics["accuracy"] > 0.3  # by chance 1/16
    assert history.evaluation.loss < 2  # by chance ln 16


@pytest.fixture
def begun(tmp_path: Path, quick: None) -> Callable[..., Path]:
    lines = "".join(f"{one}\t{other}\t{one[:5]}\n" for one, other in numbers(60))
    (tmp_path / "pairs.tsv").write_text(f"words\tdigits\tnear\n{lines}")

    def made(name: str = "run", **settings: Any) -> Path:
        data = {"sources": [str(tmp_path / "pairs.tsv")], "tokenizer": "bytes", "text": "words", "pair": "digits",
                "negative": "near"}  # fmt: skip
        task = {"kind": "contrastive", "group": 4}
        table = {"data": data, "model": {**SIZES, "context": 24}, "task": task, "train": {**TRAIN, **settings}}
        prepare(RunConfig.of(table), tmp_path / name)
        return tmp_path / name

    return made


def test_a_run_is_resumed_shown_and_says_how_it_embeds(begun: Callable[..., Path]) -> None:
    run, stopped = begun(), begun("stopped")
    train(run)
    train(stopped, 3)
    assert written(run) == written(stopped)
    head = load(run).model.config.head
    assert (head.kind, head.pooling, head.normalise) == ("embedding", "mean", True)
    assert read_config(run).task.temperature == 0.05
    row = show_step(run, length=200).rows[0]
    assert row.answer == (4, "which of its 4 pairs belong together", 1.0)
    assert max(row.segments) == 4 * 3 - 1
    assert not [finding for finding in lint_run(run) if finding.wrong]


def test_batch_counts_groups_and_batch_tokens_bound_them(begun: Callable[..., Path]) -> None:
    assert len(show_step(begun(batch=2), rows=9).rows) == 2
    ones = np.full(100, 10)
    spec = DataSpec(task().spec.corpus, CONFIG, 1, batch_tokens=900, multiple=4)
    rows = GroupedRecords(spec, ones, np.ones_like(ones), held_out=False, size=5)
    assert (rows.groups, rows.rows, rows.steps_per_epoch) == (20, 16, 1.25)
    assert rows.remarks() == ["100 pairs in 20 groups of 5 or a little more; a step has 16 groups, about 800 tokens"]


def test_fewer_pairs_than_a_group_should_have_are_told() -> None:
    """Their accuracy is among fewer candidates, which is easier."""
    remarks = task(count=6, group=7).remarks()
    assert remarks[0] == "only 6 training pairs for a group of 7, so each is compared with fewer"
    assert "only 6 held-out pairs for a group of 7, so each is compared with fewer" in remarks
    assert not any("only" in line for line in task(count=7, group=7).remarks())


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(HeddleError, match="a part has 1 pair"):
        task(count=1)
    language = build(CONFIG.override({"head": {"kind": "language"}}))
    with pytest.raises(HeddleError, match="needs an encoder or a decoder with an embedding head"):
        task().objective(language)
    with pytest.raises(HeddleError, match="no effect on the task 'contrastive'"):
        task().objective(MODEL, label_smoothing=0.1)
    with pytest.raises(HeddleError, match=r"label_smoothing = 0\.1 has no effect"):
        RunConfig.of({"task": "contrastive", "train": {"label_smoothing": 0.1}})
    with pytest.raises(HeddleError, match="group"):
        ContrastiveConfig(group=1)
