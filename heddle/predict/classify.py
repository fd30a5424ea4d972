"""Classes and labels of texts and of pairs of texts, classes of words, with their probabilities; and numbers."""

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
from heddle.predict.rows import Done, InputRow, check_text, frame_for, framed, is_blank, passes, predicted, predicting
from heddle.text.tokenizer import Tokenizer


@displayed(".probabilities")
@dataclass(frozen=True, slots=True)
class TextClass:
    """The class of a text, or of a pair of texts.

    Attributes:
        label: the name of the most probable class; its number, if the model has no names.
        probability: of that class.
        probabilities: of every class, by name.
        cut: whether the text was longer than the context and lost its end.
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
        labels: names of the labels whose probability is above the threshold, in the model's order; numbers, if it has no names.
        probabilities: of every label, by name; each is of this label alone, so they do not add up to 1.
        cut: whether the text was longer than the context and lost its end.
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
        label: the name of the most probable class; None if the word was cut off, or if the tokenizer has no id for it.
        probability: of that class; None if there is none.
        probabilities: of every class, by name; empty if there is none.
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
        cut: whether the text was longer than the context and lost its end.
    """

    words: tuple[WordClass, ...]
    cut: bool


@displayed()
@dataclass(frozen=True, slots=True)
class TextNumber:
    """The number of a text, or of a pair of texts, in the unit of the labels.

    Attributes:
        number: the number.
        cut: whether the text was longer than the context and lost its end.
    """

    number: float
    cut: bool


Prediction = TextClass | TextLabels | WordClasses | TextNumber


@checked(threshold=between(0, 1))
def classify(
    model: Transformer,
    tokenizer: Tokenizer,
    texts: Sequence[Any],
    progress: Done | None = None,
    threshold: float | None = None,
) -> list[Prediction | None]:
    """Predict the class or the labels of each text or pair, the class of each word, or a number: what the head was trained for.

    A text is framed and cut as in training (`[CLS] text [SEP]`, see `heddle.tasks.framing`), so its scores are those that
    training would compare with its label.

    Args:
        model: a model with a classifier as head, in any mode.
        tokenizer: its tokenizer.
        texts: strings or, for pairs, tuples of two; for classes of words, strings with blanks between words, or lists of words.
        progress: called with the number of texts done so far, and of all.
        threshold: of several labels, those with a larger probability are the text's; None: the model's own threshold.

    Returns:
        A `TextClass`, `TextLabels`, `WordClasses` or `TextNumber` for each text, in order; None for one with nothing but blanks, or
        a pair with such a text, which training leaves out.

    Raises:
        HeddleError: the model has another head; a threshold is given for a model without labels to choose; or a text is something
            else than a text.
    """
    kind = kind_of_head(model)
    check_threshold(model, threshold)

    def blank(text: Any) -> bool:
        if kind == "words" and isinstance(text, tuple | list):
            return bool(text) and all(map(is_blank, text))
        pair = isinstance(text, tuple | list) and len(text) == 2 and all(isinstance(part, str) for part in text)
        return any(map(is_blank, text)) if pair else is_blank(text)

    return predicted(
        "classify", texts, blank, lambda some: _predictions(model, tokenizer, some, progress, kind, threshold)
    )


def _predictions(
    model: Transformer,
    tokenizer: Tokenizer,
    texts: Sequence[Any],
    progress: Done | None,
    kind: str,
    threshold: float | None,
) -> Sequence[Prediction]:
    """Those of texts that have more than blanks."""
    if not texts:
        return []
    with predicting(model):
        if kind == "words":
            return [*_words(model, tokenizer, texts, progress)]
        rows = _rows(model, tokenizer, texts)
        scores: list[Tensor] = [torch.empty(0)] * len(rows)
        for numbers, hidden, layout in passes(model, rows, progress):
            for number, row in zip(numbers, model.scores(hidden, layout).float().cpu(), strict=True):
                scores[number] = row
    if kind == "number":
        return [TextNumber(float(score), row.cut) for score, row in zip(scores, rows, strict=True)]
    if kind == "labels":
        return [_labels(model.config, score, row.cut, threshold) for score, row in zip(scores, rows, strict=True)]
    name = _namer(model)
    return [TextClass(*name(score), row.cut) for score, row in zip(scores, rows, strict=True)]


def kind_of_head(model: Transformer) -> str:
    """What a model's head scores: `classes` of a text, any of several `labels`, classes of `words`, or a `number`.

    Raises:
        HeddleError: it has no classifier as head.
    """
    head = model.config.head
    if not isinstance(head, ClassifierHeadConfig):
        what = {"language": "predicts tokens", "embedding": "returns vectors"}.get(head.kind, "has no head")
        raise HeddleError(
            f"this model {what}, so it cannot classify; heddle train FILE task=classification from=RUN teaches it classes"
        )
    if head.several:
        return "labels"
    return "words" if head.pooling == "none" else "number" if head.classes == 1 else "classes"


def check_threshold(model: Transformer, threshold: float | None) -> None:
    """Refuse a threshold for a model that has nothing to choose with it.

    Raises:
        HeddleError: a text does not have several of its classes.
    """
    if threshold is not None and kind_of_head(model) != "labels":
        raise HeddleError(
            f"threshold = {threshold} is for models of several labels; this one has one answer: leave it out"
        )


def _labels(config: TransformerConfig, scores: Tensor, cut: bool, threshold: float | None) -> TextLabels:
    """The labels of one text, from their scores."""
    head = config.head
    assert isinstance(head, ClassifierHeadConfig)
    above = head.threshold if threshold is None else threshold
    probabilities = dict(zip(class_names(config), scores.sigmoid().tolist(), strict=True))
    return TextLabels(tuple(name for name, share in probabilities.items() if share > above), probabilities, cut)


def class_names(config: TransformerConfig) -> tuple[str, ...]:
    """Names of the classes of a model's head; their numbers, if they have no names."""
    head = config.head
    assert isinstance(head, ClassifierHeadConfig)
    return head.names or tuple(str(number) for number in range(head.classes))


def _namer(model: Transformer) -> Callable[[Tensor], tuple[str, float, dict[str, float]]]:
    """A function from the scores of the classes to the best one, its probability, and all probabilities."""
    names = class_names(model.config)

    def named(scores: Tensor) -> tuple[str, float, dict[str, float]]:
        probabilities = scores.softmax(-1).tolist()
        best = int(scores.argmax())
        return names[best], probabilities[best], dict(zip(names, probabilities, strict=True))

    return named


def _rows(model: Transformer, tokenizer: Tokenizer, texts: Sequence[Any]) -> list[InputRow]:
    """The rows of texts, and of pairs."""
    parts = [_parts(number, text) for number, text in enumerate(texts)]
    ids = iter(tokenizer.encode_batch([text for each in parts for text in each]))
    encoded = [[next(ids) for _ in each] for each in parts]
    rows: list[InputRow] = [InputRow([], 0, False)] * len(texts)
    for size in {len(each) for each in parts}:
        places = [number for number, each in enumerate(parts) if len(each) == size]
        pairs = [encoded[place][1] for place in places] if size == 2 else None
        found = framed(frame_for(model, tokenizer, size), [encoded[place][0] for place in places], pairs)
        for place, row in zip(places, found, strict=True):
            rows[place] = row
    return rows


def _parts(number: int, text: Any) -> tuple[str, ...]:
    needed = "a text or a pair of texts"
    if isinstance(text, tuple | list):
        if len(text) != 2:
            raise TextError("classify: texts: item", number, f"has {len(text)} parts, but {needed} is needed")
        return tuple(check_text("classify", number, part, needed) for part in text)
    return (check_text("classify", number, text, needed),)


def _words(
    model: Transformer, tokenizer: Tokenizer, texts: Sequence[Any], progress: Done | None
) -> Sequence[WordClasses]:
    """The classes of the words of each text."""
    sentences = [_sentence(number, text) for number, text in enumerate(texts)]
    encoded = Encoder(tokenizer, "tokens").words(sentences)
    frame = frame_for(model, tokenizer)
    rows = framed(frame, [ids for ids, _ in encoded])
    most, name = frame.context - frame.marks(1), _namer(model)
    found: list[WordClasses] = [WordClasses((), False)] * len(rows)
    for numbers, hidden, layout in passes(model, rows, progress):
        scores = model.scores(hidden, layout).float().cpu()
        for number, row in zip(numbers, scores, strict=True):
            words = [
                WordClass(
                    word, *(name(row[frame.start + place]) if place is not None and place < most else (None, None, {}))
                )
                for word, place in zip(sentences[number], encoded[number][1], strict=True)
            ]
            found[number] = WordClasses(tuple(words), rows[number].cut)
    return found


def _sentence(number: int, text: Any) -> tuple[str, ...]:
    needed = "a text or a list of words"
    if isinstance(text, tuple | list):
        words = tuple(check_text("classify", number, word, needed) for word in text)
    else:
        words = split_words(check_text("classify", number, text, needed))
    if not words:
        raise TextError("classify: texts: item", number, "is empty; leave it out")
    return words
