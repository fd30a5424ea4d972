"""Which known mistake a submission makes: the one, or the two, whose numbers equal the submission's."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

from heddle.lessons.attention_faults import ATTENTION
from heddle.lessons.block_faults import BLOCK
from heddle.lessons.cases import Case, computed
from heddle.lessons.definition import Steps
from heddle.lessons.fault import Changes, Fault, changed
from heddle.lessons.faults import fault
from heddle.lessons.homework import DEPTH, DIM, HOMEWORK, VOCABULARY
from heddle.lessons.model_faults import LOSS, MODEL
from heddle.lessons.sandbox import Submission

# Largest difference that is rounding, as a share of the largest number.
ROUNDING = {torch.float64: 1e-9, torch.float32: 2e-6}
CANDIDATES: dict[str, tuple[Fault, ...]] = {
    "attention": ATTENTION,
    "block": (*BLOCK, *ATTENTION),
    "model": (*MODEL, *BLOCK, *ATTENTION),
}


@dataclass(frozen=True)
class Diagnosis:
    """The mistakes whose numbers equal a submission's, and the steps that they change; empty where none is known."""

    faults: tuple[Fault, ...] = ()
    changes: tuple[Changes, ...] = ()


def differing(output: Tensor, expected: Tensor) -> Tensor:
    """Bool, of the same shape: where numbers differ by more than rounding. nan equals nan."""
    size = expected.nan_to_num(0.0, 0.0, 0.0).abs().max().clamp(min=1.0).item()
    tolerance = size * ROUNDING.get(output.dtype, 2e-3)
    return ~torch.isclose(output.double(), expected, rtol=0.0, atol=tolerance, equal_nan=True)


def equal(output: Tensor, expected: Tensor | None) -> bool:
    """Whether two results differ by rounding alone."""
    return expected is not None and output.shape == expected.shape and not differing(output, expected).any()


def is_right(submission: Submission, case: Case, part: str) -> bool:
    """Whether a submission computes what the definition does."""
    output = submission.outputs.get(case.name)
    return output is not None and equal(output, computed(case, part))


def repeats(submission: Submission) -> bool:
    """Whether a second call returned the same numbers."""
    return all(equal(submission.again[name], output.double()) for name, output in submission.outputs.items())


def diagnose(submission: Submission, part: str, cases: Sequence[Case]) -> Diagnosis:
    """The mistakes whose numbers equal a submission's: one, two, or none that is known."""
    if by_parameters := _by_parameters(submission, part):
        return Diagnosis(by_parameters)
    if not repeats(submission):
        zeros = part != "attention" and any((output == 0).any() for output in submission.outputs.values())
        return Diagnosis((fault("dropout after the sum" if zeros else "dropout in evaluation"),))
    calls = [case for case in cases if case.method == "forward" and case.name in submission.outputs]
    if wrong := [case for case in calls if not is_right(submission, case, part)]:
        return _equal_faults(submission, part, wrong + [case for case in calls if case not in wrong], CANDIDATES[part])
    losses = [case for case in cases if case.method == "loss" and case.name in submission.outputs]
    if any(not is_right(submission, case, part) for case in losses):
        return _equal_faults(submission, part, losses, LOSS)
    return Diagnosis()


def _by_parameters(submission: Submission, part: str) -> tuple[Fault, ...]:
    """Mistakes that a class's parameters tell."""
    missing = set(submission.missing)
    if (VOCABULARY, DIM) in submission.extra.values():
        return (fault("a head of its own"),)
    later = {name for name in HOMEWORK[part].shapes if name.startswith(tuple(f"blocks.{i}." for i in range(1, DEPTH)))}
    if missing and missing == later:
        return (fault("one block for all layers"),)
    if missing and all(name.endswith(".bias") for name in missing):
        return (fault("bias left out"),)
    return ()


def _equal_faults(submission: Submission, part: str, cases: Sequence[Case], faults: Iterable[Fault]) -> Diagnosis:
    def fits(diagnosis: Diagnosis) -> bool:
        steps = changed(*diagnosis.changes)
        return all(equal(submission.outputs[case.name], computed(case, part, steps)) for case in cases)

    return next(filter(fits, _hypotheses(faults)), Diagnosis())


def _hypotheses(faults: Iterable[Fault]) -> Iterator[Diagnosis]:
    """Single mistakes, and then pairs in different steps."""
    singles = [Diagnosis((each,), (changes,)) for each in faults if not each.is_random for changes in each.variants]
    yield from singles
    for one, other in combinations(singles, 2):
        if one.faults != other.faults and not one.changes[0].keys() & other.changes[0].keys():
            yield Diagnosis(one.faults + other.faults, one.changes + other.changes)


def attention_weights(case: Case, part: str, steps: Steps) -> Tensor:
    """Float[T S]: the weights of the first text's first head, in the first block."""
    records: list[Tensor] = []

    def record(weights: Tensor) -> Tensor:
        records.append(weights)
        return steps.attention.drop(weights)

    computed(case, part, replace(steps, attention=replace(steps.attention, drop=record)))
    return records[0][0, 0]
