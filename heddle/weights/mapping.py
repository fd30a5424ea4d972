"""Two-way tables between a published family's tensors and heddle's.

A family writes one list of rows; both directions follow from it. Every transform is linear and moves numbers without
changing them, so a table carries gradients as well as weights, and there and back is exact.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from heddle.config.model import TransformerConfig
from heddle.errors import HeddleError
from heddle.weights.tensors import Weights, check_finite, compare, specs_of

HALVES = {"F32", "F16", "BF16"}  # dtypes that fp32 holds exactly


class Transform(Protocol):
    """How one tensor of theirs and one or several of ours are the same numbers."""

    def ours(self, theirs: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]: ...

    def theirs(self, ours: tuple[Tensor, ...], config: TransformerConfig) -> Tensor: ...


class Same:
    """Nothing changes."""

    def ours(self, theirs: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        return (theirs,)

    def theirs(self, ours: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return ours[0]


SAME = Same()


class Transposed:
    """A matrix stored input first, as the Conv1D of GPT-2 has it."""

    def ours(self, theirs: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        return (theirs.T,)

    def theirs(self, ours: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return ours[0].T


@dataclass(frozen=True)
class Fused:
    """Several of ours, of one size, side by side along axis `dim` of theirs; `each` brings one part into our form."""

    dim: int
    parts: int
    each: Transform = SAME

    def ours(self, theirs: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        return tuple(self.each.ours(part, config)[0] for part in theirs.chunk(self.parts, self.dim))

    def theirs(self, ours: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return torch.cat([self.each.theirs((part,), config) for part in ours], self.dim)


class Vocabulary:
    """A table with one row per token. Ours may be padded (L0-86): the extra rows stay here, and come back as zeros."""

    def ours(self, theirs: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        extra = config.table_rows() - theirs.shape[0]
        return (torch.cat((theirs, theirs.new_zeros(extra, theirs.shape[1]))) if extra > 0 else theirs,)

    def theirs(self, ours: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return ours[0][: config.vocab_size]


@dataclass(frozen=True)
class Row:
    """One tensor of theirs, the names of ours that hold its numbers, and how. `{i}` stands for the layer."""

    theirs: str
    ours: tuple[str, ...]
    how: Transform = SAME


def rows_of(table: Iterable[Row], config: TransformerConfig, names: Collection[str]) -> list[Row]:
    """The rows that speak of our tensors `names`, written out for every layer.

    Raises:
        HeddleError: a name is in no row, or only a part of a row is there.
    """
    written = []
    for row in table:
        for i in range(config.decoder.depth if "{i}" in row.theirs else 1):
            ours = tuple(name.replace("{i}", str(i)) for name in row.ours)
            written.append(Row(row.theirs.replace("{i}", str(i)), ours, row.how))
    known, present = {name for row in written for name in row.ours}, set(names)
    unset = [name for name in names if name not in known]
    chosen = [row for row in written if present & set(row.ours)]
    unset += [name for row in chosen for name in row.ours if name not in present]
    if unset:
        raise HeddleError(f"the family's table has no place for {unset[0]} ({len(unset)} such tensors)")
    return chosen


def to_theirs(table: Iterable[Row], config: TransformerConfig, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A heddle model's tensors (or their gradients) under the family's names and in its shapes."""
    rows = rows_of(table, config, list(ours))
    return {row.theirs: row.how.theirs(tuple(ours[name] for name in row.ours), config) for row in rows}


def to_ours(
    table: Iterable[Row], config: TransformerConfig, wanted: Mapping[str, Tensor], theirs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The family's tensors under heddle's names, in heddle's shapes. `wanted` are the model's own, on any device."""
    found: dict[str, Tensor] = {}
    for row in rows_of(table, config, list(wanted)):
        found.update(zip(row.ours, row.how.ours(theirs[row.theirs], config), strict=True))
    return {name: found[name].contiguous() for name in wanted}


@dataclass(frozen=True)
class Names:
    """What a family's files may call things beyond its table.

    Attributes:
        prefix: what stands before every name of the body, and may be left out in all of them at once.
        ignorable: names of buffers without any information, `{i}` for the layer.
        copies: a tensor that may be stored twice, and the one that it must equal; only the second is used.
    """

    prefix: str
    ignorable: tuple[str, ...] = ()
    copies: Mapping[str, str] | None = None


def import_tensors(
    table: Iterable[Row],
    names: Names,
    config: TransformerConfig,
    model: Mapping[str, Tensor],
    weights: Weights,
    where: Path,
) -> dict[str, Tensor]:
    """Read a family's weights as fp32 tensors of the heddle model `model`, whose own tensors may be on the meta device.

    Names and shapes are compared before anything is read.

    Raises:
        HeddleError: a tensor is missing, unknown, of another shape, not finite, or of a dtype beyond fp32.
    """
    bare = not any(name.startswith(names.prefix) for name in weights)
    heads = {row.theirs for row in table if not row.theirs.startswith(names.prefix)}
    spelling = {names.prefix + name if bare and name not in heads else name: name for name in weights}
    wanted = specs_of(to_theirs(table, config, model))
    ignorable = re.compile("|".join(re.escape(name).replace(r"\{i\}", r"\d+") for name in names.ignorable) or "(?!)")
    copies = {name: kept for name, kept in (names.copies or {}).items() if name not in wanted and name in spelling}
    found = {
        full: weights.specs[name]
        for full, name in spelling.items()
        if full in wanted or not (ignorable.fullmatch(full) or full in copies)
    }
    compare(found, wanted, where, dtypes=False)
    for name, spec in found.items():
        if spec.dtype not in HALVES:
            raise HeddleError(f"{where}: {name} is {spec.dtype}; heddle reads weights in F32, F16 or BF16")
    read: dict[str, Tensor] = {}
    for name in wanted:
        read[name] = weights[spelling[name]].float()
        check_finite(name, read[name], where)
    for name, kept in copies.items():
        if not torch.equal(weights[spelling[name]].float(), read[kept]):
            raise HeddleError(f"{where}: the config ties {name} to {kept}, but the file holds two different tensors")
    return to_ours(table, config, model, read)
