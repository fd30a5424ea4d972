"""Laws of tasks with labels: micro-batches, padding, the order of rows, ranks, and transformers as the outside witness."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from heddle.config import (
    ClassificationConfig,
    MultiLabelConfig,
    RegressionConfig,
    TokenClassificationConfig,
    TrainConfig,
    TransformerConfig,
)
from heddle.convert import import_model
from heddle.data.batch import IGNORED, Batch
from heddle.data.buckets import EMPTY
from heddle.data.corpus import Corpus
from heddle.model import Transformer, build
from heddle.nn import Layout
from heddle.tasks import CrossEntropy, DataSpec, ExampleIndices, make_task
from heddle.train import Optimizer, evaluate, train_step
from heddle.weights import load
from tests.tasks.labelled import TOKENIZER, records, spec_for

TASKS: dict[str, Any] = {
    "class": ClassificationConfig(class_weights="balanced"),
    "labels": MultiLabelConfig(label_weights=(3.0, 0.5)),
    "tags": TokenClassificationConfig(),
    "number": RegressionConfig(),
}
kinds = pytest.mark.parametrize("kind", TASKS)


def gradients(objective: CrossEntropy, *batches: Batch) -> list[torch.Tensor]:
    """The mean loss and its gradient, from the sums of some batches."""
    losses = [objective(batch) for batch in batches]
    mean = sum(loss.total for loss in losses) / sum(loss.count for loss in losses)
    return [mean.detach(), *torch.autograd.grad(mean, list(objective.parameters()))]


def widened(batch: Batch, by: int) -> Batch:
    """The same rows with more padding."""
    width = batch.tokens.shape[1]
    lengths = (batch.layout.segment >= 0).sum(1).tolist()

    def wider(tensor: torch.Tensor, fill: float) -> torch.Tensor:
        return torch.nn.functional.pad(tensor, (0, by), value=fill) if tensor.shape == batch.tokens.shape else tensor

    return Batch(
        wider(batch.tokens, 1),
        Layout.padded(lengths, width + by),
        wider(batch.targets, IGNORED),
        wider(batch.weights, 0),
    )


@kinds
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_only_the_records_decide_the_gradient(kind: str, stack: str) -> None:
    """Not how they are cut into micro-batches, their padding, their order, or rows without a record."""
    config = TASKS[kind]
    task = make_task(config, spec_for(config, kind, stack=stack))
    objective = task.objective(build(task.spec.model))
    places = np.arange(8)
    whole = task.batch(ExampleIndices(places))
    expected = gradients(objective, whole)
    others = {
        "micro-batches": whole.split(4),
        "padding": [widened(whole, 5)],
        "order": [task.batch(ExampleIndices(places[::-1].copy()))],
        "empty rows": [task.batch(ExampleIndices(np.concatenate([places, [EMPTY] * 4])))],
        "alone": [task.batch(ExampleIndices(places[row : row + 1])) for row in range(8)],
    }
    for name, batches in others.items():
        for gradient, right in zip(gradients(objective, *batches), expected, strict=True):
            assert (gradient - right).abs().max() <= 2e-5 * max(right.abs().max().item(), 1e-3), name


@kinds
@pytest.mark.parametrize("count", [2, 4])
def test_ranks_read_what_one_process_reads(kind: str, count: int) -> None:
    task = make_task(TASKS[kind], spec_for(TASKS[kind], kind))
    model = task.spec.model
    for step in (0, 5):
        examples = task.examples(step)
        whole = task.batch(examples)
        parts = [task.batch(examples.part(rank, count)) for rank in range(count)]
        objective = task.objective(build(model))
        for gradient, right in zip(gradients(objective, *parts), gradients(objective, whole), strict=True):
            assert (gradient - right).abs().max() <= 2e-5 * max(right.abs().max().item(), 1e-3)


@pytest.mark.parametrize("terms", [{"label_smoothing": 0.2}, {"z_loss": 0.01}])
def test_what_is_reported_does_not_depend_on_what_is_minimised(terms: dict[str, float]) -> None:
    """A step and an evaluation report plain nats; the gradient is another."""
    config = ClassificationConfig()
    task = make_task(config, spec_for(config, "class"))
    batch = task.batch(task.examples(0))
    reported = []
    for settings in ({}, terms):
        model = build(task.spec.model)
        optimizer = Optimizer(model, TrainConfig(), 1e-3, "fp32")
        reported.append(train_step(task.objective(model, **settings), optimizer, batch, 2, 1.0, 0.0))
    assert reported[0][0] == pytest.approx(reported[1][0], abs=1e-6)
    assert abs(reported[0][1] - reported[1][1]) > 1e-4 * reported[0][1]
    scores = evaluate(build(task.spec.model), task)
    assert scores.loss == pytest.approx(evaluate(build(task.spec.model), task).loss)


BERT = transformers.BertConfig(
    vocab_size=TOKENIZER.vocab_size, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
    max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=None,
)  # fmt: skip
CLASSES: dict[str, tuple[Any, int]] = {
    "class": (transformers.BertForSequenceClassification, 3),
    "labels": (transformers.BertForSequenceClassification, 2),
    "tags": (transformers.BertForTokenClassification, 3),
    "number": (transformers.BertForSequenceClassification, 1),
}


def imported(reference: Any, folder: Path) -> Transformer:
    reference.save_pretrained(folder / "theirs")
    import_model(folder / "theirs", folder / "ours")
    return load(folder / "ours", "cpu").model


@kinds
def test_losses_and_weights_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    """Its classes for pairs and single texts in a plain torch loop, the same weights imported here: 20 steps of AdamW."""
    torch.manual_seed(0)
    cls, labels = CLASSES[kind]
    means = {"problem_type": "multi_label_classification"} if kind == "labels" else {}
    reference = cls(transformers.BertConfig(**{**BERT.to_dict(), "num_labels": labels, **means})).train()
    ours = imported(reference, tmp_path / "before").train()
    config = {**TASKS, "class": ClassificationConfig(), "labels": MultiLabelConfig()}[kind]
    corpus = Corpus(records(kind, 64, pairs=kind != "tags"))
    model: TransformerConfig = ours.config
    task = make_task(config, DataSpec(corpus, model, 6, tokenizer=TOKENIZER))
    optimizer = Optimizer(ours, TrainConfig(optimizer="adamw", weight_decay=0.1), 1e-3, "fp32")
    matrices = [each for each in reference.parameters() if each.dim() > 1]
    vectors = [each for each in reference.parameters() if each.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    plain = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), eps=1e-10)
    objective = task.objective(ours)
    for step in range(20):
        batch = task.batch(task.examples(step))
        real = batch.layout.real
        loss, _ = train_step(objective, optimizer, batch, 2 if len(batch.tokens) % 2 == 0 else 1, 1.0, 0.0)
        rows = batch.weights > 0 if kind != "tags" else slice(None)  # a row without a record
        more = {} if batch.types is None else {"token_type_ids": batch.types[rows]}
        inputs = {"input_ids": batch.tokens[rows], "attention_mask": real[rows].long(), **more}
        expected = reference(**inputs, labels=batch.targets[rows]).loss
        expected.backward()
        plain.step()
        plain.zero_grad()
        assert loss == pytest.approx(expected.item(), abs=1e-4)
    trained = imported(reference, tmp_path / "after").state_dict()
    assert kind == "tags" or batch.types is not None
    for name, parameter in ours.state_dict().items():
        # The gradient of a key's bias is rounding, which AdamW turns into whole steps.
        if not name.endswith("mixer.k.bias"):
            torch.testing.assert_close(parameter, trained[name], rtol=0, atol=1e-4, msg=name)
