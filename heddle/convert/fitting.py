"""Finds the published family that can express a model, and the reasons against the others."""

import re
from typing import NamedTuple

from heddle.config.embedding import EmbeddingHeadConfig
from heddle.config.model import TransformerConfig
from heddle.convert.families import ALL, Family
from heddle.convert.sentence_transformers import lacking
from heddle.errors import HeddleError

NEAREST, MOST = 3, 3  # numbers of families in a list, and of differences of each
LONGEST = 300  # characters of an error that names more than one family
ADVICE = "To export it, train a model with the values that one class has"
OF_A_LAYER = re.compile(r"\.layers\.\d+")


def choose(config: TransformerConfig) -> tuple[Family, list[str]]:
    """The first family that can express a config, and notes on lost settings, which matter only in training.

    Raises:
        HeddleError: no family can; the message gives all differences from the nearest one, and from others if it is short.
    """
    nearest, *others = fits(config)
    if nearest.against:
        message = f"no Hugging Face family can express this model. {nearest.whole()}"
        for other in others[: NEAREST - 1]:
            longer = f"{message} | {other.brief()}"
            message = longer if len(longer) < LONGEST else message
        raise HeddleError(f"{message}. {ADVICE}")
    return nearest.written(config), nearest.notes()


def expressible(config: TransformerConfig, all_families: bool = False) -> tuple[str | None, list[str]]:
    """The Hugging Face class that a model exports to, or None with the reasons.

    Args:
        all_families: list all differences from all families, instead of the first three from the nearest three.
    """
    candidates = fits(config)
    if not candidates[0].against:
        return candidates[0].written(config).architecture, []
    if all_families:
        others = [family for family in ALL if set(family.options.stacks) != set(config.stacks())]
        all_fits = (*candidates, *(fit_of(family, config) for family in others))
        return None, [f"{fit.family.architecture}: {'; '.join(fit.against)}" for fit in all_fits]
    return None, [fit.brief() for fit in candidates[:NEAREST]]


class Fit(NamedTuple):
    """How well a family fits a model."""

    family: Family
    against: list[str]  # why the family cannot express the model
    lost: list[str]  # settings that would be lost, which matter only in training

    def written(self, config: TransformerConfig) -> Family:
        """The family to write: without its head, if files of sentence-transformers store the head of the model."""
        return self.family if self.family.holds_head(config) else self.family.body()

    def notes(self) -> list[str]:
        """Notes on lost settings."""
        return [f"lost (matters only in training): {text}" for text in self.lost]

    def distinct(self) -> list[str]:
        """Reasons, without repetitions for other layers."""
        first: dict[str, str] = {}
        for text in self.against:
            first.setdefault(OF_A_LAYER.sub("", text.split(" is ")[0]), text)
        return list(first.values())

    def whole(self) -> str:
        """All reasons."""
        return f"{self.family.architecture}: {'; '.join(self.distinct())}"

    def brief(self) -> str:
        """The first reasons, and the number of others."""
        distinct = self.distinct()
        more = f"; {len(distinct) - MOST} more" if len(distinct) > MOST else ""
        return f"{self.family.architecture}: {'; '.join(distinct[:MOST])}{more}"


def fit_of(family: Family, config: TransformerConfig) -> Fit:
    """How well a family fits a model, together with the files of sentence-transformers that store an embedding head."""
    against, lost = family.reasons(config)
    head = lacking(config.head) if isinstance(config.head, EmbeddingHeadConfig) else []
    return Fit(family, [*against, *head], lost)


def fits(config: TransformerConfig) -> list[Fit]:
    """The first family that can express the model alone; if none can, all with the model's stacks, nearest first.

    Comparing one family takes as long as loading a small model, so the others are not compared once one fits.
    """
    candidates: list[Fit] = []
    for family in in_order(config):
        fit = fit_of(family, config)
        if not fit.against:
            return [fit]
        candidates.append(fit)
    return sorted(candidates, key=lambda fit: len(fit.distinct()))


def in_order(config: TransformerConfig) -> list[Family]:
    """The families with the model's stacks: first those with its kind of head, then its own family, then as in `ALL`."""
    has = set(config.stacks())
    embeds, names = isinstance(config.head, EmbeddingHeadConfig), family_names(config)

    def rank(family: Family) -> tuple[bool, bool, bool, bool]:
        other_head = not embeds and config.head.kind != family.options.head.kind
        same_class = config.architecture in (family.architecture, family.body_class if embeds else None)
        return other_head, not family.holds_head(config), not same_class, family.name not in names

    return sorted((family for family in ALL if set(family.options.stacks) == has), key=rank)


def family_names(config: TransformerConfig) -> set[str]:
    """The names of the family that a model was imported from; empty if it is heddle's own."""
    return {family.name for family in ALL if config.architecture in (family.architecture, family.body_class)}
