"""From records of text to ids and the numbers of classes."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np

from heddle.checks import checked
from heddle.config.chat_template import ChatTemplateConfig
from heddle.config.data import Labels
from heddle.data.batch import IGNORED
from heddle.data.records import WRITTEN, Column, Records
from heddle.data.sources.examples import LABEL, MESSAGES, Example, as_number
from heddle.data.store import id_dtype
from heddle.data.token_writer import Tokenizes
from heddle.errors import HeddleError
from heddle.text.chat_template import ChatTemplate, Conversation
from heddle.text.processes import Encodes
from heddle.text.tokenizer import Tokenizer

BATCH = 4096  # records to tokenise at once
LABEL_DTYPES: dict[Labels, np.dtype[Any]] = {
    "classes": np.dtype("<i4"),
    "several": np.dtype("<i4"),
    "tokens": np.dtype("<i4"),
    "numbers": np.dtype("<f8"),
    "roles": np.dtype("<i4"),
}

Rows = dict[str, list[Sequence[Any]]]


class Encoder:
    """Records of text to rows of ids and labels.

    Args:
        tokenizer: the tokenizer of all texts.
        labels: what the labels are.
        classes: names of the classes, in the order of their numbers.
        chat: how conversations become text, if records are conversations.

    Raises:
        HeddleError: there is no chat template for conversations, or it does not show which tokens are the assistant's.
    """

    def __init__(
        self,
        tokenizer: Encodes,
        labels: Labels = "classes",
        classes: Sequence[str] = (),
        chat: ChatTemplateConfig | None = None,
    ) -> None:
        self.tokenizer, self.labels = tokenizer, labels
        self.classes = {name: number for number, name in enumerate(classes)}
        self.template: ChatTemplate | None = None
        if labels == "roles":  # other records are no conversations, whatever template their model has
            if chat is None:
                raise HeddleError(
                    "conversations need a chat template: give chat, such as heddle.config.ChatTemplateConfig()"
                )
            assert isinstance(tokenizer, Tokenizer)
            self.template = ChatTemplate.of(chat, tokenizer)
            self.template.check()

    def rows(self, examples: Sequence[Example]) -> Rows:
        """Each field of the records as rows.

        Raises:
            HeddleError: a label is not one of the classes, or the tokenizer does not know some text.
        """
        if self.template is not None:
            return self._conversations(examples, self.template)
        found: Rows = {}
        for field in examples[0].texts:
            texts = [example.texts[field] for example in examples]
            if self.labels == "tokens" and field == "text":
                tagged = self._tagged(examples)
                found[field], found[LABEL] = [ids for ids, _ in tagged], [labels for _, labels in tagged]
            else:
                found[field] = [*self._encode([str(text) for text in texts])]
        if self.labels != "tokens" and examples[0].label is not None:
            found[LABEL] = [self._labels(example) for example in examples]
        return found

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts, as lists."""
        return [list(ids) for ids in self.tokenizer.encode_batch(texts)]

    def _labels(self, example: Example) -> list[int | float]:
        """A record's number, or its classes in order."""
        if self.labels == "numbers":
            return [as_number(example)]
        labels = example.label if isinstance(example.label, tuple) else (str(example.label),)
        return sorted(self._class(label, example) for label in labels)

    def _class(self, label: str, example: Example) -> int:
        if label not in self.classes:
            known = ", ".join(list(self.classes)[:8]) + (", …" if len(self.classes) > 8 else "")
            raise HeddleError(f"{example.origin}: the label {label!r} is none of the training part's: {known}")
        return self.classes[label]

    def _conversations(self, examples: Sequence[Example], template: ChatTemplate) -> Rows:
        """The ids of conversations, which answer each belongs to, and the messages as they were written."""
        found: Rows = {MESSAGES: [], LABEL: [], WRITTEN: []}
        for example in examples:
            pairs = [[*pair] for pair in zip(example.label or (), example.texts[MESSAGES], strict=True)]
            try:
                read = template.conversation([{"role": role, "content": content} for role, content in pairs])
            except HeddleError as error:
                raise HeddleError(f"{example.origin}: {error}") from None
            found[MESSAGES].append(read.ids)
            found[LABEL].append(answer_numbers(read))
            found[WRITTEN].append(json.dumps(pairs, ensure_ascii=False).encode())
        return found

    def _tagged(self, examples: Sequence[Example]) -> list[tuple[list[int], list[int]]]:
        """Ids and labels of sentences: a word's label is at its first id that is no blank, its other ids have none."""
        found = []
        sentences = self.words([tuple(example.texts["text"]) for example in examples])
        for example, (ids, places) in zip(examples, sentences, strict=True):
            labels = [IGNORED] * len(ids)
            for place, label in zip(places, example.label or (), strict=True):
                if place is not None and label:
                    labels[place] = self._class(label, example)
            found.append((ids, labels))
        return found

    def words(self, sentences: Sequence[Sequence[str]]) -> list[tuple[list[int], list[int | None]]]:
        """The ids of each sentence, and the place among them that is each word's: its first id that is no blank.

        A word without ids has none.
        """
        found = []
        for parts in self._by_word(sentences):
            places: list[int | None] = []
            start = 0
            for ids in parts:
                seen = (place for place, id in enumerate(ids) if self.tokenizer.token_bytes(id).strip())
                places.append(start + next(seen, 0) if ids else None)
                start += len(ids)
            found.append((list(chain(*parts)), places))
        return found

    def _by_word(self, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """The ids of each sentence, by word: together those of the words with blanks between them."""
        flat = [f"{' ' if place else ''}{word}" for words in sentences for place, word in enumerate(words)]
        encoded = iter(self._encode(flat))
        found = [list(islice(encoded, len(words))) for words in sentences]
        whole = self._encode([" ".join(words) for words in sentences])
        for number, ids in enumerate(whole):
            if ids != list(chain(*found[number])):
                found[number] = self._by_beginnings(sentences[number], ids)
        return found

    def _by_beginnings(self, words: Sequence[str], ids: Sequence[int]) -> list[list[int]]:
        """The ids by word for a tokenizer that encodes a word alone in another way: each word adds the ids that it adds."""
        beginnings = self._encode([" ".join(words[: end + 1]) for end in range(len(words))])
        if any(list(ids[: len(each)]) != list(each) for each in beginnings):
            return self._encode(words)  # what follows a word changes its ids
        ends = [0, *map(len, beginnings)]
        return [list(ids[start:end]) for start, end in pairwise(ends)]


def answer_numbers(read: Conversation) -> list[int]:
    """For each id, the number of the answer that it belongs to, from 1, with its end; 0: to none.

    Negative: the answer is no target, since the tokenizer joins its beginning with the end of what generation is prompted with.
    """
    numbers = [0] * len(read.ids)
    for number, answer in enumerate(read.answers, start=1):
        start = min(answer.start, answer.stop)
        numbers[start : answer.stop] = [number if answer.matches_prompt else -number] * (answer.stop - start)
    return numbers


@checked()
def records_of(
    examples: Iterable[Example],
    tokenizer: Tokenizes,
    labels: Labels = "classes",
    classes: Sequence[str] = (),
    chat: ChatTemplateConfig | None = None,
) -> Records:
    """Records in memory.

    Args:
        examples: the records, such as `read_examples` reads; those with an empty text are left out.
        tokenizer: the tokenizer of all texts.
        labels: what the labels are.
        classes: names of the classes, in the order of their numbers.
        chat: how conversations become text, if records are conversations.

    Raises:
        HeddleError: there is no record, or a label is not one of the classes.
    """
    encoder = Encoder(tokenizer, labels, classes, chat)
    rows: Rows = {}
    blank = 0

    def written() -> Iterator[Example]:
        nonlocal blank
        for example in examples:
            blank += example.empty
            if not example.empty:
                yield example

    for batch in batches(written()):
        for field, found in encoder.rows(batch).items():
            rows.setdefault(field, []).extend(found)
    if not rows:
        raise HeddleError("there are no records: every one has an empty text")
    dtypes = dtypes_of(rows, tokenizer.vocab_size, labels)
    columns = {field: Column.of(found, dtypes[field]) for field, found in rows.items()}
    return Records(columns, tuple(classes), blank)


def batches(examples: Iterable[Example]) -> Iterator[list[Example]]:
    """Records in lists of `BATCH`."""
    left = iter(examples)
    while batch := list(islice(left, BATCH)):
        yield batch


def dtypes_of(fields: Iterable[str], vocab_size: int, labels: Labels) -> dict[str, np.dtype[Any]]:
    """The type of each field's values."""
    others = {LABEL: LABEL_DTYPES[labels], WRITTEN: np.dtype("u1")}
    return {field: others.get(field) or id_dtype(vocab_size) for field in fields}
