"""How often each class is predicted, is there, and is right: counts per row, and what is computed from their sums."""

from collections.abc import Mapping
from math import sqrt

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from heddle.data.records import MISSED
from heddle.model.head import Scores

KINDS = ("right", "found", "there")


def class_counts(found: Tensor, targets: Tensor, weights: Tensor, classes: int) -> dict[str, Tensor]:
    """For each class, the weight of the targets that were right, of those predicted to be it, and of those that are it.

    Args:
        found: Int[B ...], the predicted classes.
        targets: Int[B ...], the right ones; those of weight 0 may be anything.
        weights: Float[B ...].
        classes: number of classes.

    Returns:
        Float[B] by name, such as `right 0`.
    """
    found, targets, weights = (each.reshape(len(found), -1) for each in (found, targets.clamp(min=0), weights))
    empty = weights.new_zeros(len(found), classes)
    sums = {
        "right": empty.scatter_add(1, targets, weights * (found == targets)),
        "found": empty.scatter_add(1, found, weights),
        "there": empty.scatter_add(1, targets, weights),
    }
    return {f"{kind} {number}": sums[kind][:, number] for kind in KINDS for number in range(classes)}


def class_metrics(means: Mapping[str, float], classes: int) -> dict[str, float]:
    """Accuracy; F1 averaged over the classes that occur; of two classes, F1 of the second one (`f1`); and Matthews' correlation of
    any number of classes (Gorodkin 2004).

    A class occurs if a target or a prediction is it; F1 of a class that does not is 0. Without any variation, the correlation is 0.

    Args:
        means: the sums of `class_counts` over all rows, divided by the weight of all targets.
        classes: number of classes.
    """
    right, found, there = ([means[f"{kind} {number}"] for number in range(classes)] for kind in KINDS)
    accuracy = sum(right)
    both = [(2 * hits, a + b) for hits, a, b in zip(right, found, there, strict=True)]
    scores = [hits / size for hits, size in both if size > 0]
    spread = (1 - sum(share**2 for share in found)) * (1 - sum(share**2 for share in there))
    covariance = accuracy - sum(a * b for a, b in zip(found, there, strict=True))
    return {
        "accuracy": accuracy,
        "macro_f1": sum(scores) / len(scores),
        **({"f1": both[1][0] / both[1][1] if both[1][1] > 0 else 0.0} if classes == 2 else {}),
        "matthews": covariance / sqrt(spread) if spread > 1e-12 else 0.0,
    }


def label_counts(chosen: Bool[Tensor, "B C"], targets: Float[Tensor, "B some"]) -> dict[str, Tensor]:
    """For each label, whether a text's is right, predicted and there; whether all of its labels are right; and how many it has that
    cannot be predicted.

    Args:
        chosen: the predicted labels.
        targets: 1 for the labels that are there, 0 for others. A further column, if any, is the number of those that the model
            does not know.

    Returns:
        Float[B] by name, such as `right 0`, `exact` and `missed`.
    """
    there, missed = targets[:, : chosen.shape[1]] > 0, targets[:, chosen.shape[1] :].sum(1)
    sums = {"right": chosen & there, "found": chosen, "there": there}
    counts = {f"{kind} {number}": sums[kind][:, number].float() for kind in KINDS for number in range(chosen.shape[1])}
    exact = (chosen == there).all(1) & (missed == 0)
    return {**counts, "exact": exact.float(), MISSED: missed.float()}


def label_metrics(means: Mapping[str, float], labels: int) -> dict[str, float]:
    """F1 over all decisions, and averaged over the labels, those without a text or a prediction counting 0; and the share of texts
    whose labels are all right. A label that the model does not know is missed in the first and in the last.

    Args:
        means: the sums of `label_counts` over all rows, divided by the weight of all targets.
        labels: number of labels.
    """
    right, found, there = ([means[f"{kind} {number}"] for number in range(labels)] for kind in KINDS)
    each = [2 * hits / (a + b) if a + b > 0 else 0.0 for hits, a, b in zip(right, found, there, strict=True)]
    every = sum(found) + sum(there) + means[MISSED]
    return {
        "micro_f1": 2 * sum(right) / every if every > 0 else 0.0,
        "macro_f1": sum(each) / labels,
        "subset_accuracy": means["exact"],
    }


def predicted(features: Tensor, scores: Scores) -> Tensor:
    """The class with the highest score for each vector, Int[B ...]."""
    same = scores.to(features.dtype)
    return same.finish(functional.linear(features, same.table, same.bias)).argmax(-1)
