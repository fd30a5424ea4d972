"""All checks of one model, and what they say together."""

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
from heddle.prove.verdict import Comparison, NotApplicable, Verdict, judge, number
from heddle.weights import save

FIRST_LOSS = 0.3  # nats from ln V (L0-13)
EXPORT = "export"
WORST = ("DIFFERENT", "NOT CHECKED", "ROUNDING", "EXACT")  # in this order


@displayed(".verdicts, .to_dict()")
@dataclass(frozen=True)
class Proof:
    """What was found out about one model.

    Attributes:
        name: what the model was called.
        config: the model that was really tried, at laptop size where the one asked for is large.
        reduced: whether it is.
        rounding: the model's own error in fp32 against fp64, relative to its largest score.
        verdicts: one per check.
    """

    name: str
    config: TransformerConfig
    reduced: bool
    rounding: float
    verdicts: tuple[Verdict, ...]

    @property
    def holds(self) -> bool:
        """Whether every check holds."""
        return all(verdict.holds for verdict in self.verdicts)

    def _lines(self) -> Iterator[str]:
        words = Counter(verdict.word for verdict in self.verdicts)
        outcome = "every check holds" if self.holds else f"{words['DIFFERENT']} of {len(self.verdicts)} checks FAILED"
        yield f"Proof of {self.name or 'a model'}: {outcome}"
        for verdict in sorted(self.verdicts, key=lambda verdict: WORST.index(verdict.word)):
            if verdict.word != "NOT CHECKED":
                size = f"{verdict.error:.1e} (allowed {verdict.bound:.1e})" if verdict.error else ""
                place = verdict.layer and f"from {verdict.layer} on"
                yield f"  {verdict.check:<22} {verdict.word:<9} {' '.join(each for each in (size, place, verdict.detail) if each)}"
        if skipped := [verdict.check for verdict in self.verdicts if verdict.word == "NOT CHECKED"]:
            yield f"  not checked: {', '.join(skipped)}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "name": self.name,
            "holds": self.holds,
            "reduced": self.reduced,
            "rounding": number(self.rounding),
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
    """Prove a model that is only described: with random weights, and at laptop size when it is large."""
    reduced = parameter_count(config) > LARGE
    tried = laptop(config) if reduced else config
    seed = int(seed)
    model = awaken(build(tried, seed=seed), seed)
    found = prove(model, name, compile, progress, seed)
    verdicts = found.verdicts
    if reduced and (refused := not_expressible(config)) is not None:  # sizes that no family has are not there any more
        verdicts = (*(each for each in verdicts if each.check != EXPORT), refused)
    return Proof(name, tried, reduced, found.rounding, (*verdicts, first_loss(tried, seed)))


@checked(seed=SEED)
@torch.no_grad()
def prove(
    model: Transformer, name: str = "", compile: bool = False, progress: Progress | None = None, seed: int = 0
) -> Proof:
    """Put a model, with the weights it has, to every check that applies to it. It is left in evaluation mode, in fp32.

    Raises:
        HeddleError: it cannot run at all.
    """
    try:
        subject = Subject(model.float(), int(seed))
    except HeddleError:
        raise
    except Exception as error:  # a module of the user's own may raise anything
        raise HeddleError(f"the model cannot run: {_told(error)}") from error
    checks = {**CHECKS, **({"compiled": compiled} if compile else {})}
    verdicts = []
    for word, check in checks.items():
        if progress is not None:
            progress(word)
        verdicts.append(run_check(word, check, subject))
    if progress is not None:
        progress(EXPORT)
    verdicts.append(exported(subject))
    return Proof(name, model.config, False, subject.bounds["output"], tuple(verdicts))


def exported(subject: Subject) -> Verdict:
    """What an export computes in transformers is what the model computes, where a family can express it."""
    if (refused := not_expressible(subject.config)) is not None:
        return refused
    with TemporaryDirectory() as place:
        save(subject.model, Path(place) / "run")
        try:
            report = export_model(Path(place) / "run", Path(place) / "export")
        except HeddleError as error:
            return Verdict(EXPORT, "DIFFERENT", float("inf"), TOLERANCE, "output", str(error))
    if not report["checked"]:
        return Verdict(EXPORT, "NOT CHECKED", detail="transformers is not installed")
    apart = float(report["difference"])
    return Verdict(EXPORT, "ROUNDING" if apart else "EXACT", apart, float(report["allowed"]))


def not_expressible(config: TransformerConfig) -> Verdict | None:
    """That there is nothing to export such a model as, and the nearest reason; None where there is."""
    architecture, reasons = expressible(config)
    if architecture is not None:
        return None
    return Verdict(EXPORT, "NOT CHECKED", detail=f"no family of transformers can express it: {reasons[0]}")


class Measured(Protocol):
    """What is put to a check, with its own rounding error and its usual largest number at each place."""

    bounds: dict[str, float]
    scales: dict[str, float]


Tried = TypeVar("Tried", bound=Measured)


def run_check(word: str, check: Callable[[Tried], Iterator[Comparison]], subject: Tried) -> Verdict:
    """What comes of one check; `NOT CHECKED` where it compares nothing, `DIFFERENT` where it breaks off."""
    try:
        with torch.enable_grad():
            comparisons = check(subject)
            first = next(comparisons, None)
            if first is None:
                return Verdict(word, "NOT CHECKED", detail="there are no two passes to compare")
            # One at a time: gradients of a large model are as large as the model.
            return judge(word, chain([first], comparisons), subject.bounds, subject.scales)
    except NotApplicable as reason:
        return Verdict(word, "NOT CHECKED", detail=str(reason))
    except Exception as error:  # what cannot even run does not hold, whoever wrote it
        return Verdict(word, "DIFFERENT", float("inf"), detail=f"broke off: {_told(error)}")


def _told(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


@torch.no_grad()
def first_loss(config: TransformerConfig, seed: int = 0) -> Verdict:
    """A fresh model guesses: its loss is near ln V (L0-13)."""
    word = "first loss"
    if not isinstance(config.head, LanguageHeadConfig):
        return Verdict(word, "NOT CHECKED", detail="its head does not score tokens")
    if config.initial.rule == "xavier" and config.vocab_size < 4 * config.dim:
        # Its table's numbers are about √(2 / (V + D)), so scores are only small where V is large beside D.
        return Verdict(word, "NOT CHECKED", detail="xavier's scores are not small with so small a vocabulary")
    subject = Subject(build(config, seed=seed), seed)
    tokens = subject.tokens(8)
    scores = subject.whole(tokens)["output"]
    targets = torch.randint(0, config.vocab_size, tokens.shape, generator=torch.Generator().manual_seed(seed + 1))
    loss = float(torch.nn.functional.cross_entropy(scores.flatten(0, 1).double(), targets.flatten()))
    error = abs(loss - log(config.vocab_size))
    detail = f"{loss:.3f} beside ln V = {log(config.vocab_size):.3f}"
    return Verdict(word, "ROUNDING" if error <= FIRST_LOSS else "DIFFERENT", error, FIRST_LOSS, "", detail)
