"""From a prompt to what follows it: token by token, several texts at once, as ids or as text."""

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
