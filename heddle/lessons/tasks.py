"""Tiny tasks that a small model learns in seconds, each a function of a generator."""

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

NOT_SCORED = -100  # the target of a place whose prediction does not count
KINDS, LENGTH = 8, 16  # of tokens that nothing tells
DIGITS, REVERSED = 10, 6  # six digits, a mark, and the digits again in reverse
MARK = DIGITS
LETTERS = 16  # kinds of tokens whose predecessor is the answer
ENTRIES = 24  # rows and columns of the table of facts
QUESTION = 8  # the ninth of nine tokens, after which the first token of the text is the answer
NOUNS, NAMED, WORDS = 6, 3, 4  # nouns, those in a text, and the words that a noun may have beside it

Batch = tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]


@dataclass(frozen=True)
class Task:
    """Inputs and targets, drawn anew for each step.

    Attributes:
        vocabulary: number V of ids.
        length: tokens T of a row.
        draw: makes inputs and targets for a number of rows; a target of `NOT_SCORED` does not count.
        guess: the loss of an even guess, in nats, or the least that an honest model can reach.
    """

    vocabulary: int
    length: int
    draw: Callable[[int, torch.Generator], Batch]
    guess: float | None = None


def next_tokens(rows: Int[Tensor, "B N"], first_scored: int = 0) -> Batch:
    """Inputs and targets of a decoder: each token's target is the next; those before `first_scored` are not scored."""
    targets = rows[:, 1:].clone()
    targets[:, :first_scored] = NOT_SCORED
    return rows[:, :-1], targets


def random_tokens(rows: int, generator: torch.Generator, length: int = LENGTH) -> Int[Tensor, "B N"]:
    """Tokens that nothing tells."""
    return torch.randint(KINDS, (rows, length), generator=generator)


def reversals(rows: int, generator: torch.Generator) -> Int[Tensor, "B N"]:
    """Six digits, a mark, and the digits in reverse."""
    digits = torch.randint(DIGITS, (rows, REVERSED), generator=generator)
    return torch.cat([digits, torch.full((rows, 1), MARK), digits.flip(1)], dim=1)


RANDOM_TOKENS = Task(
    KINDS, LENGTH, lambda rows, generator: next_tokens(random_tokens(rows, generator, LENGTH + 1)), log(KINDS)
)
REVERSALS = Task(DIGITS + 1, 2 * REVERSED, lambda rows, generator: next_tokens(reversals(rows, generator), REVERSED))


def nouns_and_words(rows: int, generator: torch.Generator) -> Batch:
    """Some nouns and a word of each, in any order: the target of a noun is which of its words is there.

    Noun n has the id n, its words the ids `NOUNS + WORDS n` and after. Nouns and words are the same in all texts.
    """
    nouns = torch.rand(rows, NOUNS, generator=generator).argsort(1)[:, :NAMED]
    words = torch.randint(WORDS, (rows, NAMED), generator=generator)
    ids = torch.cat([nouns, NOUNS + WORDS * nouns + words], dim=1)
    targets = torch.cat([words, torch.full_like(words, NOT_SCORED)], dim=1)
    order = torch.rand(rows, 2 * NAMED, generator=generator).argsort(1)
    return ids.gather(1, order), targets.gather(1, order)


NOUNS_AND_WORDS = Task(NOUNS * (WORDS + 1), 2 * NAMED, nouns_and_words, log(WORDS))


COUNT_END, COUNT_PAD, COUNT_LENGTH = 10, 11, 12  # ids after ten digits; places of a row


def countdown(padding: Literal["length", "id", "counted"] = "length") -> Task:
    """Count down to 0 and end; rows are padded.

    Args:
        padding: `length`: padding has an id of its own, and is not scored; `id`: padding is the end of text, and no target
            with this id is scored; `counted`: padding is scored.
    """

    def draw(rows: int, generator: torch.Generator) -> Batch:
        start = torch.randint(DIGITS, (rows, 1), generator=generator)
        counts = start - torch.arange(COUNT_LENGTH)
        ids = counts.masked_fill(counts == -1, COUNT_END).masked_fill(
            counts < -1, COUNT_END if padding == "id" else COUNT_PAD
        )
        inputs, targets = next_tokens(ids)
        unscored = {"length": COUNT_PAD, "id": COUNT_END, "counted": NOT_SCORED}[padding]
        return inputs, targets.masked_fill(targets == unscored, NOT_SCORED)

    return Task(COUNT_PAD + 1, COUNT_LENGTH - 1, draw)


SIGNS, FIRST, AGAIN = 16, 10, 4  # different signs, of which some come again


def repeats(rows: int, generator: torch.Generator) -> Batch:
    """Ten different signs, then four neighbours of them again, from any place: each is told by the one before it."""
    signs = torch.rand(rows, SIGNS, generator=generator).argsort(1)[:, :FIRST]
    places = torch.randint(FIRST - AGAIN + 1, (rows, 1), generator=generator) + torch.arange(AGAIN)
    return next_tokens(torch.cat([signs, signs.gather(1, places)], 1), first_scored=FIRST)


REPEATS = Task(SIGNS, FIRST + AGAIN - 1, repeats)


def predecessors(rows: int, generator: torch.Generator) -> Batch:
    """Random tokens; the target of each is the token before it."""
    ids = torch.randint(LETTERS, (rows, LENGTH), generator=generator)
    targets = ids.roll(1, dims=1)
    targets[:, 0] = NOT_SCORED
    return ids, targets


def facts(rows: int, generator: torch.Generator) -> Batch:
    """Row and column of a table of random numbers; the target of the second is the entry."""
    table = torch.randint(ENTRIES, (ENTRIES, ENTRIES), generator=torch.Generator().manual_seed(0))
    ids = torch.randint(ENTRIES, (rows, 2), generator=generator)
    return ids, torch.stack([torch.full((rows,), NOT_SCORED), table[ids[:, 0], ids[:, 1]]], dim=1)


PREDECESSORS = Task(LETTERS, LENGTH, predecessors, log(LETTERS))
FACTS = Task(ENTRIES, 2, facts, log(ENTRIES))


def recalls(rows: int, generator: torch.Generator) -> Batch:
    """Random tokens and a question at the end; its target is the first token."""
    ids = torch.randint(QUESTION, (rows, LENGTH), generator=generator)
    ids[:, -1] = QUESTION
    targets = torch.full_like(ids, NOT_SCORED)
    targets[:, -1] = ids[:, 0]
    return ids, targets


RECALLS = Task(QUESTION + 1, LENGTH, recalls, log(QUESTION))


def orders(rows: int, generator: torch.Generator) -> Batch:
    """Two tokens that differ; both places have the first token as their target."""
    ids = torch.rand(rows, KINDS, generator=generator).argsort(1)[:, :2]
    return ids, ids[:, :1].expand(-1, 2)


ORDERS = Task(KINDS, 2, orders, log(2))
