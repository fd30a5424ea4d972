"""Run all checks of a model, and summarize them."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from math import log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

import torch

from heddle.account.parameters import parameter_count
from heddle.checks import SEED, checked
from heddle.config.model import LanguageHeadConfig, TransformerConfig
from heddle.convert import export_model
from heddle.convert.agreement import TOLERANCE
from heddle.convert.fitting import expressible
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.model.build import build
from heddle.model.transformer import Transformer
from heddle.prove.checks import CHECKS, compiled
from heddle.prove.laptop import LARGE, laptop
from heddle.prove.subject import Subject, awaken
from heddle.prove.verdict import Comparison, NotApplicable, Verdict, finite_or_none, judge
from heddle.weights import save

FIRST_LOSS = 0.3  # nats from ln V (L0-13)
EXPORT = "export"
REPORT_ORDER = ("DIFFERENT", "NOT CHECKED", "ROUNDING", "EXACT")  # in this order


@displayed(".verdicts, .to_dict()")
@dataclass(frozen=True)
class Proof:
    """The result of all checks of a model.

    Attributes:
        name: of the model.
        config: the tested model, which is at laptop size if the given one is large.
        reduced: whether the tested model is at laptop size.
        rounding: error of fp32 against fp64, relative to the largest score.
        verdicts: one per check.
    """

    name: str
    config: TransformerConfig
    reduced: bool
    rounding: float
    verdicts: tuple[Verdict, ...]

    @property
    def holds(self) -> bool:
        """Whether no check failed."""
        return all(verdict.holds for verdict in self.verdicts)

    def _lines(self) -> Iterator[str]:
        words = Counter(verdict.word for verdict in self.verdicts)
        outcome = "every check passed" if self.holds else f"{words['DIFFERENT']} of {len(self.verdicts)} checks FAILED"
        yield f"Proof of {self.name or 'a model'}: {outcome}"
        for verdict in sorted(self.verdicts, key=lambda verdict: REPORT_ORDER.index(verdict.word)):
            if verdict.word != "NOT CHECKED":
                size = f"{verdict.error:.1e} (allowed {verdict.bound:.1e})" if verdict.error else ""
                place = verdict.layer and f"from {verdict.layer} on"
                yield f"  {verdict.check:<22} {verdict.word:<9} {' '.join(part for part in (size, place, verdict.detail) if part)}"
        if skipped := [verdict.check for verdict in self.verdicts if verdict.word == "NOT CHECKED"]:
            yield f"  not checked: {', '.join(skipped)}"

    def to_dict(self) -> dict[str, Any]:
        """JSON data."""
        return {
            "name": self.name,
            "holds": self.holds,
            "reduced": self.reduced,
            "rounding": finite_or_none(self.rounding),
            "checks": [verdict.to_dict() for verdict in self.verdicts],
            "config": self.config.to_dict(),
        }


Progress = Callable[[str], None]


@checked(seed=SEED)
def prove_config(
    config: TransformerConfig,
    name: str = "",
    compile: bool = False,
    progress: Progress | None = None,
    seed: int = 0,
) -> Proof:
    """Check a model from its config: with random weights, and at laptop size if it is large."""
    reduced = parameter_count(config) > LARGE
    tested = laptop(config) if reduced else config
    seed = int(seed)
    model = awaken(build(tested, seed=seed), seed)
    proof = prove(model, name, compile, progress, seed)
    verdicts = proof.verdicts
    if (
        reduced and (not_exported := not_expressible(config)) is not None
    ):  # the laptop size may hide sizes that cannot be exported
        verdicts = (*(verdict for verdict in verdicts if verdict.check != EXPORT), not_exported)
    return Proof(name, tested, reduced, proof.rounding, (*verdicts, first_loss(tested, seed)))


@checked(seed=SEED)
@torch.no_grad()
def prove(
    model: Transformer, name: str = "", compile: bool = False, progress: Progress | None = None, seed: int = 0
) -> Proof:
    """Run every applicable check on a model with its weights. The model is left in evaluation mode and fp32.

    Raises:
        HeddleError: the model cannot run, or is not on the CPU, where the checks compute.
    """
    if model.device.type != "cpu":
        raise HeddleError(f"prove: the model is on {model.device}, and the checks compute on the CPU: model.cpu()")
    try:
        subject = Subject(model.float(), int(seed))
    except HeddleError:
        raise
    except Exception as error:  # a custom module may raise anything
        raise HeddleError(f"the model cannot run: {_describe_error(error)}") from error
    checks = {**CHECKS, **({"compiled": compiled} if compile else {})}
    verdicts = []
    for word, check in checks.items():
        if progress is not None:
            progress(word)
        verdicts.append(run_check(word, check, subject))
    if progress is not None:
        progress(EXPORT)
    verdicts.append(check_export(subject))
    return Proof(name, model.config, False, subject.bounds["output"], tuple(verdicts))


def check_export(subject: Subject) -> Verdict:
    """Check that an export computes the same logits in transformers, if an architecture there fits the model."""
    if (not_exported := not_expressible(subject.config)) is not None:
        return not_exported
    with TemporaryDirectory() as folder:
        save(subject.model, Path(folder) / "run")
        try:
            report = export_model(Path(folder) / "run", Path(folder) / "export")
        except HeddleError as error:
            return Verdict(EXPORT, "DIFFERENT", float("inf"), TOLERANCE, "output", str(error))
    if not report["checked"]:
        return Verdict(EXPORT, "NOT CHECKED", detail=report["notes"][-1].removeprefix("not checked: "))
    difference = float(report["difference"])
    return Verdict(EXPORT, "ROUNDING" if difference else "EXACT", difference, float(report["allowed"]))


def not_expressible(config: TransformerConfig) -> Verdict | None:
    """The verdict for a model that cannot be exported, or None if it can."""
    architecture, reasons = expressible(config)
    if architecture is not None:
        return None
    return Verdict(EXPORT, "NOT CHECKED", detail=f"no architecture of transformers fits the model: {reasons[0]}")


class HasBounds(Protocol):
    """A test subject with its rounding error and its typical largest number by place."""

    bounds: dict[str, float]
    scales: dict[str, float]


SubjectT = TypeVar("SubjectT", bound=HasBounds)


def run_check(word: str, check: Callable[[SubjectT], Iterator[Comparison]], subject: SubjectT) -> Verdict:
    """Run a check; the verdict is `NOT CHECKED` if it compares nothing, and `DIFFERENT` if it raises."""
    try:
        with torch.enable_grad():
            comparisons = check(subject)
            first = next(comparisons, None)
            if first is None:
                return Verdict(word, "NOT CHECKED", detail="nothing to compare")
            # Lazily, since the gradients of a large model are as large as the model.
            return judge(word, chain([first], comparisons), subject.bounds, subject.scales)
    except NotApplicable as reason:
        return Verdict(word, "NOT CHECKED", detail=str(reason))
    except Exception as error:  # a check that cannot run has failed
        return Verdict(word, "DIFFERENT", float("inf"), detail=f"raised {_describe_error(error)}")


def _describe_error(error: Exception) -> str:
    """An error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


@torch.no_grad()
def first_loss(config: TransformerConfig, seed: int = 0) -> Verdict:
    """Check that the loss of a randomly initialized model is near ln V (L0-13)."""
    word = "first loss"
    if not isinstance(config.head, LanguageHeadConfig):
        return Verdict(word, "NOT CHECKED", detail="its head does not score tokens")
    if config.initial.rule == "xavier" and config.vocab_size < 4 * config.dim:
        # The embedding's standard deviation is about √(2 / (V + D)), so logits are small only if V is large compared to D.
        return Verdict(word, "NOT CHECKED", detail="xavier initialization gives large logits for a small vocabulary")
    subject = Subject(build(config, seed=seed), seed)
    tokens = subject.tokens(8)
    scores = subject.full_pass(tokens)["output"]
    targets = torch.randint(0, config.vocab_size, tokens.shape, generator=torch.Generator().manual_seed(seed + 1))
    loss = float(torch.nn.functional.cross_entropy(scores.flatten(0, 1).double(), targets.flatten()))
    error = abs(loss - log(config.vocab_size))
    detail = f"{loss:.3f}, expected ln V = {log(config.vocab_size):.3f}"
    return Verdict(word, "ROUNDING" if error <= FIRST_LOSS else "DIFFERENT", error, FIRST_LOSS, "", detail)
