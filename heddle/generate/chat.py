"""Conversations with a model: what it is prompted with is what training read before an answer."""

from heddle.checks import checked
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.text.chat import ChatTemplate
from heddle.text.tokenizer import Tokenizer


@checked()
def chat_template(model: Transformer, tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template that a model was trained with, or that it was published with.

    `template.render(messages, add_generation_prompt=True)` are the ids to prompt with; an answer ends with one of `template.ends`.

    Raises:
        HeddleError: the model has none.
    """
    if model.config.chat is None:
        raise HeddleError("this model has no chat template: train it with task=chat, or import one that has a template")
    return ChatTemplate.of(model.config.chat, tokenizer)
