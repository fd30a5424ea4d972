"""From texts to word vectors, by one of three methods."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch

from heddle.checks import checked
from heddle.config.vectors import Method, VectorsConfig
from heddle.text.word_splitter import WordSplitter
from heddle.vectors.corpus import WordCorpus, read_corpus
from heddle.vectors.glove import train_glove
from heddle.vectors.table import WordVectors
from heddle.vectors.word2vec import train_word2vec

Tell = Callable[[str], None]
Learn = Callable[[WordCorpus, VectorsConfig, Tell | None], tuple[npt.NDArray[np.float32], list[float]]]

METHODS: dict[Method, Learn] = {"skipgram": train_word2vec, "cbow": train_word2vec, "glove": train_glove}


@checked()
def train_vectors(texts: Iterable[str], config: VectorsConfig | None = None, tell: Tell | None = None) -> WordVectors:
    """Learn word vectors from texts, on the CPU. Words are those of the `words` tokenizer, without whitespace.

    Args:
        texts: documents, which are read once; words of different documents are not neighbours.
        config: the method and its settings; defaults to skip-gram with 100 numbers.
        tell: called with lines of progress, if a phase takes more than two seconds.

    Raises:
        HeddleError: fewer than two words are frequent enough or none has a neighbour, or the vectors diverged.
    """
    config = (config or VectorsConfig()).complete()
    corpus = read_corpus(texts, WordSplitter(config.lowercase, config.punctuation), config.min_count, tell)
    if tell is not None:
        tell(
            f"{corpus.read:,} words, {len(corpus.ids):,} of them among the {len(corpus.words):,} that are frequent enough"
        )
    with one_thread():
        array, losses = METHODS[config.method](corpus, config, tell)
    return WordVectors(corpus.words, array, tuple(losses), len(corpus.ids))


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread: the products are so small that a second thread slows them down."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
