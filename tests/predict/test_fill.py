"""Masked tokens: the rows that training masks, the probabilities of transformers, and several masks at once."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import heddle
from heddle.config import TransformerConfig, sized
from heddle.errors import HeddleError
from heddle.model import Transformer, build
from heddle.predict import fill
from heddle.predict.fill import _rows
from heddle.text import Tokenizer, train_tokenizer

from .published import published

TEXT = "the warp is held and the weft is thrown over the warp "
SPECIAL = ("<|endoftext|>", "[MASK]")


def tokenizer_of(kind: str) -> Tokenizer:
    size = {"bpe": 290, "wordpiece": 60, "unigram": 330}.get(kind)
    return train_tokenizer(kind, [TEXT * 20], size, SPECIAL)


def encoder(tokenizer: Tokenizer, **more: Any) -> Transformer:
    """One whose weights are so large that what it predicts depends on every token and its place."""
    stack = {"depth": 2, "entry": {"positions": "learned"}, "block": {"mixer": {"heads": 2}}}
    sizes = {
        "vocab_size": tokenizer.vocab_size,
        "dim": 16,
        "context": 64,
        "initial": {"std": 0.4, "scale_residual": False},
    }
    return build(TransformerConfig.of({**sizes, "encoder": stack, **more}))


@pytest.mark.parametrize("kind", ["bytes", "characters", "words", "bpe", "wordpiece", "unigram"])
def test_a_text_with_a_mask_is_the_row_that_training_hides_a_token_in(kind: str) -> None:
    """The mask has the place of the token, with the blank before it where the token has one."""
    tokenizer = tokenizer_of(kind)
    hidden = "warp" if kind in ("words", "bpe", "wordpiece") else "w"  # one token
    whole = tokenizer.encode(f"the {hidden} is held")
    (masked,) = _rows(encoder(tokenizer), tokenizer, ["the [MASK] is held"], "[MASK]")
    mask = tokenizer.special["[MASK]"]
    (place,) = [place for place, id in enumerate(masked.ids) if id == mask]
    assert masked.ids == [*whole[:place], mask, *whole[place + 1 :]]
    assert tokenizer.piece(whole[place]).strip() == hidden


def test_published_masks_are_filled_as_by_transformers(tmp_path: Path) -> None:
    model, tokenizer, reference, cut = published(tmp_path, "BertForMaskedLM")
    pipeline: Any = transformers.pipeline("fill-mask", model=reference, tokenizer=cut, top_k=3)
    texts = ["the [MASK] is held", "[MASK] the weft is [MASK] over"]
    for text, result in zip(texts, fill(model, tokenizer, texts, top=3), strict=True):
        expected = pipeline(text)
        for candidates, their in zip(
            result.masks, expected if isinstance(expected[0], list) else [expected], strict=True
        ):
            assert [each.id for each in candidates] == [each["token"] for each in their]
            assert [each.probability for each in candidates] == pytest.approx(
                [each["score"] for each in their], abs=1e-5
            )
            assert [each.token for each in candidates] == [BERT_PIECE(cut, each["token"]) for each in their]
    (one, _) = fill(model, tokenizer, texts, top=1)
    assert one.text == cut.decode([5, one.masks[0][0].id, 8, 9])
    assert one.probability == pytest.approx(one.masks[0][0].probability)


def BERT_PIECE(cut: Any, id: int) -> str:
    return str(cut.convert_ids_to_tokens(id))


def test_several_masks_are_filled_in_one_by_one() -> None:
    """The most certain first; each next one sees it. Texts with other numbers of masks in the batch change nothing."""
    tokenizer = tokenizer_of("words")
    model = encoder(tokenizer)
    mask = tokenizer.special["[MASK]"]
    texts = [
        "the [MASK] is [MASK] [MASK]",
        "[MASK] over",
        "[MASK] weft [MASK] thrown [MASK] the",
        "[MASK] [MASK] over the warp",
    ]
    fills = fill(model, tokenizer, texts)
    changed = 0
    for text, each in zip(texts, fills, strict=True):
        encoded = [mask if word == "[MASK]" else tokenizer.encode(word)[0] for word in text.split()]
        ids, best, product = list(encoded), list[int](), 1.0
        while mask in ids:
            with torch.no_grad():
                probabilities = model.logits(model(torch.tensor([ids])).hidden)[0].softmax(-1)
            best = best or [int(probabilities[place].argmax()) for place, id in enumerate(ids) if id == mask]
            place = max(
                (place for place, id in enumerate(ids) if id == mask), key=lambda place: probabilities[place].max()
            )
            product *= float(probabilities[place].max())
            ids[place] = int(probabilities[place].argmax())
        assert each.text == tokenizer.decode(ids)
        assert each.probability == pytest.approx(product, rel=1e-4)
        assert [candidates[0].id for candidates in each.masks] == best
        assert all(a.probability >= b.probability for candidates in each.masks for a, b in pairwise(candidates))
        independent = iter(best)
        changed += ids != [next(independent) if id == mask else id for id in encoded]
    assert changed  # so the order was visible


def test_what_cannot_be_filled_in_is_refused() -> None:
    tokenizer = tokenizer_of("words")
    model = encoder(tokenizer)
    for text, message in (
        ("the warp", r"item 0 has no \[MASK\] to fill in"),
        ("[MASK] " * 80, "item 0 is longer than the model's context of 64 tokens"),
    ):
        with pytest.raises(HeddleError, match=message):
            fill(model, tokenizer, [text])
    with pytest.warns(UserWarning, match="fill: 1 text of 2"):
        assert fill(model, tokenizer, [" ", "the [MASK]"]) == [None, *fill(model, tokenizer, ["the [MASK]"])]
    with (
        pytest.warns(UserWarning, match="1 text of 2"),
        pytest.raises(HeddleError, match=r"item 1 has no \[MASK\] to fill in"),
    ):
        fill(model, tokenizer, ["", "the warp"])
    decoder = build(sized(1, vocab_size=tokenizer.vocab_size, context=8, dim=16))
    with pytest.raises(HeddleError, match="this decoder sees only the text before a mask: heddle generate"):
        heddle.fill(decoder, tokenizer, ["[MASK]"])
    stack = {"depth": 1, "block": {"mixer": {"heads": 2}}}
    both = {"encoder": stack, "decoder": {"depth": 1, "block": {"mixer": {"heads": 2}, "cross": {"heads": 2}}}}
    with pytest.raises(HeddleError, match="give heddle translate the text with <extra_id_0>"):
        fill(encoder(tokenizer, **both), tokenizer, ["[MASK]"])
    with pytest.raises(HeddleError, match="head is of kind 'embedding'"):
        fill(encoder(tokenizer, head={"kind": "embedding"}), tokenizer, ["[MASK]"])
    plain = train_tokenizer("words", [TEXT], special=())
    with pytest.raises(HeddleError, match="no mask token"):
        fill(encoder(plain), plain, ["[MASK]"])
    assert fill(model, tokenizer, []) == []
