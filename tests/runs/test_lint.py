"""What a run's tokens and batches have wrong with them."""

import numpy as np
import torch

from heddle.data import Batch, Column, Records
from heddle.data.pack import Packing
from heddle.nn import Layout
from heddle.runs.lint import beginnings, cropped, doubled_beginnings, out_of_range, padded


def test_records_longer_than_the_context() -> None:
    columns = {"source": Column.of([[1] * 4, [1] * 9, [1] * 5]), "target": Column.of([[2] * 4, [2] * 2, [2] * 30])}
    records = Records({**columns, "label": Column.of([[0] * 99] * 3)})
    source, target = cropped(records, context=5, separate=True, part="train")
    assert (source.count, source.of, source.where, source.wrong) == (1, 3, "train record 1", True)
    assert "records have a source longer than context = 5 (22.2% of its tokens)" in source.line()
    assert target.line().endswith("first train record 2; set context=30, or leave them out")
    (together,) = cropped(records, context=11, separate=False, part="validation")
    assert (together.count, together.where) == (1, "validation record 2")
    assert list(cropped(records, context=35, separate=False, part="train")) == []


def test_ids_that_the_tokenizer_does_not_have() -> None:
    (finding,) = out_of_range(np.array([1, 7, 9, 8], dtype=np.uint16), 8, "train")
    assert (finding.count, finding.of, finding.where) == (2, 4, "train token 2")
    assert list(out_of_range(np.arange(8), 8, "train")) == []


def test_much_padding_in_packed_rows_is_worth_a_remark() -> None:
    (finding,) = padded(Packing(np.array([6] * 5 + [4]), 10))
    assert (finding.count, finding.of, finding.wrong) == (16, 50, False)
    assert finding.line().startswith("remark: padding: 16 of 50 places of packed rows are padding (32.0%); ")
    assert list(padded(Packing(np.array([5] * 9 + [4]), 10))) == []


def test_texts_of_packed_rows_that_begin_twice() -> None:
    """Each text of a row counts, and padding does not."""
    tokens = torch.tensor([[9, 9, 1, 9, 9, 9], [1, 9, 9, 1, 9, 9]])
    batch = Batch(tokens, Layout.packed([[3, 1, 2], [1, 3]], 6), tokens, torch.ones(2, 6))
    assert doubled_beginnings(batch, {9}) == 3
    assert int(beginnings(batch).sum()) == 5


def test_rows_that_begin_twice() -> None:
    tokens = torch.tensor([[9, 9, 1], [9, 1, 9], [1, 1, 9], [9, 9, 9]])
    layout = Layout.padded([3, 3, 3, 1], 3)
    batch = Batch(tokens, layout, tokens, torch.ones(4, 3))
    assert doubled_beginnings(batch, {9}) == 1
    assert doubled_beginnings(batch, set()) == 0
