"""The embedding head: a vector for a text, and how the text is read."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heddle.config.base import Config
from heddle.config.layers import ActivationName
from heddle.config.sizes import Size

# first, last, mean, max: of the tokens' vectors. mean_sqrt: their sum over the root of their number; weighted_mean: token n,
# from 1, counts n times.
Pooling = Literal["first", "last", "mean", "max", "mean_sqrt", "weighted_mean"]


class DenseConfig(Config):
    """A linear layer and an activation after the pooled vector."""

    outputs: Size | None = None  # width of the output; None: that of the input
    activation: ActivationName = "tanh"
    bias: bool = True


class EmbeddingHeadConfig(Config):
    """One vector for a whole sequence."""

    kind: Literal["embedding"] = "embedding"
    pooling: Pooling | Annotated[tuple[Pooling, ...], Field(min_length=1)] = "mean"  # several: concatenated
    dense: tuple[DenseConfig, ...] = ()
    normalise: bool = False  # to length 1
    length: Size | None = None  # maximum ids of a text, special ids included; None: the model's context
    prompts: dict[str, str] = Field(default_factory=dict)  # texts that may precede a text, by name
    prompt: str | None = None  # the name of the default one
    pool_prompt: bool = True  # whether the prompt's tokens are pooled with the text's
    similarity: Literal["cosine", "dot", "euclidean", "manhattan"] = "cosine"  # how users compare the vectors

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.prompt is not None and self.prompt not in self.prompts:
            names = ", ".join(self.prompts) or "none"
            raise ValueError(f"prompt = {self.prompt!r} is not in prompts, which has: {names}")
        return self

    def poolings(self) -> tuple[Pooling, ...]:
        """The poolings whose vectors are concatenated."""
        return self.pooling if isinstance(self.pooling, tuple) else (self.pooling,)

    def computes(self, dim: int) -> tuple[object, ...]:
        """The settings that determine the vector computed from hidden vectors of width `dim`, without those of texts and users."""
        layers = [(layer.activation, layer.bias) for layer in self.dense]
        return self.poolings(), layers, self.widths(dim), self.normalise

    def widths(self, dim: int) -> tuple[int, ...]:
        """Widths of the pooled vector and of each dense layer's output, for a model of width `dim`; the last is the embedding's."""
        widths = [dim * len(self.poolings())]
        for layer in self.dense:
            widths.append(layer.outputs or widths[-1])
        return tuple(widths)
