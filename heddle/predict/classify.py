"""Classification of texts, pairs of texts and words, with probabilities; and regression."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heddle.checks import between, checked
from heddle.config.model import ClassifierHeadConfig, TransformerConfig
from heddle.data.encode import Encoder
from heddle.data.sources.values import split_words
from heddle.display import displayed
from heddle.errors import HeddleError, TextError
from heddle.model.transformer import Transformer
from heddle.predict.rows import (
    InputRow,
    Progress,
    check_text,
    evaluation,
    forward_batches,
    frame_for,
    frame_rows,
    is_blank,
    predict_nonempty,
)
from heddle.text.tokenizer import Tokenizer


@displayed(".probabilities")
@dataclass(frozen=True, slots=True)
class TextClass:
    """The class of a text, or of a pair of texts.

    Attributes:
        label: the name of the most probable class, or its number if the model has no names.
        probability: the probability of that class.
        probabilities: the probability of every class, by name.
        cut: whether the text was truncated to fit the context.
    """

    label: str
    probability: float
    probabilities: Mapping[str, float]
    cut: bool


@displayed(".probabilities")
@dataclass(frozen=True, slots=True)
class TextLabels:
    """The labels of a text, or of a pair of texts: any number of them.

    Attributes:
        labels: names of the labels whose probability is above the threshold, in the model's order; numbers if it has no names.
        probabilities: the probability of every label, by name. They are independent, so they do not add up to 1.
        cut: whether the text was truncated to fit the context.
    """

    labels: tuple[str, ...]
    probabilities: Mapping[str, float]
    cut: bool


@displayed(".probabilities")
@dataclass(frozen=True, slots=True)
class WordClass:
    """The class of a word.

    Attributes:
        word: the word.
        label: the name of the most probable class; None if the word was truncated or the tokenizer has no id for it.
        probability: the probability of that class, or None.
        probabilities: the probability of every class, by name; empty without a label.
    """

    word: str
    label: str | None
    probability: float | None
    probabilities: Mapping[str, float]


@displayed(".words")
@dataclass(frozen=True, slots=True)
class WordClasses:
    """The classes of a text's words.

    Attributes:
        words: the words, in order.
        cut: whether the text was truncated to fit the context.
    """

    words: tuple[WordClass, ...]
    cut: bool


@displayed()
@dataclass(frozen=True, slots=True)
class TextNumber:
    """The number of a text, or of a pair of texts, in the unit of the labels.

    Attributes:
        number: the number.
        cut: whether the text was truncated to fit the context.
    """

    number: float
    cut: bool


Prediction = TextClass | TextLabels | WordClasses | TextNumber


@checked(threshold=between(0, 1))
def classify(
    model: Transformer,
    tokenizer: Tokenizer,
    texts: Sequence[Any],
    progress: Progress | None = None,
    threshold: float | None = None,
) -> list[Prediction | None]:
    """Predict the class or the labels of each text or pair, the class of each word, or a number, depending on the model's head.

    A text is framed and truncated as in training (`[CLS] text [SEP]`, see `heddle.tasks.rows.framing`).

    Args:
        model: a model with a classifier head, in any mode.
        tokenizer: its tokenizer.
        texts: strings or, for pairs, tuples of two; for classes of words, strings with spaces between words, or lists of words.
        progress: called with the number of finished texts and the total.
        threshold: minimum probability of a text's labels, for a multi-label model; None: the model's own threshold.

    Returns:
        A `TextClass`, `TextLabels`, `WordClasses` or `TextNumber` for each text, in order. None for a text that is empty or only
        whitespace, or a pair with such a text; training skips them too.

    Raises:
        HeddleError: the model has no classifier head, a threshold is given for a model that is not multi-label, or an item is not
            a text.
    """
    kind = kind_of_head(model)
    check_threshold(model, threshold)

    def is_empty(item: Any) -> bool:
        if kind == "words" and isinstance(item, tuple | list):
            return bool(item) and all(map(is_blank, item))
        pair = isinstance(item, tuple | list) and len(item) == 2 and all(isinstance(part, str) for part in item)
        return any(map(is_blank, item)) if pair else is_blank(item)

    return predict_nonempty(
        "classify",
        texts,
        is_empty,
        lambda nonempty: _predictions(model, tokenizer, nonempty, progress, kind, threshold),
    )


def _predictions(
    model: Transformer,
    tokenizer: Tokenizer,
    texts: Sequence[Any],
    progress: Progress | None,
    kind: str,
    threshold: float | None,
) -> Sequence[Prediction]:
    """The predictions for texts that are not empty."""
    if not texts:
        return []
    with evaluation(model):
        if kind == "words":
            return [*_words(model, tokenizer, texts, progress)]
        rows = _rows(model, tokenizer, texts)
        scores: list[Tensor] = [torch.empty(0)] * len(rows)
        for numbers, hidden, layout in forward_batches(model, rows, progress):
            for number, row in zip(numbers, model.scores(hidden, layout).float().cpu(), strict=True):
                scores[number] = row
    if kind == "number":
        return [TextNumber(float(score), row.cut) for score, row in zip(scores, rows, strict=True)]
    if kind == "labels":
        return [_labels(model.config, score, row.cut, threshold) for score, row in zip(scores, rows, strict=True)]
    best_class = _best_class(model)
    return [TextClass(*best_class(score), row.cut) for score, row in zip(scores, rows, strict=True)]


def kind_of_head(model: Transformer) -> str:
    """What a model's head predicts: `classes` of a text, any of several `labels`, classes of `words`, or a `number`.

    Raises:
        HeddleError: it is not a classifier head.
    """
    head = model.config.head
    if not isinstance(head, ClassifierHeadConfig):
        reason = {"language": "predicts tokens", "embedding": "returns vectors"}.get(head.kind, "has no head")
        raise HeddleError(
            f"this model {reason}, so it cannot classify; "
            "heddle train FILE task=classification from=RUN fine-tunes it to classify"
        )
    if head.several:
        return "labels"
    return "words" if head.pooling == "none" else "number" if head.classes == 1 else "classes"


def check_threshold(model: Transformer, threshold: float | None) -> None:
    """Raise if there is a threshold and the model is not multi-label."""
    if threshold is not None and kind_of_head(model) != "labels":
        raise HeddleError(f"threshold = {threshold} is for multi-label models, and this model is not one: leave it out")


def _labels(config: TransformerConfig, scores: Tensor, cut: bool, threshold: float | None) -> TextLabels:
    """The labels of one text, from their scores."""
    head = config.head
    assert isinstance(head, ClassifierHeadConfig)
    threshold = head.threshold if threshold is None else threshold
    probabilities = dict(zip(class_names(config), scores.sigmoid().tolist(), strict=True))
    labels = tuple(name for name, probability in probabilities.items() if probability > threshold)
    return TextLabels(labels, probabilities, cut)


def class_names(config: TransformerConfig) -> tuple[str, ...]:
    """Names of the classes of a model's head, or their numbers if they have no names."""
    head = config.head
    assert isinstance(head, ClassifierHeadConfig)
    return head.names or tuple(str(number) for number in range(head.classes))


def _best_class(model: Transformer) -> Callable[[Tensor], tuple[str, float, dict[str, float]]]:
    """A function from the scores of the classes to the best class, its probability, and all probabilities."""
    names = class_names(model.config)

    def best_class(scores: Tensor) -> tuple[str, float, dict[str, float]]:
        probabilities = scores.softmax(-1).tolist()
        best = int(scores.argmax())
        return names[best], probabilities[best], dict(zip(names, probabilities, strict=True))

    return best_class


def _rows(model: Transformer, tokenizer: Tokenizer, texts: Sequence[Any]) -> list[InputRow]:
    """The rows of texts and of pairs, in order."""
    items = [_as_tuple(number, text) for number, text in enumerate(texts)]
    ids = iter(tokenizer.encode_batch([text for item in items for text in item]))
    encoded = [[next(ids) for _ in item] for item in items]
    rows: list[InputRow] = [InputRow([], 0, False)] * len(texts)
    for size in {len(item) for item in items}:  # single texts and pairs have different frames
        numbers = [number for number, item in enumerate(items) if len(item) == size]
        seconds = [encoded[number][1] for number in numbers] if size == 2 else None
        framed = frame_rows(frame_for(model, tokenizer, size), [encoded[number][0] for number in numbers], seconds)
        for number, row in zip(numbers, framed, strict=True):
            rows[number] = row
    return rows


def _as_tuple(number: int, item: Any) -> tuple[str, ...]:
    expected = "a text or a pair of texts"
    if isinstance(item, tuple | list):
        if len(item) != 2:
            raise TextError("classify: texts: item", number, f"has {len(item)} parts, but must be {expected}")
        return tuple(check_text("classify", number, part, expected) for part in item)
    return (check_text("classify", number, item, expected),)


def _words(
    model: Transformer, tokenizer: Tokenizer, texts: Sequence[Any], progress: Progress | None
) -> Sequence[WordClasses]:
    """The classes of the words of each text."""
    sentences = [_split_sentence(number, text) for number, text in enumerate(texts)]
    encoded = Encoder(tokenizer, "tokens").words(sentences)
    frame = frame_for(model, tokenizer)
    rows = frame_rows(frame, [ids for ids, _ in encoded])
    room, best_class = frame.context - frame.marks(1), _best_class(model)
    predictions: list[WordClasses] = [WordClasses((), False)] * len(rows)
    for numbers, hidden, layout in forward_batches(model, rows, progress):
        scores = model.scores(hidden, layout).float().cpu()
        for number, row in zip(numbers, scores, strict=True):
            words = []
            for word, position in zip(sentences[number], encoded[number][1], strict=True):
                if position is None or position >= room:  # without an id, or truncated
                    words.append(WordClass(word, None, None, {}))
                else:
                    words.append(WordClass(word, *best_class(row[frame.start + position])))
            predictions[number] = WordClasses(tuple(words), rows[number].cut)
    return predictions


def _split_sentence(number: int, text: Any) -> tuple[str, ...]:
    expected = "a text or a list of words"
    if isinstance(text, tuple | list):
        words = tuple(check_text("classify", number, word, expected) for word in text)
    else:
        words = split_words(check_text("classify", number, text, expected))
    if not words:
        raise TextError("classify: texts: item", number, "is empty; leave it out")
    return words
