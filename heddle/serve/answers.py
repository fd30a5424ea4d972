"""The documents of OpenAI's API: choices, log probabilities, usage, embeddings."""

import base64
import codecs
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from heddle.generate.logprobs import Event
from heddle.generate.text import token_text
from heddle.serve.served import Prompt, ServedModel, size
from heddle.text.tokenizer import Tokenizer

REASONS = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}


class ByteDecoder:
    """Decodes tokens to bytes one after another, and counts where the text of each begins.

    Args:
        tokenizer: the model's.
        previous: the id before the first token; None: there is none.
        start: the offset of the first token's text.
        bos_prefix: ids without text at the beginning: a tokenizer puts them before a text, or a model is forced to begin with them.
    """

    def __init__(
        self, tokenizer: Tokenizer, previous: int | None = None, start: int = 0, bos_prefix: Sequence[int] = ()
    ) -> None:
        self.tokenizer, self.previous, self.offset, self.bos_prefix = tokenizer, previous, start, set(bos_prefix)
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, id: int, logprob: float = 0.0, top: Sequence[tuple[int, float]] = ()) -> "DecodedToken":
        """Decode the next token and the alternatives to it."""
        if self.previous is None and id in self.bos_prefix:
            self.bos_prefix.discard(id)
            return DecodedToken(id, b"", logprob, (), self.offset)
        raw = self._bytes(id)
        alternatives = tuple(Alternative(other, self._bytes(other), score) for other, score in top)
        self.previous = id
        if raw and not 0x80 <= raw[0] < 0xC0:  # begins a character, so the one before it will never be complete
            self.offset += len(self._characters.decode(b"", final=True))
        offset = self.offset
        self.offset += len(self._characters.decode(raw))
        return DecodedToken(id, raw, logprob, alternatives, offset)

    def _bytes(self, id: int) -> bytes:
        # A model may have more ids than its tokenizer. They are never sampled, but may be alternatives, or in a prompt of ids.
        known = id < self.tokenizer.vocab_size
        return self.tokenizer.after(self.previous, id) if known else token_text(self.tokenizer, id).encode()


class Alternative(NamedTuple):
    """A token that could have been sampled: its id, the bytes that it adds, and the natural log of its probability."""

    id: int
    raw: bytes
    logprob: float


@dataclass(frozen=True)
class DecodedToken:
    """A token of an answer.

    Attributes:
        id: its id.
        raw: the bytes that it adds to the text. They may be part of a character.
        logprob: natural log of its probability.
        alternatives: the most probable tokens at its position.
        offset: number of characters before it.
    """

    id: int
    raw: bytes
    logprob: float
    alternatives: tuple[Alternative, ...]
    offset: int

    def names(self) -> dict[int, str]:
        """A unique name for this id and for each alternative: the keys of the `top_logprobs` of a completion.

        A name is the token's text. Part of a character is written as OpenAI does, as `bytes:` with an escape for each byte. Ids
        that would still share a name, such as special tokens without text, become `token_id:` with the number.
        """
        tokens = {self.id: self.raw, **{other.id: other.raw for other in self.alternatives}}
        names = {id: _name(raw) for id, raw in tokens.items()}
        counts = Counter(names.values())
        return {id: name if counts[name] == 1 else f"token_id:{id}" for id, name in names.items()}


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of ids."""
    decoder = ByteDecoder(tokenizer)
    return _text(b"".join(decoder.push(id).raw for id in ids))


@dataclass
class Choice:
    """One text of an answer, as far as it is generated.

    Attributes:
        index: its index among the choices.
        prompt: ids of its prompt.
        decoder: decodes its tokens.
        text: its text so far.
        tokens: its tokens so far.
        prompt_tokens: the prompt's tokens with their log probabilities, if requested.
        finish: OpenAI's finish reason.
    """

    index: int
    prompt: Sequence[int]
    decoder: ByteDecoder
    text: str = ""
    tokens: list[DecodedToken] = field(default_factory=list)
    prompt_tokens: tuple[Event, ...] = ()
    finish: str | None = None

    @classmethod
    def start(cls, index: int, prompt: Sequence[int], served: ServedModel, offset: int = 0) -> "Choice":
        """An empty text after a prompt. `offset` is the position of its first character in the answer."""
        return cls(index, prompt, ByteDecoder(served.tokenizer, prompt[-1] if prompt else None, offset, served.forced))

    def add(self, event: Event) -> None:
        """Append a token and its text."""
        self.text += event.text
        self.tokens.append(self.decoder.push(event.token, event.logprob, event.top))
        self.prompt_tokens = event.prompt or self.prompt_tokens
        self.finish = None if event.finish is None else REASONS[event.finish]


def usage(prompts: Sequence[Prompt], choices: Sequence[Choice]) -> dict[str, int]:
    """The numbers of prompt tokens, including sources, and of generated tokens."""
    prompt_tokens, generated = sum(map(size, prompts)), sum(len(choice.tokens) for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": prompt_tokens + generated,
    }


def completion_logprobs(
    tokens: Sequence[DecodedToken], alternatives: int | None, first: DecodedToken | None = None
) -> dict[str, Any] | None:
    """The `logprobs` of a completion.

    Args:
        tokens: the tokens.
        alternatives: number of alternatives to each; None: no log probabilities at all.
        first: the first token of an echoed prompt, if any. Nothing predicted it, so its entries are null.
    """
    if alternatives is None:
        return None
    nulls, all_tokens = [None] if first else [], [first, *tokens] if first else tokens
    names = [token.names() for token in all_tokens]
    tables = [
        {name[other.id]: other.logprob for other in token.alternatives}
        for token, name in zip(all_tokens, names, strict=True)
    ]
    return {
        "tokens": [name[token.id] for token, name in zip(all_tokens, names, strict=True)],
        "token_logprobs": [*nulls, *(token.logprob for token in tokens)],
        "top_logprobs": [*nulls, *tables[len(nulls) :]] if alternatives else None,
        "text_offset": [token.offset for token in all_tokens],
    }


def chat_logprobs(tokens: Sequence[DecodedToken], requested: bool) -> dict[str, Any] | None:
    """The `logprobs` of a chat message."""
    if not requested:
        return None

    def entry(raw: bytes, logprob: float) -> dict[str, Any]:
        return {"token": _text(raw), "logprob": logprob, "bytes": list(raw)}

    return {
        "content": [
            {
                **entry(token.raw, token.logprob),
                "top_logprobs": [entry(other.raw, other.logprob) for other in token.alternatives],
            }
            for token in tokens
        ],
        "refusal": None,
    }


def _name(raw: bytes) -> str:
    """A token's text, or its escaped bytes if they are part of a character."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def embeddings(vectors: Sequence[tuple[npt.NDArray[np.float32], bool, int]], encoding: str) -> list[dict[str, Any]]:
    """Vectors as lists, or as `base64` of little-endian fp32. `cut` says whether the text was truncated."""
    as_base64 = encoding == "base64"
    rows = [
        base64.b64encode(row.astype("<f4").tobytes()).decode() if as_base64 else row.tolist() for row, *_ in vectors
    ]
    return [
        {"object": "embedding", "index": index, "embedding": row, "cut": cut}
        for index, (row, (_, cut, _)) in enumerate(zip(rows, vectors, strict=True))
    ]
