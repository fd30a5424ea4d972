"""Answers in the shape of OpenAI's API, from the parts of texts."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from heddle.generate.drawn import Drawn
from heddle.generate.text import spelled
from heddle.serve.served import Prompt, size
from heddle.serve.worker import Part
from heddle.text.tokenizer import Tokenizer

REASONS = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}


@dataclass
class Choice:
    """One text as it grows.

    Attributes:
        index: its number among the choices.
        prompt: ids of its prompt.
        text: its text so far.
        tokens: what was drawn.
        heard: the prompt's tokens with their probabilities, if asked for.
        finish: why it ended, in OpenAI's words.
    """

    index: int
    prompt: Sequence[int]
    text: str = ""
    tokens: list[Drawn] = field(default_factory=list)
    heard: tuple[Drawn, ...] = ()
    finish: str | None = None

    def add(self, part: Part) -> None:
        """Append a part."""
        self.text += part.text
        self.tokens.append(part.token)
        self.heard = part.prompt or self.heard
        self.finish = None if part.finish is None else REASONS[part.finish]


def usage(prompts: Sequence[Prompt], choices: Sequence[Choice]) -> dict[str, int]:
    """How many tokens were read, sources included, and drawn."""
    read, drawn = sum(map(size, prompts)), sum(len(choice.tokens) for choice in choices)
    return {"prompt_tokens": read, "completion_tokens": drawn, "total_tokens": read + drawn}


def completion_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[Drawn], wanted: int | None, prompt: Sequence[int] = (), start: int = 0
) -> dict[str, Any] | None:
    """Log probabilities of a completion.

    The first token of a prompt was predicted by nothing, so its entries are null. `tokens[0]` follows it, if there is a prompt.

    Args:
        tokenizer: the model's.
        tokens: the tokens.
        wanted: how many alternatives of each; None: no log probabilities at all.
        prompt: the first id of an echoed prompt, if any.
        start: offset of the first token's text.
    """
    if wanted is None:
        return None
    written = [tokenizer.decode([id]) for id in (*prompt[:1], *(each.id for each in tokens))]
    offsets, end = [], start
    for text in written:
        offsets.append(end)
        end += len(text)
    first: list[Any] = [None] * len(prompt[:1])
    return {
        "tokens": written,
        "token_logprobs": [*first, *(each.logprob for each in tokens)],
        "top_logprobs": [*first, *(_table(tokenizer, each) for each in tokens)] if wanted else None,
        "text_offset": offsets,
    }


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[Drawn], wanted: bool) -> dict[str, Any] | None:
    """Log probabilities of a message."""
    if not wanted:
        return None

    def entry(id: int, logprob: float) -> dict[str, Any]:
        text = _text(tokenizer, id)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    return {
        "content": [
            {**entry(each.id, each.logprob), "top_logprobs": [entry(*pair) for pair in each.top]} for each in tokens
        ],
        "refusal": None,
    }


def _table(tokenizer: Tokenizer, drawn: Drawn) -> dict[str, float]:
    """The alternatives by their text. Of two ids with one text, the more probable one is shown."""
    table: dict[str, float] = {}
    for id, logprob in drawn.top:
        table.setdefault(_text(tokenizer, id), logprob)
    return table


def _text(tokenizer: Tokenizer, id: int) -> str:
    """The text of an id. A model may have more than its tokenizer: they are never drawn, but may be among the most probable."""
    return tokenizer.decode([id]) if id < tokenizer.vocab_size else spelled(tokenizer, id)


def embeddings(found: Sequence[tuple[npt.NDArray[np.float32], bool]], encoding: str) -> list[dict[str, Any]]:
    """Vectors as numbers, or as `base64` of fp32 in little-endian order; `cut` says whether the text lost its end."""
    packed = encoding == "base64"
    rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() if packed else row.tolist() for row, _ in found]
    return [
        {"object": "embedding", "index": index, "embedding": row, "cut": cut}
        for index, (row, (_, cut)) in enumerate(zip(rows, found, strict=True))
    ]
