"""The steps of grading: each compares something of a submission with the definition, and tells in words what it saw."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log

from torch import Tensor

from heddle.lessons.cases import Case, computed, computed_gradients
from heddle.lessons.diagnosis import differing, equal, is_right, repeats
from heddle.lessons.fault import changed
from heddle.lessons.homework import HEADS, HOMEWORK, Homework
from heddle.lessons.learning import HONEST, LEARNED
from heddle.lessons.sandbox import Submission
from heddle.lessons.tasks import KINDS

SHOWN = 4  # names of parameters that a line lists


@dataclass(frozen=True)
class Step:
    """A step of grading.

    Attributes:
        name: what is tried.
        is_right: the verdict.
        lines: what was seen, in words.
    """

    name: str
    is_right: bool
    lines: tuple[str, ...]


def grading_steps(submission: Submission, part: str, tried: Sequence[Case]) -> tuple[Step, ...]:
    """All steps, in the order in which they are reported."""
    names = dict.fromkeys(case.step for case in tried)
    groups = [(name, [case for case in tried if case.step == name]) for name in names]
    return (
        _parameters(submission, HOMEWORK[part]),
        *(_cases(submission, part, name, rows) for name, rows in groups),
        _training(submission, part, tried),
        *learning_steps(submission.learned),
    )


def learning_steps(learned: dict[str, float]) -> Iterator[Step]:
    """What came of training a model, if it was trained."""
    if learned:
        loss, reversed_ = learned.values()
        leaks = (
            ""
            if loss >= HONEST
            else f": nothing tells these tokens, so a loss below {log(KINDS):.3f} has seen the next one"
        )
        yield Step("no leak", loss >= HONEST, (f"loss {loss:.3f} on random tokens of {KINDS} kinds{leaks}",))
        yield Step("learning", reversed_ >= LEARNED, (f"it reverses six digits: {reversed_:.1%} of them are right",))


def _parameters(submission: Submission, homework: Homework) -> Step:
    lines = []
    if submission.missing:
        first = ", ".join(f"{name} {list(homework.shapes[name])}" for name in submission.missing[:SHOWN])
        more = f" and {len(submission.missing) - SHOWN} more" if len(submission.missing) > SHOWN else ""
        lines.append(f"missing: {first}{more}")
    if submission.extra:
        lines.append(
            "not part of it: " + ", ".join(f"{name} {list(shape)}" for name, shape in submission.extra.items())
        )
    for name, (shape, expected) in submission.misshapen.items():
        lines.append(f"{name} is {list(shape)}, not {list(expected)}")
    right = not lines
    return Step("parameters", right, tuple(lines) or (f"all {len(homework.shapes)}",))


def _cases(submission: Submission, part: str, name: str, rows: Sequence[Case]) -> Step:
    lines, right = [], True
    for case in rows:
        if is_right(submission, case, part):
            continue
        right = False
        first, *details = _difference(submission, case, part)
        lines += [first, *details] if case.name == name else [f"{case.name}: {first}"]
    return Step(name, right, tuple(lines) or (", ".join(case.name for case in rows if case.name != name) or "equal",))


def _difference(submission: Submission, case: Case, part: str) -> Iterator[str]:
    """Where a result is wrong first, and which tokens are right."""
    output, expected = submission.outputs.get(case.name), computed(case, part)
    assert expected is not None
    if output is None:
        yield submission.errors[case.name]
        return
    if output.shape != expected.shape:
        yield f"it returned {list(output.shape)}, not {list(expected.shape)}"
        return
    if not output.dim():
        yield f"it is {output.item():.4f}, not {expected.item():.4f}"
        return
    wrong = differing(output, expected).any(-1)
    row, token = wrong.nonzero()[0].tolist()
    channel = int((output[row, token].double() - expected[row, token]).nan_to_num(float("inf")).abs().argmax())
    numbers = f"{output[row, token, channel].item():.4f}, not {expected[row, token, channel].item():.4f}"
    yield f"row {row}, token {token}, channel {channel} is {numbers}"
    length = wrong.shape[1]
    right = [place for place in range(length) if not wrong[:, place].any()]
    if right == [0] and length > 1:
        yield "token 0 is right, all later ones are wrong"
    elif right:
        yield f"right are the tokens {', '.join(map(str, right))} of {length}"
    if part == "attention" and (joined := submission.joined.get(case.name)) is not None:
        yield from _before_output(joined, case)


def _before_output(joined: Tensor, case: Case) -> Iterator[str]:
    """Whether the heads were right before W_O."""
    expected = computed(case, "attention", changed({"attention.output": lambda joined, weights: joined}))
    assert expected is not None
    if joined.shape != expected.shape:
        yield f"what reaches `o` is {list(joined.shape)}, not {list(expected.shape)}"
    elif equal(joined, expected):
        yield "what reaches `o` is right: the mistake comes after the heads are joined"
    else:
        pairs = zip(joined.chunk(HEADS, dim=-1), expected.chunk(HEADS, dim=-1), strict=True)
        right = [str(head) for head, pair in enumerate(pairs) if equal(*pair)]
        yield "what reaches `o` is wrong" + (f", except in head {', '.join(right)}" if right else "")


def _training(submission: Submission, part: str, tried: Sequence[Case]) -> Step:
    """A second call, a call in training, and its gradients."""
    if not submission.outputs:
        return Step("training", False, ("no call returned anything",))
    if not repeats(submission):
        return Step("training", False, ("two calls in evaluation with the same input differ",))
    case = next(case for case in tried if case.gradients)
    if case.name not in submission.outputs:
        return Step("training", False, ("not tried, since the call failed",))
    if not equal(submission.training[case.name], submission.outputs[case.name].double()):
        return Step("training", True, ("it differs from evaluation, as with dropout: gradients were not compared",))
    if not is_right(submission, case, part):
        return Step("training", False, ("gradients are not compared while the numbers are wrong",))
    gradients, dtype = submission.gradients, submission.outputs[case.name].dtype
    expected = computed_gradients(case, part)
    largest = max(gradient.abs().max().item() for gradient in expected.values())  # that of k.bias is 0, with rounding
    wrong = [
        name
        for name, gradient in expected.items()
        if name not in gradients or not equal((gradients[name] / largest).to(dtype), gradient / largest)
    ]
    if wrong:
        names = ", ".join(wrong[:SHOWN])
        return Step("training", False, (f"no gradient, or a wrong one, reaches {names}: is something detached?",))
    return Step("training", True, ("twice the same, and all gradients equal",))
