"""Text generation for one or many prompts, as token ids or as text.

In reading order:

- `sampling`: from logits to a token: `process` blocks ids, `draw` samples one, `choose` does both.
- `processors`: a text that is being generated (`TokenSequence`); logits processors: rules about special ids, penalties.
- `logprobs`: what a loop returns, one `Event` per sampled token.
- `stream`: the token loop for one text, and how sequences start, which ids are valid and when they end (`DecodingRules`).
- `naive`: the same without a cache, the reference for all other loops.
- `engine`: continuous batching: many rows, which start and end at any step (`Engine`); `prefill`: chunked prefill and prefix
  caching.
- `speculative`: draft tokens, which the model verifies several at a time (`PromptLookup`, `DraftModel`).
- `beam`: beam search for the most probable texts (`beam_search`).
- `text`: the engine with a tokenizer: text in, pieces of text out (`complete`).
- `translate`: beam search with a tokenizer; `bleu`: scores of translations.

`reply(model, tokenizer, messages)` returns the next message of a conversation. Its prompt comes from
`chat_template(model, tokenizer)`.

`generate_text(model, tokenizer, prompt, max_tokens=100)` returns the text after one prompt. `complete` yields the pieces of
several texts as they come. `generate` and `stream` do the same with ids.
"""

from heddle.generate.beam import Hypothesis as Hypothesis
from heddle.generate.beam import beam_search as beam_search
from heddle.generate.bleu import TranslationScore as TranslationScore
from heddle.generate.bleu import score_translations as score_translations
from heddle.generate.chat import chat_template as chat_template
from heddle.generate.chat import reply as reply
from heddle.generate.engine import Engine as Engine
from heddle.generate.engine import QueueFull as QueueFull
from heddle.generate.engine import generate as generate
from heddle.generate.logprobs import Event as Event
from heddle.generate.naive import naive as naive
from heddle.generate.sampling import draw as draw
from heddle.generate.sampling import process as process
from heddle.generate.speculative import DraftModel as DraftModel
from heddle.generate.speculative import DraftSource as DraftSource
from heddle.generate.speculative import PromptLookup as PromptLookup
from heddle.generate.stream import stream as stream
from heddle.generate.text import Piece as Piece
from heddle.generate.text import complete as complete
from heddle.generate.text import generate_text as generate_text
from heddle.generate.translate import Translation as Translation
from heddle.generate.translate import translate as translate

__all__ = [
    "DraftModel",
    "DraftSource",
    "Engine",
    "Event",
    "Hypothesis",
    "Piece",
    "PromptLookup",
    "QueueFull",
    "Translation",
    "TranslationScore",
    "beam_search",
    "chat_template",
    "complete",
    "draw",
    "generate",
    "generate_text",
    "naive",
    "process",
    "reply",
    "score_translations",
    "stream",
    "translate",
]
