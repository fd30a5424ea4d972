"""The next token: all its scores, for sliders that need no model; and beams as a tree (L1-87)."""

import torch

from heddle.config.decoding import BeamConfig
from heddle.errors import HeddleError
from heddle.generate.beam import beam_search
from heddle.page.asked import At, Beams, CheckpointQuery, Document
from heddle.page.numbers import packed
from heddle.page.subject import PageModel

SHOWN = 50  # tokens with their texts; more only count


def following(subject: PageModel, asked: At) -> Document:
    """The scores of every token after a position, and the texts of the best ones."""
    text = subject.read(_opened(subject, asked))
    hidden = subject.hidden(_opened(subject, asked))
    place = position(asked.at, len(hidden))
    logits = subject.model.logits(hidden[place]).float().cpu()
    best = logits.topk(min(SHOWN, len(logits))).indices.tolist()
    ends = _ends(subject)
    return {
        "pieces": text.pieces,
        "source": text.source_pieces,
        "at": place,
        "logits": packed(logits),
        "best": [[id, subject.piece(id)] for id in best],
        "ends": sorted(ends),
        "room": _room(subject, len(hidden)),
    }


def beams(subject: PageModel, asked: Beams) -> Document:
    """The best continuations that a beam search finds, with the probability of each of their tokens."""
    if subject.model.decoder is None:
        raise HeddleError("this model fills in hidden tokens; it continues no text")
    start = _opened(subject, asked)
    text = subject.read(start)
    config = BeamConfig(beams=asked.beams, best=asked.beams, max_tokens=asked.tokens)
    end = None if subject.tokenizer is None or subject.model.config.ids is not None else subject.tokenizer.end_of_text
    vocabulary = None if subject.tokenizer is None else subject.tokenizer.vocab_size
    given = text.tokens[0].tolist()
    if subject.paired:
        assert text.source is not None
        opened = len(subject.read(CheckpointQuery(text=asked.text, target="")).pieces)
        searched = beam_search(subject.model, [given[opened:]], config, end, vocabulary, [text.source[0].tolist()])
    else:
        searched = beam_search(subject.model, [given], config, end, vocabulary)
    with subject.without(asked):
        ((_, hypotheses),) = searched
    found = []
    for each in hypotheses:
        shares = _shares(subject, start, each.ids)
        tokens = [[id, subject.piece(id), share] for id, share in zip(each.ids, shares, strict=True)]
        found.append({"tokens": tokens, "score": each.score, "logprob": each.logprob, "finish": each.finish})
    return {"pieces": text.pieces, "beams": found}


def position(at: int, count: int) -> int:
    """A position from 0, of one that may count from the end.

    Raises:
        HeddleError: there is none.
    """
    if not -count <= at < count:
        raise HeddleError(f"there is no position {at}: the text has {count} tokens")
    return at % count


def _opened(subject: PageModel, asked: CheckpointQuery) -> CheckpointQuery:
    """A translation that is being written starts empty."""
    return asked.model_copy(update={"target": asked.target or ""}) if subject.translates else asked


def _shares(subject: PageModel, start: CheckpointQuery, ids: tuple[int, ...]) -> list[float]:
    """The probability of each generated token after those before it."""
    whole = start.model_copy(update={"added": (*start.added, *ids)})
    logs = subject.model.logits(subject.hidden(whole)[-len(ids) - 1 : -1]).float().log_softmax(-1)
    wanted = torch.tensor(ids, device=logs.device)
    return [float(share) for share in logs.gather(-1, wanted[:, None])[:, 0].exp()]


def _ends(subject: PageModel) -> set[int]:
    """The ids that end a text."""
    ids = subject.model.config.ids
    if ids is not None:
        return set(ids.ends())
    end = None if subject.tokenizer is None else subject.tokenizer.end_of_text
    return set() if end is None else {end}


def _room(subject: PageModel, length: int) -> int | None:
    """How many tokens still fit; None: any number."""
    longest = subject.model.last_stack().longest
    return None if longest is None else longest - length
