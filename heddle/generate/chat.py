"""Conversations with a model: what it is prompted with is what training read before an answer."""

from collections.abc import Generator, Sequence
from typing import Unpack

from heddle.checks import checked
from heddle.config.decoding import SamplingConfig, completed
from heddle.config.keywords import SamplingSettings
from heddle.errors import HeddleError
from heddle.generate.constrain import Guides
from heddle.generate.engine import Engine, raise_if_failed
from heddle.generate.stream import Finish
from heddle.generate.text import RowText, opening
from heddle.model.transformer import Transformer
from heddle.text.chat_template import ChatTemplate, Message
from heddle.text.tokenizer import Tokenizer

PLAIN = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n{% else %}"
    "{{ {'user': 'User', 'assistant': 'Assistant'}[m.role] }}: {{ m.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
PLAIN_STOP = "\nUser:"


@checked()
def chat_template(model: Transformer, tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template that a model was trained with, or that it was published with.

    `template.render(messages, add_generation_prompt=True)` are the ids to prompt with; an answer ends with one of `template.ends`.
    It is rendered in a process of its own, which has a second for each conversation.

    Raises:
        HeddleError: the model has none.
    """
    if model.config.chat is None:
        raise HeddleError("this model has no chat template: train it with task=chat, or import one that has a template")
    # It may have been published by anybody.
    return ChatTemplate.of(model.config.chat, tokenizer, sandboxed=True)


def plain_template(model: Transformer, tokenizer: Tokenizer) -> ChatTemplate:
    """A conversation as a script with speakers, for a model without a chat template. Its answers end before `PLAIN_STOP`.

    It begins with the special tokens that a published tokenizer puts before a text, if the model was imported.
    """
    names = {id: name for name, id in tokenizer.special.items()}
    before = "".join(names.get(id, "") for id in opening(model, tokenizer, PLAIN_STOP))
    return ChatTemplate(tokenizer, before + PLAIN)


def ends_of(model: Transformer, tokenizer: Tokenizer, template: ChatTemplate | None) -> tuple[int, ...]:
    """The ids that end a text of a model, besides those of its config: the tokenizer's, and that of an answer in its template.

    An imported model has its end ids in its config, so the tokenizer's is not one of them.
    """
    own = () if model.config.ids is not None or tokenizer.end_of_text is None else (tokenizer.end_of_text,)
    return (*own, *(() if template is None else template.ends[:1]))


@checked()
def reply(
    model: Transformer, tokenizer: Tokenizer, messages: Sequence[Message], **sampling: Unpack[SamplingSettings]
) -> str:
    """The assistant's next message in a conversation.

    Keywords are those of `SamplingConfig`, such as `max_tokens=100, temperature=0`.

    Raises:
        HeddleError: the model has no chat template, the template refuses the conversation, or as in `Engine`.
    """
    wanted = completed(SamplingConfig, sampling, model.config.decoding, "sampling")
    return "".join(reply_pieces(model, tokenizer, chat_template(model, tokenizer), messages, wanted))


def reply_pieces(
    model: Transformer,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    sampling: SamplingConfig,
) -> Generator[str, None, Finish | None]:
    """Yield the assistant's next message as it is drawn, in pieces of whole characters, and return why it ended.

    Raises:
        HeddleError: the template refuses the conversation, or as in `Engine`.
    """
    prompt = template.render(messages, add_generation_prompt=True)
    ends = ends_of(model, tokenizer, template) or tokenizer.end_of_text
    engine = Engine.of(model, [prompt], sampling, ends, vocabulary=tokenizer.vocab_size, guides=Guides(tokenizer))
    text = RowText(tokenizer, sampling.stop, prompt[-1] if prompt else None)
    while engine:
        for event in raise_if_failed(engine.step()):
            yield text.push(event.token, event.finish)
            if text.finish == "stop":
                engine.leave({event.row})
    return text.finish
