"""Embeddings of texts, from the hidden states of any model."""

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
from heddle.predict.rows import (
    Progress,
    check_text,
    evaluation,
    forward_batches,
    frame_for,
    frame_rows,
    is_blank,
    predict_nonempty,
)
from heddle.text.tokenizer import Tokenizer


@displayed(".vectors, .cut")
@dataclass(frozen=True, eq=False, slots=True)
class Embeddings:
    """Vectors of texts.

    Attributes:
        vectors: Float[N E] in fp32, one row per text; NaN for a text that is empty or only whitespace.
        cut: for each text, whether it was truncated to fit the context.
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
    progress: Progress | None = None,
    *,
    prompt: str | None = None,
    prompt_name: str | None = None,
) -> Embeddings:
    """Embed texts: the last hidden states, pooled. For an encoder-decoder they are the encoder's.

    Texts are framed and truncated as in training, or as the files of an imported model say. The special tokens around a text are
    pooled, too.

    Args:
        model: any model, in any mode.
        tokenizer: its tokenizer.
        texts: strings.
        pooling: the `mean` of the hidden states, the `first` ([CLS]), the `last` or their `max`. None: the pooling of the model's
            head, if it has one, else the mean.
        normalise: whether to scale each vector to length 1.
        progress: called with the number of finished texts and the total.
        prompt: a text to put before each text; "" for none.
        prompt_name: the name of one of the model's prompts, instead. Without both, the model's default prompt is used, if any.

    Raises:
        HeddleError: an item is not a text, or the model has no prompt of this name.
    """
    prefix = prompt_of(model.config, prompt, prompt_name)
    vectors = np.full((len(texts), vector_width(model.config, pooling)), np.nan, dtype=np.float32)
    results = predict_nonempty(
        "embed",
        texts,
        is_blank,
        lambda nonempty: _vectors(model, tokenizer, nonempty, pooling, normalise, progress, prefix),
    )
    for row, result in zip(vectors, results, strict=True):
        if result is not None:
            row[:] = result[0]
    return Embeddings(vectors, tuple(result is not None and result[1] for result in results))


def _vectors(
    model: Transformer,
    tokenizer: Tokenizer,
    texts: Sequence[Any],
    pooling: Pooling | None,
    normalise: bool,
    progress: Progress | None,
    prefix: str,
) -> list[tuple[npt.NDArray[np.float32], bool]]:
    """The vector of each text, and whether the text was truncated. No text may be empty."""
    if not texts:
        return []
    head, result = model.config.head, np.empty((len(texts), vector_width(model.config, pooling)), dtype=np.float32)
    frame = frame_for(model, tokenizer)
    prefixed = [prefix + check_text("embed", number, text) for number, text in enumerate(texts)]
    rows = frame_rows(frame, tokenizer.encode_batch(prefixed))
    skip = 0
    if prefix and isinstance(head, EmbeddingHeadConfig) and not head.pool_prompt:
        skip = frame.start + len(tokenizer.encode(prefix))
    with evaluation(model):
        for numbers, hidden, layout in forward_batches(model, rows, progress):
            if isinstance(model.head, TextVector) and pooling is None:
                vectors = model.head.features(hidden, layout, skip)
            else:
                vectors = pool(hidden, layout, pooling or _trained_pooling(model), skip)
            vectors = functional.normalize(vectors.float(), dim=-1) if normalise else vectors.float()
            result[numbers] = vectors.cpu().numpy()
    return [(vector, row.cut) for vector, row in zip(result, rows, strict=True)]


def vector_width(config: TransformerConfig, pooling: Pooling | None = None) -> int:
    """E, the number of dimensions of an embedding."""
    if isinstance(config.head, EmbeddingHeadConfig) and pooling is None:
        return config.head.widths(config.dim)[-1]
    return config.dim


def prompt_of(config: TransformerConfig, prompt: str | None = None, name: str | None = None) -> str:
    """The prompt before a text to embed: this one, the model's one of this name, or its default one.

    Raises:
        HeddleError: the model has no prompt of this name, or both are given.
    """
    prompts = config.head.prompts if isinstance(config.head, EmbeddingHeadConfig) else {}
    if prompt is not None and name is not None:
        raise HeddleError("prompt and prompt_name exclude each other")
    if name is None:
        default = config.head.prompt if isinstance(config.head, EmbeddingHeadConfig) else None
        return prompt if prompt is not None else "" if default is None else prompts[default]
    if name not in prompts:
        names = ", ".join(map(repr, prompts)) or "none"
        raise HeddleError(f"the model has no prompt {name!r}; it has {names}.{did_you_mean(name, prompts)}")
    return prompts[name]


def _trained_pooling(model: Transformer) -> str:
    """The pooling of a classifier head; the mean for other heads."""
    head = model.config.head
    if isinstance(head, ClassifierHeadConfig) and head.pooling != "none":
        return head.pooling
    return "mean"
