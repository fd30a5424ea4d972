"""The quiz: every number of it is computed again, and every question has one answer."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from heddle.errors import HeddleError
from heddle.lessons.quiz import Choice, Question, Score, questions, questions_of
from tests.lectures.golden import ROWS
from tests.lessons import quiz_page, quiz_values

NUMBER = re.compile(r"(?<![\w.-])-?\d[\d,]*(?:\.\d+)?")
LESSONS = range(15)
IDS = [f"{question.number}-lesson-{question.lesson}" for question in questions()]


def computed(expression: str) -> Any:
    return eval(expression, vars(quiz_values).copy())


def flat(value: Any) -> Iterable[float]:
    return value if isinstance(value, tuple | list) else (value,)


def shown_as(text: str, value: Any) -> bool:
    """Whether the numbers in a text are these, to the decimals shown."""
    numbers, values = NUMBER.findall(text), list(flat(value))
    if len(numbers) != len(values):
        return False
    return all(
        abs(float(number.replace(",", "")) - value) <= 0.5001 * 10.0 ** -len(number.partition(".")[2])
        for number, value in zip(numbers, values, strict=True)
    )


@pytest.mark.lecture("L3-32")
@pytest.mark.parametrize("question", questions(), ids=IDS)
def test_every_choice_is_what_its_expression_computes(question: Question) -> None:
    if not question.choices:
        assert computed(question.by) is True
        return
    for choice in question.choices:
        value = computed(choice.by)
        if NUMBER.search(choice.text) and not isinstance(value, bool):
            assert shown_as(choice.text, value), (choice.text, value)
        else:
            assert value is choice.is_right, choice.text
    texts = [choice.text for choice in question.choices]
    assert [choice.is_right for choice in question.choices].count(True) == 1
    assert len(set(texts)) == len(texts) >= 4
    numbers = [tuple(NUMBER.findall(text)) for text in texts]
    assert len(set(numbers)) == len(texts) or not any(numbers) or isinstance(computed(question.choices[0].by), bool)


def test_a_wrong_number_would_be_noticed() -> None:
    assert shown_as("0.2689, 0.7311", (0.26894, 0.73106))
    assert not shown_as("0.2688, 0.7311", (0.26894, 0.73106))
    assert not shown_as("0.2689", (0.26894, 0.73106))
    assert shown_as("GPT-1 has 117, twice -1,234", (117, -1234))


def test_every_question_belongs_to_a_lesson_and_to_rows_that_exist() -> None:
    assert len(questions()) >= 33
    assert [question.number for question in questions()] == [*range(1, len(questions()) + 1)]
    counts = Counter(question.lesson for question in questions())
    assert set(counts) == set(LESSONS)
    assert min(counts.values()) >= 2
    for question in questions():
        assert question.rows
        assert set(question.rows) <= ROWS
        assert question.text.endswith(("?", "."))
        for choice in question.choices:
            assert choice.because.endswith(".")


@pytest.mark.lecture("L3-34")
def test_the_summary_of_deck_003_is_asked_with_model_answers() -> None:
    """Its three questions, and what each model answer states holds: order is lost without positions, the parts make the block."""
    summary = [question for question in questions() if "L3-34" in question.rows]
    assert [question.lesson for question in summary] == [2, 3, 6]
    assert not any(question.choices for question in summary)
    purpose, formula, parts = summary
    assert quiz_values.order_is_lost("none")
    assert not quiz_values.order_is_lost("sinusoidal")
    assert "set" in purpose.model_answer
    assert quiz_values.is_attention(lambda Q, K, V: (Q @ K.T / Q.shape[-1] ** 0.5).softmax(-1) @ V)
    assert not quiz_values.is_attention(lambda Q, K, V: (Q @ K.T).softmax(-1) @ V)
    assert "softmax(Q Kᵀ / √d_k) V" in formula.model_answer
    assert quiz_values.encoder_parts() == set(quiz_values.ENCODER_PARTS)
    for word in ("self-attention", "feed-forward", "residual connection", "normalisation"):
        assert word in parts.model_answer


def test_choices_are_shuffled_by_the_seed_and_the_question() -> None:
    every = [question for question in questions() if question.choices]
    for question in every:
        assert question.letter == "a"
        assert question.shuffled(1) == question.shuffled(1)
        assert set(question.shuffled(1).choices) == set(question.choices)
    letters = Counter(question.shuffled(0).letter for question in every)
    assert set(letters) == set("abcd")
    assert max(letters.values()) < len(every) / 2
    assert [question.shuffled(0).letter for question in every] != [question.shuffled(1).letter for question in every]


def test_a_score_counts_what_is_missed() -> None:
    right, wrong = Choice("1", "", "", is_right=True), Choice("2", "", "", is_right=False)
    question = Question(1, 5, ("L0-90",), "?", (wrong, right))
    score = Score()
    assert score.add(question, "b")
    assert not score.add(question, "a")
    assert (score.right, score.answered, dict(score.missed)) == (1, 2, {5: 1})


def test_the_questions_of_one_lesson() -> None:
    assert {question.lesson for question in questions_of(5)} == {5}
    assert questions_of(None) == questions()
    with pytest.raises(HeddleError, match="lesson 15 has no questions: choose a lesson from 0 to 14"):
        questions_of(15)


def test_the_page_of_the_quiz_is_up_to_date() -> None:
    assert quiz_page.PAGE.read_text(encoding="utf-8") == quiz_page.page(), "run python -m tests.lessons.quiz_page"
