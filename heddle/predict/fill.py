"""The most probable tokens in the place of each mask, by a model that predicts hidden tokens (Devlin et al. 2019, 3.1)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from heddle.checks import at_least, checked
from heddle.display import displayed
from heddle.errors import HeddleError, TextError
from heddle.model.transformer import Transformer
from heddle.predict.rows import Done, InputRow, check_text, frame_for, framed, is_blank, passes, predicted, predicting
from heddle.text.masking import masked_ids, stand_ins
from heddle.text.tokenizer import Tokenizer
from heddle.weights.special_tokens import mask_of


@displayed()
@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that may be in the place of a mask.

    Attributes:
        token: what it spells.
        id: its id.
        probability: of this token there, while all masks of the text are still masks.
    """

    token: str
    id: int
    probability: float


@displayed(".masks")
@dataclass(frozen=True, slots=True)
class Filling:
    """A text with its masks filled in.

    Attributes:
        text: the text with every mask filled in, as the tokenizer decodes it.
        probability: of these tokens: the product of each one's probability when it was filled in.
        masks: for each mask, in order, the most probable tokens, best first.
    """

    text: str
    probability: float
    masks: tuple[tuple[Candidate, ...], ...]


@checked(top=at_least(1))
def fill(
    model: Transformer, tokenizer: Tokenizer, texts: Sequence[str], top: int = 5, progress: Done | None = None
) -> list[Filling | None]:
    """Fill in the masks of texts, such as "the warp is [MASK]".

    Several masks of a text are filled in one by one, the most certain first, and each next one is predicted with those before it in
    place; so the text is one that the model finds probable as a whole, which the best token of each mask need not give.

    Args:
        model: an encoder with a language head, in any mode.
        tokenizer: its tokenizer, which has a mask token.
        texts: texts with masks.
        top: how many tokens to return for each mask.
        progress: called with the number of texts done in a pass, and of all in it.

    Returns:
        A `Filling` for each text, in order; None for one with nothing but blanks.

    Raises:
        HeddleError: the model was not trained to predict hidden tokens; or a text has no mask, or is longer than the context.
    """
    mask = check_fills(model, tokenizer)
    return predicted("fill", texts, is_blank, lambda some: _filled(model, tokenizer, some, top, progress, mask))


def _filled(
    model: Transformer, tokenizer: Tokenizer, texts: Sequence[str], top: int, progress: Done | None, mask: str
) -> list[Filling]:
    """Texts that have more than blanks, filled in."""
    if not texts:
        return []
    rows = _rows(model, tokenizer, texts, mask)
    frame = frame_for(model, tokenizer)
    marked = [[place for place, id in enumerate(row.ids) if id == tokenizer.special[mask]] for row in rows]
    masks: list[tuple[tuple[Candidate, ...], ...]] = [()] * len(rows)
    left, products = [list(places) for places in marked], [1.0] * len(rows)
    with predicting(model):
        while any(left):
            there = [number for number, places in enumerate(left) if places]
            for numbers, hidden, _ in passes(model, [rows[number] for number in there], progress):
                for number, vectors in zip((there[each] for each in numbers), hidden, strict=True):
                    scores = model.logits(vectors[left[number]])[:, : tokenizer.vocab_size]
                    probabilities = scores.float().softmax(-1).cpu()
                    if not masks[number]:
                        masks[number] = tuple(_best(row, top, tokenizer) for row in probabilities)
                    most, ids = probabilities.max(-1)
                    first = int(most.argmax())
                    products[number] *= float(most[first])
                    rows[number].ids[left[number].pop(first)] = int(ids[first])
    filled = [tokenizer.decode(row.ids[frame.start : len(row.ids) - len(frame.end)]) for row in rows]
    return [Filling(*each) for each in zip(filled, products, masks, strict=True)]


def check_fills(model: Transformer, tokenizer: Tokenizer) -> str:
    """The name of the mask token of a model that fills in masks.

    Raises:
        HeddleError: the model does not, or its tokenizer has no mask token.
    """
    stacks = tuple(model.config.stacks())
    if model.config.head.kind != "language":
        raise HeddleError(f"this model's head is of kind {model.config.head.kind!r}, which predicts no tokens")
    if stacks == ("encoder", "decoder"):
        raise HeddleError(
            "this encoder-decoder writes what is missing as a new text, so it has no probabilities for each place: give "
            "heddle translate the text with <extra_id_0>, <extra_id_1> and so on in place of what is missing"
        )
    if stacks != ("encoder",):
        raise HeddleError(
            "this decoder sees only what is on the left of a mask: heddle generate continues a text; "
            "task=masked trains an encoder that fills in masks"
        )
    mask = mask_of(tokenizer, model.config.ids)
    if mask is None:
        raise HeddleError("the tokenizer has no mask token, so nothing can be filled in")
    return mask


def _rows(model: Transformer, tokenizer: Tokenizer, texts: Sequence[str], mask: str) -> list[InputRow]:
    """The rows of texts in which the mask token's name means the token."""
    frame, words = frame_for(model, tokenizer), stand_ins(tokenizer)
    rows = []
    for number, text in enumerate(texts):
        if mask not in check_text("fill", number, text):
            raise TextError("fill: texts: item", number, f"has no {mask} to fill in")
        (row,) = framed(frame, [masked_ids(tokenizer, text, mask, words)])
        if row.cut:
            raise TextError(
                "fill: texts: item", number, f"is longer than the model's context of {frame.context} tokens"
            )
        rows.append(replace(row, ids=list(row.ids)))
    return rows


def _best(probabilities: Tensor, top: int, tokenizer: Tokenizer) -> tuple[Candidate, ...]:
    found = torch.topk(probabilities, min(top, len(probabilities)))
    best = zip(found.indices.tolist(), found.values.tolist(), strict=True)
    return tuple(Candidate(tokenizer.piece(id), id, probability) for id, probability in best)
