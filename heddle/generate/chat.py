"""Chat: prompts from a chat template, exactly as in training, and the replies to them."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Unpack

from heddle.checks import checked
from heddle.config.decoding import SamplingConfig, completed
from heddle.config.keywords import SamplingSettings
from heddle.errors import HeddleError
from heddle.generate.constrain import Guides
from heddle.generate.engine import Engine, raise_if_failed
from heddle.generate.logprobs import Finish
from heddle.generate.text import bos_prefix
from heddle.model.transformer import Transformer
from heddle.text.chat_template import ChatTemplate, Message
from heddle.text.stream import TextStream
from heddle.text.tokenizer import Tokenizer

PLAIN = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n{% else %}"
    "{{ {'user': 'User', 'assistant': 'Assistant'}[m.role] }}: {{ m.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
PLAIN_STOP = "\nUser:"


@checked()
def chat_template(model: Transformer, tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template that a model was trained or published with.

    `template.render(messages, add_generation_prompt=True)` returns the ids to prompt with. An answer ends with one of
    `template.ends`. The template runs in a separate process and has one second per conversation.

    Raises:
        HeddleError: the model has no chat template.
    """
    if model.config.chat is None:
        raise HeddleError("this model has no chat template: train it with task=chat, or import one that has a template")
    # The template is code from whoever published the model, so it must not run in this process.
    return ChatTemplate.of(model.config.chat, tokenizer, sandboxed=True)


def plain_template(model: Transformer, tokenizer: Tokenizer) -> ChatTemplate:
    """A template that writes a conversation as `User: …` and `Assistant: …`, for a model without one. Stop at `PLAIN_STOP`.

    For an imported model it begins with the special tokens that the published tokenizer adds to a text.
    """
    names = {id: name for name, id in tokenizer.special.items()}
    prefix = "".join(names.get(id, "") for id in bos_prefix(model, tokenizer, PLAIN_STOP))
    return ChatTemplate(tokenizer, prefix + PLAIN)


def ends_of(model: Transformer, tokenizer: Tokenizer, template: ChatTemplate | None) -> tuple[int, ...]:
    """The ids that end a text, in addition to those in the model's config: the tokenizer's, and the template's end of an answer.

    The end ids of an imported model are in its config, so the tokenizer's end of text does not count.
    """
    end = () if model.config.ids is not None or tokenizer.end_of_text is None else (tokenizer.end_of_text,)
    return (*end, *(() if template is None else template.ends[:1]))


@checked()
def reply(
    model: Transformer, tokenizer: Tokenizer, messages: Sequence[Message], **sampling: Unpack[SamplingSettings]
) -> str:
    """The assistant's next message in a conversation.

    Keywords are those of `SamplingConfig`, such as `max_tokens=100, temperature=0`.

    Raises:
        HeddleError: the model has no chat template, the template refuses the conversation, or as in `Engine`.
    """
    config = completed(SamplingConfig, sampling, model.config.decoding, "sampling")
    return "".join(reply_pieces(model, tokenizer, chat_template(model, tokenizer), messages, config))


def reply_pieces(
    model: Transformer,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    sampling: SamplingConfig,
) -> Generator[str, None, Finish | None]:
    """Yield the assistant's next message as it is generated, in pieces of complete characters. Return why it ended.

    Raises:
        HeddleError: the template refuses the conversation, or as in `Engine`.
    """
    prompt = template.render(messages, add_generation_prompt=True)
    ends = ends_of(model, tokenizer, template) or tokenizer.end_of_text
    engine = Engine.of(model, [prompt], sampling, ends, vocabulary=tokenizer.vocab_size, guides=Guides(tokenizer))
    engine.waiting[0].text = TextStream(tokenizer, prompt[-1] if prompt else None, sampling.stop)
    finish = None
    while engine:
        for event in raise_if_failed(engine.step()):
            yield event.text
            finish = event.finish
    return finish


@dataclass
class Conversation:
    """A conversation that forgets its oldest exchanges when the context is full.

    Attributes:
        model: the model that answers.
        tokenizer: its tokenizer.
        sampling: settings of the answers.
        system: the system prompt, if any.
        messages: the messages after it.
        plain: whether the model has no chat template, so that a transcript of User and Assistant takes its place.
    """

    model: Transformer
    tokenizer: Tokenizer
    sampling: SamplingConfig
    system: str | None
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plain = self.model.config.chat is None
        self.template: ChatTemplate
        if self.plain:
            self.template = plain_template(self.model, self.tokenizer)
            self.sampling = self.sampling.model_copy(update={"stop": (PLAIN_STOP,)})
        else:
            self.template = chat_template(self.model, self.tokenizer)

    def all_messages(self) -> list[dict[str, str]]:
        """The system prompt, if any, and all messages."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.messages]

    def fit(self) -> int:
        """Drop the oldest exchanges until half an answer fits, or only the last message is left; return how many were dropped.

        Raises:
            HeddleError: the last message alone does not fit; then nothing is dropped.
        """
        context = self.model.config.context
        if self._length(len(self.messages) - 1) > context:
            subject = "the system prompt and the message do not fit" if self.system else "the message does not fit"
            raise HeddleError(f"{subject} into the model's context of {context} tokens; shorten it")
        room, forgotten = min(self.sampling.max_tokens, context) // 2, 0
        while 2 * forgotten < len(self.messages) - 1 and self._length(2 * forgotten) + room > context:
            forgotten += 1
        del self.messages[: 2 * forgotten]
        return forgotten

    def _length(self, first: int) -> int:
        """Tokens of the system prompt and the messages from this one on."""
        messages = [*self.all_messages()[: -len(self.messages)], *self.messages[first:]]
        return len(self.template.render(messages, add_generation_prompt=True))

    def reply(self) -> Generator[str, None, Finish | None]:
        """Stream the next answer; the return value says why it ended."""
        return reply_pieces(self.model, self.tokenizer, self.template, self.all_messages(), self.sampling)
