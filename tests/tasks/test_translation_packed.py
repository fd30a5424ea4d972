"""Pairs that share a row of a decoder: each is read as it is alone, exactly once, and does not see the others."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import heddle
from heddle.config import RunConfig, TransformerConfig
from heddle.convert import export_model
from heddle.data.batch import IGNORED, Batch
from heddle.data.corpus import Corpus
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.runs import Trainer, prepare, show_step
from heddle.runs.lint import lint_run
from heddle.tasks import DataSpec, ExampleIndices
from heddle.tasks.translation import TranslationTask
from heddle.train import evaluate
from heddle.weights import save
from tests.runs.test_resume import train, written
from tests.tasks.pairs import BOUNDARY, END, MODELS, TOKENIZER, of, pairs, task
from tests.tasks.test_layouts import Leaking

LETTERS = {END: "|", BOUNDARY: ">", IGNORED: "."}


def text(ids: Tensor) -> str:
    """Ids as letters, with | for the end, > for the boundary, and . for no target."""
    return "".join(LETTERS.get(id, "") or TOKENIZER.decode([id]) for id in ids.tolist())


def segments(batch: Batch) -> list[tuple[str, str]]:
    """What each segment reads and predicts."""
    pieces = []
    for row in range(batch.layout.rows):
        for number in range(int(batch.layout.segment[row].max()) + 1):
            here = batch.layout.segment[row] == number
            assert batch.layout.position[row, here].tolist() == list(range(int(here.sum())))
            pieces.append((text(batch.tokens[row, here]), text(batch.targets[row, here])))
    return pieces


def alone(made: TranslationTask, number: int) -> Batch:
    """A record in a row of its own."""
    spec = made.spec
    other = task("decoder", spec.corpus.train, context=spec.context, source_loss=made.config.source_loss)
    batch = other.batch(ExampleIndices(np.array([number])))
    assert batch.layout.documents == 1
    return batch


def test_pairs_side_by_side() -> None:
    """By hand: 7 + 5 tokens fill a row of 12; the third pair gets a row of its own, which is padded."""
    made = task("decoder", of(("abc", "cba"), ("de", "ed"), ("fghi", "g")), rows=2, context=12, layout="pack")
    batch = made.batch(made.examples(0))
    rows = {text(tokens): (text(targets), segment.tolist()) for tokens, targets, segment in zip(
        batch.tokens, batch.targets, batch.layout.segment, strict=True
    )}  # fmt: skip
    assert rows == {
        "abc>cbade>ed": ("...cba|..ed|", [0] * 7 + [1] * 5),
        "fghi>g||||||": ("....g|......", [0] * 6 + [-1] * 6),
    }
    assert torch.equal(batch.weights, (batch.targets != IGNORED).float())
    assert (batch.layout.form, batch.layout.documents, batch.source) == ("packed", 2, None)
    assert made.steps_per_epoch() == 1
    assert made.remarks() == ["pack: 3 records in 2 rows of 12 tokens, 25.00% of them padding; no record is dropped"]
    assert made.describe(made.examples(0)) in (
        "packed rows of the training records 0, 1, 2",
        "packed rows of the training records 2, 0, 1",
    )


@pytest.mark.parametrize("source_loss", [False, True])
@pytest.mark.parametrize("rows", [3, 4])
def test_every_pair_is_read_once_per_epoch_as_it_is_alone(source_loss: bool, rows: int) -> None:
    """Cropped as alone, too; and each epoch packs others together."""
    records = pairs(60, longest=14)
    made = task("decoder", records, rows=rows, context=20, layout="pack", source_loss=source_loss)
    expected = Counter(each for number in range(60) for each in segments(alone(made, number)))
    for epoch in range(2):
        steps = [made.batch(examples) for examples in made.epoch(epoch)]
        assert Counter(each for batch in steps for each in segments(batch)) == expected
        assert sum(len(batch.tokens) for batch in steps) == made.steps_per_epoch() * rows
    held = made.held_out(rows)
    assert Counter(each for examples in held.batches for each in segments(made.batch(examples))) == expected
    assert (held.share, made.size(held_out=True)) == (1.0, 60)
    some = made.held_out(rows, most=100)
    scored = sum(int(made.batch(examples).weights.sum()) for examples in some.batches)
    assert 100 <= scored < 250
    assert some.share == pytest.approx(scored / int(made.targets(records).sum()))
    met = [
        [frozenset(each.tolist()) for each in made.rows(False).records(np.arange(9) + 30 * epoch)] for epoch in (0, 1)
    ]
    assert set(met[0]) != set(met[1])
    assert "of all tokens of sources are lost" in made.remarks()[1]


def models() -> dict[str, TransformerConfig]:
    plain = MODELS["decoder"]
    return {
        "attention": plain,
        "learned positions": plain.override(
            {"decoder.entry.positions": "learned", "decoder.block.mixer.relative": None}
        ),
        "convolution": plain.override({"decoder.block.mixer": {"kind": "convolution", "taps": 3}}),
        "recurrent": plain.override({"decoder.block.mixer": {"kind": "recurrent"}}),
    }


def step(model: Transformer, made: TranslationTask, batches: list[Batch]) -> dict[str, Tensor]:
    """The sum of the losses, and its gradient."""
    model.zero_grad()
    total = torch.stack([made.objective(model)(batch).total for batch in batches]).sum()
    total.backward()
    gradients = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    return {"loss": total.detach(), **gradients}


@pytest.mark.parametrize("name", models())
def test_packed_pairs_are_separate_pairs(name: str) -> None:
    """In fp32: loss and gradients are those of rows of their own, and another neighbour changes no bit of a pair's loss."""
    records = pairs(12)
    config = models()[name]
    spec = DataSpec(Corpus(records, records), config, 4, 3, None, TOKENIZER, layout="pack")
    made, model = TranslationTask(task("decoder").config, spec), build(config, seed=1).train()
    examples = next(made.epoch(0))
    batch, numbers = made.batch(examples), made.places(examples)
    assert len(numbers) > 2 * len(batch.tokens)
    actual, expected = (step(model, made, each) for each in ([batch], [alone(made, number) for number in numbers]))
    assert actual["loss"].item() == pytest.approx(expected["loss"].item(), rel=2e-5)
    for place, value in expected.items():
        torch.testing.assert_close(actual[place], value, rtol=2e-5, atol=2e-5 * float(value.abs().max()), msg=place)
    own = torch.where(batch.layout.segment == 1, batch.weights, 0.0)
    single = {"targets": torch.where(own > 0, batch.targets, IGNORED), "weights": own, "layout": batch.layout}
    other = torch.where(batch.layout.segment == 1, batch.tokens, (batch.tokens + 1) % TOKENIZER.vocab_size)
    one, two = (made.objective(model)(Batch(tokens=ids, **single)).total for ids in (batch.tokens, other))
    assert own.sum() > 0
    assert torch.equal(one, two)


def test_the_loss_is_that_of_transformers(tmp_path: Path) -> None:
    """Its Llama reads the pairs one by one, without padding and without segments."""
    transformers = pytest.importorskip("transformers")
    config = MODELS["decoder"].override({"decoder.block.ffn": {"kind": "gated", "hidden": 24, "activation": "silu"}})
    block = {"mixer": {"heads": 2, "relative": {"kind": "rotary"}}, "norm": {"kind": "rms"}}
    config = config.override({f"decoder.block.{key}": value for key, value in block.items()})
    model = build(config, seed=1)
    save(model, tmp_path / "run", TOKENIZER)
    assert export_model(tmp_path / "run", tmp_path / "out")["checked"]
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    made = TranslationTask(
        task("decoder").config, DataSpec(Corpus(pairs(20)), config, 3, 3, None, TOKENIZER, layout="pack")
    )
    examples = made.examples(0)
    total, count = 0.0, 0
    for number in made.places(examples):
        batch = alone(made, number)
        chosen = batch.weights[0] > 0
        with torch.no_grad():
            scores = reference(input_ids=batch.tokens).logits[0, chosen]
        total += torch.nn.functional.cross_entropy(scores, batch.targets[0, chosen], reduction="sum").item()
        count += int(chosen.sum())
    loss = made.objective(model)(made.batch(examples))
    assert loss.count.item() == count
    assert loss.total.item() == pytest.approx(total, rel=2e-5)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_the_global_batch_is_the_same_for_any_number_of_ranks(count: int) -> None:
    made = task("decoder", pairs(90), layout="pack")
    for number in (0, 5):  # the second has rows of two epochs
        examples = made.examples(number)
        whole, parts = made.batch(examples), [made.batch(examples.part(rank, count)) for rank in range(count)]
        for name in ("tokens", "targets", "weights"):
            assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))
        for name in ("position", "segment"):
            assert torch.equal(torch.cat([getattr(part.layout, name) for part in parts]), getattr(whole.layout, name))


@pytest.fixture
def make_config(config: Callable[..., RunConfig], quick: None, tmp_path: Path) -> Callable[..., RunConfig]:
    """A run that packs pairs of words and their lengths."""

    def made(**settings: Any) -> RunConfig:
        draw = np.random.default_rng(0)
        lengths = draw.integers(1, 9, 200)
        rows = [f"{''.join(draw.choice(list('abcd'), length))}\t{length}" for length in lengths]
        (tmp_path / "pairs.tsv").write_text("\n".join(["source\ttarget", *rows]))
        data = {"sources": [str(tmp_path / "pairs.tsv")], "tokenizer": "characters", "layout": "pack"}
        train = {"batch": None, "batch_tokens": 144, "steps": 9, "evaluate_every": 3, "learning_rate": 1e-2}
        table = config(data=data, model={"context": 24}, **{**train, **settings}).to_dict()
        return RunConfig.of({**table, "task": "translation", "model": {**table["model"], "family": "decoder"}})

    return made


def test_a_run_is_planned_shown_and_resumed_bit_for_bit(make_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    whole, stopped, messages = tmp_path / "whole", tmp_path / "stopped", list[str]()
    planned = prepare(make_config(), whole, messages.append)
    shutil.copytree(whole, stopped)
    (remark,) = [line for line in messages if line.startswith("pack: ")]
    assert " of 24 tokens, " in remark
    assert (planned.chosen.batch, planned.chosen.batch_tokens, planned.tokens_per_step) == (6, None, 144)
    trainer = Trainer(whole)
    assert planned.epochs == pytest.approx(9 / trainer.session.task.steps_per_epoch())
    result = trainer.run()
    assert evaluate(trainer.session.model, trainer.session.task).tokens == result.tokens
    train(stopped, 5)
    assert written(stopped) == written(whole)
    (row,), (mask,) = (shown := show_step(whole, step=2, length=24)).rows, shown.masks
    assert shown.described.startswith("packed rows of the training records ")
    assert max(row.segments) > 0
    places = range(24)
    assert mask.seen == [
        [key <= query and row.segments[key] == row.segments[query] >= 0 for key in places] for query in places
    ]
    assert lint_run(whole) == []


def test_fit_packs_pairs() -> None:
    """The losses are those of steps of the same rows."""
    data = [("ab" * (number % 4 + 1), "cd"[number % 2]) for number in range(40)]
    settings: dict[str, Any] = {"steps": 4, "task": "translation", "layout": "pack", "progress": False}
    model = heddle.model_for("translation", TOKENIZER, depth=1, context=24, dim=16, family="decoder")
    history = heddle.fit(model, TOKENIZER, data, validation=data[:8], batch=2, **settings)
    first = build(model.config, seed=0)
    spec = DataSpec(Corpus(of(*data)), model.config, 2, 0, None, TOKENIZER, layout="pack")
    made = TranslationTask(task("decoder").config, spec)
    loss = made.objective(first)(made.batch(made.examples(0)))
    assert history.losses[0] == pytest.approx((loss.total / loss.count).item(), rel=1e-5)
    assert history.evaluation is not None
    assert history.evaluation.tokens == 16
    both = heddle.model_for("translation", TOKENIZER, depth=1, context=24, dim=16)
    with pytest.raises(HeddleError, match=r"layout = 'pack' is for a decoder alone, .*: set family=decoder"):
        heddle.fit(both, TOKENIZER, data, **settings)
    with pytest.raises(HeddleError, match=r"layout = 'pack' does not apply to task.kind = 'regression': leave it out"):
        heddle.fit(both, TOKENIZER, data, **{**settings, "task": "regression"})


def test_what_cannot_be_packed_is_refused(make_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    table = make_config().to_dict()
    bare = {key: value for key, value in table["model"].items() if key != "family"}
    for model in ({**bare, "family": None}, {"preset": "t5-small"}, {**bare, "family": "encoder-decoder"}):
        with pytest.raises(HeddleError, match="layout = 'pack' is for a decoder alone"):
            prepare(RunConfig.of({**table, "model": model}), tmp_path / "run")
    documents = {"layout": "documents", "sources": ["pairs.tsv"]}
    with pytest.raises(HeddleError, match=r"'translation': leave it out, or set layout to pack"):
        RunConfig.of({"task": "translation", "data": documents})
    with pytest.raises(HeddleError, match=r"'pack' does not apply to task.kind = 'span_corruption': leave it out$"):
        RunConfig.of({"task": "span_corruption", "data": {"layout": "pack"}})
    custom = {"kind": "custom", "target": f"{Leaking.__module__}:Leaking"}
    leaking = build(MODELS["decoder"].override({"decoder.block.mixer": custom}))
    task("decoder").objective(leaking)
    with pytest.raises(HeddleError, match="layout = pack needs mixers that keep documents and padding apart"):
        task("decoder", layout="pack").objective(leaking)
