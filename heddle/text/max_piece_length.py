"""A bound on the length of a piece.

A text without whitespace, or of whitespace alone, would be a single piece, and learning merges takes time quadratic in the length
of a piece. The bound is a separate step in the file, so every reader splits text the same way.
"""

import re

import tokenizers
from tokenizers import pre_tokenizers

from heddle.text.file import Content

LONGEST = 256
"""Maximum characters of a stretch without whitespace, or of whitespace alone; longer stretches are split."""

_PATTERN = rf"\S{{{LONGEST}}}|\s{{{LONGEST}}}"
BOUND: Content = {"type": "Split", "pattern": {"Regex": _PATTERN}, "behavior": "Isolated", "invert": False}

# The characters that `\s` matches in `tokenizers`, written for Python, whose `\s` and `isspace` include four control characters.
BLANK = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_CONTROLS = "\x1c\x1d\x1e\x1f"
_STRETCH = re.compile(f"[^{BLANK}]{{1,{LONGEST}}}+|[{BLANK}]{{1,{LONGEST}}}+")


def max_piece_length() -> pre_tokenizers.PreTokenizer:
    """`BOUND` as a pre-tokenizer."""
    return pre_tokenizers.Split(tokenizers.Regex(_PATTERN), "isolated")


def stretches(text: str) -> list[str]:
    """The text, split as `BOUND` splits it; joined, the parts are the text."""
    if not _may_be_long(text):
        return [text] if text else []
    parts, start = [], 0
    for stretch in _STRETCH.finditer(text):
        if stretch.end() - stretch.start() == LONGEST:
            parts += [text[start : stretch.start()], stretch.group()]
            start = stretch.end()
    return [piece for piece in (*parts, text[start:]) if piece]


def _may_be_long(text: str) -> bool:
    """Whether a stretch may reach the bound; fast when none does."""
    if len(text) < LONGEST:
        return False
    half = LONGEST // 2  # a long stretch of whitespace covers one of these windows
    if any(text[i : i + half].isspace() for i in range(0, len(text) - half + 1, half)):
        return True
    return max(map(len, text.split()), default=0) >= LONGEST or any(control in text for control in _CONTROLS)
