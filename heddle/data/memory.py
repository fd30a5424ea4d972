"""Text parts in memory, in the form that `store` keeps on disk."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from heddle.checks import checked
from heddle.data.corpus import Part
from heddle.data.sources.documents import Document
from heddle.data.token_writer import Tokenizes, first_bytes
from heddle.errors import HeddleError

EncodedDocument = tuple[Sequence[int], int, int, int]
"""A document's ids, the UTF-8 bytes of its text, its characters, and the bytes that its first token covers."""


@checked()
def part_of(documents: Iterable[Document], tokenizer: Tokenizes) -> Part:
    """A part in memory: whole documents, separated by the end-of-text id if the tokenizer has one.

    Raises:
        HeddleError: there are fewer than two tokens, hence no target; or the tokenizer cannot encode some text.
    """

    def encoded() -> Iterator[EncodedDocument]:
        for document in documents:
            (ids,) = tokenizer.encode_batch([document.text])
            first = first_bytes(tokenizer.token_bytes(ids[0]), document.text) if ids else 0
            yield ids, len(document.text.encode()), len(document.text), first

    return part_of_encoded(encoded(), tokenizer.end_of_text)


def part_of_encoded(documents: Iterable[EncodedDocument], separator: int | None) -> Part:
    """A part in memory from encoded documents.

    Raises:
        HeddleError: there are fewer than two tokens, hence no target.
    """
    ids: list[npt.NDArray[Any]] = []
    starts, firsts, sizes, characters = [0], list[int](), list[int](), 0
    for document, size, length, first in documents:
        if sizes and separator is not None:
            ids[-1] = np.append(ids[-1], np.uint32(separator))
            starts[-1] += 1
        ids.append(np.array(document, dtype=np.uint32))
        starts.append(starts[-1] + len(document))
        firsts.append(first)
        sizes.append(size)
        characters += length
    tokens = np.concatenate([np.empty(0, dtype=np.uint32), *ids])
    if len(tokens) < 2:
        raise HeddleError(f"the text has {len(tokens)} token(s); it needs at least 2, one to read and one to predict")
    covered = np.array(sizes) - np.array(firsts)
    return Part(tokens, sum(sizes), len(sizes), firsts[0], np.array(starts), covered, separator, characters)
