"""Constrained texts: one of several, one that a regular expression matches, or JSON of a schema; by the library llguidance.

A grammar says after each id which ids may follow; all others get the score -inf. Only whole bytes of tokens count, with the
blanks that some tokenizers put between words, so every tokenizer works. A text can always be finished, unless a ban forbids it:
an id that leads nowhere is never allowed. Only with a tokenizer of words, or one that lacks some characters, may JSON or an
expression lead to a place where none of its tokens can follow; then the text breaks.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from heddle.checks import checked
from heddle.config.decoding import SamplingConfig
from heddle.errors import HeddleError
from heddle.generate.processors import TokenSequence
from heddle.text.tokenizer import Tokenizer

KEPT = 16  # constraints whose grammars are kept
NO_WAY_ON = "NoExtensionBias"  # llguidance's word for it
COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # as Python's json writes


class Guide:
    """Which ids may follow in one text.

    Args:
        start: llguidance's matcher of the grammar, at its start; it stays there.
        tokens: the tokenizer's; the matcher calls the end of the text by the id after them.
        previous: the id before the text, if there is one.
    """

    def __init__(self, start: Any, tokens: "_Tokens", previous: int | None = None) -> None:
        self.start, self.matcher = start, start.deep_copy()
        self.tokens, self.count = tokens, tokens.eos_token_id
        self.previous = previous
        self.read: list[int] = []  # as the matcher knows them
        self.fault: str | None = None

    def allowed(self, generated: Sequence[int]) -> tuple[npt.NDArray[np.bool_], bool]:
        """Bool[count], which ids may follow the generated ones; and whether the text may end here.

        A text whose grammar grows beyond llguidance's limits cannot go on: nothing may follow, and `fault` says why. This raises
        no error, since other texts are drawn in the same step.
        """
        self.fault = None
        self._go_to(generated)
        bits = np.frombuffer(b"" if self.matcher.is_stopped() else self.matcher.compute_bitmask(), np.uint8)
        if self.matcher.is_error():
            if not self.matcher.get_error().startswith(NO_WAY_ON):
                self.fault = _line(self.matcher.get_error())
            return np.zeros(self.count, bool), False
        if self.matcher.is_stopped():
            return np.zeros(self.count, bool), True
        mask = np.unpackbits(bits, bitorder="little")[: len(self.tokens.tokens)].astype(bool)
        forced, joined = self.forced(), (generated[-1] if generated else self.previous) in self.tokens.opens
        if forced and (self.tokens.spaced or not self.tokens(forced)):  # llguidance would take these bytes as written
            exact, longer = self.tokens.spelling(forced, joined)
            mask[:] = False
            mask[exact + [id for id in longer if self.matcher.validate_tokens([id])]] = True
        mask = self.tokens.alike(mask)
        if joined:
            mask[self.tokens.words] = mask[self.count + 1 :]
        return mask[: self.count], bool(mask[self.count])

    def forced(self) -> bytes:
        """The bytes that must come next, as far as there is no choice."""
        forced: bytes = self.matcher.compute_ff_bytes()
        return forced

    def complete(self, generated: Sequence[int]) -> bool:
        """Whether the text can only end here."""
        mask, ends = self.allowed(generated)
        return ends and not mask.any()

    def _go_to(self, generated: Sequence[int]) -> None:
        """Read ids that are new, and take back those that were only guessed."""
        generated = self.tokens.joined(generated, self.previous)
        most = min(len(self.read), len(generated))
        same = next((place for place in range(most) if self.read[place] != generated[place]), most)
        if self.matcher.is_error():  # after a guess that led nowhere; nothing can be taken back then
            self.matcher, same = self.start.deep_copy(), 0
        elif len(self.read) > same:
            self.matcher.rollback(len(self.read) - same)
        taken = self.matcher.try_consume_tokens(list(generated[same:]))  # fewer where a guess breaks the grammar
        self.read = list(generated[: same + taken])


class Guides:
    """Makes guides for the texts of one tokenizer.

    Args:
        tokenizer: whose tokens the texts are made of.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._made: dict[object, Any] = {}  # matchers at their starts, since many texts may have one constraint

    @cached_property
    def _vocabulary(self) -> Any:
        """The tokens as llguidance reads them, with one more that ends a text, whatever ids do so in the model.

        Raises:
            HeddleError: llguidance is not installed.
        """
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ImportError:
            raise HeddleError("constrained texts need llguidance: pip install 'heddle-lm[serve]'") from None
        return LLTokenizer(TokenizerWrapper(self._tokens))

    @cached_property
    def _tokens(self) -> "_Tokens":
        return _Tokens(self.tokenizer)

    @checked()
    def make(self, sampling: SamplingConfig, previous: int | None = None) -> Guide | None:
        """A guide for a text with this sampling; None if it is not constrained.

        Args:
            previous: the id before the text, if there is one.

        Raises:
            HeddleError: the expression or schema is invalid, or nothing meets it, or nothing but an empty text; or the tokenizer
                has no tokens for one of the choices.
        """
        if not sampling.constrained:
            return None
        key = (sampling.choice, sampling.regex, sampling.json_schema)
        where = next(name for name in ("choice", "regex", "json_schema") if getattr(sampling, name) not in (None, ()))
        if key not in self._made:
            self._made = dict([*self._made.items(), (key, self._start(sampling, where))][-KEPT:])
        guide = Guide(self._made[key], self._tokens, previous)
        joined = previous in self._tokens.opens
        after = "; after a word, a text begins with a blank: put one before yours" if joined else ""
        if lost := next((text for text in sampling.choice if not self._tokens.spell(text.encode(), joined)), None):
            raise HeddleError(f"{where}: no tokens of this tokenizer spell {lost!r} here{after}")
        mask, ends = guide.allowed([])
        if guide.fault is not None:
            raise HeddleError(f"{where}: {guide.fault}")
        if not mask.any():
            what = "only an empty text meets it" if ends else f"no text of this tokenizer meets it{after}"
            raise HeddleError(f"{where}: {what}")
        return guide

    def _start(self, sampling: SamplingConfig, where: str) -> Any:
        """llguidance's matcher of a constraint, at its start.

        Raises:
            HeddleError: the constraint is invalid, or begins with what no token has.
        """
        vocabulary = self._vocabulary  # which says what to install if llguidance is missing
        from llguidance import LLMatcher

        try:
            if sampling.json_schema is not None:
                # Without blanks of any number, which a model could write until its text is cut off.
                grammar = LLMatcher.grammar_from_json_schema(
                    json.loads(sampling.json_schema), defaults=cast(Any, COMPACT)
                )
            elif sampling.regex is not None:
                grammar = LLMatcher.grammar_from_regex(sampling.regex)
            else:
                grammar = LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, sampling.choice)))
            matcher = LLMatcher(vocabulary, grammar)
        except (ValueError, RecursionError) as error:  # JSONDecodeError is one; the other is of brackets in brackets
            raise HeddleError(f"{where}: {_line(str(error))}") from None
        if said := matcher.get_error():
            raise HeddleError(f"{where}: {_line(said)}")
        needed = Guide(matcher, self._tokens).forced().decode(errors="ignore")
        if missing := next((sign for sign in needed if not self._tokens.bytes.issuperset(sign.encode())), None):
            raise HeddleError(f"{where}: it needs {missing!r}, which no token of this tokenizer has")
        if sampling.regex is not None and self._tokens.letters is not None:
            # Both at once, so that no way leads to where only a character could follow that the tokenizer lacks.
            both = f"start: C\nC: A & B\nA: {_literal(sampling.regex)}\nB: {_literal(self._tokens.letters)}"
            matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(both))
        return matcher


def constrain(
    scores: Float[Tensor, "B V"], texts: Sequence[TokenSequence], free: Sequence[bool], ends: Collection[int]
) -> Float[Tensor, "B V"]:
    """Block the ids that the guides of texts do not allow; where a text may end, the ids that end one are allowed.

    A guide is asked only where `free`: elsewhere the model's rules force an id, the first or the last of a text.

    Raises:
        HeddleError: a text has no guide.
    """
    rows = [(row, cast(Guide, text.guide), text) for row, text in enumerate(texts)]
    if any(guide is None for _, guide, _ in rows):
        raise HeddleError("a constrained text needs the tokenizer: use complete, or give the engine Guides(tokenizer)")
    blocked = torch.zeros_like(scores, dtype=torch.bool)
    for row, guide, text in rows:
        if not free[row]:
            continue
        mask, may_end = guide.allowed(text.written())
        blocked[row] = True
        blocked[row, : guide.count] = torch.from_numpy(~mask).to(scores.device)
        blocked[row, list(ends)] = not may_end
    return scores.masked_fill(blocked, -torch.inf)


class _Tokens:
    """What llguidance asks of a tokenizer.

    Attributes:
        tokens: the bytes of each id, of the end of the text, and of the ids of `spaced` after a blank.
        opens: ids after which a blank may come that no token spells.
        words: ids before which it may come.
        spaced: for each of these, the number that llguidance knows it by where the blank does come.
        complete: whether there are tokens for every text.
        letters: if not, an expression of all texts of the tokens' characters; None: of words, whose order counts.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokens = [*(tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)), b"<end of text>"]
        self.eos_token_id, self.bos_token_id = tokenizer.vocab_size, None
        self.special_token_ids = [*tokenizer.special.values(), tokenizer.vocab_size]
        special = set(self.special_token_ids)
        self.opens, closes = tokenizer.joints
        self.words = sorted(id for id in closes if self.opens and id not in special)
        self.spaced = {id: len(self.tokens) + place for place, id in enumerate(self.words)}
        self.tokens += [b" " + self.tokens[id] for id in self.words]
        self._ids = {text: id for id, text in enumerate(self.tokens) if text and id not in special}
        within = [id for id in range(tokenizer.vocab_size) if id not in special and id not in self.spaced]
        self._usable = [
            {self.tokens[number]: number for number in (*words, *within) if self.tokens[number]}
            for words in (self.words, self.spaced.values())
        ]  # where words do not come after a blank, and where they do
        self.complete = not self.spaced and all(bytes([byte]) in self._ids for byte in range(256))
        letters = "".join(f"\\u{{{ord(sign):x}}}" for sign in sorted(set(b"".join(self._ids).decode(errors="ignore"))))
        self.letters = None if self.complete or self.spaced else f"[{letters}]*" if letters else ""
        self._longest = max(map(len, self._ids), default=0)
        self._sorted = [sorted(usable) for usable in self._usable]
        # Which ids spell the same; special tokens spell no text. None: each spells another text.
        texts, self._text = {text: place for place, text in enumerate(dict.fromkeys(self.tokens))}, None
        if len(texts) < len(self.tokens):
            own = range(len(texts), len(texts) + len(self.tokens))
            self._text = np.array([own[id] if id in special else texts[text] for id, text in enumerate(self.tokens)])
        self.bytes = frozenset(b"".join(self._ids))

    def joined(self, generated: Sequence[int], previous: int | None) -> Sequence[int]:
        """The ids as llguidance knows them: those with a blank before them by their numbers in `spaced`."""
        if not self.spaced:
            return generated
        pairs = pairwise((previous, *generated))
        return [id if last not in self.opens else self.spaced.get(id, id) for last, id in pairs if id is not None]

    def alike(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """With every id that spells what an id of the mask does: of several, llguidance names one."""
        if self._text is None:
            return mask
        texts = np.zeros(2 * len(self.tokens), bool)
        texts[self._text[mask]] = True
        every: npt.NDArray[np.bool_] = texts[self._text]
        return every

    def spell(self, text: bytes, joined: bool) -> bool:
        """Whether tokens spell the bytes, in some division; `joined`: after an id that a word follows with a blank."""
        reached, left = {(0, joined)}, [(0, joined)]
        while left and not self.complete:
            start, joined = left.pop()
            if start == len(text):
                return True
            for end in range(start + 1, min(len(text), start + self._longest) + 1):
                number = self._usable[joined].get(text[start:end])
                if number is not None:
                    id = number if number < self.eos_token_id else self.words[number - self.eos_token_id - 1]
                    new = (end, id in self.opens)
                    left += [] if new in reached else [new]
                    reached.add(new)
        return self.complete

    def __call__(self, text: bytes) -> list[int]:
        """The longest tokens that spell the bytes, up to the first that none spells: the tokenizer itself would refuse them."""
        found, start = [], 0
        while start < len(text):
            ends = range(min(len(text), start + self._longest), start, -1)
            end = next((end for end in ends if text[start:end] in self._ids), None)
            if end is None:
                break
            found.append(self._ids[text[start:end]])
            start = end
        return found

    def spelling(self, start: bytes, joined: bool) -> tuple[list[int], list[int]]:
        """The longest tokens that spell the beginning of these bytes, and those that spell them all and more.

        Args:
            joined: whether the words come after a blank.
        """
        usable = self._usable[joined]
        lengths = range(min(len(start), self._longest), 0, -1)
        exact = next(([usable[start[:end]]] for end in lengths if start[:end] in usable), [])
        texts, place, longer = self._sorted[joined], bisect_right(self._sorted[joined], start), list[int]()
        while place < len(texts) and texts[place].startswith(start):
            longer.append(usable[texts[place]])
            place += 1
        return exact, longer


def _literal(regex: str) -> str:
    """A regular expression as a terminal of a Lark grammar."""
    inner = re.sub(r"\\.|/", lambda found: r"\/" if found.group() == "/" else found.group(), regex, flags=re.DOTALL)
    return f"/{inner}/"


def _line(error: str) -> str:
    """The first line of an error that says something."""
    return " ".join(error.split())[:300]
