"""All checks of one model, and what they say together."""

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from heddle.account.parameters import parameter_count
from heddle.config.model import LanguageHeadConfig, TransformerConfig
from heddle.errors import HeddleError
from heddle.model.build import build
from heddle.model.transformer import Transformer
from heddle.prove.checks import CHECKS, compiled
from heddle.prove.laptop import LARGE, laptop
from heddle.prove.subject import Subject, awaken
from heddle.prove.verdict import Comparison, NotApplicable, Verdict, judge
from heddle.weights import export_model, save
from heddle.weights.convert import TOLERANCE, expressible

FIRST_LOSS = 0.3  # nats from ln V (L0-13)


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

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "name": self.name,
            "holds": self.holds,
            "reduced": self.reduced,
            "rounding": self.rounding,
            "checks": [verdict.to_dict() for verdict in self.verdicts],
            "config": self.config.to_dict(),
        }


Progress = Callable[[str], None]


def prove_config(
    config: TransformerConfig,
    name: str = "",
    compile: bool = False,
    progress: Progress | None = None,
    seed: int = 0,
) -> Proof:
    """Prove a model that is only described: with random weights, and at laptop size when it is large."""
    reduced = parameter_count(config) > LARGE
    config = laptop(config) if reduced else config
    model = awaken(build(config, seed=seed), seed)
    found = prove(model, name, compile, progress, seed)
    more = first_loss(config, seed)
    return Proof(name, config, reduced, found.rounding, (*found.verdicts, more))


@torch.no_grad()
def prove(
    model: Transformer, name: str = "", compile: bool = False, progress: Progress | None = None, seed: int = 0
) -> Proof:
    """Put a model, with the weights it has, to every check that applies to it. It is left in evaluation mode, in fp32."""
    subject = Subject(model.float(), seed)
    checks = {**CHECKS, **({"compiled": compiled} if compile else {})}
    verdicts = []
    for word, check in checks.items():
        if progress is not None:
            progress(word)
        verdicts.append(_run(word, check, subject))
    if progress is not None:
        progress("export")
    verdicts.append(exported(subject))
    return Proof(name, model.config, False, subject.bounds["output"], tuple(verdicts))


def exported(subject: Subject) -> Verdict:
    """What an export computes in transformers is what the model computes, where a family can express it."""
    word = "export"
    architecture, reasons = expressible(subject.config)
    if architecture is None:
        return Verdict(word, "NOT CHECKED", detail=f"no family of transformers can express it: {reasons[0]}")
    with TemporaryDirectory() as place:
        save(subject.model, Path(place) / "run")
        try:
            report = export_model(Path(place) / "run", Path(place) / "export")
        except HeddleError as error:
            return Verdict(word, "DIFFERENT", float("inf"), TOLERANCE, "output", str(error))
    if not report["checked"]:
        return Verdict(word, "NOT CHECKED", detail="transformers is not installed")
    error = float(report["difference"])
    return Verdict(word, "ROUNDING" if error else "EXACT", error, TOLERANCE)


def _run(word: str, check: Callable[[Subject], Any], subject: Subject) -> Verdict:
    try:
        with torch.enable_grad():
            comparisons: list[Comparison] = list(check(subject))
    except NotApplicable as reason:
        return Verdict(word, "NOT CHECKED", detail=str(reason))
    if not comparisons:
        return Verdict(word, "NOT CHECKED", detail="there are no two passes to compare")
    return judge(word, comparisons, subject.bounds, subject.scales)


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
