"""Metrics computed from sums over rows: correct, predicted and actual counts of tokens, classes, labels and spans."""

from collections.abc import Mapping, Sequence
from math import sqrt

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from heddle.data.batch import Batch
from heddle.data.records import MISSED
from heddle.model.head import Scores
from heddle.tasks.objective import CrossEntropy

KINDS = ("correct", "predicted", "actual")

Span = tuple[int, int, str]
"""First place, place after the last, and the type."""

OUTSIDE = "O"
# Schemes differ in how they mark a span's last word, and a span of one word: IOB has no letters for these, IOBES has E and S, BILOU
# L and U, BMES M for I, and BMEWO M and W.
SCHEMES = tuple(map(frozenset, ("BI", "BIES", "BILU", "BMES", "BMEW")))
FIRST, LAST = "BSUW", "ESULW"  # letters of words that begin a span, and of words that end one


class CountingCrossEntropy(CrossEntropy):
    """-log p of each target; `by_row` also counts the targets with the highest score, as `accuracy`."""

    def counts(self, features: Tensor, batch: Batch) -> dict[str, Float[Tensor, " B"]]:
        """`accuracy`: per row, the weights of the targets with the highest score."""
        head = self.model.language_head()
        scores, correct = head.scoring(self.model.embedding.weight).to(features.dtype), []
        # Row by row, so that the scores of the whole batch are never in memory at once.
        for row, targets, weights in zip(features, batch.targets, batch.weights, strict=True):
            best = scores.finish(head.product(row, scores.table, scores.bias)).argmax(-1)
            correct.append(((best == targets) * weights).sum())
        return {"accuracy": torch.stack(correct)}


def class_counts(predictions: Tensor, targets: Tensor, weights: Tensor, classes: int) -> dict[str, Tensor]:
    """For each class, the weight of correct predictions, of targets predicted as this class, and of targets of this class.

    Args:
        predictions: Int[B ...], the predicted classes.
        targets: Int[B ...], the actual classes; those of weight 0 may be anything.
        weights: Float[B ...].
        classes: number of classes.

    Returns:
        Float[B] by name, such as `correct 0`.
    """
    predictions, targets, weights = (
        each.reshape(len(predictions), -1) for each in (predictions, targets.clamp(min=0), weights)
    )
    empty = weights.new_zeros(len(predictions), classes)
    sums = {
        "correct": empty.scatter_add(1, targets, weights * (predictions == targets)),
        "predicted": empty.scatter_add(1, predictions, weights),
        "actual": empty.scatter_add(1, targets, weights),
    }
    return {f"{kind} {number}": sums[kind][:, number] for kind in KINDS for number in range(classes)}


def class_metrics(means: Mapping[str, float], classes: int) -> dict[str, float]:
    """Accuracy; F1 averaged over the classes that occur; of two classes, F1 of the second one (`f1`); and Matthews' correlation of
    any number of classes (Gorodkin 2004).

    A class occurs among the targets or the predictions; F1 of a class that does not occur is 0. The correlation is 0 if there is no
    variation.

    Args:
        means: the sums of `class_counts` over all rows, divided by the weight of all targets.
        classes: number of classes.
    """
    correct, predicted, actual = ([means[f"{kind} {number}"] for number in range(classes)] for kind in KINDS)
    accuracy = sum(correct)
    fractions = [(2 * hits, a + b) for hits, a, b in zip(correct, predicted, actual, strict=True)]
    scores = [hits / size for hits, size in fractions if size > 0]
    spread = (1 - sum(share**2 for share in predicted)) * (1 - sum(share**2 for share in actual))
    covariance = accuracy - sum(a * b for a, b in zip(predicted, actual, strict=True))
    return {
        "accuracy": accuracy,
        "macro_f1": sum(scores) / len(scores),
        **({"f1": fractions[1][0] / fractions[1][1] if fractions[1][1] > 0 else 0.0} if classes == 2 else {}),
        "matthews": covariance / sqrt(spread) if spread > 1e-12 else 0.0,
    }


def label_counts(predictions: Bool[Tensor, "B C"], targets: Float[Tensor, "B some"]) -> dict[str, Tensor]:
    """For each label, whether it is correct, predicted and actual for a text; whether all labels of the text are correct; and how
    many of its labels the model does not have.

    Args:
        predictions: the predicted labels.
        targets: 1 for the text's labels, 0 for others. A further column, if any, is the number of labels that the model does not
            have.

    Returns:
        Float[B] by name, such as `correct 0`, `exact` and `missed`.
    """
    actual, missed = targets[:, : predictions.shape[1]] > 0, targets[:, predictions.shape[1] :].sum(1)
    sums = {"correct": predictions & actual, "predicted": predictions, "actual": actual}
    counts = {
        f"{kind} {number}": sums[kind][:, number].float() for kind in KINDS for number in range(predictions.shape[1])
    }
    exact = (predictions == actual).all(1) & (missed == 0)
    return {**counts, "exact": exact.float(), MISSED: missed.float()}


def label_metrics(means: Mapping[str, float], labels: int) -> dict[str, float]:
    """F1 over all decisions, and averaged over the labels, those without a text or a prediction counting 0; and the share of texts
    whose labels are all right. A label that the model does not know is missed in the first and in the last.

    Args:
        means: the sums of `label_counts` over all rows, divided by the weight of all targets.
        labels: number of labels.
    """
    correct, predicted, actual = ([means[f"{kind} {number}"] for number in range(labels)] for kind in KINDS)
    scores = [2 * hits / (a + b) if a + b > 0 else 0.0 for hits, a, b in zip(correct, predicted, actual, strict=True)]
    total = sum(predicted) + sum(actual) + means[MISSED]
    return {
        "micro_f1": 2 * sum(correct) / total if total > 0 else 0.0,
        "macro_f1": sum(scores) / labels,
        "subset_accuracy": means["exact"],
    }


def predicted(features: Tensor, scores: Scores) -> Tensor:
    """The class with the highest score for each vector, Int[B ...]."""
    same = scores.to(features.dtype)
    return same.finish(functional.linear(features, same.table, same.bias)).argmax(-1)


def are_spans(names: Sequence[str]) -> bool:
    """Whether the names are O and tags of one scheme, such as B-PER, or B without a type if there is an O."""
    marks = {name[:1] for name in names if name != OUTSIDE}
    typed = all(name == OUTSIDE or name[1:2] in ("-", "_") or (len(name) == 1 and OUTSIDE in names) for name in names)
    return len(names) > 1 and typed and any(marks <= scheme for scheme in SCHEMES) and bool(marks)


def spans(tags: Sequence[str]) -> set[Span]:
    """The spans of a row of tags such as B-PER I-PER O. All schemes are read as CoNLL's evaluation reads IOBES: by the meaning of
    each letter. A tag that does not continue a span of its type begins one.
    """
    result: set[Span] = set()
    start, kind, ended = 0, "", True
    for place, tag in enumerate([*tags, OUTSIDE]):
        mark, tag_kind = ("", "") if tag == OUTSIDE else (tag[0], tag[2:])
        continues = not ended and mark and mark not in FIRST and tag_kind == kind
        if not ended and not continues:
            result.add((start, place, kind))
        if not continues:
            start, kind = place, tag_kind
        ended = not mark or mark in LAST
        if mark and ended:
            result.add((start, place + 1, kind))
    return result


def span_f1(means: Mapping[str, float]) -> float:
    """F1 of spans: 2 · correct / (predicted + actual); 0 without any spans (Ramshaw and Marcus 1995)."""
    total = means["spans predicted"] + means["spans actual"]
    return 2 * means["spans correct"] / total if total else 0.0
