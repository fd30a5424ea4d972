"""Masked language modelling: predict hidden tokens from those on both sides (Devlin et al. 2019, 3.1; L3-04)."""

from dataclasses import replace
from itertools import islice
from math import exp

import numpy as np
import numpy.typing as npt
import torch

from heddle.config.tasks import MaskedConfig
from heddle.data.batch import IGNORED, Batch
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.tasks.objective import CrossEntropy
from heddle.tasks.task import DataSpec, EvalSet, ExampleIndices
from heddle.tasks.texts import TextTask
from heddle.text.masking import MASKS
from heddle.text.tokenizer import Tokenizer
from heddle.weights.special_tokens import mask_of

Ids = npt.NDArray[np.int64]


class MaskedTask(TextTask):
    """Rows of a text in which some tokens are targets, and most of those are replaced by the mask token.

    The number of targets in a row is the configured share of its tokens, rounded, and at least one. Targets and their replacements
    are a function of the seed and the example's number, so they do not depend on micro-batches, ranks or where a run was resumed.
    Special tokens are neither targets nor replacements.

    Raises:
        HeddleError: there is no tokenizer, or it has no mask token; or the text is too short for a row.
    """

    ahead = 0
    partial_targets = True

    def __init__(self, config: MaskedConfig, spec: DataSpec) -> None:
        if spec.tokenizer is None:
            raise HeddleError("the task 'masked' needs the tokenizer of the text, for its mask token")
        name = mask_of(spec.tokenizer, spec.model.ids)
        if name is None:
            raise HeddleError(
                f"the tokenizer has no mask token: add {MASKS[0]} to special_tokens, or train a tokenizer"
            )
        super().__init__(config, spec)
        special = spec.tokenizer.special
        self.mask = special[name]
        self.ordinary = np.setdiff1d(np.arange(spec.tokenizer.vocab_size), list(special.values()))
        self.continues = continuing(spec.tokenizer) if config.whole_words else None

    def batch(self, examples: ExampleIndices) -> Batch:
        """The rows with some tokens replaced, different ones in each epoch; the targets are the original tokens."""
        rows = self.rows.read(examples)
        ids, real = rows.tokens, rows.layout.real.numpy()
        keys = examples.places if examples.keys is None else examples.keys
        tokens, targets = ids.copy(), np.full_like(ids, IGNORED)
        for row, key in enumerate(keys):
            rng = np.random.default_rng([self.spec.seed, examples.held_out, int(key)])
            chosen = self._sample_targets(ids[row, real[row]], rng)
            targets[row, chosen] = ids[row, chosen]
            level = rng.random(len(chosen))
            tokens[row, chosen[level < self.config.masked]] = self.mask
            random = chosen[(level >= self.config.masked) & (level < self.config.masked + self.config.random)]
            tokens[row, random] = rng.choice(self.ordinary, len(random))
        weights = torch.from_numpy((targets != IGNORED).astype(np.float32))
        return Batch(torch.from_numpy(tokens), rows.layout, torch.from_numpy(targets), weights)

    def held_out(self, rows: int, most: int | None = None) -> EvalSet:
        """Rows that cover the text; their masks are the same every time."""
        return super().held_out(rows, None if most is None else round(most / self.config.share))

    def objective(self, model: Transformer, label_smoothing: float = 0.0, z_loss: float = 0.0) -> CrossEntropy:
        """-log p of the hidden tokens, for an encoder that scores tokens."""
        if model.decoder is not None:
            raise HeddleError("the task 'masked' needs an encoder, since a decoder sees only preceding tokens")
        model.language_head()
        self.check_layout(model)
        return CrossEntropy(model, label_smoothing, z_loss)

    def metrics(self, means: dict[str, float], share: float) -> dict[str, float]:
        """Perplexity of the hidden tokens, exp(loss)."""
        return {"perplexity": exp(min(means["loss"], 700.0))}

    def visible_share(self) -> float:
        """The share of targets that are not replaced, or are replaced by a random token that happens to be equal."""
        masked, random = float(self.config.masked), float(self.config.random)
        return 1 - masked - random + random / len(self.ordinary)

    @torch.no_grad()
    def sample(self, model: Transformer, tokenizer: Tokenizer, seed: int, tokens: int) -> str | None:
        """The beginning of the validation text with masked tokens filled in: [the model's], or [the model's / the original]."""
        batch = self.batch(replace(self.rows.beginning(tokens), keys=np.array([seed]))).to(model.device)
        training = model.training
        model.eval()
        best = model.logits(model(batch.tokens, batch.layout).hidden)[0].argmax(-1).tolist()
        model.train(training)
        text, previous = b"", None
        length = min(tokens, int(batch.layout.real[0].sum()))
        rows = (batch.tokens[0].tolist(), batch.targets[0].tolist(), best)
        for token, target, predicted in islice(zip(*rows, strict=True), length):
            original = token if target == IGNORED else target
            piece = tokenizer.after(previous, original)
            if target != IGNORED:
                guess = tokenizer.after(previous, predicted).strip()
                space = piece[: len(piece) - len(piece.lstrip())]
                piece = space + b"[" + guess + (b"" if predicted == target else b" / " + piece.strip()) + b"]"
            text, previous = text + piece, original
        return text.decode(errors="replace")

    def _sample_targets(self, ids: Ids, rng: np.random.Generator) -> Ids:
        """The places of the targets in a row, in ascending order."""
        places = np.flatnonzero(np.isin(ids, self.ordinary))
        count = min(len(places), max(1, round(self.config.share * len(ids))))
        if self.continues is None:
            return np.sort(rng.choice(places, count, replace=False))
        # A word is a place that begins one, with the places after it that continue it.
        begins = ~self.continues[ids[places]] | (np.diff(places, prepend=-2) > 1)
        words = np.split(places, np.flatnonzero(begins)[1:]) if len(places) else []
        chosen: list[int] = []
        for number in rng.permutation(len(words)):
            if len(chosen) >= count:
                break
            if not chosen or len(chosen) + len(words[number]) <= count:
                chosen += words[number].tolist()
        return np.sort(np.array(chosen, dtype=np.int64))


def continuing(tokenizer: Tokenizer) -> npt.NDArray[np.bool_]:
    """Bool[V]: which ids continue the preceding word, since they begin with a letter or digit and not with a space."""
    special = set(tokenizer.special.values())
    ordinary = [id for id in range(tokenizer.vocab_size) if id not in special]
    # Some tokenizers put a space after a word unless the next id continues it.
    letter = next((id for id in ordinary if tokenizer.after(None, id)[-1:].isalnum()), None)
    continues = np.zeros(tokenizer.vocab_size, dtype=bool)
    if letter is not None:
        for id in ordinary:
            first = tokenizer.after(letter, id)[:1]
            # A byte from 128 on is part of a character that is not ASCII.
            continues[id] = first.isalnum() or first >= b"\x80"
    return continues
