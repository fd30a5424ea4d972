"""Constrained texts: one of several, one that a regular expression matches, or JSON of a schema; by the library llguidance.

A grammar says after each id which ids may follow; all others get the score -inf. Only whole bytes of tokens count, so every
tokenizer works, and a text can always be finished, unless a ban forbids it: an id that leads nowhere is never allowed.
"""

import json
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from heddle.checks import checked
from heddle.config.decoding import SamplingConfig
from heddle.errors import HeddleError
from heddle.generate.processors import GrowingText
from heddle.text.tokenizer import Tokenizer

NO_WAY_ON = "NoExtensionBias"  # llguidance's word for it
COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # as Python's json writes


class Guide:
    """Which ids may follow in one text.

    Args:
        matcher: llguidance's matcher of the grammar, at its start.
        tokens: the tokenizer's; the matcher calls the end of the text by the id after them.
    """

    def __init__(self, matcher: Any, tokens: "_Tokens") -> None:
        self.matcher, self.tokens, self.count = matcher, tokens, tokens.eos_token_id
        self.read: list[int] = []
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
        mask = np.unpackbits(bits, bitorder="little")[: self.count + 1].astype(bool)
        forced = self.forced()
        if forced and not self.tokens(forced):  # llguidance would take these bytes as written
            covering = [id for id in self.tokens.from_bytes(forced) if self.matcher.validate_tokens([id])]
            mask[:] = False
            mask[covering] = True
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
        most = min(len(self.read), len(generated))
        same = next((place for place in range(most) if self.read[place] != generated[place]), most)
        if len(self.read) > same:
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
    def make(self, sampling: SamplingConfig) -> Guide | None:
        """A guide for a text with this sampling; None if it is not constrained.

        Raises:
            HeddleError: the expression or schema is invalid, or nothing meets it, or nothing but an empty text.
        """
        if not sampling.constrained:
            return None
        vocabulary = self._vocabulary  # which says what to install if llguidance is missing
        from llguidance import LLMatcher

        where = next(name for name in ("choice", "regex", "json_schema") if getattr(sampling, name) not in (None, ()))
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
        except ValueError as error:  # which JSONDecodeError is one of
            raise HeddleError(f"{where}: {_line(str(error))}") from None
        if said := matcher.get_error():
            raise HeddleError(f"{where}: {_line(said)}")
        guide = Guide(matcher, self._tokens)
        needed = guide.forced().decode(errors="ignore")
        mask, ends = guide.allowed([])
        if guide.fault is not None:
            raise HeddleError(f"{where}: {guide.fault}")
        if missing := next((sign for sign in needed if not self._tokens.bytes.issuperset(sign.encode())), None):
            raise HeddleError(f"{where}: it needs {missing!r}, which no token of this tokenizer has")
        if not mask.any():
            raise HeddleError(f"{where}: {'only an empty text' if ends else 'no text of this tokenizer'} meets it")
        return guide


def constrain(
    scores: Float[Tensor, "B V"], texts: Sequence[GrowingText], free: Sequence[bool], ends: Collection[int]
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
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokens = [*(tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)), b"<end of text>"]
        self.eos_token_id, self.bos_token_id = tokenizer.vocab_size, None
        self.special_token_ids = [*tokenizer.special.values(), tokenizer.vocab_size]
        special = set(self.special_token_ids)
        self._ids = {text: id for id, text in enumerate(self.tokens) if text and id not in special}
        self._longest = max(map(len, self._ids), default=0)
        self.bytes = frozenset(b"".join(self._ids))

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

    def from_bytes(self, start: bytes) -> list[int]:
        """The ids of tokens that begin with these bytes."""
        return [id for text, id in self._ids.items() if text.startswith(start)]


def _line(error: str) -> str:
    """The first line of an error that says something."""
    return " ".join(error.split())[:300]
