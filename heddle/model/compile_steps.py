"""Compile the parts of a model's decoding steps: `python -m heddle.model.compile_steps JSON`, which `heddle.model.steps` starts.

The model is built on the meta device; each part that is not there yet gets memory and random weights, is compiled, and must then
compute what its module computes. A part that cannot be compiled leaves a file that says why, so that nobody tries again.
"""

import copy
import fcntl
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from heddle.config.model import TransformerConfig
from heddle.errors import HeddleError
from heddle.model.build import build
from heddle.model.linear import use_few_rows
from heddle.model.packages import Library, Part, compile_part, steps_folder
from heddle.model.parts import SHORT, Entry, Exit, Kind, Step, parts_of, sizes_of
from heddle.model.precision import cast
from heddle.model.quantize import round_weights
from heddle.model.steps import PackagedSteps, described_for_compiling
from heddle.model.transformer import Transformer
from heddle.native.library import COMPILERS, operators
from heddle.nn.layout import Layout

MOST = 300  # parts on disk; each takes a megabyte or less
ROWS, SLOTS = 3, 128  # of the inputs that a part is compiled for, if these sizes may differ
CLOSE = {
    torch.float32: 2e-5,
    torch.bfloat16: 0.05,
}  # a part's largest difference from its module, relative to its largest output


def skeleton(about: Mapping[str, Any]) -> Transformer:
    """The model that a request is about, on the meta device."""
    model = build(TransformerConfig.model_validate(about["config"]), device="meta")
    if about["dtype"] == "torch.bfloat16":
        cast(model, "bf16", tables=about["tables"] == "torch.bfloat16")
    if about["weights"] != "trained":
        round_weights(model, about["weights"])
    return use_few_rows(model.eval())


def compile_now(model: Transformer, rows: Sequence[int], beams: int = 1) -> None:
    """Compile the parts of a model's decoding steps in this process, and use them.

    Args:
        model: in evaluation mode, on a CPU, in its precision for inference.
        rows: numbers of rows, or of searches with beams: one, several, or both.
        beams: of each source of an encoder-decoder.

    Raises:
        HeddleError: there is no C++ compiler, or a part cannot be compiled.
    """
    if operators() is None:
        raise HeddleError(f"compiling needs a C++ compiler ({', '.join(COMPILERS)}): install one, or do not compile")
    use_few_rows(model)
    for several in sorted({count > 1 for count in rows}):
        cache = model.new_cache(2 if several else 1)
        token = torch.zeros(len(cache.lengths), 1, dtype=torch.long)
        with torch.inference_mode():
            model(token, source=None if model.encoder is None else token.expand(-1, 2), cache=cache)
        share = 1 if model.encoder is None else beams
        kind, sizes = Kind(several, long=False, share=share), sizes_of(cache)
        compile_all(described_for_compiling(model, sizes, kind))
        for part in parts_of(model, sizes, kind):
            if not part.file.exists():
                failure = part.file.with_suffix(".failed")
                message = failure.read_text().splitlines()[0] if failure.exists() else "it has modules of another kind"
                raise HeddleError(f"this model's decoding step cannot be compiled ({message}): do not compile it")
    model.steps = PackagedSteps(model)


def compile_all(about: Mapping[str, Any]) -> None:
    """Compile the parts that a request is about and that are not there."""
    model, kind = skeleton(about), Kind(**about["kind"])
    if operators() is None:
        return
    steps_folder().mkdir(parents=True, exist_ok=True)
    for part in parts_of(model, about["sizes"], kind):
        failure = part.file.with_suffix(".failed")
        if part.file.exists() or failure.exists():
            continue
        try:
            _compile(part, kind, model)
        except Exception as error:  # whatever the compiler raises, plain steps go on
            failure.write_text(f"{type(error).__name__}: {error}\n")
    remove_oldest(steps_folder())


def remove_oldest(folder: Path, most: int = MOST) -> None:
    """Remove the parts that were not used for longest, until there are at most `most`."""
    files = sorted(folder.glob("*.so"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[most:]:
        for suffix in (".so", ".json"):
            file.with_suffix(suffix).unlink(missing_ok=True)


def _compile(part: Part, kind: Kind, model: Transformer) -> None:
    """Compile one part, and compare it with its module.

    Raises:
        ValueError: they differ.
    """
    module = _filled(copy.deepcopy(part.module), seed=0)
    arguments, dynamic = _inputs(part, kind, model, ROWS, SLOTS)
    partial = part.file.with_name(f".{part.file.name}")
    compile_part(module, partial, arguments, dynamic)
    module = _filled(module, seed=1)  # the library must read the weights, not remember them
    library = Library(partial, module)
    for rows, slots in ((ROWS, SLOTS), (2 * ROWS, 2 * SLOTS)):
        arguments, _ = _inputs(part, kind, model, rows, slots)
        again = [tensor.clone() for tensor in arguments]
        with torch.inference_mode():
            expected, actual = module(*arguments), library(again)
        for one, other in zip([*expected, *arguments], [*actual, *again], strict=True):
            difference, largest = (one - other).abs().max().item(), one.abs().max().item()
            if not difference <= CLOSE.get(one.dtype, 0.0) * max(largest, 1e-3):
                raise ValueError(
                    f"the compiled part differs from its module by {difference}, where numbers reach {largest}"
                )
    for suffix in (".json", ".so"):  # only now may others load it; the library comes last
        with suppress(FileNotFoundError):
            os.replace(partial.with_suffix(suffix), part.file.with_suffix(suffix))


def _filled(module: nn.Module, seed: int) -> nn.Module:
    """Give a module memory on the CPU and random weights."""
    generator = torch.Generator().manual_seed(seed)

    def fill(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            most = 255 if tensor.dtype == torch.uint8 else 127
            return torch.randint(0, most, tensor.shape, dtype=tensor.dtype, generator=generator)
        return (torch.randn(tensor.shape, generator=generator) * 0.2).to(tensor.dtype)  # attention is not even

    return module._apply(fill)


def _inputs(part: Part, kind: Kind, model: Transformer, rows: int, slots: int) -> tuple[tuple[Tensor, ...], Any]:
    """Inputs of a part, and which of their sizes differ from call to call."""
    sources = rows if kind.several else 1
    count = sources * kind.share
    generator = torch.Generator().manual_seed(rows)
    start = torch.randint(1, 60, (count,), generator=generator)
    x = torch.randn(count, 1, model.config.dim, generator=generator).to(model.working_dtype())
    any_rows = {0: Dim("rows", min=2)} if kind.varies else {}
    if isinstance(part.module, Entry):
        tokens = torch.randint(0, model.vocab_size, (count, 1), generator=generator)
        return (tokens, start), (any_rows, any_rows)
    if isinstance(part.module, Exit):
        return (x,), (any_rows,)
    assert isinstance(part.module, Step)
    number: Any = Dim("sources", min=2)
    per_source = {0: number} if kind.several else {}
    row = {0: number * kind.share if kind.share > 1 else number} if kind.several else {}
    row = any_rows if part.module.crossing is None else row
    longest = Dim("slots", min=SHORT + 1) if kind.long else Dim("slots", min=2, max=SHORT)
    lengths = {"slots": SHORT + slots if kind.long else slots, "source": slots // 2}
    names: dict[str, Any] = {"slots": longest, "source": Dim("source", min=2, max=SHORT)}
    tensors, dynamic = list[Tensor](), list[dict[int, Any]]()
    for *shape, dtype in (sizes for state in part.inputs[-1] for sizes in state):
        whole = [lengths.get(size, size) for size in shape]
        of_source = "source" in shape
        first = sources if of_source else count
        tensors.append(torch.randn(first, *whole, generator=generator).to(getattr(torch, dtype)))
        named = {axis: names[size] for axis, size in enumerate(shape, 1) if size in names}
        dynamic.append((per_source if of_source else row) | named)
    if part.module.crossing is not None:
        ends = [slots // 2 - (index % 3) * slots // 8 for index in range(sources)]
        tensors += Layout.padded(ends, slots // 2).tensors()
        dynamic += [per_source | {1: names["source"]}] * 2
    return (x, start, *tensors), (row, row, tuple(dynamic))


@contextmanager
def _alone(file: Path) -> Iterator[bool]:
    """Whether this is the only process that compiles; the others leave it to this one."""
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def main() -> None:
    """Compile what the first argument requests, unless another process is compiling."""
    with suppress(OSError, AttributeError):
        os.nice(19)
    with _alone(steps_folder() / "lock") as alone:
        if alone:
            compile_all(json.loads(sys.argv[1]))


if __name__ == "__main__":
    main()
