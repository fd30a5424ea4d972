"""Strict reading of safetensors files: the header is compared with the expected one before any tensor is read."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from heddle.errors import HeddleError
from heddle.model.build import materialise

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
INTEGERS = {"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8}
DTYPES = {**FLOATS, **INTEGERS, "BOOL": torch.bool, "C64": torch.complex64}  # in safetensors' spelling
OFFSETS = "DCP_SHARDING_INFO"  # where torch's writer of shards says which piece of a tensor a file has
LAYER = "{stack}.blocks.{{i}}."  # the start of every tensor name in layer i of a stack of a heddle model


class Spec(NamedTuple):
    """One tensor's entry in a file's header."""

    dtype: str  # in safetensors' spelling: F32, BF16, ...
    shape: tuple[int, ...]


class Piece(NamedTuple):
    """The part of a tensor that one file has."""

    handle: Any
    offset: tuple[int, ...]
    shape: tuple[int, ...]


class Weights(Mapping[str, Tensor]):
    """The tensors of one or several safetensors files by name, each read on access.

    A tensor may be in several files as shards, as `torch.distributed.checkpoint` writes them.

    Attributes:
        specs: the entries of the headers, available without reading tensors.
        metadata: the metadata of all files.

    Raises:
        HeddleError: a file is missing, truncated, damaged or not a safetensors file, two files contain the same name, or shards are
            not all there.
    """

    def __init__(self, files: Sequence[Path], device: torch.device | str = "cpu") -> None:
        self.specs: dict[str, Spec] = {}
        self.metadata: dict[str, str] = {}
        self._pieces: dict[str, list[Piece]] = {}
        for file in files:
            handle = _open(file, device)
            metadata = handle.metadata() or {}
            offsets = json.loads(metadata.pop(OFFSETS, "{}"))
            self.metadata |= metadata
            for name in handle.keys():  # noqa: SIM118 (a handle is not a mapping)
                if name in self.specs and name not in offsets:
                    raise HeddleError(f"{file}: contains {name}, which is also in another file of these weights")
                part = handle.get_slice(name)
                shape = tuple(part.get_shape())
                offset = tuple(offsets[name]["saved_offsets"]) if name in offsets else (0,) * len(shape)
                self._pieces.setdefault(name, []).append(Piece(handle, offset, shape))
                ends = [start + size for start, size in zip(offset, shape, strict=True)]
                before = self.specs[name].shape if name in self.specs else offset
                self.specs[name] = Spec(part.get_dtype(), tuple(map(max, ends, before)))
        for name, pieces in self._pieces.items():
            numbers, whole = sum(prod(piece.shape) for piece in pieces), prod(self.specs[name].shape)
            if numbers != whole:
                raise HeddleError(f"{files[0].parent}: the shards of {name} have {numbers} numbers of {whole}")

    def __getitem__(self, name: str) -> Tensor:
        return self.region(name, tuple(slice(0, size) for size in self.specs[name].shape))

    def region(self, name: str, region: tuple[slice, ...]) -> Tensor:
        """A region of a tensor, from a start to a stop on each axis; nothing else is read."""
        read = []
        for handle, offset, shape in self._pieces[name]:
            starts = [max(each.start, low) for each, low in zip(region, offset, strict=True)]
            stops = [min(each.stop, low + size) for each, low, size in zip(region, offset, shape, strict=True)]
            if all(start < stop for start, stop in zip(starts, stops, strict=True)):
                tensor = handle.get_slice(name)[_slices(starts, stops, offset)]
                read.append((_slices(starts, stops, [each.start for each in region]), tensor))
        like = read[0][1] if read else torch.empty(0, dtype=DTYPES[self.specs[name].dtype])
        whole = like.new_empty([each.stop - each.start for each in region])
        for place, tensor in read:
            whole[place] = tensor  # copied, since on the CPU safetensors may return a view of the mapped file
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)


def read_tensors(path: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    return dict(Weights([path], device))


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file. Not atomic: the caller writes into an atomic directory.

    Raises:
        HeddleError: safetensors does not support a dtype.
    """
    specs_of(tensors)
    data = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    places: set[int] = set()
    for name, tensor in data.items():
        place = tensor.untyped_storage().data_ptr()
        if place in places:  # custom modules may name a tensor twice, which is stored twice
            data[name] = tensor.clone()
        places.add(place)
    # safetensors cannot read a file with empty metadata and no tensors.
    save_file(data, path, dict(metadata) if metadata else None)
    # safetensors creates files that only their owner can read; use the default permissions instead.
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def specs_of(tensors: Mapping[str, Tensor]) -> dict[str, Spec]:
    """The header of a file with these tensors, which may be on the meta device.

    Raises:
        HeddleError: safetensors does not support a dtype.
    """
    spelling = {dtype: name for name, dtype in DTYPES.items()}
    for name, tensor in tensors.items():
        if tensor.dtype not in spelling:
            raise HeddleError(
                f"{name} is of {tensor.dtype}, which files cannot store; use one of {', '.join(DTYPES)}, "
                "or register the buffer with persistent=False"
            )
    return {name: Spec(spelling[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}


def fill(model: nn.Module, weights: Weights, where: Path, device: torch.device | str = "cpu") -> None:
    """Load the weights of the file `where` into a model. One on the meta device is allocated on `device` once the headers match.

    Other attributes of custom modules come from their constructors.

    Raises:
        HeddleError: names, shapes or dtypes differ from the model's, or a value is not finite.
    """
    state = model.state_dict()
    compare(weights.specs, specs_of(state), where)
    if any(tensor.is_meta for tensor in state.values()):
        materialise(model, device)
    for name, tensor in model.state_dict().items():
        value = weights[name]
        check_finite(name, value, where)
        tensor.copy_(value)


def compare(actual: Mapping[str, Spec], expected: Mapping[str, Spec], where: Path, dtypes: bool = True) -> None:
    """Compare a header with the expected one.

    Raises:
        HeddleError: they differ. The message gives the first difference and the counts of all.
    """
    missing = [name for name in expected if name not in actual]
    extra = [name for name in actual if name not in expected]
    both = [name for name in expected if name in actual]
    shapes = [name for name in both if actual[name].shape != expected[name].shape]
    others = [name for name in both if dtypes and actual[name].dtype != expected[name].dtype]
    if not (missing or extra or shapes or others):
        return
    if shapes:
        name = shapes[0]
        first = f"{name} has shape {list(actual[name].shape)} in the file and {list(expected[name].shape)} in the model"
    elif missing:
        first = f"{missing[0]} {list(expected[missing[0]].shape)} is not in the file"
    elif extra:
        first = f"{extra[0]} {list(actual[extra[0]].shape)} is not in the model"
    else:
        first = f"{others[0]} is {actual[others[0]].dtype} in the file and {expected[others[0]].dtype} in the model"
    kinds = {"missing": missing, "not known to the model": extra, "of other shape": shapes, "of other dtype": others}
    counts = ", ".join(f"{len(names)} {kind}" for kind, names in kinds.items() if names)
    raise HeddleError(f"{where}: the weights do not match its config. {first} (of {len(expected)} tensors {counts})")


def check_depth(
    names: Iterable[str], layer: str, depth: int, where: Path, prefix: str = "", stack: str | None = None
) -> None:
    """Raise if the weights have another number of layers. This runs before the model is built, even on the meta device.

    `layer` is the start of every name in layer `{i}`; its `prefix` may be missing in the file. `stack` names the stack if there are
    two.
    """
    optional = f"(?:{re.escape(prefix)})?" if prefix else ""
    pattern = re.compile(optional + re.escape(layer.removeprefix(prefix)).replace(r"\{i\}", r"(\d+)"))
    layers = {match[1] for name in names if (match := pattern.match(name))}
    if len(layers) != depth:
        inside = "" if stack is None else f" in the {stack}"
        raise HeddleError(f"{where}: the weights have {len(layers)} layers{inside}, the config says {depth}")


def check_finite(name: str, tensor: Tensor, where: Path) -> None:
    """Raise if a value is NaN or infinite."""
    wrong = tensor.numel() - int(tensor.isfinite().sum())
    if wrong:
        raise HeddleError(
            f"{where}: {wrong} of the {tensor.numel()} numbers of {name} are NaN or infinite; the weights are unusable"
        )


def _open(path: Path, device: torch.device | str) -> Any:
    path = Path(path)
    if not path.is_file():
        raise HeddleError(f"{path}: {'not a file' if path.exists() else 'no such file'}; expected weights")
    try:
        return safe_open(path, framework="pt", device=str(device))
    except (SafetensorError, OSError) as error:
        reason = str(error).removeprefix("Error while deserializing header: ").splitlines()[0]
        raise HeddleError(
            f"{path}: not a complete safetensors file ({reason}); it is damaged, truncated or in another format"
        ) from None


def _slices(starts: Sequence[int], stops: Sequence[int], origin: Sequence[int]) -> tuple[slice, ...]:
    """From starts to stops, counted from an origin."""
    return tuple(slice(start - zero, stop - zero) for start, stop, zero in zip(starts, stops, origin, strict=True))
