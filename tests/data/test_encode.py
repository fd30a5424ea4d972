"""Records of text as ids: what a chat template is for."""

from heddle.config import ChatTemplateConfig
from heddle.data import records_of
from heddle.data.examples import Example
from heddle.text import train_tokenizer


def test_a_chat_template_changes_conversations_alone() -> None:
    """A model that was a chat's keeps its template when it learns something else."""
    tokenizer = train_tokenizer("bytes", [])
    for texts, label, classes in (
        ({"text": "the warp"}, "cold", ("hot", "cold")),
        ({"source": "the warp", "target": "is held"}, None, ()),
    ):
        examples = [Example(texts, label, "a:1")]
        found = records_of(examples, tokenizer, classes=classes, chat=ChatTemplateConfig()).columns
        plain = records_of(examples, tokenizer, classes=classes).columns
        assert {name: column[0].tolist() for name, column in found.items()} == {
            name: column[0].tolist() for name, column in plain.items()
        }
