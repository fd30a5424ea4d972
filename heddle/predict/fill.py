"""Masked token prediction: the most probable tokens for each mask (Devlin et al. 2019, 3.1)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from heddle.checks import at_least, checked
from heddle.display import displayed
from heddle.errors import HeddleError, TextError
from heddle.model.transformer import Transformer
from heddle.predict.rows import (
    InputRow,
    Progress,
    check_text,
    evaluation,
    forward_batches,
    frame_for,
    frame_rows,
    is_blank,
    predict_nonempty,
)
from heddle.text.masking import masked_ids, stand_ins
from heddle.text.tokenizer import Tokenizer
from heddle.weights.special_tokens import mask_of


@displayed()
@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that may replace a mask.

    Attributes:
        token: its text.
        id: its id.
        probability: its probability while all masks of the text are still masks.
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
        probability: the product of the probabilities that the tokens had when they were filled in.
        masks: for each mask, in order, the most probable tokens, best first.
    """

    text: str
    probability: float
    masks: tuple[tuple[Candidate, ...], ...]


@checked(top=at_least(1))
def fill(
    model: Transformer, tokenizer: Tokenizer, texts: Sequence[str], top: int = 5, progress: Progress | None = None
) -> list[Filling | None]:
    """Fill in the masks of texts, such as "the warp is [MASK]".

    Several masks of a text are filled in one by one, the most certain first, and each is predicted with the earlier ones in
    place. So the tokens fit together, which the best token for each mask alone need not.

    Args:
        model: an encoder with a language head, in any mode.
        tokenizer: its tokenizer, which has a mask token.
        texts: texts with masks.
        top: number of tokens to return for each mask.
        progress: called with the number of finished texts of a pass and the total of the pass.

    Returns:
        A `Filling` for each text, in order; None for a text that is empty or only whitespace.

    Raises:
        HeddleError: the model was not trained to predict masked tokens; or a text has no mask, or is longer than the context.
    """
    mask = check_fills(model, tokenizer)
    return predict_nonempty(
        "fill", texts, is_blank, lambda nonempty: _fill(model, tokenizer, nonempty, top, progress, mask)
    )


def _fill(
    model: Transformer, tokenizer: Tokenizer, texts: Sequence[str], top: int, progress: Progress | None, mask: str
) -> list[Filling]:
    """Fill in texts that are not empty."""
    if not texts:
        return []
    rows = _rows(model, tokenizer, texts, mask)
    frame = frame_for(model, tokenizer)
    # Positions of the masks that are still to fill in, by row.
    open_masks = [[index for index, id in enumerate(row.ids) if id == tokenizer.special[mask]] for row in rows]
    candidates: list[tuple[tuple[Candidate, ...], ...]] = [()] * len(rows)
    products = [1.0] * len(rows)
    with evaluation(model):
        while any(open_masks):
            unfilled = [number for number, positions in enumerate(open_masks) if positions]
            for numbers, hidden, _ in forward_batches(model, [rows[number] for number in unfilled], progress):
                for number, states in zip((unfilled[index] for index in numbers), hidden, strict=True):
                    scores = model.logits(states[open_masks[number]])[:, : tokenizer.vocab_size]
                    probabilities = scores.float().softmax(-1).cpu()
                    if not candidates[number]:
                        candidates[number] = tuple(_best(row, top, tokenizer) for row in probabilities)
                    best, ids = probabilities.max(-1)
                    most_certain = int(best.argmax())
                    products[number] *= float(best[most_certain])
                    rows[number].ids[open_masks[number].pop(most_certain)] = int(ids[most_certain])
    texts = [tokenizer.decode(row.ids[frame.start : len(row.ids) - len(frame.end)]) for row in rows]
    return [Filling(*fields) for fields in zip(texts, products, candidates, strict=True)]


def check_fills(model: Transformer, tokenizer: Tokenizer) -> str:
    """The mask token of a model that can fill in masks.

    Raises:
        HeddleError: the model cannot, or its tokenizer has no mask token.
    """
    stacks = tuple(model.config.stacks())
    if model.config.head.kind != "language":
        raise HeddleError(f"this model's head is of kind {model.config.head.kind!r}, which does not predict tokens")
    if stacks == ("encoder", "decoder"):
        raise HeddleError(
            "this encoder-decoder writes the missing spans as a new text, so it cannot fill in single masks: give "
            "heddle translate the text with <extra_id_0>, <extra_id_1> and so on for the missing spans"
        )
    if stacks != ("encoder",):
        raise HeddleError(
            "this decoder sees only the text before a mask: heddle generate continues a text; "
            "task=masked trains an encoder that fills in masks"
        )
    mask = mask_of(tokenizer, model.config.ids)
    if mask is None:
        raise HeddleError("the tokenizer has no mask token, so nothing can be filled in")
    return mask


def _rows(model: Transformer, tokenizer: Tokenizer, texts: Sequence[str], mask: str) -> list[InputRow]:
    """The rows of texts, where the name of the mask token stands for the token."""
    frame, words = frame_for(model, tokenizer), stand_ins(tokenizer)
    rows = []
    for number, text in enumerate(texts):
        if mask not in check_text("fill", number, text):
            raise TextError("fill: texts: item", number, f"has no {mask} to fill in")
        (row,) = frame_rows(frame, [masked_ids(tokenizer, text, mask, words)])
        if row.cut:
            raise TextError(
                "fill: texts: item", number, f"is longer than the model's context of {frame.context} tokens"
            )
        rows.append(replace(row, ids=list(row.ids)))
    return rows


def _best(probabilities: Tensor, top: int, tokenizer: Tokenizer) -> tuple[Candidate, ...]:
    best = torch.topk(probabilities, min(top, len(probabilities)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple(Candidate(tokenizer.piece(id), id, probability) for id, probability in pairs)
