"""What single ids mean to a model that was taken over."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from heddle.config.base import Config

Id = Annotated[int, Field(ge=0)]


class SpecialIds(Config):
    """What some ids mean to an imported model, as its files said it; no tokenizer.json does. None: it has no such id."""

    begin: Id | None = None  # begins a text of which nothing is given
    end: Id | tuple[Id, ...] | None = None  # ends it; any of them, where there are several
    padding: Id | None = None  # fills rows up
    decoder_start: Id | None = None  # stands before the first token of a decoder beside an encoder
    forced_begin: Id | None = None  # what such a decoder must write first
    forced_end: Id | tuple[Id, ...] | None = None  # and last, where it reaches its longest length
    banned: tuple[tuple[Id, ...], ...] = ()  # runs of ids that it must never write

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if () in self.banned:
            raise ValueError("banned holds an empty run of ids, which stands everywhere")
        return self

    def ends(self) -> tuple[int, ...]:
        """The ids that end a text."""
        return _several(self.end)

    def largest(self) -> int:
        """The largest id that is named; -1 where none is."""
        single = (self.begin, self.padding, self.decoder_start, self.forced_begin)
        runs = (single, _several(self.end), _several(self.forced_end), *self.banned)
        return max((id for run in runs for id in run if id is not None), default=-1)


def _several(ids: int | tuple[int, ...] | None) -> tuple[int, ...]:
    return ids if isinstance(ids, tuple) else () if ids is None else (ids,)
