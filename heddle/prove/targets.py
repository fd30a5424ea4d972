"""The laws of a target's loss: it depends on nothing that comes after, and decoding step by step computes the same."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from heddle.data.batch import Batch
from heddle.model.head import LanguageHead
from heddle.model.transformer import Transformer
from heddle.prove.rows import by_token, documents, narrowed, targeted
from heddle.prove.training import SHORTEST, TrainingSubject
from heddle.prove.verdict import Comparison, NotApplicable

LONGEST = 256  # tokens of a text that are read one by one
SEARCHED = 32  # steps whose targets are searched for their own ids


def future_of_targets(training: TrainingSubject) -> Iterator[Comparison | str]:
    """A target's loss does not depend on its own token or on what comes after it (L0-87, L1-24).

    A decoder reads the target's token one place to the right of where it is predicted; changed there, with all that follows, it
    leaves the target's loss unchanged. Hidden tokens of an encoder are not in its input, except as often as the task means it.
    """
    batch = training.batch
    if training.task.visible_share() is not None:
        yield from _hidden_ids(training)
        return
    if not by_token(batch):
        raise NotApplicable("the target is not one of the tokens")
    scored = batch.weights > 0
    if not any(training.task.after(batch, _last(scored) * 0).any(1)):
        raise NotApplicable("every target may be read off all tokens")
    if isinstance(training.model.head, LanguageHead):
        follows = (
            scored[:, :-1] & batch.layout.real[:, 1:] & (batch.layout.segment[:, 1:] == batch.layout.segment[:, :-1])
        )
        yield Comparison(
            "the token after is the target",
            {"targets": batch.tokens[:, 1:][follows]}, {"targets": batch.targets[:, :-1][follows]}, exactly=True,
        )  # fmt: skip
    tried = 0
    for place in _some(scored, training.generator):
        here = torch.zeros_like(scored).scatter(1, place[:, None], True)
        mine = targeted(batch, here)
        after = training.task.after(batch, place)
        changed = replace(mine, tokens=torch.where(after, training.others(batch.tokens), batch.tokens))
        tried += len(place)
        yield Comparison(
            "all after a target changed",
            {"loss": training.losses(changed)},
            {"loss": training.losses(mine)},
            training.bitwise,
        )
    yield f"{tried} targets of {training.looked_at()}"


def _last(scored: Tensor) -> Tensor:
    """The last target of each row."""
    return scored.shape[1] - 1 - scored.flip(1).int().argmax(1)


def _some(scored: Tensor, generator: torch.Generator) -> list[Tensor]:
    """The first target of each row, the last one, and two drawn between them."""
    drawn = [(torch.rand(scored.shape, generator=generator) * scored).argmax(1) for _ in range(2)]
    return [scored.int().argmax(1), *drawn, _last(scored)]


def _hidden_ids(training: TrainingSubject) -> Iterator[Comparison | str]:
    """How often the input has a target's own id at its place, beside how often it is meant to."""
    meant, shown, count, marks = training.task.visible_share(), 0, 0, set[int]()
    tokenizer = training.task.spec.tokenizer
    special = set() if tokenizer is None else set(tokenizer.special.values())
    assert meant is not None
    for number in range(SEARCHED):
        batch = training.task.batch(training.task.examples(number))
        scored = batch.weights > 0
        shown += int((batch.tokens == batch.targets)[scored].sum())
        count += int(scored.sum())
        marks |= special & set(batch.tokens[scored].tolist())
    yield Comparison(
        f"special ids in place of targets: {len(marks)}, of which the mask is one",
        {"count": torch.tensor([max(0, len(marks) - 1)])},
        {"count": torch.tensor([0])},
        exactly=True,
    )
    # Five standard deviations of as many draws.
    far = 5 * (max(meant * (1 - meant), 0.0) / max(count, 1)) ** 0.5
    outside = max(0.0, abs(shown / max(count, 1) - meant) - far)
    yield Comparison(
        "targets whose own id is read", {"share": torch.tensor([outside])}, {"share": torch.zeros(1)}, exactly=True
    )
    yield f"{count - shown:,} of {count:,} targets are hidden; the others are shown on purpose, {meant:.1%} of all are meant to be"


def stepwise_losses(training: TrainingSubject) -> Iterator[Comparison | str]:
    """The losses of one pass over a text are those of decoding it token by token with a cache (L2-08).

    A prefix is read in the first call, as a prompt is.
    """
    model, batch = training.model, training.batch
    if model.decoder is None or not isinstance(model.head, LanguageHead):
        raise NotApplicable("this model does not write token by token")
    if not by_token(batch):
        raise NotApplicable("this task does not score tokens")
    read, most = 0, min(LONGEST, max(SHORTEST, training.most // 4))
    for number, document in enumerate(documents(batch, 2)):
        text = narrowed(document.alone, most)
        read += text.tokens.shape[1]
        stepped = _nats(model, _stepped(model, text), text)
        yield Comparison(
            f"document {number}", {"losses": stepped}, {"losses": _nats(model, _at_once(model, text), text)}
        )
        yield Comparison(f"document {number}, in all", {"loss": stepped.sum()}, {"loss": training.losses(text).sum()})
    yield f"{read:,} tokens, one by one"


@torch.no_grad()
def _at_once(model: Transformer, text: Batch) -> Tensor:
    source = (text.source, text.source_layout, text.types, text.source_types)
    out: Tensor = model(text.tokens, text.layout, *source).hidden
    return out


@torch.no_grad()
def _stepped(model: Transformer, text: Batch) -> Tensor:
    cache, pieces, length = model.new_cache(1), [], text.tokens.shape[1]
    first = min(int(text.layout.sees_to[0, 0]) + 1, length)
    for place, stop in pairwise([0, *range(first, length + 1)]):
        here = slice(place, stop)
        given = {"types": None if text.types is None else text.types[:, here]}
        if place == 0 and text.source is not None:
            given |= {"source": text.source, "source_types": text.source_types}
        pieces.append(model(text.tokens[:, here], cache=cache, **given).hidden)
    return torch.cat(pieces, dim=1)


@torch.no_grad()
def _nats(model: Transformer, hidden: Tensor, text: Batch) -> Tensor:
    """Weighted -log p of each target, from all the scores that prediction gives."""
    probable = model.logits(hidden).log_softmax(-1).gather(-1, text.targets.clamp(min=0)[..., None])[..., 0]
    return torch.where(text.weights > 0, -probable * text.weights, 0.0)
