"""Decoding as data: how the next token is chosen, and when a text ends."""

import json
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from heddle.config.base import Config, Verbatim
from heddle.config.ids import Id

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Shift = Annotated[float, Field(ge=-1e9, le=1e9)]
"""Added to or subtracted from a score. Larger values could add up to infinity in fp32."""

WeightKind = Literal["trained", "int8", "int4"]
"""Weights for inference: as trained, or quantized (see `heddle.model.quantize`)."""


def _as_json(schema: Any) -> Any:
    try:
        return json.dumps(schema) if isinstance(schema, Mapping) else schema
    except RecursionError:
        raise ValueError("the schema is nested too deeply") from None


def _pairs(table: Any) -> Any:
    """A table as pairs, since tables cannot be frozen."""
    return tuple(table.items()) if isinstance(table, Mapping) else table


class DecodingConfig(Config):
    """Settings of all strategies: length limits, penalties on repetition, and ids to prefer or to avoid.

    Attributes:
        max_tokens: tokens to add to each text, its end included.
        min_tokens: tokens to add before the text may end.
        repetition_penalty: scores of ids in the text are divided by it if positive, else multiplied; 1: none
            (Keskar et al. 2019, 4.1). A prompt counts as text, a source does not.
        presence_penalty: subtracted from the scores of ids that have been generated; 0: none (OpenAI's API).
        frequency_penalty: subtracted once for each time that an id has been generated; 0: none (OpenAI's API).
        no_repeat_ngram: no run of this many ids may occur twice in a text; None: no limit (Paulus et al. 2017, 2.5).
        logit_bias: ids with a number to add to their scores; in JSON and TOML, a table (OpenAI's API).
        banned: runs of ids that are never generated, in addition to those of an imported model's config.
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
    """How to sample tokens (D-31). By default, from the model's distribution, at most 200 tokens."""

    temperature: Annotated[float, Field(ge=0)] = 1.0  # logits are divided by it; 0: always the most probable (L0-74)
    top_k: PositiveInt | None = None  # only the k most probable
    top_p: Share | None = None  # then only the fewest whose probabilities add up to this
    min_p: Annotated[float, Field(ge=0, le=1)] | None = (
        None  # then only those with at least this share of the largest probability
    )
    typical_p: Share | None = (
        None  # then only the fewest that add up to this, those with surprise nearest the mean first
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    stop: tuple[str, ...] = ()  # the text ends before the first of these
    logprobs: Annotated[int, Field(ge=0)] | None = (
        None  # also report this many of the most probable ids for each sampled one
    )
    choice: tuple[str, ...] = ()  # the text must be one of these
    # The whole text must match this regular expression, in the syntax of Rust's regex.
    regex: Annotated[str | None, Verbatim()] = None
    # The text must be JSON of this schema, given as a dict or as JSON.
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
    """Defaults for generating with a published model, from its files. None: the files have no default.

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

    def set_values(self) -> dict[str, Any]:
        """The fields that the files set."""
        return {name: value for name, value in self.to_dict().items() if value is not None}

    def missing_from(self, kind: type[DecodingConfig], settings: Collection[str]) -> dict[str, Any]:
        """The defaults for a strategy that the user's settings lack."""
        return {
            name: value
            for name, value in self.set_values().items()
            if name in kind.model_fields and name not in settings
        }


Kind = TypeVar("Kind", bound=DecodingConfig)


def completed(
    kind: type[Kind],
    settings: Mapping[str, Any],
    defaults: DecodingDefaults | None,
    where: str,
    usual: Mapping[str, Any] | None = None,
) -> Kind:
    """A strategy from, in this order: the user's settings, the model's files, the usual values, the strategy's defaults.

    Args:
        kind: `SamplingConfig` or `BeamConfig`.
        settings: the user's settings.
        defaults: those of the model's config.
        where: the name of the user's settings in errors.
        usual: values that the caller prefers to the strategy's defaults.

    Raises:
        HeddleError: a setting is unknown or invalid.
    """
    merged = {**(usual or {}), **({} if defaults is None else defaults.missing_from(kind, settings)), **settings}
    max_tokens = merged.get("max_tokens", DecodingConfig.model_fields["max_tokens"].default)
    if "min_tokens" not in settings and isinstance(max_tokens, int) and merged.get("min_tokens", 0) >= max_tokens:
        merged.pop("min_tokens", None)  # the user's limit is below the minimum of the model's files
    return kind.of(merged, where=where)


class EngineConfig(Config):
    """Limits of an engine. None: no limit."""

    rows: PositiveInt | None = None
    """Texts in the running batch; others wait."""
    queue: PositiveInt | None = None
    """Maximum number of waiting texts; further ones are refused."""
    chunk: PositiveInt | None = None
    """Prompt tokens to process per step (chunked prefill), so that long prompts do not delay running texts."""
    keep: Annotated[int, Field(ge=0)] = 0
    """Prompts whose KV cache is kept for later prompts with the same prefix (prefix caching)."""
