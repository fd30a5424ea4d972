"""The task of every language model: predict each token from those before it (L1-24)."""

from collections.abc import Sequence
from math import exp

import torch

from heddle.config.decoding import SamplingConfig
from heddle.data.batch import IGNORED, Batch
from heddle.errors import HeddleError
from heddle.generate.text import complete
from heddle.model.transformer import Transformer
from heddle.tasks.objective import CrossEntropy
from heddle.tasks.task import ExampleIndices
from heddle.tasks.texts import TextTask
from heddle.text.tokenizer import Tokenizer


class NextTokenTask(TextTask):
    """Rows of a text, in which every token's target is the next token of its text or document."""

    ahead = 1

    def batch(self, examples: ExampleIndices) -> Batch:
        """The rows, and the token after each one."""
        rows = self.rows.read(examples)
        targets = torch.from_numpy(rows.following)
        return Batch(torch.from_numpy(rows.tokens), rows.layout, targets, (targets != IGNORED).float())

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> CrossEntropy:
        """-log p(next token), for a causal language model.

        Raises:
            HeddleError: the model is not causal, has no language head, or does not keep the layout's documents apart.
        """
        model.check_predicts_next()
        if model.last_stack().prefix:
            raise HeddleError(
                "this model reads the beginning of a text as a prefix, but the task 'next_token' has no prefixes: "
                "use the task 'prefix_lm', or a decoder with prefix = false"
            )
        self.check_layout(model)
        return CrossEntropy(model, label_smoothing, z_loss)

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """Perplexity exp(loss), bits per UTF-8 byte (comparable across tokenizers) and per character, and the scored bytes."""
        return {
            "perplexity": exp(min(means["loss"], 700.0)),
            "bits_per_byte": self.rows.bits_per_byte(means["loss"]),
            **self.rows.bits_per_character(means["loss"]),
            "bytes": self.rows.bytes_scored(share),
        }

    def sample(self, model: Transformer, tokenizer: Tokenizer, seed: int, tokens: int) -> str | None:
        """Text that the model generates after the first tokens of the validation text."""
        return self.samples(model, tokenizer, [seed], tokens)[0]

    def samples(self, model: Transformer, tokenizer: Tokenizer, seeds: Sequence[int], tokens: int) -> list[str]:
        """The same for several seeds, generated together."""
        first = self.spec.part(held_out=True).tokens[:8].tolist()
        # A special token has no text that every tokenizer could encode again.
        length = next((place for place, token in enumerate(first) if token == tokenizer.end_of_text), len(first))
        prompt = tokenizer.decode(first[:length])
        sampling = SamplingConfig(max_tokens=tokens, temperature=0.8, window=True)
        texts = [prompt] * len(seeds)
        for piece in complete(model, tokenizer, [prompt] * len(seeds), sampling, seeds):
            texts[piece.row] += piece.text
        return texts
