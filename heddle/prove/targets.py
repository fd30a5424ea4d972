"""Laws of a target's loss: it does not depend on later tokens, and stepwise decoding computes the same."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from heddle.data.batch import Batch
from heddle.model.head import LanguageHead
from heddle.model.transformer import Transformer
from heddle.prove.rows import by_token, documents, select_targets, truncate
from heddle.prove.training import SHORTEST, TrainingSubject
from heddle.prove.verdict import Comparison, NotApplicable

MAX_TOKENS = 256  # of a text that is decoded token by token
SEARCHED_STEPS = 32  # steps whose inputs are searched for target ids


def future_of_targets(training: TrainingSubject) -> Iterator[Comparison | str]:
    """A target's loss does not depend on the target token or on later tokens (L0-87, L1-24).

    A decoder reads the target token one position after predicting it; changing it and everything after it leaves the loss
    unchanged. Masked tokens of an encoder are visible in its input only as often as the task intends.
    """
    batch = training.batch
    if training.task.visible_share() is not None:
        yield from _hidden_ids(training)
        return
    if not by_token(batch):
        raise NotApplicable("the targets are not tokens")
    scored = batch.weights > 0
    if not any(training.task.after(batch, _last(scored) * 0).any(1)):
        raise NotApplicable("every target may depend on all tokens")
    if isinstance(training.model.head, LanguageHead):
        has_next = (
            scored[:, :-1] & batch.layout.real[:, 1:] & (batch.layout.segment[:, 1:] == batch.layout.segment[:, :-1])
        )
        yield Comparison(
            "the target of a token is the next token of its row",
            {"targets": batch.tokens[:, 1:][has_next]}, {"targets": batch.targets[:, :-1][has_next]}, exact=True,
        )  # fmt: skip
    count = 0
    for positions in _sample_targets(scored, training.generator):
        mask = torch.zeros_like(scored).scatter(1, positions[:, None], True)
        single_target = select_targets(batch, mask)
        after = training.task.after(batch, positions)
        changed = replace(single_target, tokens=torch.where(after, training.changed_ids(batch.tokens), batch.tokens))
        count += len(positions)
        yield Comparison(
            "all after a target changed",
            {"loss": training.losses(changed)},
            {"loss": training.losses(single_target)},
            training.bitwise,
        )
    yield f"{count} targets of {training.describe_batch()}"


def _last(scored: Tensor) -> Tensor:
    """The last target of each row."""
    return scored.shape[1] - 1 - scored.flip(1).int().argmax(1)


def _sample_targets(scored: Tensor, generator: torch.Generator) -> list[Tensor]:
    """The first target of each row, the last one, and two random ones."""
    sampled = [(torch.rand(scored.shape, generator=generator) * scored).argmax(1) for _ in range(2)]
    return [scored.int().argmax(1), *sampled, _last(scored)]


def _hidden_ids(training: TrainingSubject) -> Iterator[Comparison | str]:
    """Compare how often the input shows a target's own id with how often it should."""
    expected_share, visible, count, special_ids = training.task.visible_share(), 0, 0, set[int]()
    tokenizer = training.task.spec.tokenizer
    special = set() if tokenizer is None else set(tokenizer.special.values())
    assert expected_share is not None
    for number in range(SEARCHED_STEPS):
        batch = training.task.batch(training.task.examples(number))
        scored = batch.weights > 0
        visible += int((batch.tokens == batch.targets)[scored].sum())
        count += int(scored.sum())
        special_ids |= special & set(batch.tokens[scored].tolist())
    yield Comparison(
        f"special ids in place of targets: {len(special_ids)}, of which the mask is one",
        {"count": torch.tensor([max(0, len(special_ids) - 1)])},
        {"count": torch.tensor([0])},
        exact=True,
    )
    # Five standard deviations of the binomial distribution.
    tolerance = 5 * (max(expected_share * (1 - expected_share), 0.0) / max(count, 1)) ** 0.5
    excess = max(0.0, abs(visible / max(count, 1) - expected_share) - tolerance)
    yield Comparison(
        "targets whose own id is read", {"share": torch.tensor([excess])}, {"share": torch.zeros(1)}, exact=True
    )
    yield f"{count - visible:,} of {count:,} targets are masked; {expected_share:.1%} of all are meant to be visible"


def stepwise_losses(training: TrainingSubject) -> Iterator[Comparison | str]:
    """The losses of one pass over a text equal those of decoding it token by token with a cache (L2-08).

    A prefix is read in the first call, like a prompt.
    """
    model, batch = training.model, training.batch
    if model.decoder is None or not isinstance(model.head, LanguageHead):
        raise NotApplicable("this model does not generate tokens")
    if not by_token(batch):
        raise NotApplicable("this task does not score tokens")
    tokens_read, max_tokens = 0, min(MAX_TOKENS, max(SHORTEST, training.max_tokens // 4))
    for number, document in enumerate(documents(batch, 2)):
        text = truncate(document.alone, max_tokens)
        tokens_read += text.tokens.shape[1]
        stepwise = _losses(model, _stepwise_hidden(model, text), text)
        yield Comparison(
            f"document {number}", {"losses": stepwise}, {"losses": _losses(model, _full_pass(model, text), text)}
        )
        yield Comparison(f"document {number}, in all", {"loss": stepwise.sum()}, {"loss": training.losses(text).sum()})
    yield f"{tokens_read:,} tokens, one by one"


@torch.no_grad()
def _full_pass(model: Transformer, text: Batch) -> Tensor:
    source = (text.source, text.source_layout, text.types, text.source_types)
    out: Tensor = model(text.tokens, text.layout, *source).hidden
    return out


@torch.no_grad()
def _stepwise_hidden(model: Transformer, text: Batch) -> Tensor:
    cache, pieces, length = model.new_cache(1), [], text.tokens.shape[1]
    first = min(int(text.layout.sees_to[0, 0]) + 1, length)
    for place, stop in pairwise([0, *range(first, length + 1)]):
        piece = slice(place, stop)
        inputs = {"types": None if text.types is None else text.types[:, piece]}
        if place == 0 and text.source is not None:
            inputs |= {"source": text.source, "source_types": text.source_types}
        pieces.append(model(text.tokens[:, piece], cache=cache, **inputs).hidden)
    return torch.cat(pieces, dim=1)


@torch.no_grad()
def _losses(model: Transformer, hidden: Tensor, text: Batch) -> Tensor:
    """Weighted -log p of each target, from the full logits."""
    log_probabilities = model.logits(hidden).log_softmax(-1).gather(-1, text.targets.clamp(min=0)[..., None])[..., 0]
    return torch.where(text.weights > 0, -log_probabilities * text.weights, 0.0)
