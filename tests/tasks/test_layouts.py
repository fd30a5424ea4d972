"""Rows of a text: what each layout reads and predicts, exactly once, and that documents in a row do not see each other."""

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.config import MaskedConfig, NextTokenConfig, RunConfig, TransformerConfig, sized
from heddle.config.decoding import SamplingConfig
from heddle.data.batch import IGNORED, Batch
from heddle.data.corpus import Corpus, Part
from heddle.data.memory import part_of
from heddle.data.sources.documents import Document
from heddle.errors import HeddleError
from heddle.generate.stream import DecodingRules
from heddle.generate.text import complete, text_engine
from heddle.model import build
from heddle.nn import Layout
from heddle.runs import Trainer, prepare, show_step
from heddle.tasks import DataSpec, make_task
from heddle.tasks.next_token import NextTokenTask
from heddle.tasks.rows.documents import (
    Packed,
    Separate,
)
from heddle.text import train_tokenizer
from heddle.train import evaluate, fit
from tests.running import unchecked
from tests.runs.test_resume import train, written

END = 99
LENGTH = 8
MODEL = sized(2, vocab_size=100, context=LENGTH, dim=16)
STARTED = MODEL.override({"ids": {"begin": END, "end": END}})  # a model that starts a text from the end of one
TOKENIZER = train_tokenizer("bytes", [], special=("<|endoftext|>", "[MASK]"))


def text(sizes: list[int], separator: int | None = END) -> Part:
    """Documents of these lengths; ids count on through all of them, so that each place has its own."""
    ids, starts, number = [], [0], 0
    for place, size in enumerate(sizes):
        ids += [each % 97 for each in range(number, number + size)]
        number += size
        ids += [separator] if separator is not None and place < len(sizes) - 1 else []
        starts.append(len(ids))
    covered = np.array([max(size - 1, 0) for size in sizes])
    return Part(np.array(ids, dtype=np.uint16), number, len(sizes), 1, np.array(starts), covered, separator)


def documents(part: Part, started: bool = False) -> list[list[int]]:
    """Each document with its end and, if texts have one, what starts a text."""
    pieces = [part.tokens[start:stop].tolist() for start, stop in itertools.pairwise(part.starts)]
    pieces[-1] += [] if part.separator is None else [part.separator]
    return [[END] * started + each for each in pieces]


def task(layout: str, train: Part, held_out: Part | None = None, started: bool = False, **settings: Any) -> Any:
    model = STARTED if started else MODEL
    spec = DataSpec(Corpus(train, held_out), model, layout=layout, **{"rows": 4, "seed": 3, **settings})  # type: ignore[arg-type]
    return make_task(NextTokenConfig(), spec)


def pairs(batch: Batch) -> list[tuple[int, int]]:
    """Each token with its target."""
    chosen = batch.weights > 0
    assert torch.equal(chosen, batch.targets != IGNORED)
    return list(zip(batch.tokens[chosen].tolist(), batch.targets[chosen].tolist(), strict=True))


def consecutive(ids: list[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(ids))


SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=12).filter(lambda sizes: sum(sizes) < 97)


@settings(max_examples=40)
@given(SIZES, st.integers(1, 5), st.sampled_from([None, END]), st.booleans())
def test_packing_predicts_every_token_once_per_epoch(
    sizes: list[int], rows: int, separator: int | None, started: bool
) -> None:
    """The end among them, and each document's first if something starts a text; in every epoch, and of what is held out."""
    if separator is None and max(sizes) < 2:
        return
    part = text(sizes, separator)
    made = task("pack", part, part, started, rows=rows)
    count = made.rows.packings[False].rows
    expected = Counter(pair for document in documents(part, started) for pair in consecutive(document))
    read = [made.rows.read(made.examples(step)) for step in range(2 * count)]
    following = np.concatenate([each.following for each in read])
    tokens = np.concatenate([each.tokens for each in read])
    for epoch in range(2):
        rows_of = slice(epoch * count, (epoch + 1) * count)
        there = following[rows_of] != IGNORED
        counted_pairs = Counter(zip(tokens[rows_of][there].tolist(), following[rows_of][there].tolist(), strict=True))
        assert counted_pairs == expected
    chosen = made.held_out(rows)
    assert Counter(pair for each in chosen.batches for pair in pairs(made.batch(each))) == expected
    assert chosen.share == 1


@settings(max_examples=40)
@given(SIZES, st.integers(1, 5), st.sampled_from([None, 16, 32]), st.sampled_from([None, END]), st.booleans())
def test_documents_are_read_once_per_epoch(
    sizes: list[int], rows: int, budget: int | None, separator: int | None, started: bool
) -> None:
    """The first tokens of each, from what starts a text to its end if that is reached."""
    if separator is None and max(sizes) < 2:
        return
    part = text(sizes, separator)
    made = task("documents", part, part, started, rows=rows, batch_tokens=budget, multiple=2)
    read = [document[: LENGTH + (len(document) == LENGTH + 1)] for document in documents(part, started)]
    expected = Counter(pair for document in read for pair in consecutive(document))
    steps = int(made.steps_per_epoch())
    places = 0
    for epoch in range(2):
        batches = [made.batch(made.examples(epoch * steps + step)) for step in range(steps)]
        assert Counter(pair for batch in batches for pair in pairs(batch)) == expected
        places = sum(batch.tokens.numel() for batch in batches)
    assert places == made.rows.buckets.places
    chosen = made.held_out(rows)
    assert Counter(pair for each in chosen.batches for pair in pairs(made.batch(each))) == expected
    total = sum(len(document) - 1 for document in documents(part, started))
    assert chosen.share == 1
    assert (made.extent().targets, made.extent().cut) == (total, total - expected.total())


@pytest.mark.lecture("L0-18", "D-32")
def test_a_document_longer_than_a_row() -> None:
    """Alone, it is its first T tokens and nothing of the rest; packed, all of it is read."""
    part = text([LENGTH + 5])
    (document,) = documents(part)
    alone, packed = (task(layout, part, rows=2) for layout in ("documents", "pack"))
    batch = alone.batch(alone.examples(0))
    real = batch.layout.real
    assert batch.tokens[real].tolist() == document[:LENGTH]
    assert batch.targets[real].tolist() == [*document[1:LENGTH], IGNORED]
    assert not set(batch.targets[batch.weights > 0].tolist()) & set(document[LENGTH:])
    whole = packed.batch(packed.examples(0))
    assert sorted(whole.tokens[whole.layout.real].tolist()) == document[:-1]
    assert sorted(whole.targets[whole.weights > 0].tolist()) == document[1:]
    assert "33.3" not in alone.remarks()[0]
    assert alone.remarks() == [
        "documents: 1 document of 1 are cut off: 38.5% of the text, the rest of those longer than 8 tokens, is never read; "
        "50.0% of the computed tokens are padding"
    ]
    assert packed.remarks()[0].startswith(
        "pack: 1 document in 2 rows of 8 tokens, 18.75% of them padding; 1 are longer"
    )


@settings(max_examples=40)
@given(SIZES, st.integers(1, 5), st.sampled_from([None, END]), st.booleans())
def test_a_stream_is_a_ring(sizes: list[int], rows: int, separator: int | None, whole: bool) -> None:
    """Every document is predicted from what starts a text, and ends but where it is cut; windows may begin anywhere."""
    part = replace(text(sizes, separator), ends=whole)
    if len(part.tokens) <= LENGTH:
        return
    made = task("concatenate", part, part, True, rows=rows)
    marked = separator is not None  # otherwise documents have nothing between them but what starts each
    ids = [id for document in documents(part, started=not marked) for id in document]
    ids = [END, *ids][: None if whole else -1] if marked else ids
    expected = Counter(consecutive(ids))
    held = Counter(pair for each in made.held_out(rows).batches for pair in pairs(made.batch(each)))
    assert held == expected
    seen: Counter[tuple[int, int]] = Counter()
    for examples in made.epoch(0):
        seen.update(pairs(made.batch(examples)))
    assert (seen - expected).total() == 0
    assert (expected - seen).total() < LENGTH


@pytest.mark.lecture("L2-56", "L2-60", "D-24")
def test_every_layout_learns_how_texts_begin() -> None:
    """Texts without a prompt start from a function that was trained: 400 documents that all begin with Z."""
    draw = random.Random(0)
    texts = ["Z" + "".join(draw.choices("abcdefgh ", k=draw.randint(2, 9))) for _ in range(400)]
    for layout in ("concatenate", "documents", "pack"):
        config = sized(1, vocab_size=TOKENIZER.vocab_size, context=16, dim=32)
        model = build(config, seed=0)
        settings: Any = {"layout": layout, "learning_rate": 1e-2, "batch": 16, "progress": False}
        with unchecked():
            fit(model, TOKENIZER, texts, 100, **settings)
        scores = model.logits(model(torch.tensor([[TOKENIZER.end_of_text]])).hidden[0, -1]).detach()
        assert float(scores.softmax(-1)[ord("Z")]) > 0.97, layout
        sampling = SamplingConfig(max_tokens=1, temperature=1.0)
        first = [piece.text for piece in complete(model, TOKENIZER, [""] * 100, sampling, range(100))]
        assert first.count("Z") > 95, layout
        # A prompt stands where rows begin: after what starts a text, or anywhere.
        row = text_engine(model, TOKENIZER, ["Zab"], SamplingConfig()).waiting[0].ids
        start = [] if layout == "concatenate" else [TOKENIZER.end_of_text]
        assert row == [*start, *TOKENIZER.encode("Zab")]
        assert (
            DecodingRules(model, SamplingConfig(), TOKENIZER.end_of_text).new_sequence(0, TOKENIZER.encode("Zab")).ids
            == row
        )


def test_masked_tokens_of_packed_documents() -> None:
    """All tokens are read, ends too; no end is a target, and no place of padding."""
    ids = [part_of([Document("warp and weft " * n, "d")], TOKENIZER).tokens.tolist() for n in (1, 2, 3)]
    end = TOKENIZER.end_of_text
    part = part_of([Document("warp and weft " * n, str(n)) for n in (1, 2, 3)], TOKENIZER)
    model = sized(1, vocab_size=TOKENIZER.vocab_size, context=32, dim=16, stacks=("encoder",))
    for layout in ("pack", "documents"):
        spec = DataSpec(Corpus(part), model, rows=3, tokenizer=TOKENIZER, layout=layout)  # type: ignore[arg-type]
        made = make_task(MaskedConfig(share=0.5), spec)
        batch = made.batch(made.examples(0))
        there = torch.where(batch.targets == IGNORED, batch.tokens, batch.targets)
        read = sorted(there[batch.layout.real].tolist())
        every = sorted(id for each in ids for id in [*each, end][: 32 if layout == "documents" else None])
        assert read == every
        assert not (batch.targets == end).any()
        assert (batch.targets[~batch.layout.real] == IGNORED).all()


@pytest.mark.parametrize("layout", ["pack", "documents"])
@pytest.mark.parametrize("kind", [NextTokenConfig(), MaskedConfig()])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_the_global_batch_is_the_same_for_any_number_of_ranks(layout: str, kind: Any, count: int) -> None:
    part = part_of([Document("warp and weft, " * n, str(n)) for n in range(1, 30)], TOKENIZER)
    model = sized(1, vocab_size=TOKENIZER.vocab_size, context=16, dim=16)
    spec = DataSpec(Corpus(part), model, rows=16, seed=3, tokenizer=TOKENIZER, layout=layout)  # type: ignore[arg-type]
    made = make_task(kind, spec)
    for step in (0, 7):
        examples = made.examples(step)
        whole = made.batch(examples)
        parts = [made.batch(examples.part(rank, count)) for rank in range(count)]
        for name in ("targets", "weights", "tokens"):
            values = [getattr(part, name) for part in parts]
            width = whole.tokens.shape[1]
            fill = {"targets": IGNORED, "weights": 0, "tokens": 0}[name]
            padded = [torch.nn.functional.pad(each, (0, width - each.shape[1]), value=fill) for each in values]
            assert torch.equal(torch.cat(padded), getattr(whole, name))


def test_documents_meet_others_in_each_epoch_and_rows_come_in_another_order() -> None:
    part = text([3, 4, 3, 4, 3, 4, 3, 4, 3, 4])
    made = task("pack", part, rows=5)
    epochs = [made.rows._pieces(made.examples(step)) for step in range(4)]
    rows = [{frozenset(row.tolist()) for row in epoch} for epoch in epochs]
    assert len({frozenset(each) for each in rows}) > 1
    assert made.describe(made.examples(0)) == "packed rows of the training documents 0, 1, 2, 3, 4, 5, 6, 7, …"


def models() -> list[TransformerConfig]:
    attention = MODEL
    convolved = MODEL.override({"decoder.block.mixer": {"kind": "convolution", "taps": 3}})
    recurrent = MODEL.override({"decoder.block.mixer": {"kind": "recurrent"}})
    return [attention, convolved, recurrent]


@pytest.mark.parametrize("config", models(), ids=["attention", "convolution", "recurrent"])
def test_packed_documents_are_separate_documents(config: TransformerConfig) -> None:
    """Another neighbour leaves a document's loss bit for bit; loss and gradients of a row are those of its documents alone."""
    part = text([3, 4, 6, 2, 11])
    made = task("pack", part, rows=4)
    model = build(config, seed=1).train()
    objective = made.objective(model)
    examples = made.examples(0)
    batch = made.batch(examples)
    assert batch.layout.documents > 1
    loss = objective(batch)
    loss.total.backward()
    packed = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    total = torch.zeros(())
    for row, number in itertools.product(range(len(batch.tokens)), range(batch.layout.documents)):
        inside = batch.layout.segment[row] == number
        if not inside.any():
            continue
        columns = (batch.tokens[row, inside], batch.targets[row, inside], batch.weights[row, inside])
        ids, targets, weights = (each[None] for each in columns)
        alone = objective(Batch(ids, Layout.whole(*ids.shape), targets, weights))
        alone.total.backward()
        total = total + alone.total.detach()
    assert loss.total.item() == pytest.approx(total.item(), rel=2e-5)
    for name, each in model.named_parameters():
        if each.grad is not None:
            torch.testing.assert_close(packed[name], each.grad, rtol=2e-5, atol=2e-5 * float(each.grad.abs().max()))
    changed = batch.tokens.clone()
    first = batch.layout.segment == 0
    changed[first] = (changed[first] + 1) % 97
    own = (batch.layout.segment == 1).float() * batch.weights
    one, two = (
        objective(Batch(ids, batch.layout, torch.where(own > 0, batch.targets, IGNORED), own)).total
        for ids in (batch.tokens, changed)
    )
    assert own.sum() > 0
    assert torch.equal(one, two)


def test_padding_changes_nothing() -> None:
    part = text([3, 4, 6, 2])
    model = build(MODEL, seed=1)
    for layout in ("documents", "pack"):
        made = task(layout, part)
        batch = made.batch(made.examples(0))
        assert not batch.layout.real.all()
        other = batch.tokens.clone()
        other[~batch.layout.real] = 55
        one, two = (
            made.objective(model)(Batch(ids, batch.layout, batch.targets, batch.weights)).total
            for ids in (batch.tokens, other)
        )
        assert torch.equal(one, two)


def test_experts_see_packed_documents_like_separate_ones() -> None:
    experts = {"kind": "moe", "experts": 4, "active": 2, "expert": {"kind": "gated", "hidden": 16}, "balance": 0.01}
    model = build(MODEL.override({"decoder.block.ffn": experts}), seed=1, dtype=torch.float64)
    part = text([3, 4, 6, 2, 5])
    packed, alone = task("pack", part, rows=3), task("documents", part, rows=5)
    sums = []
    for made in (packed, alone):
        loss = made.objective(model)(made.batch(made.examples(0)))
        sums.append((loss.total.item(), loss.extra.item(), loss.count.item()))
    assert sums[0] == pytest.approx(sums[1], rel=1e-12)


def test_bits_are_of_the_bytes_that_are_scored() -> None:
    """Checked by decoding: every text byte that a target covers counts once, and ends of text are no bytes."""
    words = "the warp is held, the weft is thrown: héddle"
    tokenizer = train_tokenizer("bpe", [words * 20], 290)
    held_out = part_of([Document(words[:n] + words, str(n)) for n in (5, 9, 20, 44)], tokenizer)
    model = sized(1, vocab_size=tokenizer.vocab_size, context=16, dim=16)
    for layout, kind in (("documents", Separate), ("pack", Packed)):
        spec = DataSpec(Corpus(validation=held_out), model, tokenizer=tokenizer, layout=layout)  # type: ignore[arg-type]
        made = make_task(NextTokenConfig(), spec)
        assert isinstance(made, NextTokenTask)
        assert isinstance(made.rows, kind)
        result = evaluate(build(model), made, rows=3)
        targets = [id for each in made.held_out(3).batches for _, id in pairs(made.batch(each))]
        size = sum(len(tokenizer.token_bytes(id)) for id in targets if id != tokenizer.end_of_text)
        assert result.metrics["bytes"] == size
        assert result.tokens == len(targets)
        assert result.metrics["bits_per_byte"] == pytest.approx(result.loss / np.log(2) * len(targets) / size)
        assert result.whole
        assert (result.to_dict()["cut"] > 0) == (result.share < 1) == (layout == "documents")


def test_a_sample_of_packed_rows() -> None:
    part = text([5, 3, 9, 2, 7, 8, 4] * 2)
    made = task("pack", part, part)
    some = made.held_out(4, most=30)
    tokens = sum(int(made.batch(each).weights.sum()) for each in some.batches)
    assert 30 <= tokens < 50
    assert some.share == pytest.approx(tokens / made.rows.held_out_text[0])


class Leaking(torch.nn.Module):
    """Takes the token before, whatever its document."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.out = torch.nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor, layout: Layout) -> torch.Tensor:
        return self.out(x.roll(1, dims=1).cumsum(1))  # type: ignore[no-any-return]


def test_what_mixes_documents_is_refused() -> None:
    custom = {"kind": "custom", "target": f"{__name__}:Leaking"}
    model = build(MODEL.override({"decoder.block.mixer": custom}))
    part = text([3, 4, 6, 2])
    task("concatenate", part).objective(model)
    with pytest.raises(HeddleError, match="layout = pack needs mixers that keep documents and padding apart"):
        task("pack", part).objective(model)
    with pytest.raises(HeddleError, match="no document of the training text has a token to predict"):
        task("pack", text([1, 1], None))


def lines(folder: Path) -> Path:
    draw = np.random.default_rng(0)
    words = ["warp", "weft", "heddle", "loom", "thread", "reed"]
    texts = [" ".join(draw.choice(words, int(n))) for n in draw.integers(1, 9, 150)]
    file = folder / "lines.jsonl"
    file.write_text("\n".join(json.dumps({"text": f"{number} {text}"}) for number, text in enumerate(texts)))
    return file


@pytest.mark.parametrize("layout", ["documents", "pack"])
def test_a_run_resumes_bit_for_bit(layout: str, config: Callable[..., RunConfig], quick: None, tmp_path: Path) -> None:
    """And says what it drops, shows its rows, and its evaluation knows its layout."""
    settings = config(
        data={"sources": [str(lines(tmp_path))], "layout": layout},
        steps=9,
        evaluate_every=3,
        batch=None,
        batch_tokens=384,
        model={"context": 48},
    )
    messages: list[str] = []
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    planned = prepare(settings, whole, messages.append)
    prepare(settings, stopped)
    assert any(line.startswith(f"{layout}: ") for line in messages)
    assert planned.chosen.batch_tokens == (384 if layout == "documents" else None)
    result = Trainer(whole).run()
    assert np.isfinite(result.loss)
    train(stopped, 5)
    assert written(stopped) == written(whole)
    shown = show_step(whole, step=2, rows=4, length=48)
    segments, (mask,) = shown.rows[0].segments, shown.masks
    assert mask.seen == [
        [key <= query and segments[key] == segments[query] >= 0 for key in range(len(segments))]
        for query in range(len(segments))
    ]
    assert (max(max(row.segments) for row in shown.rows) > 0) == (layout == "pack")
