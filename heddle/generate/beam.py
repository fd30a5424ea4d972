"""Beam search: the most probable texts that a search of limited width finds, for many prompts or sources at once (L1-77).

Each search keeps `beams` unfinished texts. A step extends each by every id, and keeps the most probable ones; one that ends is
finished if it is among the first `beams`, so that a text must win its place to count. Scores, places and the end of a search
are those of Hugging Face transformers' `generate`, so imported models answer as they do there.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
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
from heddle.errors import HeddleError
from heddle.generate.feed import feed
from heddle.generate.processors import Ends, TokenSequence
from heddle.generate.stream import DecodingRules, Finish
from heddle.model.cores import share_cores
from heddle.model.evaluating import evaluating
from heddle.model.transformer import Transformer

SEARCHES = 128  # searches that share each forward pass
WORKERS = 2  # batches at the same time on a CPU: an operation of a step is too short to be split among many threads
IN_CACHE = 1 << 19  # scores to process at a time, 2 MiB of them, so that they stay in a CPU's caches
BLOCK = 64  # scores whose maximum is looked at first


@displayed()
@dataclass(frozen=True)
class Hypothesis:
    """A finished text of a search.

    Attributes:
        ids: the generated ids, with the one that ends the text, if any.
        score: `logprob` divided by the number of ids to the power `length_penalty`.
        logprob: sum of the natural logs of the ids' probabilities, after the rules about special ids and the penalties.
        finish: why it ends, as in `Event`.
    """

    ids: tuple[int, ...]
    score: float
    logprob: float
    finish: Finish


class Node(NamedTuple):
    """The last id of an unfinished text and, through `before`, all earlier ones."""

    before: "Node | None"
    id: int
    logprob: float

    def ids(self) -> list[int]:
        """The generated ids."""
        node: Node | None = self
        found = []
        while node is not None:
            found.append(node.id)
            node = node.before
        return found[::-1]


START = Node(None, -1, 0.0)  # the empty continuation


Candidate = tuple[float, int, int]
"""One id after one unfinished text: the log probability of the text that they make, the text's place, the id."""


@dataclass
class Search:
    """The search for the best continuations of one prompt.

    Attributes:
        text: the prompt.
        config: the strategy.
        beams: the unfinished texts, best first; before the first step, none.
        finished: the best finished ones so far, best first.
        length: generated ids in each unfinished text.
    """

    text: TokenSequence
    config: BeamConfig
    beams: list[Node] = field(default_factory=list)
    finished: list[Hypothesis] = field(default_factory=list)
    length: int = 0

    def extend(self, candidates: Sequence[Candidate], decoding: DecodingRules) -> list[int]:
        """Take the best of the sorted candidates, up to the first at -inf; return which unfinished text each new one extends."""
        self.length += 1
        before, parents, width = self.beams, list[int](), self.config.beams
        full, ends = self.text.given + self.length >= self.text.last, decoding.ends
        self.beams = kept = []
        for place, (logprob, beam, id) in enumerate(candidates):
            if logprob == -inf:
                break
            node = Node(before[beam] if before else None, id, logprob)
            if not full and id not in ends:
                kept.append(node)
                parents.append(beam)
            elif place < width:
                self._keep(node, "end" if id in ends else self._limit())
            if len(kept) == width and place + 1 >= width:
                break
        if not kept and not self.finished:  # nothing may follow, so the texts so far are all that there is
            self.length -= 1
            for node in before or [START]:
                self._keep(node, "broken")
        return parents

    def ended(self) -> bool:
        """Whether no unfinished text can be among the best."""
        if not self.beams:
            return True
        if len(self.finished) < self.config.beams:
            return False
        if self.config.early_stopping is True:
            return True
        longest = self.config.early_stopping == "never" and self.config.length_penalty > 0
        length = self.text.last - self.text.given if longest else self.length
        return self._score(self.beams[0].logprob, length) <= self.finished[-1].score

    def texts(self) -> list[TokenSequence]:
        """Every unfinished text in full."""
        rows = [beam.ids() for beam in self.beams] or [[]]
        given = self.text
        return [
            TokenSequence(given.number, given.ids + ids, given.given, given.last, given.seed, given.start, given.source)
            for ids in rows
        ]

    def _limit(self) -> Finish:
        """Why a text of the largest length ends."""
        return "length" if self.length == self.config.max_tokens else "context"

    def _keep(self, node: Node, finish: Finish) -> None:
        ids = tuple(node.ids()) if self.length else ()
        made = Hypothesis(ids, self._score(node.logprob, max(1, self.length)), node.logprob, finish)
        self.finished.append(made)
        self.finished.sort(key=lambda each: -each.score)  # stable: of equals, the earlier one is better
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
    rows: int = SEARCHES,
) -> Iterator[tuple[int, tuple[Hypothesis, ...]]]:
    """Yield the number of each prompt and its `config.best` best continuations, best first, as they are found.

    Prompts of similar length share forward passes. Others change only the last bits of a text's scores.

    Args:
        model: used in evaluation mode, then returned to its mode; its precision is kept.
        prompts: ids, one list for each search; of an encoder-decoder, the beginnings of its answers, usually empty.
        config: the strategy.
        end_of_text: see `DecodingRules`.
        vocabulary: see `DecodingRules`.
        sources: what the encoder of an encoder-decoder reads, one list for each search.
        rows: searches that share forward passes.

    Raises:
        HeddleError: as in `DecodingRules.open`; or the model's output is NaN.
    """
    decoding = DecodingRules(model, config, end_of_text, vocabulary)
    texts = _open_all(decoding, prompts, sources)
    texts.sort(key=lambda text: (len(text.source or ()), len(text.ids)), reverse=True)
    batches = [[Search(text, config) for text in texts[start : start + rows]] for start in range(0, len(texts), rows)]
    # Compiled steps are not for several threads at once.
    workers = min(WORKERS, torch.get_num_threads()) if model.device.type == "cpu" and model.steps is None else 1
    for first in range(0, len(batches), workers):
        some = batches[first : first + workers]
        if len(some) == 1:
            yield from _search(some[0], model, decoding)
        else:
            yield from _search_concurrently(some, model, decoding)


def _open_all(
    decoding: DecodingRules, prompts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None
) -> list[TokenSequence]:
    """A text for each prompt and its source."""
    if sources is not None and len(sources) != len(prompts):
        raise HeddleError(f"{len(sources)} sources for {len(prompts)} prompts; give one source per prompt")
    each = zip(prompts, [None] * len(prompts) if sources is None else sources, strict=True)
    return [decoding.open(number, prompt, source=source) for number, (prompt, source) in enumerate(each)]


def _search_concurrently(
    batches: Sequence[list[Search]], model: Transformer, decoding: DecodingRules
) -> list[tuple[int, tuple[Hypothesis, ...]]]:
    """Carry out several batches of searches at the same time, which share torch's threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads // len(batches))
    try:
        with evaluating(model), ThreadPoolExecutor(len(batches)) as pool:
            found = pool.map(lambda batch: list(_search(batch, model, decoding)), batches)
            return list(chain.from_iterable(found))
    finally:
        torch.set_num_threads(threads)


def _search(
    searches: list[Search], model: Transformer, decoding: DecodingRules
) -> Iterator[tuple[int, tuple[Hypothesis, ...]]]:
    """Carry out searches together."""
    cache, pieces = model.new_cache(len(searches), multiple=1), [search.text.visible() for search in searches]
    sources = [search.text.source for search in searches if search.text.source is not None]
    modules = tuple(model.modules())
    while searches:
        share_cores()
        with torch.inference_mode(), evaluating(model, modules):
            logits = feed(model, cache, pieces, sources)
            candidates = best_candidates(logits, searches, decoding)
        kept, parents, beams, row = list[Search](), list[int](), list[Node](), 0
        for search, found in zip(searches, candidates, strict=True):
            width = max(1, len(search.beams))
            extended = search.extend(found, decoding)
            if search.ended():
                yield search.text.number, tuple(search.finished[: search.config.best])
            else:
                kept.append(search)
                parents += [row + beam for beam in extended]
                beams += search.beams
            row += width
        searches, pieces, sources = kept, [[beam.id] for beam in beams], []
        if searches:
            cache = cache.select(parents)


def best_candidates(
    logits: Float[Tensor, "B V"], searches: Sequence[Search], decoding: DecodingRules
) -> list[list[Candidate]]:
    """The most probable candidates of each search, best first, enough to have `beams` unfinished ones among them.

    Raises:
        HeddleError: a log probability is NaN.
    """
    texts = list[TokenSequence]()
    if any(processor.reads for processor in decoding.processors):
        texts = list(chain.from_iterable(search.texts() for search in searches))
    most = max(2, 1 + len(decoding.ends)) * searches[0].config.beams
    rows = max(1, IN_CACHE // logits.shape[-1])
    parts = []
    for start in range(0, len(logits), rows):
        scores = logits[start : start + rows].float().log_softmax(-1)
        parts.append(largest(decoding.process(scores, texts[start : start + rows]), most))
    best, ids = (torch.cat(each) for each in zip(*parts, strict=True))
    earlier = [node.logprob for search in searches for node in search.beams or (START,)]
    best = best + torch.tensor(earlier, device=best.device)[:, None]
    if best.isnan().any():
        raise HeddleError("the model's output is NaN; its weights are broken")
    widths = [max(1, len(search.beams)) for search in searches]
    whole, named = (by_search(each, widths) for each in (best, ids.to(best.dtype)))
    chosen, places = whole.topk(min(most, whole.shape[1]))
    columns = (chosen, places // best.shape[1], named.gather(1, places).long())
    return [list(zip(*row, strict=True)) for row in zip(*(each.tolist() for each in columns), strict=True)]


def by_search(rows: Float[Tensor, "B n"], widths: Sequence[int]) -> Float[Tensor, "S m"]:
    """Concatenate the rows of each search, padding with -inf: with a tiny vocabulary, some searches have fewer unfinished texts."""
    if len(set(widths)) == 1:
        return rows.reshape(-1, widths[0] * rows.shape[1])
    apart: Tensor = pad_sequence(rows.split(list(widths)), batch_first=True, padding_value=-inf)
    return apart.flatten(1)


def largest(scores: Float[Tensor, "B V"], count: int) -> tuple[Float[Tensor, "B n"], Int[Tensor, "B n"]]:
    """The `count` largest scores of each row and their ids, in order; all of them if there are fewer.

    They are among the blocks with the largest maxima, which takes a third of the time of sorting through a large row.
    """
    ids = scores.shape[-1]
    if ids < 2 * BLOCK * count:
        return scores.topk(min(count, ids))
    whole = ids // BLOCK * BLOCK  # all ids after the last whole block are candidates
    blocks = scores[:, :whole].unflatten(1, (-1, BLOCK))
    kept = blocks.amax(2).topk(count, sorted=False).indices[:, :, None]
    some = torch.cat((blocks.gather(1, kept.expand(-1, -1, BLOCK)).flatten(1), scores[:, whole:]), 1)
    found, places = some.topk(count)
    starts = torch.cat((kept[:, :, 0] * BLOCK, kept.new_full((len(kept), 1), whole)), 1)
    return found, starts.gather(1, places // BLOCK) + places % BLOCK
