"""Labels of records to evaluate on that a model has not learned, in files and in Python."""

import warnings
from typing import Any

import pytest

import heddle
from heddle.config.tasks import ClassificationConfig
from heddle.data.sources.examples import Example
from heddle.data.unseen import describe_unseen, scorable_records
from heddle.errors import HeddleError
from tests.train.test_fit import LABELLED, LETTERS, QUIET, suited


def example(label: Any, origin: str = "a") -> Example:
    return Example({"text": "x"}, label, origin)


def test_what_is_known_of_labels() -> None:
    scorable = scorable_records([example("new"), example("a"), example("new")], ("a", "b"), "it", False)
    assert ([each.label for each in scorable.examples], scorable.missed, scorable.unseen) == (["a"], [0], {"new": 2})
    tags = [example(("a", "new", "")), example(("new", "")), example(("", "b"))]
    scorable = scorable_records(tags, ("a", "b"), "it", False)
    assert ([each.label for each in scorable.examples], scorable.unseen) == ([("a", "", ""), ("", "b")], {"new": 2})
    several = [example(("a", "new")), example(("new", "odd")), example(())]
    scorable = scorable_records(several, ("a", "b"), "it", True)
    assert ([each.label for each in scorable.examples], scorable.missed) == ([("a",), (), ()], [1, 2, 0])
    assert describe_unseen(scorable.unseen, True, "it") == (
        "counted as missed: 3 labels that it has not learned: 'new' (2), 'odd' (1)"
    )
    with pytest.raises(HeddleError, match=r"^b: it does not know the labels new, odd; it has learned a, b$"):
        scorable_records([example("new", "b"), example("odd", "c")], ("a", "b"), "it", False)


@pytest.mark.parametrize(
    ("task", "data", "validation", "of", "line"),
    [
        ("classification", LABELLED, [LABELLED[0], ("the loom", "new")], 1, "not scored: 1 label"),
        ("token_classification", [(["a", "b"], ["a", "b"])] * 8, [(["a", "b"], ["new", "b"])], 1, "not scored: 1 label"),
        ("multi_label_classification", [(text, [label]) for text, label in LABELLED],
         [("the warp", ["a", "new"]), ("the weft", ["odd"])], 2, "counted as missed: 2 labels"),
    ],
)  # fmt: skip
def test_fit_scores_what_a_model_has_learned_and_names_the_rest(
    task: str, data: Any, validation: Any, of: int, line: str
) -> None:
    """The classes of a model that is made for the training data are theirs alone."""
    model = heddle.model_for(task, LETTERS, data, depth=1, dim=16, context=24)
    with pytest.warns(UserWarning, match=f"^validation: {line}s? that the model has not learned: 'new' "):
        history = heddle.fit(model, LETTERS, data, 2, task, validation, **QUIET)
    assert history.evaluation is not None
    assert history.evaluation.tokens == of
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        heddle.fit(model, LETTERS, data, 2, task, data[:2], **QUIET)


def test_labels_to_learn_must_be_known() -> None:
    with pytest.raises(HeddleError, match="the label 'new' is not in the training part, which has: a, b"):
        heddle.fit(suited(ClassificationConfig(), ("a", "b")), LETTERS, [*LABELLED, ("x", "new")], 2, "classification")
