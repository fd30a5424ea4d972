"""What an export is compared by: other ids, types, shapes or probabilities are found, and differences are relative."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from heddle.config import TransformerConfig, sized
from heddle.convert.agreement import NEVER, Input, _comparable, _difference, _text_inputs
from heddle.errors import HeddleError
from heddle.model import build
from heddle.text import train_tokenizer
from heddle.weights.special_tokens import around_read

TOKENIZER = train_tokenizer("bytes", [], special=("[CLS]", "[SEP]"))
ENCODER = TransformerConfig.of(
    {
        "vocab_size": TOKENIZER.vocab_size, "dim": 16, "context": 96, "head": {"kind": "classifier", "classes": 2},
        "encoder": {"depth": 1, "block": {"mixer": {"heads": 2}}, "entry": {"types": 2}},
    }
)  # fmt: skip
MODEL = build(ENCODER).eval()


class ReferenceModel:
    """A tokenizer of transformers that reads texts as heddle does, but for one change."""

    pad_token_id = None

    def __init__(self, change: Callable[[list[int], list[int]], None] = lambda ids, types: None) -> None:
        self.change, self.around = change, around_read(ENCODER, TOKENIZER)

    def __call__(self, *texts: Any, **how: Any) -> dict[str, Any]:
        texts = tuple(text[0] if isinstance(text, list) else text for text in texts)
        before, between, after = self.around
        room = ENCODER.longest_text() - len(before) - len(after)
        first, *others = [TOKENIZER.encode(text)[:room] for text in texts]
        ids, types = [*before, *first], [0] * (len(before) + len(first))
        for other in others:
            ids, types = [*ids, *between, *other], [*types, *[0] * len(between), *[1] * len(other)]
        ids, types = [*ids, *after], [*types, *[int(bool(others))] * len(after)]
        self.change(ids, types)
        return {"input_ids": ids, "token_type_ids": types}


def test_texts_that_are_read_alike_are_compared() -> None:
    inputs = list(_text_inputs(MODEL, TOKENIZER, ReferenceModel()))
    assert len(inputs) > 4
    assert any(bool(each.heddle["types"].any()) for each in inputs), "pairs are among them"


def other_id(ids: list[int], types: list[int]) -> None:
    ids[-1] += 1


def shorter(ids: list[int], types: list[int]) -> None:
    ids.pop()


def other_type(ids: list[int], types: list[int]) -> None:
    types[-1] = 0


@pytest.mark.parametrize(("change", "what"), [(other_id, "ids"), (shorter, "ids"), (other_type, "types")])
def test_other_ids_or_types_are_found(change: Callable[[list[int], list[int]], None], what: str) -> None:
    with pytest.raises(HeddleError, match=f"with other {what} than heddle"):
        list(_text_inputs(MODEL, TOKENIZER, ReferenceModel(change)))


def test_a_difference_is_of_the_largest_score_or_of_one() -> None:
    assert _difference(torch.tensor([10.0, -2.0]), torch.tensor([9.0, -2.0])) == pytest.approx(0.1)
    assert _difference(torch.tensor([0.1, 0.0]), torch.tensor([0.1, 0.05])) == pytest.approx(0.05)
    with pytest.raises(HeddleError, match=r"returns scores of shape \[3\], not \[2\]"):
        _difference(torch.zeros(2), torch.zeros(3))


def test_entries_without_an_id_must_be_improbable_and_a_number_per_position_does_not_count() -> None:
    model = build(sized(1, vocab_size=3, dim=16, context=8)).eval()
    scores = torch.tensor([[1.0, 2.0, 6.0, 2 * NEVER]])
    compared = _comparable(model, scores, Input({}, {}))
    assert compared.tolist() == [[-2.0, -1.0, 3.0]]
    assert torch.equal(compared, _comparable(model, scores + 7, Input({}, {})))
    for never in (0.0, 1.0 + NEVER / 2, 5.5):
        with pytest.raises(HeddleError, match="a probability that the model does not have"):
            _comparable(model, scores.index_fill(-1, torch.tensor([3]), never), Input({}, {}))
