"""Conversations as ids: the chat template that a model was trained with, rendered as Hugging Face transformers renders it.

A template is a program that may have come with weights, so it runs in Jinja's sandbox, which can read only the messages. Untrusted
templates also run in a subprocess with a timeout, so that an endless loop blocks nothing.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, Self, get_args

from heddle.checks import checked
from heddle.display import brief
from heddle.errors import HeddleError, article, did_you_mean
from heddle.text.template import compiled, rendered
from heddle.text.template_process import SandboxedTemplate
from heddle.text.tokenizer import Tokenizer

Role = Literal["system", "user", "assistant"]
ROLES: tuple[str, ...] = get_args(Role)
ANSWERS = "assistant"  # the role whose messages the model learns to generate

Message = Mapping[str, Any]
"""One message of a conversation, with its `role` and its `content`."""

NONCHARACTERS = [chr(0xFDD0 + number) for number in range(32)]  # which no text contains
PROBE = ({"role": "user", "content": "a"}, {"role": ANSWERS, "content": "b"})


class ChatSettings(Protocol):
    """The settings of a template, such as a `heddle.config.ChatTemplateConfig`."""

    @property
    def template(self) -> str: ...
    @property
    def tokens(self) -> Mapping[str, str]: ...
    @property
    def date(self) -> str | None: ...


@dataclass(frozen=True)
class Answer:
    """The range of ids in a conversation that is one message of the assistant.

    Attributes:
        start: the first id, directly after the generation prompt.
        stop: one past the special token that ends it.
        matches_prompt: whether the ids before `start` equal the ids of the generation prompt. They differ where the tokenizer
            merges the end of the prompt with the beginning of the answer.
    """

    start: int
    stop: int
    matches_prompt: bool


@dataclass(frozen=True)
class Conversation:
    """The ids of all messages, and the ranges of the assistant's."""

    ids: list[int]
    answers: tuple[Answer, ...]


class ChatTemplate:
    """Renders messages as ids, for training and generation.

    Special tokens written out in a message are ordinary text; only those of the template itself are special.

    Args:
        tokenizer: the model's tokenizer.
        template: the template, in Jinja.
        tokens: its variables for special tokens, such as `bos_token`, and their texts.
        date: the time that `strftime_now` formats, as ISO 8601; None: the current time.
        sandboxed: whether to render in a subprocess with a timeout of a second; for untrusted templates.

    Raises:
        HeddleError: the template is not valid Jinja.
    """

    @checked()
    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str,
        tokens: Mapping[str, str] | None = None,
        date: str | None = None,
        sandboxed: bool = False,
    ) -> None:
        self.tokenizer, self.source, self.tokens = tokenizer, template, dict(tokens or {})
        self._render: Callable[[Sequence[Message], Mapping[str, Any]], str]
        self._render = SandboxedTemplate(template, date).render if sandboxed else _in_process_renderer(template, date)
        longest_first = sorted(tokenizer.special, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def __repr__(self) -> str:
        return f"ChatTemplate({brief(self.source, 60)})"

    @classmethod
    def of(cls, settings: ChatSettings, tokenizer: Tokenizer, sandboxed: bool = False) -> Self:
        """The template of a model's config; `sandboxed` as in the class."""
        return cls(tokenizer, settings.template, settings.tokens, settings.date, sandboxed)

    @checked()
    def text(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        """The conversation as text, special tokens written out.

        Args:
            messages: the conversation.
            add_generation_prompt: whether to end with the beginning of an answer.

        Raises:
            HeddleError: a message lacks its role or content, or the template refuses the conversation.
        """
        return self._rendered(checked_messages(messages), add_generation_prompt)

    @checked()
    def render(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> list[int]:
        """The conversation as ids, with the arguments and errors of `text`."""
        return self._ids(*self._protected(checked_messages(messages), add_generation_prompt))

    @checked()
    def conversation(self, messages: Sequence[Message]) -> Conversation:
        """The conversation as ids, with the ranges of the assistant's messages.

        To find an answer, the messages before it are rendered with the generation prompt, and then again together with the
        answer. Both texts must be prefixes of the conversation.

        Raises:
            HeddleError: they are not prefixes, an answer ends without a special token, or as in `text`.
        """
        messages = checked_messages(messages)
        text, mark = self._protected(messages)
        ids = self._ids(text, mark)
        special = [match.group() for match in self._special.finditer(text)]
        # Only the template's own special tokens produce these ids, never the text of a message.
        special_ids = {self.tokenizer.special[name] for name in special}
        positions = [position for position, id in enumerate(ids) if id in special_ids]
        if len(positions) != len(special):
            raise HeddleError("the tokenizer does not keep the chat template's special tokens apart from the text")
        answers = []
        for number, message in enumerate(messages):
            if message["role"] != ANSWERS:
                continue
            prompt_text = self._protected(messages[:number], True)
            through_answer, _ = self._protected(messages[: number + 1])
            answer = self._answer(prompt_text[0], through_answer, text)
            first = len(self._special.findall(prompt_text[0]))
            last = first + len(self._special.findall(answer))
            prompt = self._ids(*prompt_text)
            answers.append(Answer(len(prompt), positions[last - 1] + 1, ids[: len(prompt)] == prompt))
        return Conversation(ids, tuple(answers))

    @checked()
    def check(self) -> None:
        """Raise a HeddleError if the template does not show which tokens are the assistant's, or where answers end."""
        text = _encodable_text(self.tokenizer)
        pair = [{**message, "content": text} for message in PROBE]
        self.conversation([*pair, *pair])

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The ids that end an answer; empty if no special token does."""
        prompt, through_answer = self._rendered(list(PROBE[:1]), True), self._rendered(list(PROBE), False)
        special = (
            self._special.findall(through_answer.removeprefix(prompt)) if through_answer.startswith(prompt) else []
        )
        return tuple(self.tokenizer.special[name] for name in special[-1:])

    def _answer(self, prompt: str, through_answer: str, conversation: str) -> str:
        """The text of an answer, with the special token that ends it."""
        if not through_answer.startswith(prompt) or not conversation.startswith(through_answer):
            raise HeddleError(
                "this chat template renders earlier messages differently once others follow, so the assistant's tokens cannot be "
                "located: use another template"
            )
        text = through_answer[len(prompt) :]
        if not self._special.search(text):
            raise HeddleError(
                "this chat template does not end an answer with a special token of the tokenizer, so a model could not learn "
                "when to stop: add the template's tokens to special_tokens, or use another template"
            )
        return text

    def _protected(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> tuple[str, str]:
        """The text, with a mark inside each special token that a message spells out, and the mark ("" if none is needed)."""
        if not any(self._special.search(message["content"]) for message in messages):
            return self._rendered(messages, add_generation_prompt), ""
        used = self.source + "".join(message["content"] for message in messages)
        mark = next((character for character in NONCHARACTERS if character not in used), "")
        if not mark:
            raise HeddleError("a conversation with special tokens and all noncharacters of Unicode cannot be encoded")
        broken = [{**message, "content": self._broken(message["content"], mark)} for message in messages]
        return self._rendered(broken, add_generation_prompt), mark

    def _broken(self, text: str, mark: str) -> str:
        # Repeat: breaking one special token may leave another.
        while self._special.search(text):
            text = self._special.sub(lambda match: match.group()[0] + mark + match.group()[1:], text)
        return text

    def _ids(self, text: str, mark: str) -> list[int]:
        """The ids of a text in which every intact special token is the template's. The mark is removed again."""
        if not mark:
            return self.tokenizer.encode(text, allow_special=True)
        ids: list[int] = []
        start = 0
        for match in self._special.finditer(text):
            ids += self.tokenizer.encode(text[start : match.start()].replace(mark, ""))
            ids.append(self.tokenizer.special[match.group()])
            start = match.end()
        return ids + self.tokenizer.encode(text[start:].replace(mark, ""))

    def _rendered(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        variables = {"tools": None, "documents": None, "add_generation_prompt": add_generation_prompt, **self.tokens}
        return self._render(messages, variables)


def _encodable_text(tokenizer: Tokenizer) -> str:
    """A text that the tokenizer can encode, without whitespace around it."""
    special = set(tokenizer.special.values())
    pieces = (tokenizer.piece(id) for id in range(tokenizer.vocab_size) if id not in special)
    for text in (PROBE[0]["content"], *(piece for piece in pieces if piece.strip() == piece != "")):
        with suppress(HeddleError):
            tokenizer.encode(text)
            return text
    return PROBE[0]["content"]


def _in_process_renderer(template: str, date: str | None) -> Callable[[Sequence[Message], Mapping[str, Any]], str]:
    """A function that renders the template in this process."""
    try:
        jinja_template = compiled(template, date)
    except ValueError as error:
        raise HeddleError(str(error)) from None

    def render(messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        try:
            return rendered(jinja_template, messages, variables)
        except ValueError as error:
            raise HeddleError(str(error)) from None

    return render


def checked_messages(messages: Sequence[Any]) -> list[dict[str, str]]:
    """The messages as dictionaries without None values; each has a known role and a text.

    Raises:
        HeddleError: a message is malformed, has an unknown role, or has further keys.
    """
    valid = []
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping):
            raise HeddleError(
                f"message {number} is {article(type(message).__name__)}: it must have a role and a content"
            )
        fields = {str(key): value for key, value in message.items() if value is not None}
        for key in ("role", "content"):
            if not isinstance(fields.get(key), str):
                raise HeddleError(
                    f"message {number} needs a {key} that is a string; it has {', '.join(fields) or 'nothing'}"
                )
        if fields["role"] not in ROLES:
            suggestion = did_you_mean(fields["role"], ROLES)
            raise HeddleError(
                f"message {number} has the role {fields['role']!r}; use one of {', '.join(ROLES)}.{suggestion}"
            )
        if unknown := [key for key in fields if key not in ("role", "content")]:
            raise HeddleError(f"message {number} has {unknown[0]!r}, which heddle does not read: remove it")
        valid.append(fields)
    return valid
