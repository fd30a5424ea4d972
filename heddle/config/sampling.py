"""How the next token is chosen and when a text ends, as data."""

from typing import Annotated, Self

from pydantic import Field, PositiveInt, model_validator

from heddle.config.base import Config


class SamplingConfig(Config):
    """How to draw tokens (D-31). By default, from the model's distribution, at most 200 tokens."""

    max_tokens: PositiveInt = 200  # tokens to draw for each text
    temperature: Annotated[float, Field(ge=0)] = 1.0  # logits are divided by it; 0: always the most probable (L0-74)
    top_k: PositiveInt | None = None  # only the k most probable
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None  # then only the fewest that hold this share together
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    stop: tuple[str, ...] = ()  # the text ends before the first of these
    window: bool = False  # beyond the context, continue from the last tokens; False: refuse the prompt, end the text

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if "" in self.stop:
            raise ValueError("stop contains an empty text, which would match everywhere")
        return self
