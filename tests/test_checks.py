"""Arguments as people pass them: what is checked before a call, what while it runs, and how a refusal reads."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heddle.checks import RepeatedKeyError, checked, names_file, short_repr, unique_keys
from heddle.errors import HeddleError
from tests.refusing import refusal


@checked()
def read(texts: Iterable[str]) -> list[str]:
    return list(texts)


@checked()
def add(numbers: Iterable[int] | None = None) -> int:
    return 0 if numbers is None else sum(int(number) for number in numbers)


@checked()
def pick(names: Sequence[str]) -> list[str]:
    return list(names)


@checked()
def weigh(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())


@checked()
def opened(path: str | Path) -> str:
    return str(path)


class Table:
    """A frame, whose items are the names of its columns, as in pandas."""

    columns, shape = ("text", "label"), (2, 2)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self.columns


class Lines:
    """Texts that can be read again and again, such as a file's."""

    def __init__(self, *lines: Any) -> None:
        self.lines = lines

    def __iter__(self) -> Iterator[Any]:
        return iter(self.lines)


def test_items_of_an_iterator_are_checked_when_they_are_read() -> None:
    taken = []

    def lines() -> Iterator[Any]:
        for line in ("warp", "weft", 3, "reed"):
            taken.append(line)
            yield line

    assert refusal(lambda: read(lines())) == "read: texts[2] = 3: must be a string"
    assert taken == ["warp", "weft", 3]
    assert read(line for line in ("warp", "weft")) == ["warp", "weft"]
    assert refusal(lambda: add(iter([1, 2.5]))) == "add: numbers[1] = 2.5: must be a whole number"
    assert refusal(lambda: read(Lines("warp", None))) == "read: texts[1] = None: must be a string"


def test_what_can_be_read_again_still_can() -> None:
    @checked()
    def twice(texts: Iterable[str]) -> list[str]:
        return [*texts, *texts]

    assert twice(Lines("warp", "weft")) == ["warp", "weft"] * 2


@pytest.mark.parametrize("table", [Table(), {"text": ["warp"]}, {"warp": 1}], ids=lambda table: type(table).__name__)
def test_a_table_is_not_a_list_of_its_columns_names(table: Any) -> None:
    """A tokenizer would learn the names, and nobody would notice."""
    assert "texts = " in refusal(lambda: read(table))


@pytest.mark.parametrize("bad", [range(3), {1, 2}, np.array(3), torch.tensor(3), torch.tensor([1, 2])], ids=repr)
def test_containers_of_something_else_are_refused(bad: Any) -> None:
    assert "texts = " in refusal(lambda: read(bad))
    assert "names = " in refusal(lambda: pick(bad))


def test_arrays_are_read_as_lists_and_tensors_number_by_number() -> None:
    assert read(np.array(["warp", "weft"])) == ["warp", "weft"]
    assert add(np.array([1, 2])) == add(torch.tensor([1, 2])) == add(range(3)) == 3
    assert refusal(lambda: add(np.array([1.5]))).startswith("add: numbers = an array of float64 and shape [1]: must be")
    for number in (np.array(3), torch.tensor(3)):
        assert refusal(lambda number=number: add(number)).endswith("must be a list (each item a whole number) or None")


def test_a_column_of_arrow_is_read_as_a_list() -> None:
    arrow = pytest.importorskip("pyarrow")
    for column in (arrow.array(["warp", "weft"]), arrow.chunked_array([["warp"], ["weft"]])):
        assert read(column) == pick(column) == ["warp", "weft"]
    assert "texts = " in refusal(lambda: read(arrow.array(["warp", None])))
    assert "texts = " in refusal(lambda: read(arrow.table({"text": ["warp"]})))


def test_values_of_a_table_are_checked() -> None:
    assert weigh({"a": torch.ones(2)}) == 2
    assert "tensors = {'a': 1}: must be a table of keys (each value" in refusal(lambda: weigh({"a": 1}))


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 256, "a/" + "x" * 256, "a/" * 2048 + "b", "\ud800"])
def test_what_no_file_can_be_called_is_refused(name: str) -> None:
    assert not names_file(name)
    assert refusal(lambda: opened(name)).endswith("must be a path")


def test_every_name_that_a_file_can_have_is_taken(tmp_path: Path) -> None:
    for name in ("x" * 255, " ", "a\nb", "*", "ü" * 127):
        (tmp_path / name).touch()
        assert opened(tmp_path / name) == str(tmp_path / name)


def test_a_refusal_is_one_line_whatever_a_file_is_called() -> None:
    assert str(HeddleError("a\nb\x1b[2J\u2028c: not text")) == r"a\nb\x1b[2J\u2028c: not text"
    line = str(HeddleError(f"{'x' * 5000} is no kind; choose bytes"))
    assert len(line) < 300
    assert line.startswith("x" * 200 + "…")
    assert line.endswith("x is no kind; choose bytes")
    folder = "/".join(["directory"] * 35)
    assert str(HeddleError(f"{folder}: missing")) == f"{folder}: missing"


def test_a_table_without_a_dtype_is_shown_by_its_kind() -> None:
    assert short_repr(Table()) == "a Table of shape [2, 2]"
    assert short_repr(Lines()) == "a Lines"
    assert short_repr(np.zeros((2, 3))) == "an array of float64 and shape [2, 3]"


def test_a_key_that_occurs_twice_is_named() -> None:
    assert json.loads('{"a": 1, "b": {"a": 2}}', object_pairs_hook=unique_keys) == {"a": 1, "b": {"a": 2}}
    with pytest.raises(RepeatedKeyError, match="the key 'a' occurs twice"):
        json.loads('{"b": {"a": 1, "a": 2}}', object_pairs_hook=unique_keys)
