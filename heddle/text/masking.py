"""Encodes texts with mask tokens as training does: the ids of a complete text, some of them replaced."""

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the tokenizer modules import this one
    from heddle.text.tokenizer import Tokenizer

MASKS = ("[MASK]", "<mask>")  # names of a mask token: BERT's and RoBERTa's
STAND_INS = 6  # words that are tried in place of a mask


def masked_ids(
    tokenizer: "Tokenizer",
    text: str,
    mask: str,
    words: Sequence[str],
    allow_special: bool | str | Collection[str] = False,
) -> list[int]:
    """The ids of a text with masks, as training produces them: the ids of a complete text, some of them replaced.

    Spaces often belong to tokens, so the text around a mask must be encoded as if the mask were a word. Two different words are put
    in place of the masks; the ids that differ are the masks'. If no two words fit, the parts between masks are encoded separately.

    Args:
        tokenizer: has the mask token.
        text: the text, with the mask token's name in it.
        mask: that name.
        words: words of one token each, from `stand_ins`.
        allow_special: further special tokens to allow, as in `Tokenizer.encode`.
    """
    for pair in pairwise(words):
        first_ids, second_ids = (tokenizer.encode(text.replace(mask, word), allow_special) for word in pair)
        positions = [
            position for position, ids in enumerate(zip(first_ids, second_ids, strict=False)) if ids[0] != ids[1]
        ]
        if len(first_ids) == len(second_ids) and len(positions) == text.count(mask):
            return [tokenizer.special[mask] if position in positions else id for position, id in enumerate(first_ids)]
    further = (allow_special,) if isinstance(allow_special, str) else allow_special or ()
    return tokenizer.encode(text, allow_special=True if further is True else [mask, *further])


def stand_ins(tokenizer: "Tokenizer") -> list[str]:
    """A few words that are one token each, with the space before them; letters if there are no such words."""
    special = set(tokenizer.special.values())
    words: list[str] = []
    letters: list[str] = []
    for id in range(tokenizer.vocab_size):
        word = "" if id in special else tokenizer.token_bytes(id).strip().decode(errors="replace")
        if not (word.isalpha() and word.isascii()) or word in words:
            continue
        twice, thrice = (tokenizer.encode(" ".join([word] * times)) for times in (2, 3))
        # An unknown word would be decoded as something else.
        if tokenizer.decode(twice) == f"{word} {word}":
            added = len(thrice) - len(twice)
            words += [word] if added == 1 else []
            letters += [word] if added == 2 and len(word) == 1 else []
        if len(words) == STAND_INS:
            break
    return words if len(words) > 1 else letters[:STAND_INS]
