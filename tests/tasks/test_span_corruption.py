"""Span corruption: how many tokens and spans are missing, which ones, and that a model learns to fill them in."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.config import RunConfig, SpanCorruptionConfig, sized
from heddle.convert import import_model
from heddle.data.corpus import Corpus, Part
from heddle.errors import HeddleError
from heddle.model import build
from heddle.runs import Trainer, prepare
from heddle.tasks import CrossEntropy, DataSpec, ExampleIndices, SpanCorruptionTask
from heddle.text import train_tokenizer
from heddle.weights import load
from tests.runs.test_resume import train, written

TEXT = "the warp is held, the weft is thrown, and the heddle lifts the threads it owns: unbelievably many. " * 40
TOKENIZER = train_tokenizer("bpe", [TEXT], 460, SpanCorruptionConfig.special_tokens)
END = TOKENIZER.special["<|endoftext|>"]
SENTINELS = [TOKENIZER.special[f"<extra_id_{number}>"] for number in range(100)]
BOTH = ("encoder", "decoder")
MODEL = sized(1, vocab_size=TOKENIZER.vocab_size, context=32, dim=16, stacks=BOTH)


def part(ids: Any) -> Part:
    return Part(np.asarray(ids, dtype=np.uint16), len(ids), 1, 1)


def task(rows: int = 8, seed: int = 3, ids: Any = None, context: int = 32, **settings: Any) -> SpanCorruptionTask:
    tokens = TOKENIZER.encode(TEXT) if ids is None else ids
    corpus = Corpus(part(tokens), part(tokens[:300]))
    return SpanCorruptionTask(SpanCorruptionConfig(**settings), DataSpec(corpus, MODEL, rows, seed, context, TOKENIZER))


def test_a_context_of_512_reads_what_t5_reads() -> None:
    """568 tokens, of which 85 are missing in 28 spans: 512 ids of source and 114 of target, as its authors computed."""
    made = task(ids=range(2000), context=512)
    assert (made.window, made.spans(568), made.widths(568)) == (568, (85, 28), (512, 114))


@settings(deadline=None, max_examples=60)
@given(st.integers(12, 60), st.floats(0.01, 0.9), st.floats(1, 8), st.integers(0, 2**30))
def test_source_and_target_make_the_text(context: int, share: float, span: float, key: int) -> None:
    """Each sentinel of the source is the span behind the same sentinel of the target; sizes are those of the rule."""
    text = np.random.default_rng(key).integers(0, 250, 200)
    made = task(ids=text, context=context, share=share, span=span)
    length = made.window
    source, target = made.corrupted(5, length, False, key)
    assert (len(source), len(target) - 1) == made.widths(length)
    assert max(made.widths(length)) <= context
    missing = min(max(round(share * length), 1), length - 1)
    count = min(max(round(missing / span), 1), length - missing)
    assert source[-1] == target[-1] == target[0] == END
    assert [id for id in source if id in SENTINELS] == [id for id in target if id in SENTINELS] == SENTINELS[:count]
    starts = [target.tolist().index(id) for id in SENTINELS[:count]]
    spans = {id: target[one + 1 : other] for id, one, other in zip(SENTINELS, starts, [*starts[1:], -1], strict=False)}
    assert sum(map(len, spans.values())) == missing
    assert min(map(len, spans.values())) >= 1
    assert source[0] not in SENTINELS
    back = np.concatenate([spans.get(id, np.array([id])) for id in source[:-1].tolist()])
    assert (back == text[5 : 5 + length]).all()


def test_every_choice_of_spans_is_equally_likely() -> None:
    """Four of eight tokens in two spans: three ways to cut the missing tokens, and three to cut the others."""
    made = task(ids=range(200), share=0.5, span=2.0)
    counts = Counter(tuple(made.corrupted(0, 8, False, key)[0].tolist()) for key in range(1800))
    assert len(counts) == 9
    assert max(abs(times - 200) for times in counts.values()) < 60  # over four standard deviations


def test_an_example_is_corrupted_alike_in_any_batch_and_anew_in_each_epoch() -> None:
    whole, halves, other = task(rows=8), task(rows=4), task(rows=8, seed=4)
    batch = whole.batch(whole.examples(3))
    parts = [halves.batch(halves.examples(step)) for step in (6, 7)]
    for name in ("tokens", "targets", "source"):
        assert torch.equal(getattr(batch, name), torch.cat([getattr(each, name) for each in parts]))
    assert batch.source is not None
    assert not torch.equal(batch.source, other.batch(whole.examples(3)).source)
    examples = whole.examples(3)
    assert examples.keys is not None
    again = whole.batch(ExampleIndices(examples.places, length=examples.length, keys=examples.keys + 8))
    assert not torch.equal(batch.source, again.source)
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    assert (batch.weights == 1).all()


@pytest.mark.parametrize("length", [2, 31, 36, 37, 100, 300])
def test_what_is_held_out_is_read_once_and_corrupted_the_same_every_time(length: int) -> None:
    spec = DataSpec(Corpus(validation=part(range(length))), MODEL, seed=3, tokenizer=TOKENIZER)
    made = SpanCorruptionTask(SpanCorruptionConfig(), spec)
    chosen = made.held_out(4)
    places = [place for each in chosen.batches for start in each.places for place in range(start, start + each.length)]
    left = length % made.window == 1
    assert places == list(range(length - left))
    assert chosen.share == (length - left) / length
    first, second = ([made.batch(each).source for each in chosen.batches] for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True) if one is not None)
    if length == 300:
        sample = made.held_out(4, most=20)
        assert (len(sample.batches), sample.share) == (1, 4 * made.window / 300)


def test_losses_are_those_of_transformers(tmp_path: Path) -> None:
    """T5ForConditionalGeneration, told sources and labels."""
    torch.manual_seed(0)
    sizes = {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    ids = {"eos_token_id": END, "pad_token_id": 0, "decoder_start_token_id": 0}
    reference = transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=TOKENIZER.vocab_size, **sizes, **ids)
    )
    reference.save_pretrained(tmp_path / "before")
    import_model(tmp_path / "before", tmp_path / "run")
    ours, _ = load(tmp_path / "run", "cpu")
    corpus = Corpus(part(TOKENIZER.encode(TEXT)))
    made = SpanCorruptionTask(SpanCorruptionConfig(), DataSpec(corpus, ours.config, 4, 3, 32, TOKENIZER))
    objective = made.objective(ours)
    assert isinstance(objective, CrossEntropy)
    batch = made.batch(made.examples(0))
    loss = objective(batch)
    expected = reference(input_ids=batch.source, labels=batch.targets).loss
    assert (loss.total / loss.count).item() == pytest.approx(expected.item(), abs=1e-4)


def test_what_cannot_be_is_refused_in_one_line() -> None:
    few = train_tokenizer("bytes", [], special=("<|endoftext|>", "<extra_id_0>"))
    spec = DataSpec(Corpus(part([1] * 99)), MODEL, tokenizer=few)
    with pytest.raises(HeddleError, match="context = 32 needs 2 sentinels, but the tokenizer has no <extra_id_1>"):
        SpanCorruptionTask(SpanCorruptionConfig(), spec)
    with pytest.raises(HeddleError, match="context = 32 reads windows of 34 tokens, but training has 30 tokens"):
        task(ids=range(30))
    with pytest.raises(HeddleError, match="context = 2 is too short for a window: it must be at least 3"):
        task(context=2)
    with pytest.raises(HeddleError, match="needs an encoder-decoder"):
        task().objective(build(sized(1, vocab_size=TOKENIZER.vocab_size, context=32, dim=16)))


def test_a_run_learns_and_resumes_bit_for_bit(config: Callable[..., RunConfig], quick: None, tmp_path: Path) -> None:
    """The whole command: an encoder-decoder by default, samples with the spans filled in, stopped and resumed."""
    settings = config(data={"tokenizer": "words"}, steps=30, evaluate_every=10, learning_rate=1e-2, warmup=2)
    settings = RunConfig.of({**settings.to_dict(), "task": "span_corruption"})
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for run in (whole, stopped):
        prepare(settings, run)
    trainer, reports = Trainer(whole), list[Any]()
    assert trainer.session.run.config.model.encoder is not None
    trainer.readers.append(reports.append)
    result = trainer.run()
    assert result.loss < np.log(20) - 0.1  # 14 words and two sentinels: better than guessing among them
    assert result.metrics["accuracy"] > 0.15  # the sentinel is where it must be
    samples = [report.sample for report in reports if report.sample]
    assert samples
    assert all(sample.count("[") == sample.count("]") > 0 for sample in samples)
    train(stopped, 13)
    assert written(stopped) == written(whole)
