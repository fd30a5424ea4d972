"""The queries of the page, as frozen data. The fields that are set are the key of an answer stored in a file."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt

from heddle.config.base import Config

LONGEST = 200_000  # characters of a text

Words = Annotated[str, Field(max_length=LONGEST)]
Name = Annotated[str, Field(max_length=200)]
Ids = Annotated[tuple[NonNegativeInt, ...], Field(max_length=4096)]


class Query(Config):
    """A query without fields."""

    def key(self, panel: str) -> str:
        """The key of a stored answer: the panel and the fields that are set, in the format of `source.js`."""
        values = self.model_dump(mode="json", exclude_unset=True)
        return panel + json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class TextQuery(Query):
    """A text for the model to read."""

    text: Words
    """A prompt; for translation models, the source."""
    target: Words | None = None
    """For translation models, the target; None: the model's own translation."""
    added: Ids = ()
    """Ids after the text."""
    off: Annotated[tuple[Name, ...], Field(max_length=1024)] = ()
    """Parts that are switched off: decoder.3.mixer.heads.2, decoder.3.ffn, decoder.*.mixer.mask, …"""

    @property
    def lacks_mask(self) -> bool:
        """Whether a mask is off: then a KV cache has keys that did not see later tokens, and only whole passes are right."""
        return any(name.endswith(".mask") for name in self.off)


class PositionQuery(TextQuery):
    """A position of a text."""

    at: int = -1
    """The position whose prediction to show; negative ones count from the end."""


class AttributionQuery(PositionQuery):
    """A score to divide among the parts of the model."""

    token: NonNegativeInt | None = None
    """The token with the score; None: the most probable token."""


class HeadQuery(TextQuery):
    """A head of a layer."""

    layer: Name
    """Such as decoder.3.mixer."""
    head: NonNegativeInt = 0


class AttentionQuery(HeadQuery):
    """A query of a head."""

    query: int = -1
    """The position of the query token."""


class RunningQuery(AttentionQuery):
    """A query of a head, whose keys come in tiles."""

    tile: Annotated[int, Field(ge=1, le=1024)] = 2
    """Keys in a tile."""


class TensorQuery(TextQuery):
    """A tensor of a pass."""

    name: Name
    """See `heddle.look.names`."""
    head: NonNegativeInt = 0
    """The head, if the tensor has heads."""


class BeamQuery(TextQuery):
    """A beam search."""

    beams: Annotated[int, Field(ge=1, le=8)] = 3
    tokens: Annotated[int, Field(ge=1, le=64)] = 12
    """Maximum length of a continuation."""


class PatchingQuery(Query):
    """Two prompts for activation patching."""

    text: Words
    """The prompt that the activations come from."""
    added: Ids = ()
    """Ids after it."""
    other: Words
    """The prompt that is patched."""
    by: Literal["positions", "heads"] = "positions"
    """What to patch at a time: the residual stream at a position, or the output of a head."""


Document = dict[str, Any]
