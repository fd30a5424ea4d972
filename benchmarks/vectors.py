"""How fast word vectors are learned on this machine: heddle's skip-gram and CBOW compared with gensim's, on the same words.

    python benchmarks/vectors.py [--text FILE...] [--dim 100] [--rounds 3] [--workers 1 2] [--json FILE]

Each round trains one epoch of each, in turn: heddle with its one thread, gensim (`Word2Vec`, its compiled code) with each number of
worker threads. Both get the text as words in memory, with the same window, noise words, subsampling and least count: reading is not
measured. Words are those of the text before subsampling. Besides the time on the wall, the time of the processors is given, which
changes less on a busy machine. The text defaults to the Python standard library's sources. GloVe has no counterpart in gensim: what
is given is its pairs per second, and the time of counting.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from gensim.models import Word2Vec

from heddle.config import VectorsConfig
from heddle.data import python_library, read_documents
from heddle.text.word_splitter import WordSplitter
from heddle.vectors.cooccurrence import count_pairs
from heddle.vectors.corpus import WordCorpus, read_corpus
from heddle.vectors.glove import train_glove
from heddle.vectors.train import one_thread
from heddle.vectors.word2vec import train_word2vec

LONGEST = 10_000  # words of a sentence that gensim reads


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds on the wall and of the processors."""
    wall, processors = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processors


def ours(corpus: WordCorpus, method: str, dim: int) -> tuple[float, float]:
    config = VectorsConfig.of({"method": method, "dim": dim, "epochs": 1}).complete()
    with one_thread():
        return timed(lambda: train_word2vec(corpus, config))


def train_gensim(sentences: list[list[str]], method: str, dim: int, workers: int) -> tuple[float, float]:
    model = Word2Vec(
        vector_size=dim, window=5, min_count=5, sg=int(method == "skipgram"), negative=5, sample=1e-3, workers=workers
    )
    model.build_vocab(sentences)
    return timed(lambda: model.train(sentences, total_examples=len(sentences), epochs=1))


def sentences_of(texts: list[str], words: frozenset[str]) -> list[list[str]]:
    """The same words as heddle's, rare ones left out, in sentences that gensim does not cut off."""
    sentences = []
    for text in texts:
        pieces = [piece for part in WordSplitter()(text) for piece in part if piece in words]
        sentences += [pieces[start : start + LONGEST] for start in range(0, len(pieces), LONGEST)]
    return sentences


def glove(corpus: WordCorpus, dim: int) -> dict[str, float]:
    """Pairs per second in one epoch, and the seconds of counting them."""
    counted = count_pairs(corpus, 10)
    pairs = 2 * len(counted.sums) - int((counted.first == counted.second).sum())
    counting, _ = timed(lambda: count_pairs(corpus, 10))
    with one_thread():
        whole, _ = timed(lambda: train_glove(corpus, VectorsConfig(method="glove", dim=dim, epochs=1).complete()))
    return {"pairs": pairs, "counting": counting, "pairs_per_second": pairs / max(whole - counting, 1e-9)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", nargs="*", help="sources; without them, the standard library's")
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2], help="threads of gensim")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    texts = [each.text for each in read_documents(arguments.text or python_library())]
    began = time.perf_counter()
    corpus = read_corpus(texts, WordSplitter(), 5)
    reading = corpus.read / (time.perf_counter() - began)
    sentences, words = sentences_of(texts, frozenset(corpus.words)), len(corpus.ids)
    print(f"{words:,} words, {len(corpus.words):,} different ones; read at {reading:,.0f} words/s")
    results: dict[str, Any] = {
        "words": words,
        "vocabulary": len(corpus.words),
        "dim": arguments.dim,
        "reading": reading,
    }
    for method in ("skipgram", "cbow"):
        runs: dict[str, list[tuple[float, float]]] = {}
        for _ in range(arguments.rounds):
            runs.setdefault("heddle", []).append(ours(corpus, method, arguments.dim))
            for workers in arguments.workers:
                name = f"gensim, {workers} thread{'s' * (workers > 1)}"
                runs.setdefault(name, []).append(train_gensim(sentences, method, arguments.dim, workers))
        results[method] = {}
        for name, seconds in runs.items():
            wall, processors = (median(words / each[k] for each in seconds) for k in (0, 1))
            ratios = [other[0] / own[0] for own, other in zip(runs["heddle"], seconds, strict=True)]
            results[method][name] = {"wall": wall, "processors": processors, "heddle_is_faster_by": ratios}
            note = "" if name == "heddle" else f"; heddle has {median(ratios):.2f} times this rate"
            print(
                f"{method}, {name}: {wall:,.0f} words/s, {processors:,.0f} per second of the processors{note}",
                flush=True,
            )
    results["glove"] = glove(corpus, arguments.dim)
    print(
        "glove: {pairs:,} pairs counted in {counting:.1f} s; {pairs_per_second:,.0f} pairs/s".format(**results["glove"])
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
