"""Scoring held-out text: every target once, in windows that do not overlap, or a sample of these windows."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import exp, fsum, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from heddle.checks import at_least, checked
from heddle.data.batch import next_token_batch
from heddle.data.order import held_out_windows
from heddle.data.parts import first_bytes
from heddle.data.sources import Document
from heddle.data.store import Part
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.text.tokenizer import Tokenizer
from heddle.train.objective import NextToken

LEAST = 4  # windows of a sample, so that they say how far they differ


@dataclass(frozen=True)
class Evaluation:
    """How well a text is predicted.

    Attributes:
        loss: nats per target token.
        error: standard error of `loss` as an estimate for the whole text; 0 where all of it was scored, None where a
            single window of several says nothing about it.
        perplexity: exp(loss).
        bits_per_byte: bits needed per UTF-8 byte of the text, which compares across tokenizers (`Part.bits_per_byte`).
        tokens: number of targets scored.
        bytes: number of UTF-8 bytes that they stand for, at the rate of the whole text.
        share: of the text's targets, those that were scored.
    """

    loss: float
    error: float | None
    perplexity: float
    bits_per_byte: float
    tokens: int
    bytes: int
    share: float


@checked(context=at_least(1), rows=at_least(1))
@torch.no_grad()
def evaluate(
    model: Transformer,
    part: Part,
    context: int,
    rows: int = 16,
    progress: Callable[[int, int], None] | None = None,
    most: int | None = None,
) -> Evaluation:
    """Score a part: window k reads tokens k·context … (k+1)·context and predicts the next of each (L1-24).

    Args:
        model: in any precision; it is put into evaluation mode and back.
        part: text as tokens.
        context: length of a window.
        rows: windows at a time.
        progress: hears the targets scored so far and all that will be.
        most: targets to score; a longer part is sampled: by about so many, at least four windows of them, spread evenly
            over all of it, the same ones every time. None: all.
    """
    if len(part.tokens) < 2:
        raise HeddleError(
            f"evaluate: part has {len(part.tokens)} token(s); at least 2 are needed, one to see and one to predict"
        )
    objective, training = NextToken(model), model.training
    model.eval()
    whole = most is None or most >= part.targets
    windows = held_out_windows(len(part.tokens), context, None if whole else max(LEAST, -(-(most or 0) // context)))
    counts = [stop - start for start, stop in windows]
    nats: list[float] = []
    for batch in _batches(windows, context, rows):
        ids = np.stack([part.tokens[start : stop + 1] for start, stop in batch])
        nats += objective.by_row(next_token_batch(ids).to(model.device)).tolist()
        if progress:
            progress(sum(counts[: len(nats)]), sum(counts))
    model.train(training)
    scored = sum(counts)
    mean = fsum(nats) / scored
    return Evaluation(
        loss=mean,
        error=_standard_error(nats, counts, scored / part.targets),
        perplexity=exp(min(mean, 700.0)),
        bits_per_byte=part.bits_per_byte(mean),
        tokens=scored,
        bytes=round(part.target_bytes * scored / part.targets),
        share=scored / part.targets,
    )


def _batches(windows: list[tuple[int, int]], context: int, rows: int) -> Iterator[list[tuple[int, int]]]:
    """Windows of one length at a time; only the last one may be shorter."""
    full = len(windows) - (windows[-1][1] - windows[-1][0] < context)
    for start in range(0, full, rows):
        yield windows[start : min(start + rows, full)]
    if full < len(windows):
        yield windows[full:]


def _standard_error(nats: list[float], counts: list[int], share: float) -> float | None:
    """Of a mean over windows drawn without replacement (Cochran 1977, ratio estimator): what is not drawn varies as much."""
    if share == 1:
        return 0.0
    if len(nats) < 2:
        return None
    mean, number = fsum(nats) / sum(counts), len(nats)
    squares = fsum((nat - mean * count) ** 2 for nat, count in zip(nats, counts, strict=True))
    return sqrt((1 - share) * number / (number - 1) * squares) / sum(counts)


def part_of(documents: Iterable[Document], tokenizer: Tokenizer) -> Part:
    """Text to be scored, in memory: whole documents, with the end-of-text id between two of them where there is one.

    Raises:
        HeddleError: fewer than two tokens, which hold no target; or text that the tokenizer does not know.
    """
    ids: list[npt.NDArray[Any]] = []
    size = count = 0
    opening = ""
    for document in documents:
        if count and tokenizer.end_of_text is not None:
            ids.append(np.array([tokenizer.end_of_text], dtype=np.uint32))
        ids.append(np.array(tokenizer.encode(document.text), dtype=np.uint32))
        opening = opening or document.text
        size, count = size + len(document.text.encode()), count + 1
    tokens = np.concatenate([np.empty(0, dtype=np.uint32), *ids])
    if len(tokens) < 2:
        raise HeddleError(f"the text has {len(tokens)} token(s); at least 2 are needed, one to see and one to predict")
    return Part(tokens, size, count, first_bytes(tokenizer.token_bytes(int(tokens[0])), opening))
