"""The token loop for one text: predict, draw, append. `heddle.generate.engine` continues many texts at once by the same rules."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from heddle.checks import checked
from heddle.config.ids import SpecialIds
from heddle.config.sampling import SamplingConfig
from heddle.errors import HeddleError
from heddle.generate.sampling import Blocked, choose, log_probability
from heddle.model.transformer import Transformer

Finish = Literal["end", "stop", "length", "context"]


@checked()
def stream(
    model: Transformer, prompt: Sequence[int], sampling: SamplingConfig, end_of_text: int | None = None
) -> Iterator[int]:
    """Yield the tokens that continue one prompt, without the end of text.

    This is the loop at its simplest. `generate` draws the same tokens for many prompts at once, and packs the weights for it.
    """
    rules = TextRules(model, sampling, end_of_text)
    text = rules.open(0, prompt, sampling.seed)
    cache, new, finish = model.new_cache(1), text.visible(), None
    while finish is None:
        with torch.inference_mode(), evaluating(model):
            hidden = model(torch.tensor([new], device=model.device), cache=cache).hidden
            ((token, _),) = rules.draw(model.logits(hidden[:, -1]), [text])
        text.ids.append(token)
        finish, new = rules.finish(text), [token]
        if finish != "end":
            yield token
        if rules.is_full(text):
            rules.shorten(text)
            cache, new = model.new_cache(1), text.visible()


@dataclass
class GrowingText:
    """A text as it grows.

    Attributes:
        number: the number of its prompt.
        ids: the prompt's and those drawn so far.
        last: how many ids it has once `max_tokens` are drawn.
        seed: keys its draws.
        start: index of the first id that the model sees.
    """

    number: int
    ids: list[int]
    last: int
    seed: int
    start: int = 0

    def visible(self) -> list[int]:
        """The ids that the model sees."""
        return self.ids[self.start :]


class TextRules:
    """How the texts of a model start, which ids they get, and when they end.

    Without `sampling.window`, a prompt longer than the context is refused, and a text ends when the context is full. This
    applies to rotary positions too, since the model was never trained beyond the context. With it, a longer prompt is cut to
    its last `context` tokens, and a text that has filled the context continues from its last `context // 2` tokens, which are
    recomputed: about one extra token per drawn token, many in one pass.

    Args:
        model: a causal language model.
        sampling: how to draw, and when to end.
        end_of_text: an id that ends a text, and starts one whose prompt is empty (D-24). The special ids in an imported
            model's config apply without being passed here, and the ids that it bans are never drawn.
        vocabulary: how many ids have text, if the model has more; other ids are not drawn, except those that end a text.

    Raises:
        HeddleError: the model does not predict the next token, or has no id that may be drawn.
    """

    def __init__(
        self, model: Transformer, sampling: SamplingConfig, end_of_text: int | None, vocabulary: int | None = None
    ) -> None:
        model.check_predicts_next()
        ids = model.config.ids or SpecialIds()
        self.sampling, self.context, self.vocab_size = sampling, model.config.context, model.vocab_size
        self.begin = end_of_text if ids.begin is None else ids.begin
        self.ends = {*ids.ends(), *(() if end_of_text is None else (end_of_text,))}
        self.blocked = Blocked(ids.banned, self.ends, vocabulary, model.vocab_size)

    def open(self, number: int, prompt: Sequence[int], seed: int) -> GrowingText:
        """A text that starts with a prompt.

        Raises:
            HeddleError: the prompt is empty and there is no id to start from, is too long, or has ids that the model does
                not have.
        """
        ids = list(prompt) or ([] if self.begin is None else [self.begin])
        if not ids:
            raise HeddleError(f"prompt {number} is empty, and there is no end-of-text token to start from")
        wrong = next((token for token in ids if not 0 <= token < self.vocab_size), None)
        if wrong is not None:
            raise HeddleError(f"prompt {number} has the id {wrong}; ids must be from 0 to {self.vocab_size - 1}")
        if len(ids) > self.context and not self.sampling.window:
            raise HeddleError(
                f"prompt {number} has {len(ids)} tokens, but the model's context is {self.context}; "
                "shorten it, or set --window (in Python window=True) to continue from its last tokens"
            )
        return GrowingText(number, ids, len(ids) + self.sampling.max_tokens, seed, max(0, len(ids) - self.context))

    def draw(self, logits: Float[Tensor, "B V"], texts: Sequence[GrowingText]) -> list[tuple[int, float]]:
        """The next id of each text, and the natural log of its probability under the model itself.

        Raises:
            HeddleError: a logit is NaN, or the drawn one is infinite.
        """
        logits = logits.cpu() if logits.device.type == "mps" else logits  # mps has no float64, which draws need
        possible = self.blocked.masked(logits, [text.ids for text in texts])
        ids = choose(possible, self.sampling, [(text.seed, len(text.ids)) for text in texts])
        drawn = list(zip(ids.tolist(), log_probability(logits, ids).tolist(), strict=True))
        for text, (_, logprob) in zip(texts, drawn, strict=True):
            if not isfinite(logprob):
                raise HeddleError(f"row {text.number}: the model's output is NaN or infinite; its weights are broken")
        return drawn

    def finish(self, text: GrowingText) -> Finish | None:
        """Why the text ends with its last id; None: it continues."""
        if text.ids[-1] in self.ends:
            return "end"
        if len(text.ids) == text.last:
            return "length"
        return "context" if self.is_full(text) and not self.sampling.window else None

    def is_full(self, text: GrowingText) -> bool:
        """Whether the text's last id does not fit into the context."""
        return len(text.ids) - text.start > self.context

    def shorten(self, text: GrowingText) -> None:
        """Leave only the last half of the context visible."""
        text.start = len(text.ids) - max(1, self.context // 2)


@contextmanager
def evaluating(model: nn.Module, modules: Iterable[nn.Module] = ()) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module is in the mode it was in.

    `modules` are all modules of the model, if already known: finding them takes as long as some matrix products.
    """
    training = [module for module in modules or model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
