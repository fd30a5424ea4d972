"""One vector for each text, from the hidden vectors of any model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.nn import functional

from heddle.checks import checked
from heddle.config.model import ClassifierHeadConfig, EmbeddingHeadConfig, Pooling
from heddle.model.pooling import pool
from heddle.model.transformer import Transformer
from heddle.predict.rows import Done, check_text, frame_for, framed, passes, predicting
from heddle.text.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False, slots=True)
class Embeddings:
    """Vectors of texts.

    Attributes:
        vectors: Float[N D] in fp32, one row per text.
        cut: for each text, whether it was longer than the context and lost its end.
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
) -> Embeddings:
    """Embed texts: their last hidden vectors, pooled. Of an encoder-decoder, the encoder's.

    Texts are framed and cut as in training, and the marks around them are pooled too.

    Args:
        model: any model, in any mode.
        tokenizer: its tokenizer.
        texts: strings.
        pooling: the `mean` of a text's vectors, the `first` ([CLS]), the `last` or their `max`. None: what the model's head
            does with them, if it pools; else the mean.
        normalise: whether to scale each vector to length 1.
        progress: called with the number of texts done so far, and of all.

    Raises:
        HeddleError: a text is empty or something else than a text.
    """
    head = model.config.head
    whole = isinstance(head, EmbeddingHeadConfig) and pooling is None
    how = pooling or _trained_pooling(model)
    found = np.empty((len(texts), model.config.dim), dtype=np.float32)
    if not texts:
        return Embeddings(found, ())
    rows = framed(
        frame_for(model, tokenizer),
        tokenizer.encode_batch([check_text("embed", number, text) for number, text in enumerate(texts)]),
    )
    with predicting(model):
        for numbers, hidden, layout in passes(model, rows, progress):
            if whole:
                assert model.head is not None
                vectors = model.head(hidden, layout, model.embedding.weight)
            else:
                vectors = pool(hidden, layout, how)
            vectors = functional.normalize(vectors.float(), dim=-1) if normalise else vectors.float()
            found[numbers] = vectors.cpu().numpy()
    return Embeddings(found, tuple(row.cut for row in rows))


def _trained_pooling(model: Transformer) -> str:
    """How a model's head pools; the mean, if it does not."""
    head = model.config.head
    if isinstance(head, ClassifierHeadConfig | EmbeddingHeadConfig) and head.pooling != "none":
        return head.pooling
    return "mean"
