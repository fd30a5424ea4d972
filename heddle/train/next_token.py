"""The task of every language model: predict each token from those before it (L1-24)."""

from collections.abc import Iterator
from math import exp

import numpy as np
import numpy.typing as npt

from heddle.config.tasks import NextTokenConfig
from heddle.data.batch import Batch, next_token_batch
from heddle.data.order import held_out_windows, targets_left_out, windows, windows_per_epoch
from heddle.data.store import Part
from heddle.errors import HeddleError, pluralize
from heddle.generate.text import generate_text
from heddle.model.transformer import Transformer
from heddle.text.tokenizer import Tokenizer
from heddle.train.objective import CrossEntropy
from heddle.train.task import Examples, HeldOut, Reading, Task, listed, stream, window_batches, window_places

SHORTEST = 4  # tokens of a context worth advising
LEAST = 4  # windows in a sample, so that its standard error can be estimated


class NextTokenTask(Task):
    """Windows of a text, in which every token's target is the next token.

    Raises:
        HeddleError: the training text or the held-out text is too short to fill a window.
    """

    def __init__(self, config: NextTokenConfig, reading: Reading) -> None:
        super().__init__(config, reading)
        self.corpus, self.length = reading.corpus, reading.length
        if self.corpus.train is not None:
            held_out = None if self.corpus.validation is None else reading.part(held_out=True)
            check_length(reading.part(held_out=False), held_out, self.length)

    def examples(self, step: int) -> Examples:
        """The windows of one step: every window once per epoch, in an order keyed by (seed, epoch)."""
        train = self.reading.part(held_out=False)
        starts = windows(len(train.tokens), self.length, self.reading.seed, step, self.reading.rows)
        return Examples(starts, length=self.length)

    def batch(self, examples: Examples) -> Batch:
        """Each window and the token after it."""
        tokens = self.reading.part(examples.held_out).tokens
        return next_token_batch(np.stack([tokens[start : start + examples.length + 1] for start in examples.places]))

    def held_out(self, rows: int, most: int | None = None) -> HeldOut:
        """Windows that do not overlap, every target once: window k reads tokens k·length … (k+1)·length (L1-24)."""
        part = self.reading.part(held_out=True)
        if part.targets < 1:
            raise HeddleError(
                f"the text to score has {len(part.tokens)} token(s); it needs at least 2, one to read and one to predict"
            )
        whole = most is None or most >= part.targets
        number = None if whole else max(LEAST, -(-(most or 0) // self.length))
        found = held_out_windows(len(part.tokens), self.length, number)
        return HeldOut(
            window_batches(found, rows, self.length), sum(stop - start for start, stop in found) / part.targets
        )

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> CrossEntropy:
        """-log p(next token), for a causal language model."""
        model.check_predicts_next()
        return CrossEntropy(model, label_smoothing, z_loss)

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """Perplexity exp(loss); bits per UTF-8 byte of the text, comparable across tokenizers; and the bytes scored.

        Targets are converted to bytes at the rate of the whole part (`Part.bits_per_byte`).
        """
        part = self.reading.part(held_out=True)
        return {
            "perplexity": exp(min(means["loss"], 700.0)),
            "bits_per_byte": part.bits_per_byte(means["loss"]),
            "bytes": round(part.target_bytes * share),
        }

    def places(self, examples: Examples) -> npt.NDArray[np.int64]:
        """Each target's number in the text: a window's are one to the right of its inputs."""
        return window_places(examples) + 1

    def size(self, held_out: bool) -> int:
        """All tokens but the first are targets."""
        return self.reading.part(held_out).targets

    def epoch(self, number: int) -> Iterator[Examples]:
        """As many windows as fit, with room to shift them."""
        count = windows_per_epoch(len(self.reading.part(held_out=False).tokens), self.length)
        return stream(self, number * count, count)

    def remarks(self) -> list[str]:
        """How much of a short text one epoch does not read."""
        tokens = len(self.reading.part(held_out=False).tokens)
        left = targets_left_out(tokens, self.length)
        if left <= 0.1 * (tokens - 1):
            return []
        return [
            f"each epoch reads {tokens - 1 - left:,} of the training text's {tokens - 1:,} targets, different ones each time: "
            f"the text is {tokens / self.length:.1f} windows of context = {self.length} long"
        ]

    def describe(self, examples: Examples) -> str:
        """Where the windows start."""
        return f"windows that start at {'validation' if examples.held_out else 'training'} tokens {listed(examples)}"

    def sample(self, model: Transformer, tokenizer: Tokenizer, seed: int, tokens: int) -> str | None:
        """Text that the model generates after the first tokens of the validation text."""
        first = self.reading.part(held_out=True).tokens[:8].tolist()
        # A special token has no text, so not every tokenizer could read it back.
        length = next((place for place, token in enumerate(first) if token == tokenizer.end_of_text), len(first))
        prompt = tokenizer.decode(first[:length])
        wanted = {"max_tokens": tokens, "seed": seed, "temperature": 0.8, "window": True}
        return prompt + generate_text(model, tokenizer, prompt, **wanted)


def check_length(train: Part, held_out: Part | None, context: int) -> None:
    """Refuse a context that one of the text's parts cannot fill, and say which both can."""
    sizes = [len(part.tokens) for part in (train, held_out) if part is not None]
    longest = min(sizes) - 1  # a window and the token after it
    if longest < context:
        also = "" if held_out is None else f" and validation {len(held_out.tokens):,}"
        # A model of a few tokens learns nothing useful.
        shorter = f"set context={longest} or less, or " if longest >= SHORTEST else ""
        raise HeddleError(
            f"context = {context}, but training has {pluralize(len(train.tokens), 'token')}{also}: {shorter}give more text"
        )
