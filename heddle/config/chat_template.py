"""The chat template of a model, as data."""

from datetime import datetime
from typing import Annotated

from pydantic import Field, field_validator

from heddle.config.base import Config

CHAT_TOKENS = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
"""The special tokens of heddle's own template."""

# `<|user|>text<|end|>` for each message; an answer starts after `<|assistant|>`.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


class ChatTemplateConfig(Config):
    """A chat template, in Jinja, with its special tokens and its date."""

    template: Annotated[str, Field(min_length=1)] = PLAIN_TEMPLATE
    tokens: dict[str, str] = Field(
        default_factory=dict
    )  # its variables for special tokens, such as bos_token, and their texts
    date: str | None = None  # the time that strftime_now formats, as ISO 8601; None: the current time

    @field_validator("date")
    @classmethod
    def _is_a_date(cls, date: str | None) -> str | None:
        if date is not None:
            datetime.fromisoformat(date)
        return date
