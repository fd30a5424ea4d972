"""One vector for each text, from the hidden vectors of any model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.nn import functional

from heddle.checks import checked
from heddle.config.embedding import EmbeddingHeadConfig, Pooling
from heddle.config.model import ClassifierHeadConfig, TransformerConfig
from heddle.display import displayed
from heddle.errors import HeddleError, did_you_mean
from heddle.model.pooled import TextVector
from heddle.model.pooling import pool
from heddle.model.transformer import Transformer
from heddle.predict.rows import Done, check_text, frame_for, framed, is_blank, passes, predicted, predicting
from heddle.text.tokenizer import Tokenizer


@displayed(".vectors, .cut")
@dataclass(frozen=True, eq=False, slots=True)
class Embeddings:
    """Vectors of texts.

    Attributes:
        vectors: Float[N E] in fp32, one row per text; NaN for one with nothing but blanks.
        cut: for each text, whether it was longer than the model reads and lost its end.
    """

    vectors: npt.NDArray[np.float32]
    cut: tuple[bool, ...]


@checked()
def embed(
    model: Transformer,
    tokenizer: Tokenizer,
    texts: Sequence[Any],
    pooling: Pooling | None = None,
    normalise: bool = False,
    progress: Done | None = None,
    *,
    prompt: str | None = None,
    prompt_name: str | None = None,
) -> Embeddings:
    """Embed texts: their last hidden vectors, pooled. Of an encoder-decoder, the encoder's.

    Texts are framed and cut as in training, or as an imported model's files say, and the marks around them are pooled too.

    Args:
        model: any model, in any mode.
        tokenizer: its tokenizer.
        texts: strings.
        pooling: the `mean` of a text's vectors, the `first` ([CLS]), the `last` or their `max`. None: what the model's head
            does with them, if it pools; else the mean.
        normalise: whether to scale each vector to length 1.
        progress: called with the number of texts done so far, and of all.
        prompt: what comes before each text; "" for nothing.
        prompt_name: the name of one of the model's prompts, which then does. Without both, it is the model's default prompt, if
            it has one.

    Raises:
        HeddleError: a text is something else than a text, or the model has no prompt of this name.
    """
    before = prompt_of(model.config, prompt, prompt_name)
    found = np.full((len(texts), vector_width(model.config, pooling)), np.nan, dtype=np.float32)
    made = predicted(
        "embed", texts, is_blank, lambda some: _vectors(model, tokenizer, some, pooling, normalise, progress, before)
    )
    for row, result in zip(found, made, strict=True):
        if result is not None:
            row[:] = result[0]
    return Embeddings(found, tuple(result is not None and result[1] for result in made))


def _vectors(
    model: Transformer,
    tokenizer: Tokenizer,
    texts: Sequence[Any],
    pooling: Pooling | None,
    normalise: bool,
    progress: Done | None,
    before: str,
) -> list[tuple[npt.NDArray[np.float32], bool]]:
    """The vector of each text that has more than blanks, and whether the text was cut."""
    if not texts:
        return []
    head, found = model.config.head, np.empty((len(texts), vector_width(model.config, pooling)), dtype=np.float32)
    frame = frame_for(model, tokenizer)
    whole = [before + check_text("embed", number, text) for number, text in enumerate(texts)]
    rows = framed(frame, tokenizer.encode_batch(whole))
    skip = 0
    if before and isinstance(head, EmbeddingHeadConfig) and not head.pool_prompt:
        skip = frame.start + len(tokenizer.encode(before))
    with predicting(model):
        for numbers, hidden, layout in passes(model, rows, progress):
            if isinstance(model.head, TextVector) and pooling is None:
                vectors = model.head.features(hidden, layout, skip)
            else:
                vectors = pool(hidden, layout, pooling or _trained_pooling(model), skip)
            vectors = functional.normalize(vectors.float(), dim=-1) if normalise else vectors.float()
            found[numbers] = vectors.cpu().numpy()
    return [(vector, row.cut) for vector, row in zip(found, rows, strict=True)]


def vector_width(config: TransformerConfig, pooling: Pooling | None = None) -> int:
    """E, how many numbers `embed` gives for a text."""
    if isinstance(config.head, EmbeddingHeadConfig) and pooling is None:
        return config.head.widths(config.dim)[-1]
    return config.dim


def prompt_of(config: TransformerConfig, prompt: str | None = None, name: str | None = None) -> str:
    """What comes before a text to embed: this prompt, the one of this name, or the model's default one.

    Raises:
        HeddleError: the model has none of this name, or both were asked for.
    """
    prompts = config.head.prompts if isinstance(config.head, EmbeddingHeadConfig) else {}
    if prompt is not None and name is not None:
        raise HeddleError("prompt and prompt_name exclude each other")
    if name is None:
        default = config.head.prompt if isinstance(config.head, EmbeddingHeadConfig) else None
        return prompt if prompt is not None else "" if default is None else prompts[default]
    if name not in prompts:
        named = ", ".join(map(repr, prompts)) or "none"
        raise HeddleError(f"the model has no prompt {name!r}; it has {named}.{did_you_mean(name, prompts)}")
    return prompts[name]


def _trained_pooling(model: Transformer) -> str:
    """How the head of a model that returns no vectors pools; the mean, if it does not."""
    head = model.config.head
    if isinstance(head, ClassifierHeadConfig) and head.pooling != "none":
        return head.pooling
    return "mean"
