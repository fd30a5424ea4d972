"""Beam search for the most probable continuations, for many prompts or sources at once (L1-77).

Each search keeps `beams` unfinished sequences. A step extends each by every id and keeps the most probable ones. A sequence that
ends counts as finished only if it ranks among the first `beams`. Scores, ranks and the end of a search are the same as in Hugging
Face transformers' `generate`, so imported models give the same answers as there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from heddle.checks import at_least, checked
from heddle.config.decoding import BeamConfig
from heddle.display import displayed
from heddle.errors import HeddleError, pluralize, room_for
from heddle.generate.feed import feed
from heddle.generate.logprobs import Finish
from heddle.generate.processors import BlockedIds, Ends, Processor, TokenSequence
from heddle.generate.stream import DecodingRules
from heddle.model.evaluating import evaluating
from heddle.model.linear import use_few_rows
from heddle.model.steps import package_steps
from heddle.model.transformer import Transformer
from heddle.native.best import best_logprobs
from heddle.native.cores import share_cores, side_by_side

SEARCHES_PER_PASS = 128
ROOM = 8  # tokens by which the cache of compiled steps grows: they write in place
SCORES_PER_BLOCK = 1 << 19  # 2 MiB of scores, so that they stay in a CPU's caches
BLOCK = 64  # scores per block in `largest`


@displayed()
@dataclass(frozen=True)
class Hypothesis:
    """A finished sequence of a search.

    Attributes:
        ids: the generated ids, including the end-of-text id, if any.
        score: `logprob` divided by the number of ids to the power `length_penalty`.
        logprob: sum of the natural logs of the ids' probabilities, after the rules about special ids and the penalties.
        finish: why it ends, as in `Event`.
    """

    ids: tuple[int, ...]
    score: float
    logprob: float
    finish: Finish


class Node(NamedTuple):
    """The last id of an unfinished sequence and, through `parent`, all earlier ones."""

    parent: "Node | None"
    id: int
    logprob: float

    def ids(self) -> list[int]:
        """The generated ids."""
        node: Node | None = self
        ids = []
        while node is not None:
            ids.append(node.id)
            node = node.parent
        return ids[::-1]


START = Node(None, -1, 0.0)  # the empty continuation


Candidate = tuple[float, int, int]
"""An id that may extend a beam: the log probability of the extended sequence, the beam's index, the id."""


@dataclass
class Search:
    """The search for the best continuations of one prompt.

    Attributes:
        prompt: the sequence to continue.
        config: the strategy.
        beams: the unfinished sequences, best first; empty before the first step.
        finished: the best finished sequences so far, best first.
        length: number of generated ids in each unfinished sequence.
    """

    prompt: TokenSequence
    config: BeamConfig
    beams: list[Node] = field(default_factory=list)
    finished: list[Hypothesis] = field(default_factory=list)
    length: int = 0

    def extend(self, candidates: Sequence[Candidate], rules: DecodingRules) -> list[int]:
        """Take the best of the sorted candidates, up to the first at -inf. Return the index of the beam that each one extends."""
        self.length += 1
        previous, parents, width = self.beams, list[int](), self.config.beams
        full, ends = self.prompt.prompt_length + self.length >= self.prompt.max_length, rules.ends
        self.beams = beams = []
        for rank, (logprob, beam, id) in enumerate(candidates):
            if logprob == -inf:
                break
            node = Node(previous[beam] if previous else None, id, logprob)
            if not full and id not in ends:
                beams.append(node)
                parents.append(beam)
            elif rank < width:
                self._finish(node, "end" if id in ends else self._limit())
            if len(beams) == width and rank + 1 >= width:
                break
        if not beams and not self.finished:  # no id may follow, so return the sequences so far
            self.length -= 1
            for node in previous or [START]:
                self._finish(node, "broken")
        return parents

    def ended(self) -> bool:
        """Whether no unfinished sequence can still be among the best."""
        if not self.beams:
            return True
        if len(self.finished) < self.config.beams:
            return False
        if self.config.early_stopping is True:
            return True
        longest = self.config.early_stopping == "never" and self.config.length_penalty > 0
        length = self.prompt.max_length - self.prompt.prompt_length if longest else self.length
        return self._score(self.beams[0].logprob, length) <= self.finished[-1].score

    def sequences(self) -> list[TokenSequence]:
        """The unfinished sequences, with the prompt."""
        generated = [beam.ids() for beam in self.beams] or [[]]
        return [replace(self.prompt, ids=self.prompt.ids + ids) for ids in generated]

    def _limit(self) -> Finish:
        """Why a sequence of the maximum length ends."""
        return "length" if self.length == self.config.max_tokens else "context"

    def _finish(self, node: Node, finish: Finish) -> None:
        ids = tuple(node.ids()) if self.length else ()
        score = self._score(node.logprob, max(1, self.length))
        self.finished.append(Hypothesis(ids, score, node.logprob, finish))
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)  # stable: of equals, the earlier one is better
        del self.finished[self.config.beams :]

    def _score(self, logprob: float, length: int) -> float:
        return logprob / float(length**self.config.length_penalty)


@checked(rows=at_least(1))
def beam_search(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    config: BeamConfig,
    end_of_text: Ends = None,
    vocabulary: int | None = None,
    sources: Sequence[Sequence[int]] | None = None,
    rows: int = SEARCHES_PER_PASS,
) -> Iterator[tuple[int, tuple[Hypothesis, ...]]]:
    """Yield the index of each prompt with its `config.best` best continuations, best first, as they are found.

    Prompts of similar length share forward passes. Other rows of a pass change only the last bits of a score.

    Args:
        model: used in evaluation mode, then returned to its mode. Its precision does not change. If it is already in evaluation
            mode on a CPU, products of few rows and steps are as in `Engine`.
        prompts: token ids, one list per search; for an encoder-decoder, the start of each answer, usually empty.
        config: the strategy.
        end_of_text: see `DecodingRules`.
        vocabulary: see `DecodingRules`.
        sources: token ids for the encoder of an encoder-decoder, one list per search.
        rows: number of searches that share forward passes.

    Raises:
        HeddleError: as in `DecodingRules.new_sequence`; or the model's output is NaN.
        HeddleError: the searches do not fit into memory.
    """
    package_steps(use_few_rows(model))
    rules = DecodingRules(model, config, end_of_text, vocabulary)
    sequences = _new_sequences(rules, prompts, sources)
    sequences.sort(key=lambda sequence: (len(sequence.source or ()), len(sequence.ids)), reverse=True)
    starts = range(0, len(sequences), rows)
    batches = [[Search(sequence, config) for sequence in sequences[start : start + rows]] for start in starts]
    # Compiled steps, which keep Python's lock, use all threads one after another.
    concurrent = model.device.type == "cpu" and model.steps is None
    if not concurrent or len(batches) < 2:
        for batch in batches:
            yield from _search(batch, model, rules)
        return
    with evaluating(model):
        yield from chain.from_iterable(side_by_side(lambda batch: list(_search(batch, model, rules)), batches))


def _new_sequences(
    rules: DecodingRules, prompts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None
) -> list[TokenSequence]:
    if sources is not None and len(sources) != len(prompts):
        raise HeddleError(f"{len(sources)} sources for {len(prompts)} prompts; give one source per prompt")
    pairs = zip(prompts, [None] * len(prompts) if sources is None else sources, strict=True)
    return [rules.new_sequence(number, prompt, source=source) for number, (prompt, source) in enumerate(pairs)]


def _search(
    searches: list[Search], model: Transformer, rules: DecodingRules
) -> Iterator[tuple[int, tuple[Hypothesis, ...]]]:
    """Run one batch of searches."""
    multiple = 1 if model.steps is None else ROOM
    cache, inputs = model.new_cache(len(searches), multiple), [search.prompt.visible() for search in searches]
    sources = [search.prompt.source for search in searches if search.prompt.source is not None]
    modules, parents = tuple(model.modules()), list[int]()
    while searches:
        share_cores()
        texts = f"{pluralize(len(searches), 'text')} of {pluralize(searches[0].config.beams, 'beam')} at a time"
        fewer = "use fewer rows or beams, a lower max_tokens, shorter texts, or a smaller model"
        with room_for(texts, fewer), torch.inference_mode(), evaluating(model, modules):
            cache = cache.select(parents) if parents else cache
            logits = feed(model, cache, inputs, sources)
            candidates = best_candidates(logits, searches, rules)
        unfinished, parents, beams, row = list[Search](), list[int](), list[Node](), 0
        for search, own_candidates in zip(searches, candidates, strict=True):
            width = max(1, len(search.beams))
            extended = search.extend(own_candidates, rules)
            if search.ended():
                yield search.prompt.number, tuple(search.finished[: search.config.best])
            else:
                unfinished.append(search)
                parents += [row + beam for beam in extended]
                beams += search.beams
            row += width
        searches, inputs, sources = unfinished, [[beam.id] for beam in beams], []


def best_candidates(
    logits: Float[Tensor, "B V"], searches: Sequence[Search], rules: DecodingRules
) -> list[list[Candidate]]:
    """The most probable candidates of each search, best first. At least `beams` of them do not end a sequence.

    Raises:
        HeddleError: a log probability is NaN.
    """
    count = max(2, 1 + len(rules.ends)) * searches[0].config.beams
    lengths = [len(search.prompt.ids) + search.length for search in searches]
    processors = [
        processor
        for processor in rules.processors
        if not all(processor.waits(search.prompt, length) for search, length in zip(searches, lengths, strict=True))
    ]
    native, blocking = None, [each for each in processors if isinstance(each, BlockedIds) and not each.runs]
    if len(blocking) == len(processors):
        blocked = chain.from_iterable(processor.always for processor in blocking)
        native = best_logprobs(logits, min(count, logits.shape[-1]), list(blocked))
    best, ids = _best_processed(logits, searches, processors, count) if native is None else native
    beam_logprobs = [node.logprob for search in searches for node in search.beams or (START,)]
    best = best + torch.tensor(beam_logprobs, device=best.device)[:, None]
    if best.isnan().any():
        raise HeddleError("the model's output is NaN; its weights are broken")
    # One row per search: choose among the extensions of all its beams.
    widths = [max(1, len(search.beams)) for search in searches]
    search_scores, search_ids = (by_search(column, widths) for column in (best, ids.to(best.dtype)))
    chosen, positions = search_scores.topk(min(count, search_scores.shape[1]))
    columns = (chosen, positions // best.shape[1], search_ids.gather(1, positions).long())
    return [list(zip(*row, strict=True)) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _best_processed(
    logits: Float[Tensor, "B V"], searches: Sequence[Search], processors: Sequence[Processor], count: int
) -> tuple[Float[Tensor, "B n"], Int[Tensor, "B n"]]:
    """The `count` largest log probabilities of each row and their ids, after the processors."""
    sequences = list[TokenSequence]()
    if any(processor.reads for processor in processors):
        sequences = list(chain.from_iterable(search.sequences() for search in searches))
    rows = max(1, SCORES_PER_BLOCK // logits.shape[-1])
    blocks = []
    for start in range(0, len(logits), rows):
        scores = logits[start : start + rows].float().log_softmax(-1)
        for processor in processors:
            scores = processor(scores, sequences[start : start + rows])
        blocks.append(largest(scores, count))
    best, ids = (torch.cat(column) for column in zip(*blocks, strict=True))
    return best, ids


def by_search(rows: Float[Tensor, "B n"], widths: Sequence[int]) -> Float[Tensor, "S m"]:
    """Concatenate the rows of each search, padded with -inf: with a tiny vocabulary, some searches have fewer beams."""
    if len(set(widths)) == 1:
        return rows.reshape(-1, widths[0] * rows.shape[1])
    padded: Tensor = pad_sequence(rows.split(list(widths)), batch_first=True, padding_value=-inf)
    return padded.flatten(1)


def largest(scores: Float[Tensor, "B V"], count: int) -> tuple[Float[Tensor, "B n"], Int[Tensor, "B n"]]:
    """The `count` largest scores of each row and their ids, in order; all of them if there are fewer.

    Only the blocks with the largest maxima can contain them. Selecting blocks first takes a third of the time of one large topk.
    """
    ids = scores.shape[-1]
    if ids < 2 * BLOCK * count:
        return scores.topk(min(count, ids))
    blocked = ids // BLOCK * BLOCK  # the ids after the last full block are always candidates
    blocks = scores[:, :blocked].unflatten(1, (-1, BLOCK))
    best = blocks.amax(2).topk(count, sorted=False).indices[:, :, None]
    candidates = torch.cat((blocks.gather(1, best.expand(-1, -1, BLOCK)).flatten(1), scores[:, blocked:]), 1)
    values, positions = candidates.topk(count)
    starts = torch.cat((best[:, :, 0] * BLOCK, best.new_full((len(best), 1), blocked)), 1)
    return values, starts.gather(1, positions // BLOCK) + positions % BLOCK
