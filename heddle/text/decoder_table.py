"""How ids become text: a table from the `decoder` of a file, with the text of each id at the start and later on."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from heddle.errors import HeddleError
from heddle.text.file import Content, steps_of

BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class DecoderTable(NamedTuple):
    """The text of each id. The text of a sequence is `first` of its first id, then `later` of each next one, with a space
    between two neighbours if the left one is in `opens` and the right one in `closes`.

    Every supported decoder has this form, so text can be streamed without decoding anything twice.
    """

    first: Mapping[int, bytes]
    later: Mapping[int, bytes]
    opens: frozenset[int]
    closes: frozenset[int]


def read_decoder_table(content: Content, pieces: Mapping[int, str]) -> DecoderTable:
    """The table that the decoder of a file describes, for all its pieces, special ones included.

    Raises:
        HeddleError: an unknown step of the decoder, or one whose effect reaches beyond a neighbour.
    """
    steps = steps_of(content.get("decoder"), "decoders")
    texts = {i: (piece, piece) for i, piece in pieces.items()}  # as the first token, as a later one
    everywhere = frozenset(pieces)
    opens = closes = frozenset[int]()
    by_bytes = joined = False
    stripped: list[bytes] = []  # at the start of the text
    if not steps:  # then `tokenizers` joins with spaces
        opens = closes = everywhere
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(new)} if not joined:
                texts = {i: (a.replace(pattern, new), b.replace(pattern, new)) for i, (a, b) in texts.items()}
            case {"type": "ByteFallback"} if not joined:
                by_bytes = True
            case {"type": "Fuse"}:
                joined = True
            case {"type": "Strip", "content": str(mark), "start": 0 | 1 as start, "stop": 0} if joined:
                stripped += [mark.encode()] * start
            case {"type": "Metaspace", "replacement": str(mark)} if not joined:
                drops = step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True)
                texts = {
                    i: (a.replace(mark, "" if drops else " "), b.replace(mark, " ")) for i, (a, b) in texts.items()
                }
            case {"type": "WordPiece", "prefix": str(prefix)} if not joined:
                tidy = _clean_up if step.get("cleanup", True) else str
                texts = {
                    i: (tidy(a), tidy(b.removeprefix(prefix) if b.startswith(prefix) else f" {b}"))
                    for i, (a, b) in texts.items()
                }
            case {"type": "BPEDecoder", "suffix": str(suffix)} if not joined:
                opens, closes = frozenset(i for i, (_, b) in texts.items() if suffix and b.endswith(suffix)), everywhere
                texts = {i: (a.removesuffix(suffix), b.removesuffix(suffix)) for i, (a, b) in texts.items()}
            case _:
                raise HeddleError(f"its decoder has a step that heddle does not support: {step.get('type')!r}")
    to_bytes = _bytes if by_bytes else str.encode
    first = {i: to_bytes(a) for i, (a, _) in texts.items()}
    for prefix_bytes in stripped:  # from bytes, since a space may be the piece of its byte
        first = {i: a.removeprefix(prefix_bytes) for i, a in first.items()}
    return DecoderTable(first, {i: to_bytes(b) for i, (_, b) in texts.items()}, opens, closes)


def _bytes(piece: str) -> bytes:
    """The bytes of a piece: `<0xE2>` is one byte; anything else is text."""
    match = BYTE_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else piece.encode()


def _clean_up(piece: str) -> str:
    """Remove spaces before punctuation and English contractions, token by token: the library's "cleanup"."""
    for loose in (" .", " ?", " !", " ,", " n't", " 'm", " 's", " 've", " 're"):
        piece = piece.replace(loose, loose[1:])
        if loose == " ,":
            piece = piece.replace(" ' ", "'")
    return piece.replace(" do not", " don't")
