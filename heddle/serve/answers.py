"""Answers in the shape of OpenAI's API, from the parts of texts."""

import base64
import codecs
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from heddle.generate.logprobs import SampledToken
from heddle.generate.text import spelled
from heddle.serve.served import Prompt, ServedModel, size
from heddle.serve.worker import Chunk
from heddle.text.tokenizer import Tokenizer

REASONS = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}


class ByteDecoder:
    """Bytes of ids one after another, and where the text of each begins.

    Args:
        tokenizer: the model's.
        previous: the id before the first one; None: there is none.
        start: the place of the first one's text.
        silent: ids that add nothing where they come first, since a tokenizer puts them before a text or a model must.
    """

    def __init__(
        self, tokenizer: Tokenizer, previous: int | None = None, start: int = 0, silent: Sequence[int] = ()
    ) -> None:
        self.tokenizer, self.previous, self.place, self.bos_prefix = tokenizer, previous, start, set(silent)
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, drawn: SampledToken) -> "DecodedToken":
        """How a drawn id is spelled here, and the alternatives to it."""
        if self.previous is None and drawn.id in self.bos_prefix:
            self.bos_prefix.discard(drawn.id)
            return DecodedToken(drawn.id, b"", drawn.logprob, (), self.place)
        added = self._bytes(drawn.id)
        others = tuple(Alternative(id, self._bytes(id), logprob) for id, logprob in drawn.top)
        self.previous = drawn.id
        if added and not 0x80 <= added[0] < 0xC0:  # a byte that begins a character, so one before it stays unfinished
            self.place += len(self._characters.decode(b"", final=True))
        place = self.place
        self.place += len(self._characters.decode(added))
        return DecodedToken(drawn.id, added, drawn.logprob, others, place)

    def _bytes(self, id: int) -> bytes:
        # A model may have more ids than its tokenizer: they are never drawn, but may be among the most probable, or in a prompt.
        known = id < self.tokenizer.vocab_size
        return self.tokenizer.after(self.previous, id) if known else spelled(self.tokenizer, id).encode()


class Alternative(NamedTuple):
    """An id that could have been drawn: the bytes that it adds, and the natural log of its probability."""

    id: int
    added: bytes
    logprob: float


@dataclass(frozen=True)
class DecodedToken:
    """A token of an answer.

    Attributes:
        id: its id.
        added: the bytes that it adds to the text, which may be part of a character.
        logprob: natural log of its probability.
        others: the most probable ids in its place.
        place: how many characters come before it.
    """

    id: int
    added: bytes
    logprob: float
    others: tuple[Alternative, ...]
    place: int

    def names(self) -> dict[int, str]:
        """A name for this id and for each alternative, no two alike, as completions need for their tables.

        A name is the token's text. Part of a character is written in OpenAI's way, as `bytes:` and an escape for each byte,
        and ids that would still share a name, as special tokens without text do, as `token_id:` and the number.
        """
        added = {self.id: self.added, **{other.id: other.added for other in self.others}}
        names = {id: _name(each) for id, each in added.items()}
        shared = Counter(names.values())
        return {id: name if shared[name] == 1 else f"token_id:{id}" for id, name in names.items()}


def spell(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of ids."""
    spelling = ByteDecoder(tokenizer)
    return _text(b"".join(spelling.push(SampledToken(id, 0.0)).added for id in ids))


@dataclass
class Choice:
    """One text as it grows.

    Attributes:
        index: its number among the choices.
        prompt: ids of its prompt.
        spelling: of its tokens.
        text: its text so far.
        tokens: what was drawn.
        heard: the prompt's tokens with their probabilities, if asked for.
        finish: why it ended, in OpenAI's words.
    """

    index: int
    prompt: Sequence[int]
    spelling: ByteDecoder
    text: str = ""
    tokens: list[DecodedToken] = field(default_factory=list)
    heard: tuple[SampledToken, ...] = ()
    finish: str | None = None

    @classmethod
    def start(cls, index: int, prompt: Sequence[int], served: ServedModel, place: int = 0) -> "Choice":
        """A text that follows a prompt, and whose own first character is at this place in the answer."""
        return cls(index, prompt, ByteDecoder(served.tokenizer, prompt[-1] if prompt else None, place, served.forced))

    def add(self, part: Chunk) -> None:
        """Append a part."""
        self.text += part.text
        self.tokens.append(self.spelling.push(part.token))
        self.heard = part.prompt or self.heard
        self.finish = None if part.finish is None else REASONS[part.finish]


def usage(prompts: Sequence[Prompt], choices: Sequence[Choice]) -> dict[str, int]:
    """How many tokens were read, sources included, and drawn."""
    read, drawn = sum(map(size, prompts)), sum(len(choice.tokens) for choice in choices)
    return {"prompt_tokens": read, "completion_tokens": drawn, "total_tokens": read + drawn}


def completion_logprobs(
    tokens: Sequence[DecodedToken], wanted: int | None, first: DecodedToken | None = None
) -> dict[str, Any] | None:
    """Log probabilities of a completion.

    Args:
        tokens: the tokens.
        wanted: how many alternatives of each; None: no log probabilities at all.
        first: the first token of an echoed prompt, if any. Nothing predicted it, so its entries are null.
    """
    if wanted is None:
        return None
    unpredicted, every = [None] if first else [], [first, *tokens] if first else tokens
    names = [each.names() for each in every]
    tables = [{name[other.id]: other.logprob for other in each.others} for each, name in zip(every, names, strict=True)]
    return {
        "tokens": [name[each.id] for each, name in zip(every, names, strict=True)],
        "token_logprobs": [*unpredicted, *(each.logprob for each in tokens)],
        "top_logprobs": [*unpredicted, *tables[len(unpredicted) :]] if wanted else None,
        "text_offset": [each.place for each in every],
    }


def chat_logprobs(tokens: Sequence[DecodedToken], wanted: bool) -> dict[str, Any] | None:
    """Log probabilities of a message."""
    if not wanted:
        return None

    def entry(added: bytes, logprob: float) -> dict[str, Any]:
        return {"token": _text(added), "logprob": logprob, "bytes": list(added)}

    return {
        "content": [
            {
                **entry(each.added, each.logprob),
                "top_logprobs": [entry(other.added, other.logprob) for other in each.others],
            }
            for each in tokens
        ],
        "refusal": None,
    }


def _name(added: bytes) -> str:
    """A token's text, or its bytes where they are part of a character."""
    try:
        return added.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in added)


def _text(added: bytes) -> str:
    return added.decode(errors="replace")


def embeddings(found: Sequence[tuple[npt.NDArray[np.float32], bool, int]], encoding: str) -> list[dict[str, Any]]:
    """Vectors as numbers, or as `base64` of fp32 in little-endian order; `cut` says whether the text lost its end."""
    packed = encoding == "base64"
    rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() if packed else row.tolist() for row, *_ in found]
    return [
        {"object": "embedding", "index": index, "embedding": row, "cut": cut}
        for index, (row, (_, cut, _)) in enumerate(zip(rows, found, strict=True))
    ]
