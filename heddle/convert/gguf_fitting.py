"""Finds the published family as which llama.cpp computes a model, or all that is against it."""

from heddle.config.model import TransformerConfig
from heddle.convert.families import Family
from heddle.convert.fitting import Fit, expressible, fit_of, in_order
from heddle.convert.llama_cpp import ARCHITECTURES
from heddle.errors import HeddleError

NAMES = ", ".join(ARCHITECTURES)


def choose_for_llama_cpp(config: TransformerConfig) -> Fit:
    """The first family that can express a config and that llama.cpp computes in the same way.

    Raises:
        HeddleError: there is none; the problems are all that is against the nearest one, each with what to set.
    """
    candidates: list[tuple[Fit, list[str]]] = []
    for family in in_order(config):
        if family.architecture in ARCHITECTURES:
            fit = fit_of(family, config)
            against = [*fit.distinct(), *_limits(family, config)]
            if not against:
                return fit
            candidates.append((fit, against))
    architecture, _ = expressible(config)
    problems = []
    if not candidates or (architecture is not None and architecture not in ARCHITECTURES):
        of_class = "it has an encoder" if architecture is None else f"its class is {architecture}"
        problems = [f"{of_class}; heddle writes GGUF files of {NAMES}"]
    # A class that can express the model comes before a nearer one that cannot.
    _, nearest = min(candidates, key=lambda each: (bool(each[0].against), len(each[1])), default=(None, []))
    raise HeddleError(*problems, *nearest)


def _limits(family: Family, config: TransformerConfig) -> list[str]:
    """What llama.cpp lacks for the nearest model of a family."""
    rewritten, _ = family.rewrite(config, {})
    published, _ = family.nearest_fields(rewritten)
    try:
        nearest = family.to_config(published)
    except HeddleError:  # among the reasons against the family
        return []
    obstacles = ARCHITECTURES[family.architecture].obstacles(published, nearest)
    return list(dict.fromkeys(each.line(family, published, nearest) for each in obstacles))
