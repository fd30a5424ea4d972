"""Encoding records of text as token ids and class numbers."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np

from heddle.checks import checked
from heddle.config.chat_template import ChatTemplateConfig
from heddle.config.data import Labels
from heddle.data.batch import IGNORED
from heddle.data.records import WRITTEN, Column, Records, Rows
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


class Encoder:
    """Encodes records of text as rows of ids and labels.

    Args:
        tokenizer: the tokenizer of all texts.
        labels: kind of the labels.
        classes: names of the classes, in the order of their numbers.
        chat: how conversations become text, if records are conversations.

    Raises:
        HeddleError: conversations have no chat template, or the template does not mark the assistant's tokens.
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
        if labels == "roles":  # only conversations use the template, even if the model has one
            if chat is None:
                raise HeddleError(
                    "conversations need a chat template: give chat, such as heddle.config.ChatTemplateConfig()"
                )
            assert isinstance(tokenizer, Tokenizer)
            self.template = ChatTemplate.of(chat, tokenizer)
            self.template.check()

    def rows(self, examples: Sequence[Example]) -> Rows:
        """Encode each field of the records.

        Raises:
            HeddleError: a label is not one of the classes, or the tokenizer cannot encode some text.
        """
        if self.template is not None:
            return self._conversations(examples, self.template)
        rows: Rows = {}
        for field in examples[0].texts:
            texts = [example.texts[field] for example in examples]
            if self.labels == "tokens" and field == "text":
                tagged = self._tagged(examples)
                rows[field], rows[LABEL] = [ids for ids, _ in tagged], [labels for _, labels in tagged]
            else:
                rows[field] = [*self._encode([str(text) for text in texts])]
        if self.labels != "tokens" and examples[0].label is not None:
            rows[LABEL] = [self._labels(example) for example in examples]
        return rows

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(ids) for ids in self.tokenizer.encode_batch(texts)]

    def _labels(self, example: Example) -> list[int | float]:
        """A record's number, or its class numbers in ascending order."""
        if self.labels == "numbers":
            return [as_number(example)]
        labels = example.label if isinstance(example.label, tuple) else (str(example.label),)
        return sorted(self._class(label, example) for label in labels)

    def _class(self, label: str, example: Example) -> int:
        if label not in self.classes:
            names = ", ".join(list(self.classes)[:8]) + (", …" if len(self.classes) > 8 else "")
            raise HeddleError(f"{example.origin}: the label {label!r} is not in the training part, which has: {names}")
        return self.classes[label]

    def _conversations(self, examples: Sequence[Example], template: ChatTemplate) -> Rows:
        """The ids of conversations, the answer that each id belongs to, and the original messages."""
        rows: Rows = {MESSAGES: [], LABEL: [], WRITTEN: []}
        for example in examples:
            pairs = [[*pair] for pair in zip(example.label or (), example.texts[MESSAGES], strict=True)]
            try:
                conversation = template.conversation([{"role": role, "content": content} for role, content in pairs])
            except HeddleError as error:
                raise HeddleError(f"{example.origin}: {error}") from None
            rows[MESSAGES].append(conversation.ids)
            rows[LABEL].append(answer_numbers(conversation))
            rows[WRITTEN].append(json.dumps(pairs, ensure_ascii=False).encode())
        return rows

    def _tagged(self, examples: Sequence[Example]) -> list[tuple[list[int], list[int]]]:
        """Ids and labels of sentences: a word's label is at its first id that is not whitespace; its other ids are ignored."""
        encoded = []
        sentences = self.words([tuple(example.texts["text"]) for example in examples])
        for example, (ids, places) in zip(examples, sentences, strict=True):
            labels = [IGNORED] * len(ids)
            for place, label in zip(places, example.label or (), strict=True):
                if place is not None and label:
                    labels[place] = self._class(label, example)
            encoded.append((ids, labels))
        return encoded

    def words(self, sentences: Sequence[Sequence[str]]) -> list[tuple[list[int], list[int | None]]]:
        """The ids of each sentence, and each word's place among them: its first id that is not whitespace.

        The place of a word without ids is None.
        """
        encoded = []
        for word_ids in self._by_word(sentences):
            places: list[int | None] = []
            start = 0
            for ids in word_ids:
                visible = (place for place, id in enumerate(ids) if self.tokenizer.token_bytes(id).strip())
                places.append(start + next(visible, 0) if ids else None)
                start += len(ids)
            encoded.append((list(chain(*word_ids)), places))
        return encoded

    def _by_word(self, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """The ids of each sentence, by word; joined, they are the ids of the words with spaces between them."""
        flat = [f"{' ' if place else ''}{word}" for words in sentences for place, word in enumerate(words)]
        encoded = iter(self._encode(flat))
        by_word = [list(islice(encoded, len(words))) for words in sentences]
        joined = self._encode([" ".join(words) for words in sentences])
        for number, ids in enumerate(joined):
            if ids != list(chain(*by_word[number])):
                by_word[number] = self._by_beginnings(sentences[number], ids)
        return by_word

    def _by_beginnings(self, words: Sequence[str], ids: Sequence[int]) -> list[list[int]]:
        """The ids by word for a tokenizer that encodes a word differently on its own: a word's ids are those that it adds."""
        beginnings = self._encode([" ".join(words[: end + 1]) for end in range(len(words))])
        if any(list(ids[: len(prefix)]) != list(prefix) for prefix in beginnings):
            return self._encode(words)  # what follows a word changes its ids
        ends = [0, *map(len, beginnings)]
        return [list(ids[start:end]) for start, end in pairwise(ends)]


def answer_numbers(conversation: Conversation) -> list[int]:
    """For each id, the number of the answer that it belongs to, from 1, including the answer's end; 0 outside of answers.

    A negative number marks an answer that is not a target, since the tokenizer merges its beginning with the end of the prompt.
    """
    numbers = [0] * len(conversation.ids)
    for number, answer in enumerate(conversation.answers, start=1):
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
    """Encode records in memory.

    Args:
        examples: the records, such as those of `read_examples`; records with an empty text are left out.
        tokenizer: the tokenizer of all texts.
        labels: kind of the labels.
        classes: names of the classes, in the order of their numbers.
        chat: how conversations become text, if records are conversations.

    Raises:
        HeddleError: there are no records, or a label is not one of the classes.
    """
    encoder = Encoder(tokenizer, labels, classes, chat)
    rows: Rows = {}
    empty_count = 0

    def non_empty() -> Iterator[Example]:
        nonlocal empty_count
        for example in examples:
            empty_count += example.empty
            if not example.empty:
                yield example

    for batch in batches(non_empty()):
        for field, values in encoder.rows(batch).items():
            rows.setdefault(field, []).extend(values)
    if not rows:
        raise HeddleError("there are no records: all have an empty text")
    dtypes = dtypes_of(rows, tokenizer.vocab_size, labels)
    columns = {field: Column.of(values, dtypes[field]) for field, values in rows.items()}
    return Records(columns, tuple(classes), empty_count)


def batches(examples: Iterable[Example]) -> Iterator[list[Example]]:
    """Split records into lists of at most `BATCH`."""
    remaining = iter(examples)
    while batch := list(islice(remaining, BATCH)):
        yield batch


def dtypes_of(fields: Iterable[str], vocab_size: int, labels: Labels) -> dict[str, np.dtype[Any]]:
    """The type of each field's values."""
    fixed = {LABEL: LABEL_DTYPES[labels], WRITTEN: np.dtype("u1")}
    return {field: fixed.get(field) or id_dtype(vocab_size) for field in fields}
