"""What the page asks for, as frozen data. The fields that are set are the key of an answer that is stored in a file."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt

from heddle.config.base import Config

LONGEST = 200_000  # characters of a text

Words = Annotated[str, Field(max_length=LONGEST)]
Name = Annotated[str, Field(max_length=200)]


class Query(Config):
    """Nothing but the panel."""

    def key(self, panel: str) -> str:
        """Under what an answer is stored: the panel and the fields that were set, as `source.js` spells them."""
        values = self.model_dump(mode="json", exclude_unset=True)
        return panel + json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class CheckpointQuery(Query):
    """A text that the model reads."""

    text: Words
    """A prompt; of a model that translates, the source."""
    target: Words | None = None
    """What a model that translates reads after the source, or in its decoder; None: its own translation."""
    added: Annotated[tuple[NonNegativeInt, ...], Field(max_length=4096)] = ()
    """Ids after the text."""
    off: Annotated[tuple[Name, ...], Field(max_length=1024)] = ()
    """Parts that are switched off, such as decoder.3.mixer.heads.2 and decoder.3.ffn."""


class At(CheckpointQuery):
    """A position of a text."""

    at: int = -1
    """The position whose prediction is shown; negative ones count from the end."""


class Divided(At):
    """A score that is divided among the parts of the model."""

    token: NonNegativeInt | None = None
    """Whose score; None: that of the most probable token."""


class OneHead(CheckpointQuery):
    """A head of a layer."""

    layer: Name
    """Such as decoder.3.mixer."""
    head: NonNegativeInt = 0


class OneQuery(OneHead):
    """A query of a head."""

    query: int = -1
    """The position of the token that asks."""


class OneTensor(CheckpointQuery):
    """A tensor of a pass."""

    name: Name
    """See `heddle.look.names`."""
    head: NonNegativeInt = 0
    """Which head of it, if it has heads."""


class Beams(CheckpointQuery):
    """A beam search."""

    beams: Annotated[int, Field(ge=1, le=8)] = 3
    tokens: Annotated[int, Field(ge=1, le=64)] = 12
    """Longest continuation."""


class TwoTexts(Query):
    """Two prompts whose activations are exchanged."""

    text: Words
    """The one that the activations come from."""
    other: Words
    """The one that they are put into."""
    by: Literal["positions", "heads"] = "positions"
    """What is exchanged at a time: residual streams by position, or the outputs of heads."""


Document = dict[str, Any]
