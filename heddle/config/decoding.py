"""How texts are continued, as data: how the next token is chosen, and when a text ends."""

import json
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from heddle.config.base import Config, Verbatim
from heddle.config.ids import Id

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Shift = Annotated[float, Field(ge=-1e9, le=1e9)]
"""What is added to or subtracted from a score. Beyond, sums of several would be infinite in fp32."""

WeightKind = Literal["trained", "int8", "int4"]
"""How weights are held in prediction: as they were trained, or rounded (see `heddle.model.quantize`)."""


def _as_json(schema: Any) -> Any:
    """A schema as JSON."""
    try:
        return json.dumps(schema) if isinstance(schema, Mapping) else schema
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _pairs(given: Any) -> Any:
    """A table of ids as pairs, since tables cannot be frozen."""
    return tuple(given.items()) if isinstance(given, Mapping) else given


class DecodingConfig(Config):
    """What all strategies share: the longest text, penalties on what a text already contains, and ids to prefer or to avoid.

    Attributes:
        max_tokens: tokens to add to each text, its end included.
        min_tokens: tokens to add before the text may end.
        repetition_penalty: scores of ids in the text are divided by it if positive, else multiplied; 1: none
            (Keskar et al. 2019, 4.1). A prompt counts as text, a source does not.
        presence_penalty: subtracted from the scores of ids that have been generated; 0: none (OpenAI's API).
        frequency_penalty: subtracted once for each time that an id has been generated; 0: none (OpenAI's API).
        no_repeat_ngram: no run of so many ids may occur twice in a text; None: any may (Paulus et al. 2017, 2.5).
        logit_bias: ids, and what to add to their scores; in JSON and TOML, a table (OpenAI's API).
        banned: runs of ids that are never generated, besides those that an imported model's config bans.
    """

    max_tokens: PositiveInt = 200
    min_tokens: Annotated[int, Field(ge=0)] = 0
    repetition_penalty: Positive = 1.0
    presence_penalty: Shift = 0.0
    frequency_penalty: Shift = 0.0
    no_repeat_ngram: PositiveInt | None = None
    logit_bias: Annotated[tuple[tuple[Id, Shift], ...], BeforeValidator(_pairs)] = ()
    banned: tuple[tuple[Id, ...], ...] = ()

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if () in self.banned:
            raise ValueError("banned contains an empty run of ids, which would match everywhere")
        if len({id for id, _ in self.logit_bias}) < len(self.logit_bias):
            raise ValueError("logit_bias names an id twice")
        if self.min_tokens >= self.max_tokens:
            raise ValueError(f"min_tokens = {self.min_tokens} must be below max_tokens = {self.max_tokens}")
        return self

    def largest_id(self) -> int:
        """The largest id named here; -1 if there is none."""
        return max((*(id for id, _ in self.logit_bias), *(id for run in self.banned for id in run)), default=-1)


class SamplingConfig(DecodingConfig):
    """How to draw tokens (D-31). By default, from the model's distribution, at most 200 tokens."""

    temperature: Annotated[float, Field(ge=0)] = 1.0  # logits are divided by it; 0: always the most probable (L0-74)
    top_k: PositiveInt | None = None  # only the k most probable
    top_p: Share | None = None  # then only the fewest that hold this share together
    min_p: Annotated[float, Field(ge=0, le=1)] | None = (
        None  # then only those with this share of the largest probability
    )
    typical_p: Share | None = None  # then only the fewest with this share whose surprise is nearest to the average one
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    stop: tuple[str, ...] = ()  # the text ends before the first of these
    logprobs: Annotated[int, Field(ge=0)] | None = (
        None  # also report so many of the most probable ids for each drawn one
    )
    choice: tuple[str, ...] = ()  # the text is one of these
    # The text as a whole matches this regular expression, in the syntax of Rust's regex.
    regex: Annotated[str | None, Verbatim()] = None
    # The text is JSON of this schema, a dict or JSON.
    json_schema: Annotated[str | None, Verbatim(), BeforeValidator(_as_json)] = None
    window: bool = False  # beyond the context, continue from the last tokens; False: refuse the prompt, end the text

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if "" in self.stop:
            raise ValueError("stop contains an empty text, which would match everywhere")
        if (self.choice != ()) + (self.regex is not None) + (self.json_schema is not None) > 1:
            raise ValueError("choice, regex and json_schema exclude each other")
        if "" in self.choice:
            raise ValueError("choice contains an empty text")
        return self

    @property
    def constrained(self) -> bool:
        """Whether the text must meet a constraint."""
        return bool(self.choice) or self.regex is not None or self.json_schema is not None


class BeamConfig(DecodingConfig):
    """How to search for the most probable texts (L1-77). With one beam, the search is greedy.

    Attributes:
        beams: unfinished texts to keep at each step, for each prompt or source.
        length_penalty: a text's score is the sum of its tokens' log probabilities, divided by their number to this power;
            0: the sum, which favours short texts; 1: the mean; at most 50 either way, beyond which the power overflows.
        early_stopping: when a search with as many finished texts as beams ends. False: when the best unfinished text has no
            better score at its present length; never: when it could not have one at any length; True: at once.
        best: texts to return, best first.
    """

    beams: PositiveInt = 5
    length_penalty: Annotated[float, Field(ge=-50, le=50)] = 1.0
    early_stopping: bool | Literal["never"] = False
    best: PositiveInt = 1

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.best > self.beams:
            raise ValueError(f"best = {self.best} is more than beams = {self.beams}: a search finds one text per beam")
        return self


class DecodingDefaults(Config):
    """How a published model's texts are generated unless a user says otherwise. None: its files do not say.

    The fields are those of `SamplingConfig` and `BeamConfig`.
    """

    max_tokens: PositiveInt | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    repetition_penalty: Positive | None = None
    no_repeat_ngram: PositiveInt | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_k: PositiveInt | None = None
    top_p: Share | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    typical_p: Share | None = None
    beams: PositiveInt | None = None
    length_penalty: Annotated[float, Field(ge=-50, le=50)] | None = None
    early_stopping: bool | Literal["never"] | None = None

    def said(self) -> dict[str, Any]:
        """The fields that the files do say."""
        return {name: value for name, value in self.to_dict().items() if value is not None}

    def beside(self, kind: type[DecodingConfig], said: Collection[str]) -> dict[str, Any]:
        """The fields of a strategy that the files say and a user does not."""
        return {name: value for name, value in self.said().items() if name in kind.model_fields and name not in said}


Kind = TypeVar("Kind", bound=DecodingConfig)


def completed(
    kind: type[Kind],
    said: Mapping[str, Any],
    defaults: DecodingDefaults | None,
    where: str,
    usual: Mapping[str, Any] | None = None,
) -> Kind:
    """A strategy: what a user says, else what a model's files say, else the usual values, else the strategy's own defaults.

    Args:
        kind: `SamplingConfig` or `BeamConfig`.
        said: the user's settings.
        defaults: those of the model's config.
        where: what the user's settings are called in errors.
        usual: values that the caller prefers to the strategy's own.

    Raises:
        HeddleError: a setting is unknown or impossible.
    """
    settings = {**(usual or {}), **({} if defaults is None else defaults.beside(kind, said)), **said}
    most = settings.get("max_tokens", DecodingConfig.model_fields["max_tokens"].default)
    if "min_tokens" not in said and isinstance(most, int) and settings.get("min_tokens", 0) >= most:
        settings.pop("min_tokens", None)  # the user wants less than the model's files
    return kind.of(settings, where=where)


class EngineConfig(Config):
    """How much an engine does at once. None: no limit."""

    rows: PositiveInt | None = None
    """Texts that grow at the same time; others wait."""
    queue: PositiveInt | None = None
    """Texts that may wait; more are refused."""
    chunk: PositiveInt | None = None
    """Tokens of prompts to read in each step, so that long prompts do not hold up texts that grow."""
    keep: Annotated[int, Field(ge=0)] = 0
    """Prompts whose states are kept, so that later prompts that begin alike need not read their beginning again."""
