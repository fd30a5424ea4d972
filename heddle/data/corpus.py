"""A corpus: the training and the validation part of a text, or of records."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from heddle.data.records import Records
from heddle.display import displayed


@displayed()
@dataclass(frozen=True, slots=True)
class Part:
    """The training or the validation part of a corpus.

    Attributes:
        tokens: Int[N], the ids; a store's are mapped from the disk, read-only. Documents are in the order of the sources,
            separated by the end-of-text id if the store was built with it.
        bytes: UTF-8 bytes of the part's text.
        documents: number of documents, or starts or ends of documents, in the part.
        first_token_bytes: UTF-8 bytes of the first token, which is not a target unless an id starts each text.
        starts: Int64[documents + 1], where each document starts in `tokens`, and the end; a separator belongs to the document
            before it. Defaults to one document.
        target_sizes: Int64[documents], UTF-8 bytes of each document's text without its first token.
        separator: the id after each document but the last, or None.
        characters: characters of the part's text; None: unknown.
        begins: whether its first document is complete at its start; False if it is the end of one that was cut.
        ends: whether its last document is complete at its end.
    """

    tokens: npt.NDArray[Any]
    bytes: int
    documents: int
    first_token_bytes: int
    starts: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    target_sizes: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    separator: int | None = None
    characters: int | None = None
    begins: bool = True
    ends: bool = True

    def __post_init__(self) -> None:
        if not len(self.starts):
            object.__setattr__(self, "starts", np.array([0, len(self.tokens)]))
            object.__setattr__(self, "target_sizes", np.array([self.target_bytes]))

    @property
    def targets(self) -> int:
        """How many tokens are predicted if no id starts a text: all but the first."""
        return len(self.tokens) - 1

    @property
    def target_bytes(self) -> int:
        """UTF-8 bytes of the text that the targets cover. This is the text's size, not a sum over tokens: separators add
        nothing, and whitespace outside of any token counts."""
        return self.bytes - self.first_token_bytes


@displayed()
@dataclass(frozen=True, slots=True)
class Corpus:
    """The part to train on and the part to score; either may be None."""

    train: Part | Records | None = None
    validation: Part | Records | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the records' classes; empty if there are none."""
        return next((part.classes for part in (self.train, self.validation) if isinstance(part, Records)), ())
