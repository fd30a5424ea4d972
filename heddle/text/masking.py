"""A text with masks as ids, as training shows them: ids of a whole text, some of which are replaced."""

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # tokenizers themselves read masks
    from heddle.text.tokenizer import Tokenizer

MASKS = ("[MASK]", "<mask>")  # names of a mask token: BERT's and RoBERTa's
STAND_INS = 6  # words that are tried in the place of a mask


def masked_ids(
    tokenizer: "Tokenizer",
    text: str,
    mask: str,
    words: Sequence[str],
    allow_special: bool | str | Collection[str] = False,
) -> list[int]:
    """The ids of a text with masks, as training has them: those of a whole text, some of which are replaced.

    What surrounds a mask must be encoded as beside a word, since blanks often belong to tokens. So two words take the places of the
    masks, and the ids that differ are the masks'. Where no two words fit, the parts between masks are encoded by themselves.

    Args:
        tokenizer: has the mask token.
        text: the text, with the mask token's name in it.
        mask: that name.
        words: words of one token each, from `stand_ins`.
        allow_special: further special tokens that a text may have, as in `Tokenizer.encode`.
    """
    for pair in pairwise(words):
        one, other = (tokenizer.encode(text.replace(mask, word), allow_special) for word in pair)
        places = [place for place, ids in enumerate(zip(one, other, strict=False)) if ids[0] != ids[1]]
        if len(one) == len(other) and len(places) == text.count(mask):
            return [tokenizer.special[mask] if place in places else id for place, id in enumerate(one)]
    more = (allow_special,) if isinstance(allow_special, str) else allow_special or ()
    return tokenizer.encode(text, allow_special=True if more is True else [mask, *more])


def stand_ins(tokenizer: "Tokenizer") -> list[str]:
    """A few words that are one token each, with the blank before them; if there are none, letters."""
    special = set(tokenizer.special.values())
    found: list[str] = []
    letters: list[str] = []
    for id in range(tokenizer.vocab_size):
        word = "" if id in special else tokenizer.token_bytes(id).strip().decode(errors="replace")
        if not (word.isalpha() and word.isascii()) or word in found:
            continue
        twice, thrice = (tokenizer.encode(" ".join([word] * times)) for times in (2, 3))
        # An unknown word would be decoded as something else.
        if tokenizer.decode(twice) == f"{word} {word}":
            more = len(thrice) - len(twice)
            found += [word] if more == 1 else []
            letters += [word] if more == 2 and len(word) == 1 else []
        if len(found) == STAND_INS:
            break
    return found if len(found) > 1 else letters[:STAND_INS]
