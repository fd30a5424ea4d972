"""The next token with the logits of the whole vocabulary, so that sliders need no model; and beam search (L1-87)."""

import torch

from heddle.config.decoding import BeamConfig
from heddle.errors import HeddleError
from heddle.generate.beam import beam_search
from heddle.page.numbers import encode_tensor
from heddle.page.queries import BeamQuery, Document, PositionQuery, TextQuery
from heddle.page.subject import PageModel

SHOWN = 50  # tokens with their texts; the rest only has logits


def next_token(subject: PageModel, query: PositionQuery) -> Document:
    """The logits of all tokens after a position, and the texts of the best ones."""
    target_query = _with_target(subject, query)
    text = subject.read(target_query)
    hidden = subject.hidden(target_query)
    place = position(query.at, len(hidden))
    logits = subject.model.logits(hidden[place]).float().cpu()
    best = logits.topk(min(SHOWN, len(logits))).indices.tolist()
    ends = _ends(subject)
    return {
        "pieces": text.pieces,
        "source": text.source_pieces,
        "at": place,
        "logits": encode_tensor(logits),
        "best": [[id, subject.piece(id)] for id in best],
        "ends": sorted(ends),
        "room": _room(subject, len(hidden)),
    }


def beams(subject: PageModel, query: BeamQuery) -> Document:
    """The best continuations of a beam search, with the probability of each token."""
    if subject.model.decoder is None:
        raise HeddleError("this model predicts masked tokens, so it cannot continue a text")
    if query.lacks_mask:
        raise HeddleError(
            "beam search needs the mask: its KV cache has keys that did not see later tokens. Switch the mask on"
        )
    start = _with_target(subject, query)
    text = subject.read(start)
    config = BeamConfig(beams=query.beams, best=query.beams, max_tokens=query.tokens)
    end = None if subject.tokenizer is None or subject.model.config.ids is not None else subject.tokenizer.end_of_text
    vocabulary = None if subject.tokenizer is None else subject.tokenizer.vocab_size
    prompt = text.tokens[0].tolist()
    if subject.paired:
        assert text.source is not None
        # `beam_search` adds the ids that the decoder starts with.
        start_length = len(subject.read(TextQuery(text=query.text, target="")).pieces)
        sources = [text.source[0].tolist()]
        searched = beam_search(subject.model, [prompt[start_length:]], config, end, vocabulary, sources)
    else:
        searched = beam_search(subject.model, [prompt], config, end, vocabulary)
    with subject.without(query):
        ((_, hypotheses),) = searched
    documents = []
    for beam in hypotheses:
        probabilities = _probabilities(subject, start, beam.ids)
        tokens = [[id, subject.piece(id), p] for id, p in zip(beam.ids, probabilities, strict=True)]
        documents.append({"tokens": tokens, "score": beam.score, "logprob": beam.logprob, "finish": beam.finish})
    return {"pieces": text.pieces, "beams": documents}


def position(at: int, count: int) -> int:
    """A position from 0, for one that may be negative.

    Raises:
        HeddleError: it is out of range.
    """
    if not -count <= at < count:
        raise HeddleError(f"there is no position {at}: the text has {count} tokens")
    return at % count


def _with_target(subject: PageModel, query: TextQuery) -> TextQuery:
    """The query with an empty target by default, for a translation to continue."""
    return query.model_copy(update={"target": query.target or ""}) if subject.translates else query


def _probabilities(subject: PageModel, start: TextQuery, ids: tuple[int, ...]) -> list[float]:
    """The probability of each generated token after those before it."""
    extended = start.model_copy(update={"added": (*start.added, *ids)})
    logprobs = subject.model.logits(subject.hidden(extended)[-len(ids) - 1 : -1]).float().log_softmax(-1)
    targets = torch.tensor(ids, device=logprobs.device)
    return [float(probability) for probability in logprobs.gather(-1, targets[:, None])[:, 0].exp()]


def _ends(subject: PageModel) -> set[int]:
    """The ids that end a text."""
    ids = subject.model.config.ids
    if ids is not None:
        return set(ids.ends())
    end = None if subject.tokenizer is None else subject.tokenizer.end_of_text
    return set() if end is None else {end}


def _room(subject: PageModel, length: int) -> int | None:
    """Number of tokens that still fit; None: no limit."""
    longest = subject.model.last_stack().longest
    return None if longest is None else longest - length
