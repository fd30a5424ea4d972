"""Constrained generation by the library llguidance: one of several texts, a regular expression, or JSON that meets a schema.

After each id a grammar says which ids may follow. All others get the score -inf. The grammar works on the bytes of tokens,
including the spaces that some tokenizers put between words, so every tokenizer works. An id from which the text cannot be
finished is never allowed, so a text can always be finished unless a ban forbids it. The exception is a tokenizer of words, or
one that lacks some characters: JSON or a regular expression may lead to a place where no token can follow. Then the row breaks.
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
from heddle.nn.numeric import on_device
from heddle.text.tokenizer import Tokenizer

CACHED_GRAMMARS = 16
NO_EXTENSION = "NoExtensionBias"  # llguidance's error where no token can follow
COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # as Python's json writes


class Guide:
    """Which ids may follow in one text.

    Args:
        start: llguidance's matcher of the grammar, at its start. It is copied, not changed.
        tokens: the tokenizer's. For the matcher, the end of the text is the id after them.
        previous: the id before the text, if any.
    """

    def __init__(self, start: Any, tokens: "_Tokens", previous: int | None = None) -> None:
        self.start, self.matcher = start, start.deep_copy()
        self.tokens, self.count = tokens, tokens.eos_token_id
        self.previous = previous
        self.read: list[int] = []  # the ids that the matcher has consumed
        self.error: str | None = None

    def allowed(self, generated: Sequence[int]) -> tuple[npt.NDArray[np.bool_], bool]:
        """Bool[count], which ids may follow the generated ones; and whether the text may end here.

        If the grammar grows beyond llguidance's limits, no id may follow, and `error` says why. This raises nothing, because other
        rows are sampled in the same step.
        """
        self.error = None
        self._sync(generated)
        bits = np.frombuffer(b"" if self.matcher.is_stopped() else self.matcher.compute_bitmask(), np.uint8)
        if self.matcher.is_error():
            if not self.matcher.get_error().startswith(NO_EXTENSION):
                self.error = _one_line(self.matcher.get_error())
            return np.zeros(self.count, bool), False
        if self.matcher.is_stopped():
            return np.zeros(self.count, bool), True
        mask = np.unpackbits(bits, bitorder="little")[: len(self.tokens.tokens)].astype(bool)
        forced, joined = self.forced(), (generated[-1] if generated else self.previous) in self.tokens.opens
        # llguidance counts forced bytes as written, but maybe no token spells exactly these.
        if forced and (self.tokens.spaced or not self.tokens(forced)):
            exact, longer = self.tokens.spelling(forced, joined)
            mask[:] = False
            mask[exact + [id for id in longer if self.matcher.validate_tokens([id])]] = True
        mask = self.tokens.alike(mask)
        if joined:
            mask[self.tokens.words] = mask[self.count + 1 :]
        return mask[: self.count], bool(mask[self.count])

    def forced(self) -> bytes:
        """The bytes that must come next, up to the first choice."""
        forced: bytes = self.matcher.compute_ff_bytes()
        return forced

    def complete(self, generated: Sequence[int]) -> bool:
        """Whether the text can only end here."""
        mask, ends = self.allowed(generated)
        return ends and not mask.any()

    def _sync(self, generated: Sequence[int]) -> None:
        """Bring the matcher to these ids: roll back rejected draft tokens, and consume new ids."""
        generated = self.tokens.joined(generated, self.previous)
        limit = min(len(self.read), len(generated))
        common = next((index for index in range(limit) if self.read[index] != generated[index]), limit)
        if self.matcher.is_error():  # after a draft token that led nowhere; then nothing can be rolled back
            self.matcher, common = self.start.deep_copy(), 0
        elif len(self.read) > common:
            self.matcher.rollback(len(self.read) - common)
        # Fewer are consumed if a draft token breaks the grammar.
        consumed = self.matcher.try_consume_tokens(list(generated[common:]))
        self.read = list(generated[: common + consumed])


class Guides:
    """Makes guides for one tokenizer.

    Args:
        tokenizer: the model's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._matchers: dict[object, Any] = {}  # at their starts, by constraint: many texts may share one

    @cached_property
    def _vocabulary(self) -> Any:
        """The tokens in llguidance's form, with one more that ends a text, regardless of the model's end ids.

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
            previous: the id before the text, if any.

        Raises:
            HeddleError: the expression or schema is invalid, or no text but perhaps an empty one meets it; or the tokenizer cannot
                spell one of the choices.
        """
        if not sampling.constrained:
            return None
        key = (sampling.choice, sampling.regex, sampling.json_schema)
        where = next(name for name in ("choice", "regex", "json_schema") if getattr(sampling, name) not in (None, ()))
        if key not in self._matchers:
            self._matchers = dict(
                [*self._matchers.items(), (key, self._make_matcher(sampling, where))][-CACHED_GRAMMARS:]
            )
        guide = Guide(self._matchers[key], self._tokens, previous)
        joined = previous in self._tokens.opens
        advice = "; after a word, a text begins with a space: put one before yours" if joined else ""
        unspelled = next((text for text in sampling.choice if not self._tokens.spell(text.encode(), joined)), None)
        if unspelled:
            raise HeddleError(f"{where}: this tokenizer has no tokens that spell {unspelled!r} here{advice}")
        mask, ends = guide.allowed([])
        if guide.error is not None:
            raise HeddleError(f"{where}: {guide.error}")
        if not mask.any():
            reason = "only an empty text meets it" if ends else f"no text of this tokenizer meets it{advice}"
            raise HeddleError(f"{where}: {reason}")
        return guide

    def _make_matcher(self, sampling: SamplingConfig, where: str) -> Any:
        """llguidance's matcher of a constraint, at its start.

        Raises:
            HeddleError: the constraint is invalid, or needs a character that no token has.
        """
        vocabulary = self._vocabulary  # first, since its error says what to install if llguidance is missing
        from llguidance import LLMatcher

        try:
            if sampling.json_schema is not None:
                # No flexible whitespace: a model could write spaces until its text is cut off.
                grammar = LLMatcher.grammar_from_json_schema(
                    json.loads(sampling.json_schema), defaults=cast(Any, COMPACT)
                )
            elif sampling.regex is not None:
                grammar = LLMatcher.grammar_from_regex(sampling.regex)
            else:
                grammar = LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, sampling.choice)))
            matcher = LLMatcher(vocabulary, grammar)
        except (
            ValueError,
            RecursionError,
        ) as error:  # JSONDecodeError is a ValueError; deep nesting exhausts the stack
            raise HeddleError(f"{where}: {_one_line(str(error))}") from None
        if message := matcher.get_error():
            raise HeddleError(f"{where}: {_one_line(message)}")
        needed = Guide(matcher, self._tokens).forced().decode(errors="ignore")
        missing = next((char for char in needed if not self._tokens.bytes.issuperset(char.encode())), None)
        if missing:
            raise HeddleError(f"{where}: it needs {missing!r}, which no token of this tokenizer has")
        if sampling.regex is not None and self._tokens.alphabet is not None:
            # Intersect with the texts that the tokenizer can write, so that no path needs a character that it lacks.
            both = f"start: C\nC: A & B\nA: {_literal(sampling.regex)}\nB: {_literal(self._tokens.alphabet)}"
            matcher = LLMatcher(vocabulary, LLMatcher.grammar_from_lark(both))
        return matcher


def constrain(
    scores: Float[Tensor, "B V"], sequences: Sequence[TokenSequence], free: Sequence[bool], ends: Collection[int]
) -> Float[Tensor, "B V"]:
    """Block the ids that the guides do not allow. Where a text may end, the ids that end one are allowed.

    Only rows that are `free` are constrained: in others the model's rules force the first or the last id.

    Raises:
        HeddleError: a sequence has no guide.
    """
    rows = [(row, cast(Guide, sequence.guide), sequence) for row, sequence in enumerate(sequences)]
    if any(guide is None for _, guide, _ in rows):
        raise HeddleError("a constrained text needs the tokenizer: use complete, or give the engine Guides(tokenizer)")
    blocked = torch.zeros(scores.shape, dtype=torch.bool)  # on the host, where guides are
    for row, guide, sequence in rows:
        if not free[row]:
            continue
        mask, may_end = guide.allowed(sequence.generated())
        blocked[row] = True
        blocked[row, : guide.count] = torch.from_numpy(~mask)
        blocked[row, list(ends)] = not may_end
    return scores.masked_fill(on_device(blocked, scores.device), -torch.inf)


class _Tokens:
    """The interface that llguidance needs of a tokenizer.

    Some tokenizers join words with a space that no token spells. Each word then has a second number, for its bytes with the space.

    Attributes:
        tokens: the bytes of each id, of the end of the text, and of the words with a space before them.
        opens: ids after which such a space may come.
        words: ids before which it may come.
        spaced: the second number of each word.
        complete: whether the tokens can spell every text.
        alphabet: a regular expression for the texts that the tokens can spell; None if it is not needed or not regular.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokens = [*(tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)), b"<end of text>"]
        self.eos_token_id, self.bos_token_id = tokenizer.vocab_size, None
        self.special_token_ids = [*tokenizer.special.values(), tokenizer.vocab_size]
        special = set(self.special_token_ids)
        self.opens, closes = tokenizer.joints
        self.words = sorted(id for id in closes if self.opens and id not in special)
        self.spaced = {id: len(self.tokens) + index for index, id in enumerate(self.words)}
        self.tokens += [b" " + self.tokens[id] for id in self.words]
        self._ids = {text: id for id, text in enumerate(self.tokens) if text and id not in special}
        within = [id for id in range(tokenizer.vocab_size) if id not in special and id not in self.spaced]
        self._usable = [
            {self.tokens[number]: number for number in (*words, *within) if self.tokens[number]}
            for words in (self.words, self.spaced.values())
        ]  # tokens by their bytes, for words without and with a space before them
        self.complete = not self.spaced and all(bytes([byte]) in self._ids for byte in range(256))
        chars = "".join(f"\\u{{{ord(char):x}}}" for char in sorted(set(b"".join(self._ids).decode(errors="ignore"))))
        self.alphabet = None if self.complete or self.spaced else f"[{chars}]*" if chars else ""
        self._longest = max(map(len, self._ids), default=0)
        self._sorted = [sorted(usable) for usable in self._usable]
        # Ids with the same bytes share a group; special tokens have groups of their own. None: no ids share their bytes.
        groups, self._group = {text: index for index, text in enumerate(dict.fromkeys(self.tokens))}, None
        if len(groups) < len(self.tokens):
            own = range(len(groups), len(groups) + len(self.tokens))
            self._group = np.array([own[id] if id in special else groups[text] for id, text in enumerate(self.tokens)])
        self.bytes = frozenset(b"".join(self._ids))

    def joined(self, generated: Sequence[int], previous: int | None) -> Sequence[int]:
        """The ids as llguidance knows them: words after a space by their numbers in `spaced`."""
        if not self.spaced:
            return generated
        pairs = pairwise((previous, *generated))
        return [id if last not in self.opens else self.spaced.get(id, id) for last, id in pairs if id is not None]

    def alike(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """The mask extended to all ids with the same bytes: of several, llguidance allows only one."""
        if self._group is None:
            return mask
        allowed = np.zeros(2 * len(self.tokens), bool)
        allowed[self._group[mask]] = True
        extended: npt.NDArray[np.bool_] = allowed[self._group]
        return extended

    def spell(self, text: bytes, joined: bool) -> bool:
        """Whether some sequence of tokens spells the bytes. `joined`: the id before them puts a space before a word."""
        reached, pending = {(0, joined)}, [(0, joined)]
        while pending and not self.complete:
            start, joined = pending.pop()
            if start == len(text):
                return True
            for end in range(start + 1, min(len(text), start + self._longest) + 1):
                number = self._usable[joined].get(text[start:end])
                if number is not None:
                    id = number if number < self.eos_token_id else self.words[number - self.eos_token_id - 1]
                    state = (end, id in self.opens)
                    pending += [] if state in reached else [state]
                    reached.add(state)
        return self.complete

    def __call__(self, text: bytes) -> list[int]:
        """Greedy tokenization, up to the first byte without a token. The tokenizer itself would raise an error there."""
        ids, start = [], 0
        while start < len(text):
            ends = range(min(len(text), start + self._longest), start, -1)
            end = next((end for end in ends if text[start:end] in self._ids), None)
            if end is None:
                break
            ids.append(self._ids[text[start:end]])
            start = end
        return ids

    def spelling(self, start: bytes, joined: bool) -> tuple[list[int], list[int]]:
        """The longest token that spells the beginning of these bytes, and the tokens that begin with all of them.

        Args:
            joined: whether words come after a space.
        """
        usable = self._usable[joined]
        lengths = range(min(len(start), self._longest), 0, -1)
        exact = next(([usable[start[:end]]] for end in lengths if start[:end] in usable), [])
        texts, index, longer = self._sorted[joined], bisect_right(self._sorted[joined], start), list[int]()
        while index < len(texts) and texts[index].startswith(start):
            longer.append(usable[texts[index]])
            index += 1
        return exact, longer


def _literal(regex: str) -> str:
    """A regular expression as a terminal of a Lark grammar."""
    inner = re.sub(r"\\.|/", lambda match: r"\/" if match.group() == "/" else match.group(), regex, flags=re.DOTALL)
    return f"/{inner}/"


def _one_line(error: str) -> str:
    """An error message in one line."""
    return " ".join(error.split())[:300]
