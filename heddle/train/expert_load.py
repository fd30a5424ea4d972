"""How evenly the tokens of a step were spread over the experts of each mixture."""

from collections.abc import Mapping, Sequence
from math import log

from heddle.checks import checked


@checked()
def entropy(load: Sequence[int]) -> float:
    """Entropy of a load over its experts, as a share of the largest possible: 1 if even, 0 if one expert has every token.

    A load without tokens has 0.
    """
    total = sum(load)
    if len(load) < 2 or not total:
        return float(total > 0)
    shares = [count / total for count in load if count]
    return max(0.0, -sum(share * log(share) for share in shares) / log(len(load)))


@checked()
def load_statistics(loads: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """What a run reports of the loads of its mixtures, over all of them and by layer.

    `expert_entropy` is the mean of the layers' entropies; `dead_experts` counts experts that no token of the step chose.

    Args:
        loads: for each layer with experts, how many tokens chose each of them; empty for a model without experts.
    """
    if not loads:
        return {}
    entropies = {layer: entropy(load) for layer, load in loads.items()}
    dead = {layer: sum(count == 0 for count in load) for layer, load in loads.items()}
    return {
        "expert_entropy": sum(entropies.values()) / len(entropies),
        "dead_experts": sum(dead.values()),
        **{f"expert_entropy/{layer}": value for layer, value in entropies.items()},
        **{f"dead_experts/{layer}": count for layer, count in dead.items()},
    }
