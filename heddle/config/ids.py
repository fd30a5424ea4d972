"""The special ids of an imported model."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from heddle.config.base import Config

Id = Annotated[int, Field(ge=0)]


class SpecialIds(Config):
    """Roles of special ids in an imported model, from its published files; tokenizer.json lacks them. None: no such id."""

    begin: Id | None = None  # starts a text without a prompt
    end: Id | tuple[Id, ...] | None = None  # ends a text; if there are several, any of them does
    padding: Id | None = None  # pads rows
    decoder_start: Id | None = None  # comes before the first token of an encoder-decoder's decoder
    forced_begin: Id | None = None  # the first id that such a decoder must generate
    forced_end: Id | tuple[Id, ...] | None = None  # the last id of a text that reaches its maximum length
    banned: tuple[tuple[Id, ...], ...] = ()  # runs of ids that must never be generated
    roles: dict[str, str] = Field(default_factory=dict)  # names of special tokens in its files, such as mask_token

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if () in self.banned:
            raise ValueError("banned contains an empty run of ids, which would match everywhere")
        return self

    def ends(self) -> tuple[int, ...]:
        """The ids that end a text."""
        return _several(self.end)

    def forced_ends(self) -> tuple[int, ...]:
        """The ids one of which must end a text that reaches its maximum length."""
        return _several(self.forced_end)

    def every(self) -> set[int]:
        """All ids named here."""
        single = (self.begin, self.padding, self.decoder_start, self.forced_begin)
        runs = (single, _several(self.end), _several(self.forced_end), *self.banned)
        return {id for run in runs for id in run if id is not None}

    def largest(self) -> int:
        """The largest id named here; -1 if there is none."""
        return max(self.every(), default=-1)


def _several(ids: int | tuple[int, ...] | None) -> tuple[int, ...]:
    return ids if isinstance(ids, tuple) else () if ids is None else (ids,)
