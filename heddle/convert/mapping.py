"""Two-way tables between the tensors of a published family and heddle's.

A family writes one list of rows, and both directions follow from it. Every transform is linear and only moves numbers, so a table
maps gradients as well as weights, and a round trip is exact. The only arithmetic is a row's `shift`.
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

EXACT_IN_FP32 = {"F32", "F16", "BF16"}  # dtypes that fp32 holds exactly


class Transform(Protocol):
    """A two-way mapping between one published tensor and one or several heddle tensors with the same numbers."""

    def to_heddle(self, tensor: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]: ...

    def to_published(self, tensors: tuple[Tensor, ...], config: TransformerConfig) -> Tensor: ...


class Same:
    """The identity."""

    def to_heddle(self, tensor: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        return (tensor,)

    def to_published(self, tensors: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return tensors[0]


SAME = Same()


class Transposed:
    """A matrix stored input first, as in the Conv1D of GPT-2."""

    def to_heddle(self, tensor: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        return (tensor.T,)

    def to_published(self, tensors: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return tensors[0].T


@dataclass(frozen=True)
class Fused:
    """Several heddle tensors of equal size, concatenated along axis `dim` in the family; `each` converts one part."""

    dim: int
    parts: int
    each: Transform = SAME

    def to_heddle(self, tensor: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        return tuple(self.each.to_heddle(part, config)[0] for part in tensor.chunk(self.parts, self.dim))

    def to_published(self, tensors: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return torch.cat([self.each.to_published((part,), config) for part in tensors], self.dim)


@dataclass(frozen=True)
class Grouped:
    """q, k and v in one tensor. For each key head: its query heads, the key, the value (GPT-NeoX, Falcon)."""

    stack: str = "decoder"

    def to_heddle(self, tensor: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        heads, kv_heads = heads_of(config, self.stack)
        groups = tensor.unflatten(0, (kv_heads, heads // kv_heads + 2, -1))
        return tuple(part.flatten(0, 2) for part in groups.split((heads // kv_heads, 1, 1), dim=1))

    def to_published(self, tensors: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        heads, kv_heads = heads_of(config, self.stack)
        counts = (heads // kv_heads, 1, 1)
        parts = [part.unflatten(0, (kv_heads, count, -1)) for part, count in zip(tensors, counts, strict=True)]
        return torch.cat(parts, dim=1).flatten(0, 2)


@dataclass(frozen=True)
class Consecutive:
    """q, k and v in one tensor, one after another: all query heads, all key heads, all value heads (Phi-3)."""

    stack: str = "decoder"

    def to_heddle(self, tensor: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        heads, kv_heads = heads_of(config, self.stack)
        by_head = tensor.unflatten(0, (heads + 2 * kv_heads, -1))
        return tuple(part.flatten(0, 1) for part in by_head.split((heads, kv_heads, kv_heads)))

    def to_published(self, tensors: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return torch.cat(tensors)


class Latents:
    """The maps to a token's narrow vector and to its shared key, one after the other (DeepSeek)."""

    def to_heddle(self, tensor: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        mixer: Any = config.last()[1].blocks[0].mixer
        latent, shared = tensor.split((mixer.rank, mixer.rotary_dim))
        return latent, shared

    def to_published(self, tensors: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return torch.cat(tensors)


class Expansions:
    """The maps from a narrow vector to keys and values; for each head the key, then the value (DeepSeek)."""

    def to_heddle(self, tensor: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        mixer: Any = config.last()[1].blocks[0].mixer
        by_head = tensor.unflatten(0, (mixer.heads, -1))
        return tuple(
            part.flatten(0, 1) for part in by_head.split((mixer.head_dim, mixer.value_dim or mixer.head_dim), dim=1)
        )

    def to_published(self, tensors: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        mixer: Any = config.last()[1].blocks[0].mixer
        return torch.cat([part.unflatten(0, (mixer.heads, -1)) for part in tensors], dim=1).flatten(0, 1)


def heads_of(config: TransformerConfig, stack: str) -> tuple[int, int]:
    """The numbers of query heads and of key heads."""
    mixer: Any = config.stacks()[stack].blocks[0].mixer
    return mixer.heads, mixer.key_heads()


class OneRow:
    """A heddle vector that the family stores as a matrix with one row."""

    def to_heddle(self, tensor: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        return Vocabulary().to_heddle(tensor[0], config)

    def to_published(self, tensors: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return Vocabulary().to_published(tensors, config)[None]


@dataclass(frozen=True)
class Vocabulary:
    """A table with one row per token. heddle's may be padded (L0-86): export drops the extra rows, import fills them with zeros.

    Attributes:
        source: whether it is the encoder's table.
    """

    source: bool = False

    def to_heddle(self, tensor: Tensor, config: TransformerConfig) -> tuple[Tensor, ...]:
        extra = (config.source_rows() if self.source else config.table_rows()) - tensor.shape[0]
        return (torch.cat((tensor, tensor.new_zeros(extra, *tensor.shape[1:]))) if extra > 0 else tensor,)

    def to_published(self, tensors: tuple[Tensor, ...], config: TransformerConfig) -> Tensor:
        return tensors[0][: config.source_vocab_size if self.source else config.vocab_size]


@dataclass(frozen=True)
class TensorRow:
    """One published tensor, the heddle tensors with its numbers, and the transform between them.

    In names, `{i}` is the layer and `{e}` the expert: a family has one tensor per expert, heddle stacks them along the first axis.

    Attributes:
        published: the name of the published tensor.
        heddle: the names of heddle's tensors.
        transform: how one becomes the other.
        shift: added to the published value on import, since Gemma stores a norm's gain minus 1. Gradients are not shifted.
        when: whether a model with this config has the row. None: it does if it has heddle's tensors.
    """

    published: str
    heddle: tuple[str, ...]
    transform: Transform = SAME
    shift: float = 0.0
    when: Callable[[TransformerConfig], bool] | None = None


def pair(
    published: str, heddle: str, when: Callable[[TransformerConfig], bool] | None = None
) -> tuple[TensorRow, TensorRow]:
    """The rows of a weight and its bias."""
    weight, bias = (TensorRow(f"{published}.{part}", (f"{heddle}.{part}",), when=when) for part in ("weight", "bias"))
    return weight, bias


def pairs(published: str, heddle: str, names: Mapping[str, str]) -> tuple[TensorRow, ...]:
    """The rows of the weights and biases of several modules, given their published names and heddle's after the starts."""
    return tuple(row for source, target in names.items() for row in pair(published + source, heddle + target))


def fused(published: str, heddle: str, weight: Transform, bias: Transform) -> tuple[TensorRow, TensorRow]:
    """The rows of queries, keys and values that are published as one tensor."""
    weights, biases = (tuple(f"{heddle}.{name}.{part}" for name in "qkv") for part in ("weight", "bias"))
    return TensorRow(published + ".weight", weights, weight), TensorRow(published + ".bias", biases, bias)


def rows_of(table: Iterable[TensorRow], config: TransformerConfig, names: Collection[str]) -> list[TensorRow]:
    """The rows for heddle's tensors `names`, written out for every layer.

    Raises:
        HeddleError: a name is in no row, or some tensors of a row are missing.
    """
    rows = []
    stacks = config.stacks()
    for row in table:
        if row.when is not None and not row.when(config):
            continue
        depth = 1
        if "{i}" in row.published:
            stack = stacks.get(row.heddle[0].split(".")[0])
            depth = 0 if stack is None else stack.depth
        for i in range(depth):
            heddle = tuple(name.replace("{i}", str(i)) for name in row.heddle)
            rows.append(replace(row, published=row.published.replace("{i}", str(i)), heddle=heddle))
    known, present = {name for row in rows for name in row.heddle}, set(names)
    unplaced = [name for name in names if name not in known]
    needed = [row for row in rows if present & set(row.heddle)]
    unplaced += [name for row in needed for name in row.heddle if name not in present]
    if unplaced:
        raise HeddleError(f"the family's table has no place for {unplaced[0]} ({len(unplaced)} such tensors)")
    return needed


def to_published(
    table: Iterable[TensorRow], config: TransformerConfig, tensors: Mapping[str, Tensor], gradients: bool = False
) -> dict[str, Tensor]:
    """A heddle model's tensors (or their gradients), with the family's names and shapes."""
    published: dict[str, Tensor] = {}
    written: set[str] = set()
    for row in rows_of(table, config, list(tensors)):
        # A tensor with two published names is stored twice.
        parts = tuple(tensors[name].clone() if name in written else tensors[name] for name in row.heddle)
        written.update(row.heddle)
        by_expert = enumerate(zip(*parts, strict=True)) if "{e}" in row.published else [("", parts)]
        for e, expert_parts in by_expert:
            tensor = row.transform.to_published(expert_parts, config)
            name = row.published.replace("{e}", str(e))
            published[name] = tensor if gradients or not row.shift else tensor - row.shift
    return published


def to_heddle(
    table: Iterable[TensorRow], config: TransformerConfig, model: Mapping[str, Tensor], published: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Published tensors with heddle's names and shapes, in the order of the tensors of `model`, which may be on any device."""
    tensors: dict[str, Tensor] = {}
    for row in rows_of(table, config, list(model)):
        if "{e}" in row.published:
            names = [row.published.replace("{e}", str(e)) for e in range(len(model[row.heddle[0]]))]
            experts = zip(*(row.transform.to_heddle(published[name], config) for name in names), strict=True)
            parts = tuple(torch.stack(each) for each in experts)
        else:
            parts = row.transform.to_heddle(published[row.published], config)
        tensors.update(zip(row.heddle, (part + row.shift if row.shift else part for part in parts), strict=True))
    return {name: tensors[name].contiguous() for name in model}


@dataclass(frozen=True)
class Names:
    """Variants of names in a family's files that its table does not cover.

    Attributes:
        prefix: the start of every name in the body. A file may leave it out, in all names.
        ignorable: buffers without information, and layers that this head does not read. `{i}` is the layer.
        copies: a tensor that may be stored twice, and the tensors that it may equal. The first that the model has is used.
        older: endings of names in older files, and the table's endings for them.
        instead: a tensor that older files leave out, and the one that it equals then.
        zeros: tensors that are zero if a file leaves them out, as files of a model without this head do.
        wrapped: the start of all names in files of the same model with a head.
    """

    prefix: str
    ignorable: tuple[str, ...] = ()
    copies: Mapping[str, tuple[str, ...]] | None = None
    older: tuple[tuple[str, str], ...] = ()
    instead: Mapping[str, str] | None = None
    zeros: tuple[str, ...] = ()
    wrapped: str = ""

    def normalized(self, name: str) -> str:
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

    Names and shapes are checked before any tensor is read.

    Raises:
        HeddleError: a tensor is missing, unknown, of another shape, not finite, or of a dtype that fp32 cannot hold.
    """
    without_prefix = not any(name.startswith(names.prefix) for name in weights)
    outside_body = {row.published for row in table if not row.published.startswith(names.prefix)}
    stored_names = {
        names.normalized(names.prefix + name if without_prefix and name not in outside_body else name): name
        for name in weights
    }
    expected = specs_of(to_published(table, config, model))
    zeros = [name for name in names.zeros if name in expected and name not in stored_names]
    for name, other in (names.instead or {}).items():
        if name in expected and other in stored_names:
            stored_names.setdefault(name, stored_names[other])
    ignorable = re.compile("|".join(re.escape(name).replace(r"\{i\}", r"\d+") for name in names.ignorable) or "(?!)")
    duplicates = {
        name: next(each for each in originals if each in expected)
        for name, originals in (names.copies or {}).items()
        if name not in expected and name in stored_names
    }
    specs = {
        name: weights.specs[stored]
        for name, stored in stored_names.items()
        if name in expected or not (ignorable.fullmatch(name) or name in duplicates)
    }
    compare(specs, {name: spec for name, spec in expected.items() if name not in zeros}, where, dtypes=False)
    for name, spec in specs.items():
        if spec.dtype not in EXACT_IN_FP32:
            raise HeddleError(f"{where}: {name} is {spec.dtype}; heddle reads weights in F32, F16 or BF16")
    published: dict[str, Tensor] = {}
    for name in expected:
        published[name] = torch.zeros(expected[name].shape) if name in zeros else weights[stored_names[name]].float()
        check_finite(name, published[name], where)
    for name, original in duplicates.items():
        if not torch.equal(weights[stored_names[name]].float(), published[original]):
            raise HeddleError(
                f"{where}: the config ties {name} to {original}, but the file holds two different tensors"
            )
    return to_heddle(table, config, model, published)
