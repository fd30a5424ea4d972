"""Records of text as ids: what a chat template is for."""

from heddle.config import ChatTemplateConfig
from heddle.data import records_of
from heddle.data.encode import answer_numbers
from heddle.data.sources.examples import Example
from heddle.text import train_tokenizer
from heddle.text.chat_template import Answer, Conversation


def test_a_chat_template_changes_conversations_alone() -> None:
    """A model that was a chat's keeps its template when it learns something else."""
    tokenizer = train_tokenizer("bytes", [])
    for texts, label, classes in (
        ({"text": "the warp"}, "cold", ("hot", "cold")),
        ({"source": "the warp", "target": "is held"}, None, ()),
    ):
        examples = [Example(texts, label, "a:1")]
        columns = records_of(examples, tokenizer, classes=classes, chat=ChatTemplateConfig()).columns
        plain = records_of(examples, tokenizer, classes=classes).columns
        assert {name: column[0].tolist() for name, column in columns.items()} == {
            name: column[0].tolist() for name, column in plain.items()
        }


def test_several_labels_are_in_the_order_of_their_numbers() -> None:
    records = records_of(
        [Example({"text": "a"}, ("c", "a"), ""), Example({"text": "b"}, (), ""), Example({"text": "c"}, ("b",), "")],
        train_tokenizer("bytes", []), "several", ("a", "b", "c"),
    )  # fmt: skip
    assert [records.columns["label"][number].tolist() for number in range(3)] == [[0, 2], [], [1]]


def test_an_answer_that_may_be_joined_is_no_target() -> None:
    """Of the ids of a conversation, those of its first answer count from 1, of an unsure one from -2."""
    read = Conversation(list(range(9)), (Answer(2, 4, True), Answer(6, 9, False)))
    assert answer_numbers(read) == [0, 0, 1, 1, 0, 0, -2, -2, -2]
