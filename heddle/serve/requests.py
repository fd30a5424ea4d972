"""Request bodies: the supported fields of OpenAI's API, and heddle's own."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from heddle.config.decoding import BeamConfig, DecodingDefaults, SamplingConfig, completed
from heddle.config.embedding import Pooling
from heddle.errors import HeddleError
from heddle.serve.errors import ApiError

LARGEST_N = 128
Text = Annotated[str, Field(max_length=1 << 22)]
TextOrTexts = Text | Annotated[list[Text], Field(min_length=1, max_length=2048, fail_fast=True)]
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]  # of a million errors, the first is enough


def _without_nulls(body: Any) -> Any:
    """The body without null fields: clients echo documents with nulls, which mean the default."""
    return {key: value for key, value in body.items() if value is not None} if isinstance(body, dict) else body


class Request(BaseModel):
    """Base of all requests. Unknown fields are errors, so that none is silently ignored."""

    model_config = ConfigDict(extra="forbid")
    _drop_nulls = model_validator(mode="before")(_without_nulls)

    model: str
    user: str | None = None
    """Ignored, like `metadata` and `store`: the server stores nothing."""
    metadata: dict[str, str] | None = None
    store: bool | None = None


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False
    include_obfuscation: bool = False


def _as_list(stop: Any) -> Any:
    return [] if stop is None else [stop] if isinstance(stop, str) else stop


class Sampled(Request):
    """How to sample tokens."""

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: int | None = None
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_as_list), Field(max_length=16)] = []
    guided_choice: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, fail_fast=True)] | None = (
        None
    )
    guided_regex: str | None = None
    guided_json: dict[str, Any] | str | None = None
    n: Annotated[int, Field(ge=1, le=LARGEST_N)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def sampling(
        self, max_tokens: int, logprobs: int | None, seed: int, defaults: DecodingDefaults | None = None
    ) -> SamplingConfig:
        """The request as heddle's config. Missing fields take the model's defaults. A bias of -100 bans an id, as in OpenAI's API.

        Raises:
            HeddleError: a value is invalid.
        """
        names = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty")
        fields = {name: getattr(self, name) for name in (*names, "presence_penalty", "frequency_penalty")}
        bias = self.logit_bias or {}
        settings = {name: value for name, value in fields.items() if value is not None} | {
            "max_tokens": max_tokens,
            "logprobs": logprobs,
            "seed": seed,
            "stop": self.stop,
            "logit_bias": {id: value for id, value in bias.items() if value > -100},
            "banned": [[id] for id, value in bias.items() if value == -100],
            "choice": self.guided_choice or [],
            "regex": self.guided_regex,
            "json_schema": self.text_schema(),
        }
        return completed(SamplingConfig, settings, defaults, "request")

    def text_schema(self) -> dict[str, Any] | str | None:
        """The JSON schema that the text must meet, as a dict or as JSON, or None."""
        return self.guided_json


class CompletionRequest(Sampled):
    """`POST /v1/completions`."""

    prompt: Text | Annotated[list[Text], Field(fail_fast=True)] | Ids | Annotated[list[Ids], Field(fail_fast=True)] = ""
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=100)] | None = None
    echo: bool | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None


class ContentPart(BaseModel):
    """A part of a message; only texts are supported."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: Text


def _join_parts(content: Any) -> Any:
    """The text of a message whose content is a list of parts."""
    if isinstance(content, list):
        return "".join(ContentPart.model_validate(part).text for part in content)
    return content


class ChatMessage(BaseModel):
    """One message."""

    model_config = ConfigDict(extra="forbid")
    _drop_nulls = model_validator(mode="before")(_without_nulls)

    role: str
    content: Annotated[Text, BeforeValidator(_join_parts)]


class TextFormat(BaseModel):
    """Any text."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]


class JsonFormat(BaseModel):
    """Any JSON object."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["json_object"]


class NamedSchema(BaseModel):
    """A JSON schema in the format of OpenAI's API."""

    model_config = ConfigDict(extra="forbid")

    name: str
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None
    description: str | None = None


class SchemaFormat(BaseModel):
    """JSON that meets a schema."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["json_schema"]
    json_schema: NamedSchema


class ChatRequest(Sampled):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: Annotated[TextFormat | JsonFormat | SchemaFormat, Field(discriminator="type")] | None = None

    def text_schema(self) -> dict[str, Any] | str | None:
        if self.guided_json is not None and not isinstance(self.response_format, TextFormat | None):
            raise HeddleError("response_format and guided_json exclude each other")
        match self.response_format:
            case JsonFormat():
                return '{"type": "object"}'
            case SchemaFormat(json_schema=named_schema):
                return named_schema.schema_
        return super().text_schema()


class EmbeddingRequest(Request):
    """`POST /v1/embeddings`. The last four fields are heddle's own; see `heddle.embed`."""

    input: TextOrTexts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    prompt: Text | None = None
    prompt_name: str | None = None
    pooling: Pooling | None = None
    normalise: bool = False


class TranslateRequest(Request):
    """`POST /translate`."""

    text: TextOrTexts
    beams: Annotated[int, Field(ge=1, le=32)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    length_penalty: Annotated[float, Field(ge=-50, le=50)] | None = None
    crop: bool = False

    def beam_config(self, limit: int | None, defaults: DecodingDefaults | None) -> BeamConfig:
        """The request as heddle's config. Missing fields take the model's defaults.

        Args:
            limit: the server's maximum number of tokens; None: no limit.
            defaults: those of the model's config.

        Raises:
            HeddleError: a value is invalid.
        """
        fields = {name: getattr(self, name) for name in ("beams", "max_tokens", "length_penalty")}
        settings = {name: value for name, value in fields.items() if value is not None}
        config = completed(BeamConfig, settings, defaults, "request")
        tokens = min(config.max_tokens, limit or config.max_tokens)
        return config.model_copy(update={"max_tokens": tokens, "min_tokens": min(config.min_tokens, tokens - 1)})


class ClassifyRequest(Request):
    """`POST /classify`. `pair` has the second texts, for a model of pairs. `threshold` is for a multi-label model."""

    text: TextOrTexts
    pair: TextOrTexts | None = None
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None


def texts_of(field: str | list[str]) -> list[str]:
    """The texts of a field that may be a single one."""
    return [field] if isinstance(field, str) else field


def prompts_of(field: Any) -> list[Any]:
    """The prompts of a completion, each a text or a list of ids."""
    if isinstance(field, str) or (field and isinstance(field[0], int)):
        return [field]
    if not field:
        raise ApiError(400, "the prompt is an empty list", param="prompt")
    return list(field)
