"""The head that gives a vector for a text, and how such a text is read."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heddle.config.base import Config
from heddle.config.layers import ActivationName
from heddle.config.sizes import Size

# first, last, mean, max: of the tokens' vectors. mean_sqrt: their sum over the root of their number; weighted_mean: token n,
# from 1, counts n times.
Pooling = Literal["first", "last", "mean", "max", "mean_sqrt", "weighted_mean"]


class DenseConfig(Config):
    """A linear layer and an activation behind the pooled vector."""

    outputs: Size | None = None  # as many numbers; None: as many as its inputs
    activation: ActivationName = "tanh"
    bias: bool = True


class EmbeddingHeadConfig(Config):
    """One vector for a whole sequence."""

    kind: Literal["embedding"] = "embedding"
    pooling: Pooling | Annotated[tuple[Pooling, ...], Field(min_length=1)] = "mean"  # several: one after another
    dense: tuple[DenseConfig, ...] = ()
    normalise: bool = False  # to length 1
    length: Size | None = None  # most ids of a text, its marks included; None: the model's context
    prompts: dict[str, str] = Field(default_factory=dict)  # what may come before a text, by name
    prompt: str | None = None  # the name of the one that does, unless another is asked for
    pool_prompt: bool = True  # whether the prompt's tokens are pooled with the text's
    similarity: Literal["cosine", "dot", "euclidean", "manhattan"] = "cosine"  # by which users compare the vectors

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.prompt is not None and self.prompt not in self.prompts:
            named = ", ".join(self.prompts) or "none"
            raise ValueError(f"prompt = {self.prompt!r} is not the name of one of prompts: {named}")
        return self

    def poolings(self) -> tuple[Pooling, ...]:
        """The poolings whose vectors follow each other."""
        return self.pooling if isinstance(self.pooling, tuple) else (self.pooling,)

    def computes(self, dim: int) -> tuple[object, ...]:
        """What decides the vector of a text's hidden vectors, in a model of width `dim`; the rest is about texts and users."""
        layers = [(each.activation, each.bias) for each in self.dense]
        return self.poolings(), layers, self.widths(dim), self.normalise

    def widths(self, dim: int) -> tuple[int, ...]:
        """Widths of the pooled vector and behind each dense layer, for a model of width `dim`; the last is the embedding's."""
        found = [dim * len(self.poolings())]
        for each in self.dense:
            found.append(each.outputs or found[-1])
        return tuple(found)
