"""Linear probes: what can be read from a layer's vectors by a linear classifier (Alain and Bengio 2017)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from heddle.checks import POSITIVE, SEED, between, checked
from heddle.display import displayed
from heddle.errors import HeddleError
from heddle.look.trace import trace
from heddle.model.transformer import Transformer

ITERATIONS = 200


@displayed()
@dataclass(frozen=True, eq=False)
class Probe:
    """A linear classifier of vectors.

    Attributes:
        name: the site it reads.
        weight: Float[C D].
        bias: Float[C].
        mean: Float[D], subtracted from the vectors.
        deviation: Float[D], which they are divided by.
        accuracy: on the vectors that were held out.
        control: of a probe that was trained on shuffled labels, on the same; what guessing gives.
        held_out: how many vectors were held out.
    """

    name: str
    weight: Float[Tensor, "C D"]
    bias: Float[Tensor, " C"]
    mean: Float[Tensor, " D"]
    deviation: Float[Tensor, " D"]
    accuracy: float
    control: float
    held_out: int

    def __call__(self, vectors: Float[Tensor, "*rows D"]) -> Int[Tensor, "*rows"]:
        """The classes of some vectors."""
        return F.linear((vectors.float() - self.mean) / self.deviation, self.weight, self.bias).argmax(-1)

    def _repr_html_(self) -> str:
        return (
            f"<p>{self.name}: accuracy {self.accuracy:.3f}, shuffled labels {self.control:.3f}, of {self.held_out}</p>"
        )


@checked(share=between(0.05, 0.9), penalty=POSITIVE, seed=SEED)
def probe_vectors(
    vectors: Float[Tensor, "N D"],
    labels: Int[Tensor, " N"],
    name: str = "vectors",
    share: float = 0.25,
    penalty: float = 1e-3,
    seed: int = 0,
) -> Probe:
    """Train a linear classifier on some vectors, and score it on the others.

    Multinomial logistic regression by L-BFGS; -mean log p + penalty / 2 · ‖W‖².

    Args:
        vectors: N vectors.
        labels: their classes, from 0.
        name: what to call the probe.
        share: of the vectors, to hold out.
        penalty: on the weights.
        seed: of the choice of what is held out, and of the shuffled labels.

    Raises:
        HeddleError: there are too few vectors, or one class only.
    """
    if len(vectors) != len(labels):
        raise HeddleError(f"{len(vectors)} vectors have {len(labels)} labels: give one for each")
    if len(vectors) < 4 or len(labels.unique()) < 2:
        raise HeddleError("a probe needs at least 4 vectors of at least 2 classes")
    draw = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(vectors), generator=draw)
    held = max(1, round(share * len(vectors)))
    x, y = vectors.detach().float().cpu(), labels.cpu()
    test, train = order[:held], order[held:]
    mean, deviation = x[train].mean(0), x[train].std(0, correction=0).clamp(min=1e-6)
    x = (x - mean) / deviation
    classes = int(y.max()) + 1
    weight, bias = _fit(x[train], y[train], classes, penalty)
    shuffled = y[train][torch.randperm(len(train), generator=draw)]
    other = _fit(x[train], shuffled, classes, penalty)

    def accuracy(weight: Tensor, bias: Tensor) -> float:
        return float((F.linear(x[test], weight, bias).argmax(-1) == y[test]).float().mean())

    return Probe(name, weight, bias, mean, deviation, accuracy(weight, bias), accuracy(*other), held)


def _fit(x: Tensor, y: Tensor, classes: int, penalty: float) -> tuple[Tensor, Tensor]:
    weight = torch.zeros(classes, x.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(F.linear(x, weight, bias), y) + penalty / 2 * weight.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    return weight.detach(), bias.detach()


@checked()
def probe(
    model: Transformer, tokens: Int[Tensor, "B T"], labels: Int[Tensor, "B T"], names: str | Sequence[str], **more: Any
) -> dict[str, Probe]:
    """Train a probe on each named site's vectors, one per token; labels below 0 are left out.

    Args:
        model: any model.
        tokens: texts.
        labels: the class of each token.
        names: sites with a vector per token, such as `decoder.*.residual_after`.
        more: other arguments of the model.

    Raises:
        HeddleError: a site has no vector per token; there are too few labels, or of one class only.
    """
    if labels.shape != tokens.shape:
        raise HeddleError(f"labels are {list(labels.shape)}, but tokens {list(tokens.shape)}: give one for each token")
    found = trace(model, tokens, names, **more)
    chosen = labels >= 0
    if odd := [name for name, tensor in found.items() if tensor.shape[:-1] != tokens.shape]:
        raise HeddleError(f"{odd[0]} has no vector per token; choose a residual stream, an input or an output")
    return {name: probe_vectors(tensor[chosen], labels[chosen], name) for name, tensor in found.items()}
