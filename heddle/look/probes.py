"""Linear probes on a layer's vectors (Alain and Bengio 2017)."""

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
        name: the probed site.
        weight: Float[C D].
        bias: Float[C].
        mean: Float[D], subtracted from the vectors.
        deviation: Float[D], divides the vectors.
        accuracy: on held-out vectors.
        control: held-out accuracy of a probe trained on shuffled labels, as a chance baseline.
        held_out: number of held-out vectors.
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
        """Classify vectors."""
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
    """Train a linear classifier on a part of the vectors, and score it on the rest.

    Multinomial logistic regression with L-BFGS; the loss is -mean log p + penalty / 2 · ‖W‖².

    Args:
        vectors: N vectors.
        labels: their classes, from 0.
        name: of the probe.
        share: of the vectors to hold out.
        penalty: L2 regularization of the weights.
        seed: of the held-out choice and the shuffled labels.

    Raises:
        HeddleError: there are too few vectors, or fewer than two classes.
    """
    if len(vectors) != len(labels):
        raise HeddleError(f"{len(vectors)} vectors, but {len(labels)} labels: give one label per vector")
    if len(vectors) < 4 or len(labels.unique()) < 2:
        raise HeddleError("a probe needs at least 4 vectors of at least 2 classes")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(vectors), generator=generator)
    held_out = max(1, round(share * len(vectors)))
    x, y = vectors.detach().float().cpu(), labels.cpu()
    test, train = order[:held_out], order[held_out:]
    mean, deviation = x[train].mean(0), x[train].std(0, correction=0).clamp(min=1e-6)
    x = (x - mean) / deviation
    classes = int(y.max()) + 1
    weight, bias = _fit(x[train], y[train], classes, penalty)
    shuffled = y[train][torch.randperm(len(train), generator=generator)]
    control = _fit(x[train], shuffled, classes, penalty)

    def accuracy(weight: Tensor, bias: Tensor) -> float:
        return float((F.linear(x[test], weight, bias).argmax(-1) == y[test]).float().mean())

    return Probe(name, weight, bias, mean, deviation, accuracy(weight, bias), accuracy(*control), held_out)


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
    """Train a probe on the token vectors of each named site; negative labels are ignored.

    Args:
        model: any model.
        tokens: texts.
        labels: the class of each token.
        names: sites with a vector per token, such as `decoder.*.residual_after`.
        more: further model arguments.

    Raises:
        HeddleError: a site has no vector per token, or there are too few labels or classes.
    """
    if labels.shape != tokens.shape:
        raise HeddleError(
            f"labels are {list(labels.shape)}, but tokens are {list(tokens.shape)}: give one label per token"
        )
    traced = trace(model, tokens, names, **more)
    labelled = labels >= 0
    if invalid := [name for name, tensor in traced.items() if tensor.shape[:-1] != tokens.shape]:
        raise HeddleError(f"{invalid[0]} has no vector per token; choose a residual stream, an input or an output")
    return {name: probe_vectors(tensor[labelled], labels[labelled], name) for name, tensor in traced.items()}
