"""Conversations as ids: the chat template that a model was trained with, rendered as Hugging Face transformers renders it.

A template is a program that may have come with weights, so it runs in Jinja's sandbox, which can read nothing but the messages; and
wherever somebody else's is used, in a process of its own, so that one without an end holds nothing up.
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
ANSWERS = "assistant"  # the role whose messages a model learns to write

Message = Mapping[str, Any]
"""One message of a conversation, with its `role` and its `content`."""

NONCHARACTERS = [chr(0xFDD0 + number) for number in range(32)]  # which no text contains
PROBE = ({"role": "user", "content": "a"}, {"role": ANSWERS, "content": "b"})


class ChatSettings(Protocol):
    """What a template is made from; `heddle.config.ChatTemplateConfig` has it."""

    @property
    def template(self) -> str: ...
    @property
    def tokens(self) -> Mapping[str, str]: ...
    @property
    def date(self) -> str | None: ...


@dataclass(frozen=True)
class Answer:
    """Which ids of a conversation are one of the assistant's messages.

    Attributes:
        start: the first, which follows what generation is prompted with.
        stop: the one after the special token that ends it.
        sure: whether the ids up to `start` are those that generation is prompted with. They are not where the tokenizer joins the
            end of the prompt with the beginning of the answer.
    """

    start: int
    stop: int
    sure: bool


@dataclass(frozen=True)
class Conversation:
    """The ids of all messages, and which of them are the assistant's."""

    ids: list[int]
    answers: tuple[Answer, ...]


class ChatTemplate:
    """Messages to ids, for training and for generation alike.

    Special tokens written out in a message are ordinary text; only those of the template itself are special.

    Args:
        tokenizer: the model's tokenizer.
        template: the template, in Jinja.
        tokens: what it calls special tokens, such as `bos_token`, and their texts.
        date: what `strftime_now` formats, as ISO 8601; None: the present moment.
        apart: whether to render in a process of its own, which is ended after a second; for a template that somebody else wrote.

    Raises:
        HeddleError: it is not valid Jinja.
    """

    @checked()
    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str,
        tokens: Mapping[str, str] | None = None,
        date: str | None = None,
        apart: bool = False,
    ) -> None:
        self.tokenizer, self.source, self.tokens = tokenizer, template, dict(tokens or {})
        self._render: Callable[[Sequence[Message], Mapping[str, Any]], str]
        self._render = SandboxedTemplate(template, date).render if apart else _rendered_here(template, date)
        longest_first = sorted(tokenizer.special, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def __repr__(self) -> str:
        return f"ChatTemplate({brief(self.source, 60)})"

    @classmethod
    def of(cls, settings: ChatSettings, tokenizer: Tokenizer, apart: bool = False) -> Self:
        """The template that a model's config describes; `apart` as in the class."""
        return cls(tokenizer, settings.template, settings.tokens, settings.date, apart)

    @checked()
    def text(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        """The conversation as text, special tokens written out.

        Args:
            messages: the conversation.
            add_generation_prompt: whether to end with the beginning of an answer.

        Raises:
            HeddleError: a message has no role or no content, or the template refuses the conversation.
        """
        return self._rendered(checked_messages(messages), add_generation_prompt)

    @checked()
    def render(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> list[int]:
        """The conversation as ids, with the arguments and errors of `text`."""
        return self._ids(*self._protected(checked_messages(messages), add_generation_prompt))

    @checked()
    def conversation(self, messages: Sequence[Message]) -> Conversation:
        """The conversation as ids, and which of them are the assistant's.

        What comes before each answer is rendered as it is for generation; both it and the conversation up to the end of the
        answer must be beginnings of the whole.

        Raises:
            HeddleError: they are not, an answer ends with no special token, or as in `text`.
        """
        messages = checked_messages(messages)
        whole, mark = self._protected(messages)
        ids = self._ids(whole, mark)
        special = [match.group() for match in self._special.finditer(whole)]
        # Where the ids of the template's own special tokens are: no text gives one of them.
        names = {self.tokenizer.special[name] for name in special}
        places = [place for place, id in enumerate(ids) if id in names]
        if len(places) != len(special):
            raise HeddleError("the tokenizer does not keep the chat template's special tokens apart from the text")
        answers = []
        for number, message in enumerate(messages):
            if message["role"] != ANSWERS:
                continue
            before = self._protected(messages[:number], True)
            upto, _ = self._protected(messages[: number + 1])
            text = self._answer(before[0], upto, whole)
            first = len(self._special.findall(before[0]))
            last = first + len(self._special.findall(text))
            prompt = self._ids(*before)
            answers.append(Answer(len(prompt), places[last - 1] + 1, ids[: len(prompt)] == prompt))
        return Conversation(ids, tuple(answers))

    @checked()
    def check(self) -> None:
        """Refuse a template that does not show which tokens are the assistant's, or when its answers end.

        Raises:
            HeddleError: it is such a template.
        """
        text = _known(self.tokenizer)
        pair = [{**message, "content": text} for message in PROBE]
        self.conversation([*pair, *pair])

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The ids that end an answer; none if only its text shows the end."""
        before, upto = self._rendered(list(PROBE[:1]), True), self._rendered(list(PROBE), False)
        found = self._special.findall(upto.removeprefix(before)) if upto.startswith(before) else []
        return tuple(self.tokenizer.special[name] for name in found[-1:])

    def _answer(self, before: str, upto: str, whole: str) -> str:
        """The text of an answer with its end."""
        if not upto.startswith(before) or not whole.startswith(upto):
            raise HeddleError(
                "this chat template writes the beginning of a conversation differently once more of it follows, so which tokens "
                "are the assistant's is not certain: use another template"
            )
        text = upto[len(before) :]
        if not self._special.search(text):
            raise HeddleError(
                "this chat template ends an answer with no special token of the tokenizer, so a model could not learn when to "
                "stop: add the template's tokens to special_tokens, or use another template"
            )
        return text

    def _protected(self, messages: Sequence[Message], prompt: bool = False) -> tuple[str, str]:
        """The text with a mark inside every special token that a message contains; and the mark, "" if none was needed."""
        if not any(self._special.search(message["content"]) for message in messages):
            return self._rendered(messages, prompt), ""
        written = self.source + "".join(message["content"] for message in messages)
        mark = next((each for each in NONCHARACTERS if each not in written), "")
        if not mark:
            raise HeddleError("a conversation with special tokens and all noncharacters of Unicode cannot be encoded")
        broken = [{**message, "content": self._broken(message["content"], mark)} for message in messages]
        return self._rendered(broken, prompt), mark

    def _broken(self, text: str, mark: str) -> str:
        # Again, since what is left may contain another one.
        while self._special.search(text):
            text = self._special.sub(lambda match: match.group()[0] + mark + match.group()[1:], text)
        return text

    def _ids(self, text: str, mark: str) -> list[int]:
        """The ids of a text whose special tokens are all the template's; a mark is removed from the text between them."""
        if not mark:
            return self.tokenizer.encode(text, allow_special=True)
        ids: list[int] = []
        start = 0
        for match in self._special.finditer(text):
            ids += self.tokenizer.encode(text[start : match.start()].replace(mark, ""))
            ids.append(self.tokenizer.special[match.group()])
            start = match.end()
        return ids + self.tokenizer.encode(text[start:].replace(mark, ""))

    def _rendered(self, messages: Sequence[Message], prompt: bool) -> str:
        told = {"tools": None, "documents": None, "add_generation_prompt": prompt, **self.tokens}
        return self._render(messages, told)


def _known(tokenizer: Tokenizer) -> str:
    """A text without blanks around it that a tokenizer knows."""
    special = set(tokenizer.special.values())
    pieces = (tokenizer.piece(id) for id in range(tokenizer.vocab_size) if id not in special)
    for text in (PROBE[0]["content"], *(piece for piece in pieces if piece.strip() == piece != "")):
        with suppress(HeddleError):
            tokenizer.encode(text)
            return text
    return PROBE[0]["content"]


def _rendered_here(template: str, date: str | None) -> Callable[[Sequence[Message], Mapping[str, Any]], str]:
    """What renders a template in this process.

    Raises:
        HeddleError: it is not valid Jinja.
    """
    try:
        made = compiled(template, date)
    except ValueError as error:
        raise HeddleError(str(error)) from None

    def render(messages: Sequence[Message], told: Mapping[str, Any]) -> str:
        try:
            return rendered(made, messages, told)
        except ValueError as error:
            raise HeddleError(str(error)) from None

    return render


def checked_messages(messages: Sequence[Any]) -> list[dict[str, str]]:
    """Messages with a known role and a text; keys without a value are left out.

    Raises:
        HeddleError: there is none, or one is something else.
    """
    found = []
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping):
            raise HeddleError(
                f"message {number} is {article(type(message).__name__)}: it must have a role and a content"
            )
        said = {str(key): value for key, value in message.items() if value is not None}
        for key in ("role", "content"):
            if not isinstance(said.get(key), str):
                raise HeddleError(
                    f"message {number} has no {key} that is a text; it has {', '.join(said) or 'nothing'}"
                )
        if said["role"] not in ROLES:
            near = did_you_mean(said["role"], ROLES)
            raise HeddleError(f"message {number} has the role {said['role']!r}, none of {', '.join(ROLES)}.{near}")
        if unknown := [key for key in said if key not in ("role", "content")]:
            raise HeddleError(f"message {number} has {unknown[0]!r}, which heddle does not read: remove it")
        found.append(said)
    return found
