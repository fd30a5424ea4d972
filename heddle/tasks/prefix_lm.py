"""Prefix language modelling: predict a text from its beginning, which is read in both directions (Raffel et al. 2020, 3.2.1)."""

from math import exp

import numpy as np
import torch

from heddle.data.batch import IGNORED, Batch
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.tasks.next_token import NextTokenTask
from heddle.tasks.objective import CrossEntropy
from heddle.tasks.rows.texts import TokenRows
from heddle.tasks.task import EvalSet, ExampleIndices

UNPROMPTED = 1 / 8  # of the texts that are read from their start


class PrefixLMTask(NextTokenTask):
    """Rows of a text, each with a prefix; the tokens after the prefix are predicted, each from all tokens before it.

    The tokens of the prefix see each other in both directions, and its last one predicts the first token after it. A text of
    n tokens (or a packed document, each of which has a prefix of its own) has a prefix of 1 to n - 1 tokens, all equally
    likely. In rows that begin where a text begins, the prefix is only the start ids with probability 1/8, as in generation without
    a prompt. The length is a function of the seed and the example's number, so it does not depend on micro-batches, ranks or where
    a run was resumed; it differs between epochs, and is the same in every evaluation.
    """

    partial_targets = True

    def batch(self, examples: ExampleIndices) -> Batch:
        """The rows; the targets are the tokens after the prefixes."""
        rows = self.rows.read(examples)
        layout = rows.layout.prefixed(self._lengths(rows, examples))
        # From the prefix's last token on, a token sees only to its own position.
        after = layout.sees_to == layout.position
        targets = torch.from_numpy(rows.following).masked_fill(~after, IGNORED)
        return Batch(torch.from_numpy(rows.tokens), layout, targets, (targets != IGNORED).float())

    def held_out(self, rows: int, most: int | None = None) -> EvalSet:
        """Rows that cover the text; their prefixes are the same every time. On average, half of a row's tokens are targets."""
        return super().held_out(rows, None if most is None else 2 * most)

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> CrossEntropy:
        """-log p of each token after the prefix, for a decoder whose prefixes see both ways.

        Raises:
            HeddleError: the model is not a decoder, its prefix is causal, or it does not keep the layout's documents apart.
        """
        model.check_predicts_next()
        if not model.last_stack().prefix:
            raise HeddleError("the task 'prefix_lm' needs a decoder that reads a prefix: set decoder.prefix = true")
        self.check_layout(model)
        return CrossEntropy(model, label_smoothing, z_loss)

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """Perplexity of the tokens after the prefixes, exp(loss)."""
        return {"perplexity": exp(min(means["loss"], 700.0))}

    def _lengths(self, rows: TokenRows, examples: ExampleIndices) -> torch.Tensor:
        """Int[B N], the length of the prefix of each segment."""
        segment, documents = rows.layout.segment.numpy(), rows.layout.documents
        row = np.arange(len(segment))[:, None] * documents
        predictable = np.bincount((row + segment)[rows.following != IGNORED], minlength=len(segment) * documents)
        most = predictable.reshape(len(segment), documents).clip(min=1)
        keys = examples.places if examples.keys is None else examples.keys
        least = len(self.rows.start) if self.spec.layout != "concatenate" else 0
        prefix_lengths = []
        for key, each in zip(keys, most, strict=True):
            rng = np.random.default_rng([self.spec.seed, examples.held_out, int(key)])
            lengths = rng.integers(1, each + 1)
            if least:
                lengths = np.where(rng.random(len(each)) < UNPROMPTED, np.minimum(least, each), lengths)
            prefix_lengths.append(lengths)
        return torch.from_numpy(np.stack(prefix_lengths))
