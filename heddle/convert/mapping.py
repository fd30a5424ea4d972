"""Two-way tables between a published family's tensors and heddle's.

A family writes one list of rows; both directions follow from it. In the code, `ours` are heddle's tensors and `theirs` the
family's, as Hugging Face stores them. Every transform is linear and moves numbers without changing them, so a table maps
gradients as well as weights, and a round trip is exact; only a row's `shift` is arithmetic.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from heddle.config.model import TransformerConfig
from heddle.errors import HeddleError
from heddle.weights.tensors import Weights, check_finite, compare, specs_of

HALVES = {"F32", "F16", "BF16"}  # dtypes that fp32 holds exactly


class Transform(Protocol):
    """A two-way mapping between one tensor of the family and one or several of heddle's with the same numbers."""

    def ours(self, theirs: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]: ...

    def theirs(self, ours: tuple[Tensor, ...], config: TransformerConfig) -> Tensor: ...


class Same:
    """The identity."""

    def ours(self, theirs: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        return (theirs,)

    def theirs(self, ours: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return ours[0]


SAME = Same()


class Transposed:
    """A matrix stored input first, as in the Conv1D of GPT-2."""

    def ours(self, theirs: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        return (theirs.T,)

    def theirs(self, ours: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return ours[0].T


@dataclass(frozen=True)
class Fused:
    """Several heddle tensors of equal size, concatenated along axis `dim` in the family; `each` converts one part."""

    dim: int
    parts: int
    each: Transform = SAME

    def ours(self, theirs: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        return tuple(self.each.ours(part, config)[0] for part in theirs.chunk(self.parts, self.dim))

    def theirs(self, ours: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return torch.cat([self.each.theirs((part,), config) for part in ours], self.dim)


@dataclass(frozen=True)
class Grouped:
    """q, k and v in one tensor. For each key head: its query heads, the key, the value (GPT-NeoX, Falcon)."""

    stack: str = "decoder"

    def ours(self, theirs: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        heads, kv_heads = heads_of(config, self.stack)
        each = theirs.unflatten(0, (kv_heads, heads // kv_heads + 2, -1))
        return tuple(part.flatten(0, 2) for part in each.split((heads // kv_heads, 1, 1), dim=1))

    def theirs(self, ours: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        heads, kv_heads = heads_of(config, self.stack)
        counts = (heads // kv_heads, 1, 1)
        parts = [part.unflatten(0, (kv_heads, count, -1)) for part, count in zip(ours, counts, strict=True)]
        return torch.cat(parts, dim=1).flatten(0, 2)


@dataclass(frozen=True)
class Consecutive:
    """q, k and v in one tensor, one after another: all query heads, all key heads, all value heads (Phi-3)."""

    stack: str = "decoder"

    def ours(self, theirs: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        heads, kv_heads = heads_of(config, self.stack)
        each = theirs.unflatten(0, (heads + 2 * kv_heads, -1))
        return tuple(part.flatten(0, 1) for part in each.split((heads, kv_heads, kv_heads)))

    def theirs(self, ours: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return torch.cat(ours)


class Latents:
    """The maps to a token's narrow vector and to its shared key, one after the other (DeepSeek)."""

    def ours(self, theirs: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        mixer: Any = config.last()[1].blocks[0].mixer
        latent, shared = theirs.split((mixer.rank, mixer.rotary_dim))
        return latent, shared

    def theirs(self, ours: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return torch.cat(ours)


class Expansions:
    """The maps from a narrow vector to keys and values; for each head the key, then the value (DeepSeek)."""

    def ours(self, theirs: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        mixer: Any = config.last()[1].blocks[0].mixer
        each = theirs.unflatten(0, (mixer.heads, -1))
        return tuple(
            part.flatten(0, 1) for part in each.split((mixer.head_dim, mixer.value_dim or mixer.head_dim), dim=1)
        )

    def theirs(self, ours: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        mixer: Any = config.last()[1].blocks[0].mixer
        return torch.cat([part.unflatten(0, (mixer.heads, -1)) for part in ours], dim=1).flatten(0, 1)


def heads_of(config: TransformerConfig, stack: str) -> tuple[int, int]:
    """Numbers of query heads and of key heads."""
    mixer: Any = config.stacks()[stack].blocks[0].mixer
    return mixer.heads, mixer.key_heads()


class OneRow:
    """A heddle vector that the family stores as a matrix with one row."""

    def ours(self, theirs: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        return Vocabulary().ours(theirs[0], config)

    def theirs(self, ours: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return Vocabulary().theirs(ours, config)[None]


@dataclass(frozen=True)
class Vocabulary:
    """A table with one row per token. heddle's may be padded (L0-86): export drops the extra rows, import fills them with zeros.

    Attributes:
        source: whether it is the encoder's table.
    """

    source: bool = False

    def ours(self, theirs: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        extra = (config.source_rows() if self.source else config.table_rows()) - theirs.shape[0]
        return (torch.cat((theirs, theirs.new_zeros(extra, *theirs.shape[1:]))) if extra > 0 else theirs,)

    def theirs(self, ours: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return ours[0][: config.source_vocab_size if self.source else config.vocab_size]


@dataclass(frozen=True)
class TensorRow:
    """One tensor of the family, the names of heddle's tensors with its numbers, and the transform.

    `{i}` is the layer. `{e}` is the expert: the family has a tensor for each, heddle stacks them along the first axis.

    Attributes:
        shift: heddle's value is the family's plus this (Gemma stores a norm's gain minus 1). Gradients are not shifted.
        when: whether a model with this config has the row; None: whenever it has heddle's tensors.
    """

    theirs: str
    ours: tuple[str, ...]
    how: Transform = SAME
    shift: float = 0.0
    when: Callable[[TransformerConfig], bool] | None = None


def pair(
    theirs: str, ours: str, when: Callable[[TransformerConfig], bool] | None = None
) -> tuple[TensorRow, TensorRow]:
    """The rows of a weight and its bias."""
    weight, bias = (TensorRow(f"{theirs}.{part}", (f"{ours}.{part}",), when=when) for part in ("weight", "bias"))
    return weight, bias


def fused(theirs: str, ours: str, weight: Transform, bias: Transform) -> tuple[TensorRow, TensorRow]:
    """The rows of queries, keys and values that the family stores as one tensor."""
    weights, biases = (tuple(f"{ours}.{name}.{part}" for name in "qkv") for part in ("weight", "bias"))
    return TensorRow(theirs + ".weight", weights, weight), TensorRow(theirs + ".bias", biases, bias)


def rows_of(table: Iterable[TensorRow], config: TransformerConfig, names: Collection[str]) -> list[TensorRow]:
    """The rows for heddle's tensors `names`, written out for every layer.

    Raises:
        HeddleError: a name is in no row, or some tensors of a row are missing.
    """
    written = []
    stacks = config.stacks()
    for row in table:
        if row.when is not None and not row.when(config):
            continue
        depth = 1
        if "{i}" in row.theirs:
            stack = stacks.get(row.ours[0].split(".")[0])
            depth = 0 if stack is None else stack.depth
        for i in range(depth):
            ours = tuple(name.replace("{i}", str(i)) for name in row.ours)
            written.append(replace(row, theirs=row.theirs.replace("{i}", str(i)), ours=ours))
    known, present = {name for row in written for name in row.ours}, set(names)
    unset = [name for name in names if name not in known]
    chosen = [row for row in written if present & set(row.ours)]
    unset += [name for row in chosen for name in row.ours if name not in present]
    if unset:
        raise HeddleError(f"the family's table has no place for {unset[0]} ({len(unset)} such tensors)")
    return chosen


def to_theirs(
    table: Iterable[TensorRow], config: TransformerConfig, ours: Mapping[str, Tensor], gradients: bool = False
) -> dict[str, Tensor]:
    """A heddle model's tensors (or their gradients), with the family's names and shapes."""
    found: dict[str, Tensor] = {}
    told: set[str] = set()
    for row in rows_of(table, config, list(ours)):
        # A tensor with two names in the family is two tensors in a file.
        parts = tuple(ours[name].clone() if name in told else ours[name] for name in row.ours)
        told.update(row.ours)
        each = enumerate(zip(*parts, strict=True)) if "{e}" in row.theirs else [("", parts)]
        for e, those in each:
            theirs = row.how.theirs(those, config)
            found[row.theirs.replace("{e}", str(e))] = theirs if gradients or not row.shift else theirs - row.shift
    return found


def to_ours(
    table: Iterable[TensorRow], config: TransformerConfig, wanted: Mapping[str, Tensor], theirs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The family's tensors with heddle's names and shapes. `wanted` are the model's tensors, on any device."""
    found: dict[str, Tensor] = {}
    for row in rows_of(table, config, list(wanted)):
        if "{e}" in row.theirs:
            names = [row.theirs.replace("{e}", str(e)) for e in range(len(wanted[row.ours[0]]))]
            experts = zip(*(row.how.ours(theirs[name], config) for name in names), strict=True)
            parts = tuple(torch.stack(each) for each in experts)
        else:
            parts = row.how.ours(theirs[row.theirs], config)
        found.update(zip(row.ours, (part + row.shift if row.shift else part for part in parts), strict=True))
    return {name: found[name].contiguous() for name in wanted}


@dataclass(frozen=True)
class Names:
    """Variants in a family's files that its table does not cover.

    Attributes:
        prefix: the start of every name in the body; a file may leave it out in all names.
        ignorable: names of buffers without information and of layers that this head does not read; `{i}` is the layer.
        copies: a tensor that may be stored twice, and the ones that it may equal; the first of these that the model has is
            used.
        older: name endings in older files, and the table's endings for them.
        instead: a tensor that older files leave out, and the one that it then equals.
        zeros: tensors that files of a model without this head leave out; they are then zero.
        wrapped: how all names begin in files of the same model with a head.
    """

    prefix: str
    ignorable: tuple[str, ...] = ()
    copies: Mapping[str, tuple[str, ...]] | None = None
    older: tuple[tuple[str, str], ...] = ()
    instead: Mapping[str, str] | None = None
    zeros: tuple[str, ...] = ()
    wrapped: str = ""

    def spelt(self, name: str) -> str:
        """A name in the table's spelling."""
        name = name.removeprefix(self.wrapped)
        for old, new in self.older:
            if name.endswith(old):
                return name.removesuffix(old) + new
        return name


def import_tensors(
    table: Iterable[TensorRow],
    names: Names,
    config: TransformerConfig,
    model: Mapping[str, Tensor],
    weights: Weights,
    where: Path,
) -> dict[str, Tensor]:
    """Read a family's weights as fp32 tensors of the heddle model `model`, whose tensors may be on the meta device.

    Names and shapes are compared before anything is read.

    Raises:
        HeddleError: a tensor is missing, unknown, of another shape, not finite, or of a dtype that fp32 cannot hold.
    """
    bare = not any(name.startswith(names.prefix) for name in weights)
    heads = {row.theirs for row in table if not row.theirs.startswith(names.prefix)}
    spelling = {names.spelt(names.prefix + name if bare and name not in heads else name): name for name in weights}
    wanted = specs_of(to_theirs(table, config, model))
    absent = [name for name in names.zeros if name in wanted and name not in spelling]
    for name, other in (names.instead or {}).items():
        if name in wanted and other in spelling:
            spelling.setdefault(name, spelling[other])
    ignorable = re.compile("|".join(re.escape(name).replace(r"\{i\}", r"\d+") for name in names.ignorable) or "(?!)")
    stored = {name: kept for name, kept in (names.copies or {}).items() if name not in wanted and name in spelling}
    copies = {name: next(each for each in kept if each in wanted) for name, kept in stored.items()}
    found = {
        full: weights.specs[name]
        for full, name in spelling.items()
        if full in wanted or not (ignorable.fullmatch(full) or full in copies)
    }
    compare(found, {name: spec for name, spec in wanted.items() if name not in absent}, where, dtypes=False)
    for name, spec in found.items():
        if spec.dtype not in HALVES:
            raise HeddleError(f"{where}: {name} is {spec.dtype}; heddle reads weights in F32, F16 or BF16")
    read: dict[str, Tensor] = {}
    for name in wanted:
        read[name] = torch.zeros(wanted[name].shape) if name in absent else weights[spelling[name]].float()
        check_finite(name, read[name], where)
    for name, kept in copies.items():
        if not torch.equal(weights[spelling[name]].float(), read[kept]):
            raise HeddleError(f"{where}: the config ties {name} to {kept}, but the file holds two different tensors")
    return to_ours(table, config, model, read)
