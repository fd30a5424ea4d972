"""Translation: what each design reads and predicts, what is cropped, and that toys are learned."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heddle.config import SpecialIds, TrainConfig, TranslationConfig, sized
from heddle.data.batch import IGNORED, Batch
from heddle.data.buckets import EMPTY
from heddle.data.corpus import Corpus
from heddle.data.records import Records
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.nn import Layout
from heddle.tasks import DataSpec, ExampleIndices
from heddle.tasks.task import tokens_read
from heddle.tasks.translation import TranslationTask
from heddle.text import train_tokenizer
from heddle.train import Optimizer, evaluate, train_step
from tests.running import unchecked
from tests.tasks.pairs import BOUNDARY, END, FAMILIES, MODELS, TOKENIZER, of, pairs, task

both = pytest.mark.parametrize("family", list(FAMILIES))


def read(made: TranslationTask, *places: int) -> Batch:
    return made.batch(ExampleIndices(np.array(places)))


def text(ids: Tensor) -> list[str]:
    """A row as letters, with | for the end, > for the boundary, and . for no target."""
    names = {END: "|", BOUNDARY: ">", IGNORED: "."}
    return ["".join(names.get(id, "") or TOKENIZER.decode([id]) for id in row) for row in ids.tolist()]


def test_an_encoder_decoder_reads_the_source_and_predicts_the_target_and_its_end() -> None:
    batch = read(task(records=of(("abc", "cba"), ("de", "e"))), 0, 1)
    assert batch.source is not None
    assert batch.source_layout is not None
    assert text(batch.source) == ["abc|", "de||"]
    assert batch.source_layout.real.tolist() == [[True] * 4, [True] * 3 + [False]]
    assert text(batch.tokens) == ["|cba", "|e||"]
    assert text(batch.targets) == ["cba|", "e|.."]
    assert batch.layout.real.tolist() == [[True] * 4, [True, True, False, False]]
    assert (batch.layout.form, batch.source_layout.form) == ("padded", "padded")
    assert tokens_read(batch) == 2 * 4 + 2 * 4
    assert torch.equal(batch.weights, (batch.targets != IGNORED).float())


@pytest.mark.lecture("L1-81")
@pytest.mark.parametrize(("source_loss", "targets"), [(False, ["...cba|", "..e|..."]), (True, ["bc>cba|", "e>e|..."])])
def test_a_decoder_reads_both_with_a_boundary_between(source_loss: bool, targets: list[str]) -> None:
    """The boundary is one id, which ordinary text never gives."""
    batch = read(task("decoder", of(("abc", "cba"), ("de", "e")), source_loss=source_loss), 0, 1)
    assert batch.source is None
    assert text(batch.tokens) == ["abc>cba", "de>e|||"]
    assert text(batch.targets) == targets
    assert TOKENIZER.encode("a<start_translation>b", allow_special=True)[1:2] == [BOUNDARY]


def test_published_ids_come_around_the_texts() -> None:
    """The id that an imported model's decoder starts with, the one that it must generate first, and its end."""
    ids = SpecialIds(end=(3, 4), decoder_start=5, forced_begin=6)
    spec = DataSpec(Corpus(of(("abc", "c"))), MODELS["both"].model_copy(update={"ids": ids}), tokenizer=TOKENIZER)
    batch = read(TranslationTask(TranslationConfig(), spec), 0)
    assert batch.source is not None
    assert batch.source[0, -1] == 3
    assert batch.tokens.tolist() == [[5, 6, *TOKENIZER.encode("c")]]
    assert batch.targets.tolist() == [[6, *TOKENIZER.encode("c"), 3]]


@pytest.mark.parametrize(
    ("family", "pair", "source", "tokens", "targets"),
    [
        ("both", ("abcdefgh", "abc"), "abcde|", "|abc", "abc|"),
        ("both", ("a", "abcdef"), "a|", "|abcde", "abcdef"),  # no false end
        ("both", ("a", "abcde"), "a|", "|abcde", "abcde|"),  # just fits
        ("decoder", ("abcdefgh", "abc"), "", "ab>abc", "..abc|"),
        ("decoder", ("ab", "abcdefgh"), "", "ab>abc", "..abcd"),
        ("decoder", ("abcdefgh", "abcdefgh"), "", "ab>abc", "..abcd"),
        ("decoder", ("abc", "ab"), "", "abc>ab", "...ab|"),
    ],
)
def test_what_does_not_fit_is_cropped(
    family: str, pair: tuple[str, str], source: str, tokens: str, targets: str
) -> None:
    """The source keeps at least half of a row that both share; and every row has the length that buckets were told."""
    made = task(family, of(pair), context=6)
    batch, records = read(made, 0), made.spec.records(held_out=False)
    assert batch.source is None or text(batch.source) == [source]
    assert (text(batch.tokens), text(batch.targets)) == ([tokens], [targets])
    assert made.lengths(records).tolist() == [max(len(tokens), len(source))]
    assert made.targets(records).tolist() == [int(batch.weights.sum())]


@both
@pytest.mark.parametrize("settings", [{}, {"source_loss": True}])
def test_lengths_and_targets_are_those_of_the_batches(family: str, settings: dict[str, bool]) -> None:
    if family == "both" and settings:
        return
    made = task(family, pairs(200, longest=30), context=20, **settings)
    records = made.spec.records(held_out=False)
    batches = [read(made, place) for place in range(len(records))]
    widths = [max(batch.tokens.shape[1], 0 if batch.source is None else batch.source.shape[1]) for batch in batches]
    assert made.lengths(records).tolist() == widths
    assert made.targets(records).tolist() == [int(batch.weights.sum()) for batch in batches]
    assert max(widths) == 20
    lines = made.remarks()
    assert len(lines) == 2
    cropped = sum(len(ids) > 19 for ids in map(records.columns["source"].__getitem__, range(200)))
    assert family == "decoder" or lines[0].startswith(f"{cropped} of 200 sources ({cropped / 200:.1%}) do not fit into")
    assert "their ends are not learned" in lines[1]
    assert task(family).remarks() == []


@both
def test_steps_hold_as_many_pairs_as_fit(family: str) -> None:
    """Neither the sources nor the targets of a step have more than `batch_tokens` places."""
    made = task(family, pairs(400, longest=14), batch_tokens=512)
    steps = [made.batch(made.examples(step)) for step in range(10)]
    for batch in steps:
        assert batch.tokens.numel() <= 512
        assert batch.source is None or batch.source.numel() <= 512
    assert len({len(batch.tokens) for batch in steps}) > 1


def test_a_row_of_padding_changes_nothing() -> None:
    made = task(records=pairs(4))
    model = build(MODELS["both"])
    objective = made.objective(model)
    padded, plain = (objective(read(made, *places)) for places in ((0, EMPTY, 1), (0, 1)))
    assert padded.count == plain.count
    torch.testing.assert_close(padded.total, plain.total)
    assert read(made, EMPTY, EMPTY).weights.sum() == 0
    assert objective(read(made, EMPTY)).total == 0


def gradients(model: Transformer, made: TranslationTask, batches: list[Batch]) -> dict[str, Tensor]:
    """Of the mean over all targets of the batches."""
    model.zero_grad()
    losses = [made.objective(model)(batch) for batch in batches]
    total = sum(loss.total for loss in losses) / sum(loss.count for loss in losses)
    assert isinstance(total, Tensor)
    total.backward()
    return {
        "loss": total.detach(),
        **{name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None},
    }


@both
def test_the_cut_into_micro_batches_padding_and_the_order_of_rows_change_nothing(family: str) -> None:
    made = task(family)
    model = build(MODELS[family])
    places = made.examples(0).places
    whole = read(made, *places)
    cuts = {
        "halves": [read(made, *places[:4]), read(made, *places[4:])],
        "micro-batches": whole.split(4),
        "row by row": [read(made, place) for place in places],
        "another order": [read(made, *places[::-1])],
        "more padding": [read(made, *places, EMPTY, EMPTY)],
    }
    expected = gradients(model, made, [whole])
    for cut, batches in cuts.items():
        actual = gradients(model, made, batches)
        for name, gradient in expected.items():
            scale = gradient.abs().max().item()
            torch.testing.assert_close(actual[name], gradient, rtol=0, atol=2e-5 * scale, msg=f"{cut}: {name}")


def test_a_packed_row_is_its_records() -> None:
    """Several pairs in one row, told apart by their segments, have the loss and the gradients of as many rows."""
    made = task("decoder")
    model = build(MODELS["decoder"])
    rows = [read(made, place) for place in (0, 1, 2)]
    layout = Layout.packed([[row.tokens.shape[1] for row in rows]], sum(row.tokens.shape[1] for row in rows) + 2)

    def joined(name: str, fill: float) -> Tensor:
        row = torch.cat([getattr(row, name)[0] for row in rows])
        return torch.cat([row, row.new_full((2,), fill)])[None]

    packed = Batch(joined("tokens", 0), layout, joined("targets", IGNORED), joined("weights", 0))
    expected, actual = gradients(model, made, rows), gradients(model, made, [packed])
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=0, atol=2e-5 * gradient.abs().max().item(), msg=name)


@both
@pytest.mark.lecture("L1-82")
def test_a_target_is_predicted_from_the_whole_source_and_the_targets_before_it(family: str) -> None:
    """Gradients reach every id of the source, the decoder's inputs up to the place, and nothing after it."""
    made = task(family, of(("abcde", "fghij")))
    model, batch = build(MODELS[family]).double(), read(made, 0)
    embedded: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    model.embedding.register_forward_hook(keep)
    hidden = model(batch.tokens, batch.layout, batch.source, batch.source_layout).hidden
    assert len(embedded) == len(FAMILIES[family])
    for place in torch.nonzero(batch.weights[0])[:, 0].tolist():
        nats = model.logits(hidden[0, place]).log_softmax(0)[batch.targets[0, place]]
        *source, own = (each[0].abs().sum(-1) for each in torch.autograd.grad(nats, embedded, retain_graph=True))
        assert (own[: place + 1] > 0).all()
        assert (own[place + 1 :] == 0).all()
        assert all((each > 0).all() for each in source)


@pytest.mark.lecture("L1-83")
def test_a_decoder_alone_has_no_weights_for_a_source() -> None:
    names = [name for name, _ in build(MODELS["decoder"]).named_parameters()]
    assert not [name for name in names if "cross" in name or "encoder" in name or "source" in name]
    assert any("cross" in name for name, _ in build(MODELS["both"]).named_parameters())


@both
def test_a_toy_is_learned_and_shown(family: str) -> None:
    """Words are reversed: the last letter must be found at a distance that depends on the length."""
    config = sized(1, vocab_size=TOKENIZER.vocab_size, context=12, dim=32, stacks=FAMILIES[family])
    corpus = Corpus(pairs(1000, longest=3), pairs(50, seed=1, longest=3))
    made = TranslationTask(TranslationConfig(), DataSpec(corpus, config, 32, 3, tokenizer=TOKENIZER))
    model, train = build(config), TrainConfig(matrix_learning_rate=0.05)
    objective, optimizer = made.objective(model), Optimizer(model, train, 1e-2, "fp32")
    with unchecked():
        for step in range(150):
            train_step(objective, optimizer, made.batch(made.examples(step)), 1, 1 - step / 150, 1.0)
    evaluation = evaluate(model, made)
    assert evaluation.metrics["accuracy"] > 0.85, evaluation
    assert evaluation.metrics["perplexity"] == pytest.approx(np.exp(evaluation.loss))
    shown = made.sample(model, TOKENIZER, 0, 20)
    assert shown is not None
    lines = [line.replace("[", "→ ").replace("]", "").split(" → ") for line in shown.splitlines()]
    assert all(source == right[::-1] for source, _, right in lines)
    assert sum(answer == right for _, answer, right in lines) >= 2


@both
def test_an_answer_is_the_best_continuation(family: str) -> None:
    """The same ids as one pass after another over all that is there, without a cache."""
    made, model = task(family), build(MODELS[family], seed=5)
    records = made.spec.records(held_out=True)
    for number in range(3):
        row = made.row(records, number)
        best_answer = made.answer(model, row, 6)
        ids, source = row.ids[: row.known].tolist(), torch.tensor([row.source.tolist()])
        for token in best_answer:
            hidden = model(torch.tensor([ids]), source=source if family == "both" else None).hidden
            assert token == model.logits(hidden[0, -1]).argmax()
            ids.append(token)
        assert len(best_answer) <= 6
    full = made.answer(model, replace(row, known=32, ids=np.zeros(33, dtype=np.int64)), 6)
    assert len(full) <= (6 if family == "both" else 1), "a full context has one more token"


def test_what_cannot_be_is_refused_in_one_line() -> None:
    plain = train_tokenizer("characters", ["ab"], special=("<|endoftext|>",))
    for family, tokenizer, line in (
        ("both", train_tokenizer("characters", ["ab"], special=()), "no token that ends a text: add <|endoftext|>"),
        ("decoder", plain, "no token between source and target, .* add <start_translation> to special_tokens"),
        ("both", None, "needs the tokenizer"),
    ):
        with pytest.raises(HeddleError, match=line):
            TranslationTask(TranslationConfig(), DataSpec(Corpus(pairs(3)), MODELS[family], tokenizer=tokenizer))
    TranslationTask(TranslationConfig(), DataSpec(Corpus(pairs(3)), MODELS["both"], tokenizer=plain))
    with pytest.raises(HeddleError, match="source_loss applies to a decoder alone"):
        task(source_loss=True)
    with pytest.raises(HeddleError, match="context = 2 is too short for a pair of texts: it must be at least 3"):
        task(context=2)
    with pytest.raises(HeddleError, match="reads records with target"):
        task(records=Records({"source": pairs(3).columns["source"]}))
    with pytest.raises(HeddleError, match="was made for another model"):
        task().objective(build(MODELS["decoder"]))
