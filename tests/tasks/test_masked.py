"""Masked language modelling: which tokens are hidden, behind what, and that models learn to fill them in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from heddle.config import MaskedConfig, RunConfig, TrainConfig, preset, sized
from heddle.convert import import_model
from heddle.data.batch import IGNORED, Batch
from heddle.data.corpus import Corpus, Part
from heddle.errors import HeddleError
from heddle.model import build
from heddle.runs import Trainer, prepare
from heddle.tasks import CrossEntropy, DataSpec, ExampleIndices, MaskedTask
from heddle.tasks.masked import continuing
from heddle.text import Tokenizer, train_tokenizer
from heddle.train import Optimizer, train_step
from heddle.weights import load
from tests.running import Begin
from tests.runs.test_resume import train, written

TEXT = "the warp is held, the weft is thrown, and the heddle lifts the threads it owns: unbelievably many. " * 40
TOKENIZER = train_tokenizer("bpe", [TEXT], 300, ("<|endoftext|>", "[MASK]"))
MODEL = sized(1, vocab_size=TOKENIZER.vocab_size, context=32, dim=16, stacks=("encoder",))
MASK = TOKENIZER.special["[MASK]"]


def part(ids: Any, tokenizer: Tokenizer = TOKENIZER) -> Part:
    return Part(np.asarray(ids, dtype=np.uint16), len(ids), 1, 1)


def task(rows: int = 8, seed: int = 3, ids: Any = None, **settings: Any) -> MaskedTask:
    tokens = TOKENIZER.encode(TEXT) if ids is None else ids
    corpus = Corpus(part(tokens), part(tokens[:300]))
    return MaskedTask(MaskedConfig(**settings), DataSpec(corpus, MODEL, rows, seed, tokenizer=TOKENIZER))


def test_targets_are_the_hidden_tokens_and_nothing_else_changes() -> None:
    made = task(rows=200)
    examples = made.examples(0)
    batch = made.batch(examples)
    text = made.spec.corpus.train.tokens.astype(np.int64)  # type: ignore[union-attr]
    there = torch.tensor(np.stack([text[start : start + 32] for start in examples.places]))
    chosen = batch.targets != IGNORED
    assert torch.equal(batch.targets[chosen], there[chosen])
    assert torch.equal(batch.tokens[~chosen], there[~chosen])
    assert torch.equal(batch.weights, chosen.float())
    assert chosen.sum(1).tolist() == [5] * 200  # 15 % of 32, rounded
    assert chosen.float().mean(0).min() > 0.05  # every place can be chosen


@pytest.mark.lecture("L3-04")
@pytest.mark.parametrize(("masked", "random"), [(0.8, 0.1), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.5, 0.5)])
def test_what_replaces_them(masked: float, random: float) -> None:
    """The shares of Devlin et al. 2019, and others; random tokens are drawn from all ordinary ids."""
    made = task(rows=1000, masked=masked, random=random)
    batch = made.batch(made.examples(1))
    chosen = batch.targets != IGNORED
    now, before = batch.tokens[chosen], batch.targets[chosen]
    hidden, unchanged = (now == MASK).double().mean(), (now == before).double().mean()
    luck = random / len(made.ordinary)  # a random token may be the one that was there
    assert hidden.item() == pytest.approx(masked, abs=0.02)
    assert unchanged.item() == pytest.approx(1 - masked - random + luck, abs=0.02)
    drawn = now[(now != MASK) & (now != before)]
    assert set(drawn.tolist()) <= set(made.ordinary.tolist())
    assert len(drawn) == 0 or len(set(drawn.tolist())) > 0.8 * len(made.ordinary)


def test_special_tokens_are_never_targets() -> None:
    end = TOKENIZER.end_of_text
    ids = [end, 5, end, end, 7, MASK] * 100
    made = task(ids=ids, share=0.9)
    batch = made.batch(made.examples(0))
    assert set(batch.targets.unique().tolist()) == {IGNORED, 5, 7}


def test_an_example_is_masked_alike_in_any_batch_and_anew_in_each_epoch() -> None:
    whole, halves, other = task(rows=8), task(rows=4), task(rows=8, seed=4)
    batch = whole.batch(whole.examples(3))
    parts = [halves.batch(halves.examples(step)) for step in (6, 7)]
    assert torch.equal(batch.tokens, torch.cat([each.tokens for each in parts]))
    assert torch.equal(batch.targets, torch.cat([each.targets for each in parts]))
    assert not torch.equal(batch.targets, other.batch(whole.examples(3)).targets)
    examples = whole.examples(3)
    assert examples.keys is not None
    again = whole.batch(ExampleIndices(examples.places, length=32, keys=examples.keys + 8))
    assert not torch.equal(batch.targets, again.targets)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_whole_words(kind: str) -> None:
    """All pieces of a word are targets, or none; and a long word does not take more than its share."""
    sizes = {"bpe": 290, "wordpiece": 60, "unigram": 310}
    tokenizer = train_tokenizer(kind, [TEXT], sizes[kind], ("[MASK]",))
    ids = tokenizer.encode(TEXT)
    spec = DataSpec(Corpus(part(ids)), MODEL, 50, tokenizer=tokenizer)
    made = MaskedTask(MaskedConfig(whole_words=True, share=0.3), spec)
    batch = made.batch(made.examples(0))
    continues = torch.from_numpy(continuing(tokenizer))
    there = torch.where(batch.targets == IGNORED, batch.tokens, batch.targets)
    chosen, inside = batch.targets != IGNORED, continues[there][:, 1:]
    assert inside.any()
    assert torch.equal(chosen[:, 1:][inside], chosen[:, :-1][inside])
    assert chosen.sum(1).float().mean() == pytest.approx(0.3 * 32, rel=0.15)
    pieces = [tokenizer.decode([id]) for id in ids]
    assert any(here.strip().isalpha() and not here.startswith(" ") for here in pieces)


@pytest.mark.parametrize("length", [3, 32, 33, 100, 300])
def test_what_is_held_out_is_read_once_and_masked_the_same_every_time(length: int) -> None:
    made = MaskedTask(
        MaskedConfig(), DataSpec(Corpus(validation=part(range(length))), MODEL, seed=3, tokenizer=TOKENIZER)
    )
    chosen = made.held_out(4)
    places = [place for each in chosen.batches for start in each.places for place in range(start, start + each.length)]
    assert places == list(range(length))
    assert chosen.share == 1
    first, second = ([made.batch(each).tokens for each in chosen.batches] for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    if length == 300:
        sample = made.held_out(4, most=20)
        assert (len(sample.batches), sample.share) == (2, (4 * 32 + 12) / 300)


def test_a_decoder_and_a_tokenizer_without_a_mask_are_refused() -> None:
    with pytest.raises(HeddleError, match="no mask token"):
        MaskedTask(MaskedConfig(), DataSpec(Corpus(part([1, 2])), MODEL, tokenizer=train_tokenizer("bytes", [])))
    with pytest.raises(HeddleError, match="needs an encoder"):
        task().objective(build(sized(1, vocab_size=TOKENIZER.vocab_size, context=32, dim=16)))
    with pytest.raises(HeddleError, match="set context=11 or less"):
        task(ids=[5] * 12)
    with pytest.raises(HeddleError, match="add up to more than 1"):
        RunConfig.of({"task": {"kind": "masked", "masked": 0.8, "random": 0.3}})


def test_presets_are_those_of_the_task(config: Callable[..., RunConfig], quick: None, tmp_path: Path) -> None:
    """A preset without a language head gets one; one with other stacks is refused."""
    settings = config(data={"tokenizer": "bytes"}, model={"preset": "laptop-encoder", "dim": 16})
    run = RunConfig.of({**settings.to_dict(), "task": "masked"})
    prepare(run, tmp_path / "run")
    made = load_config(tmp_path / "run")
    assert preset("laptop-encoder").head.kind == "embedding"
    assert (made["model"]["head"]["kind"], made["task"]["kind"]) == ("language", "masked")
    for name, kind in (("gpt2-small", "masked"), ("laptop-encoder", "next_token")):
        wrong = RunConfig.of({**settings.to_dict(), "task": kind, "model": {"preset": name}})
        with pytest.raises(HeddleError, match=rf"the task '{kind}' trains only an? "):
            prepare(wrong, tmp_path / "other")


def load_config(run: Path) -> dict[str, Any]:
    import json

    data: dict[str, Any] = json.loads((run / "config.json").read_text())
    return data


def test_a_run_learns_and_resumes_bit_for_bit(
    config: Callable[..., RunConfig], quick: None, tmp_path: Path, begin: Begin
) -> None:
    settings = config(data={"tokenizer": "words"}, steps=30, evaluate_every=10, learning_rate=1e-2, warmup=2)
    settings = RunConfig.of({**settings.to_dict(), "task": "masked"})
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for run in (whole, stopped):
        prepare(settings, run)
    reports: list[Any] = []
    result = Trainer(whole, [reports.append]).run()
    assert result.loss < np.log(20) - 0.1  # 14 words: better than guessing by their number alone
    assert any(report.sample and "[" in report.sample for report in reports)
    train(stopped, 13)
    assert written(stopped) == written(whole)


def test_losses_and_weights_are_those_of_transformers(tmp_path: Path) -> None:
    """BertForMaskedLM in a plain torch loop, and the same weights imported here: 20 steps of AdamW."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.BertConfig(
        vocab_size=TOKENIZER.vocab_size, max_position_embeddings=32, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, **sizes,
    )  # fmt: skip
    reference = transformers.BertForMaskedLM(config).train()
    reference.save_pretrained(tmp_path / "before")
    import_model(tmp_path / "before", tmp_path / "run")
    ours, _ = load(tmp_path / "run", "cpu")
    train = TrainConfig(optimizer="adamw", betas=(0.9, 0.99), weight_decay=0.1)
    optimizer = Optimizer(ours.train(), train, 1e-3, "fp32")
    matrices = [each for each in reference.parameters() if each.dim() > 1]
    vectors = [each for each in reference.parameters() if each.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    plain = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), eps=1e-10)
    made = task(rows=4)
    objective = made.objective(ours)
    assert type(objective) is CrossEntropy
    for step in range(20):
        batch: Batch = made.batch(made.examples(step))
        loss, _ = train_step(objective, optimizer, batch, 2, 1.0, 0.0)
        expected = reference(input_ids=batch.tokens, labels=batch.targets).loss
        expected.backward()
        plain.step()
        plain.zero_grad()
        assert loss == pytest.approx(expected.item(), abs=1e-4)
    reference.save_pretrained(tmp_path / "after")
    import_model(tmp_path / "after", tmp_path / "trained")
    trained = load(tmp_path / "trained", "cpu")[0].state_dict()
    for name, parameter in ours.state_dict().items():
        # The gradient of a key's bias is rounding, which AdamW turns into whole steps.
        if not name.endswith("mixer.k.bias"):
            torch.testing.assert_close(parameter, trained[name], rtol=0, atol=1e-4, msg=name)
