"""Generation: from prompts to the tokens that follow them, several texts at once, as ids or as text.

In reading order:

- `sampling`: from logits to a token: `process` removes what may not be drawn, `draw` draws, `choose` does both.
- `stream`: the token loop over rows of different lengths (`Loop`), one `Event` per drawn token.
- `text`: the loop between a tokenizer's two ends: text in, pieces of text out (`complete`).

`generate_text(model, tokenizer, prompt, max_tokens=100)` returns the text after one prompt; `complete` yields the pieces of several
as they come; `generate` and `stream` do the same with ids.
"""

from heddle.generate.sampling import draw as draw
from heddle.generate.sampling import process as process
from heddle.generate.stream import Event as Event
from heddle.generate.stream import Loop as Loop
from heddle.generate.stream import evaluating as evaluating
from heddle.generate.stream import generate as generate
from heddle.generate.stream import stream as stream
from heddle.generate.text import Piece as Piece
from heddle.generate.text import complete as complete
from heddle.generate.text import generate_text as generate_text

__all__ = [
    "Event",
    "Loop",
    "Piece",
    "complete",
    "draw",
    "evaluating",
    "generate",
    "generate_text",
    "process",
    "stream",
]
