"""Settings for learning word vectors.

The text under a field is its help in `heddle vectors train --help`.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heddle.config.base import Config

Positive = Annotated[float, Field(gt=0)]

Method = Literal["skipgram", "cbow", "glove"]
"""The algorithm that learns word vectors."""

# Settings that some methods do not have.
METHODS_OF = {
    "negatives": ("skipgram", "cbow"),
    "subsampling": ("skipgram", "cbow"),
    "saturation": ("glove",),
    "exponent": ("glove",),
}
# Defaults of each method, from its authors' programs. CBOW's rate is the one for gradients that
# are divided by the number of context words, as they should be (İrsoy et al. 2021).
DEFAULTS: dict[Method, dict[str, Any]] = {
    "skipgram": {"window": 5, "epochs": 5, "learning_rate": 0.025},
    "cbow": {"window": 5, "epochs": 5, "learning_rate": 0.075},
    "glove": {"window": 10, "epochs": 25, "learning_rate": 0.05},
}


class VectorsConfig(Config):
    """Settings for learning word vectors. The defaults are those of `heddle vectors train` without settings."""

    method: Method = "skipgram"
    """skipgram predicts a word from each of its neighbours, cbow from their mean; glove fits the logarithms of how often words
    are neighbours."""
    dim: Annotated[int, Field(gt=0, le=2**16)] = 100
    """Numbers in each vector."""
    window: Annotated[int, Field(gt=0, le=255)] | None = None
    """Largest distance of a neighbour, in words; defaults to 5, for glove to 10. skipgram and cbow sample it anew for each word,
    from 1 to this; glove counts a neighbour as one over its distance."""
    min_count: Annotated[int, Field(gt=0)] = 5
    """Words that occur less often are left out of the text."""
    lowercase: bool = False
    """Lower-case the text. A run whose tokenizer is words keeps case, so it finds only words that are written in lower case."""
    punctuation: bool = True
    """Learn vectors for punctuation too; if false, it is left out of the text."""
    epochs: Annotated[int, Field(gt=0, le=10_000)] | None = None
    """Passes over the text, or over glove's counts; defaults to 5, for glove to 25."""
    learning_rate: Annotated[float, Field(gt=0, le=10)] | None = None
    """The first learning rate; defaults to 0.025, for cbow to 0.075, both with linear decay to 0; for glove to 0.05, with
    AdaGrad."""
    negatives: Annotated[int, Field(gt=0, le=1000)] = 5
    """skipgram and cbow: noise words for each prediction."""
    subsampling: Annotated[float, Field(ge=0, lt=1)] = 1e-3
    """skipgram and cbow: a word with more than this share f of the text is kept with probability √(this / f) only; 0: always."""
    saturation: Positive = 100.0
    """glove: the count above which all pairs of words have the same weight."""
    exponent: Annotated[float, Field(gt=0, le=1)] = 0.75
    """glove: the exponent of the weight of rarer pairs."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Equal seeds, settings and texts give equal vectors on one machine."""

    @model_validator(mode="after")
    def _of_the_method(self) -> Self:
        for name, methods in METHODS_OF.items():
            value = getattr(self, name)
            if self.method not in methods and value != VectorsConfig.model_fields[name].default:
                raise ValueError(
                    f"{name} = {value} has no effect with method = {self.method}: leave it out, "
                    f"or set {' or '.join(methods)}"
                )
        return self

    def complete(self) -> Self:
        """The config with the method's defaults for settings that are None."""
        defaults = {name: value for name, value in DEFAULTS[self.method].items() if getattr(self, name) is None}
        return self.model_copy(update=defaults)
