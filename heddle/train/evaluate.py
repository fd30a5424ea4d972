"""Scoring held-out text: every target once, in windows that do not overlap."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import exp, log
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from heddle.checks import at_least, checked
from heddle.data.batch import next_token_batch
from heddle.data.order import held_out_windows
from heddle.data.sources import Document
from heddle.data.store import Part
from heddle.errors import HeddleError
from heddle.model.transformer import Transformer
from heddle.text.tokenizer import Tokenizer
from heddle.train.objective import NextToken


@dataclass(frozen=True)
class Evaluation:
    """How well a text is predicted.

    Attributes:
        loss: nats per target token.
        perplexity: exp(loss).
        bits_per_byte: bits needed per UTF-8 byte of the text, which compares across tokenizers.
        tokens: number of targets.
        bytes: number of UTF-8 bytes that the targets stand for.
    """

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int
    bytes: int


@checked(context=at_least(1), rows=at_least(1))
@torch.no_grad()
def evaluate(
    model: Transformer, part: Part, context: int, rows: int = 16, progress: Callable[[int, int], None] | None = None
) -> Evaluation:
    """Score a whole part: window k reads tokens k·context … (k+1)·context and predicts the next of each (L1-24).

    Args:
        model: in any precision; it is put into evaluation mode and back.
        part: text as tokens.
        context: length of a window.
        rows: windows at a time.
        progress: hears the targets scored so far and all there are.
    """
    if len(part.tokens) < 2:
        raise HeddleError(
            f"evaluate: part has {len(part.tokens)} token(s); at least 2 are needed, one to see and one to predict"
        )
    objective, training = NextToken(model), model.training
    model.eval()
    nats, targets = 0.0, 0
    windows = held_out_windows(len(part.tokens), context)
    whole = [window for window in windows if window[1] - window[0] == context]
    batches = [whole[start : start + rows] for start in range(0, len(whole), rows)]
    batches += [[window] for window in windows[len(whole) :]]
    for batch in batches:
        ids = np.stack([part.tokens[start : stop + 1] for start, stop in batch])
        loss = objective(next_token_batch(ids).to(model.device))
        nats += loss.total.item()
        targets += int(loss.count.item())
        if progress:
            progress(targets, len(part.tokens) - 1)
    model.train(training)
    size = part.bytes - part.first_token_bytes
    mean = nats / targets
    return Evaluation(mean, exp(min(mean, 700.0)), nats / log(2) / size, targets, size)


def part_of(documents: Iterable[Document], tokenizer: Tokenizer) -> Part:
    """Text to be scored, in memory: whole documents, with the end-of-text id between two of them where there is one.

    Raises:
        HeddleError: fewer than two tokens, which hold no target; or text that the tokenizer does not know.
    """
    ids: list[npt.NDArray[Any]] = []
    size = count = 0
    for document in documents:
        if count and tokenizer.end_of_text is not None:
            ids.append(np.array([tokenizer.end_of_text], dtype=np.uint32))
        ids.append(np.array(tokenizer.encode(document.text), dtype=np.uint32))
        size, count = size + len(document.text.encode()), count + 1
    tokens = np.concatenate([np.empty(0, dtype=np.uint32), *ids])
    if len(tokens) < 2:
        raise HeddleError(f"the text has {len(tokens)} token(s); at least 2 are needed, one to see and one to predict")
    return Part(tokens, size, count, len(tokenizer.token_bytes(int(tokens[0]))))


def first_tokens(part: Part, tokens: int, token_bytes: list[int]) -> Part:
    """The beginning of a part, for evaluations during training; `token_bytes` holds each id's length in bytes."""
    if len(part.tokens) <= tokens:
        return part
    ids = part.tokens[:tokens]
    return Part(ids, int(np.asarray(token_bytes)[ids].sum()), part.documents, part.first_token_bytes)
