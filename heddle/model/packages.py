"""Compiled parts of decoding steps on disk: a part is compiled once for a processor, and later processes load it in milliseconds.

A part is a shared library, made by torch's ahead-of-time compiler. It has no weights: it reads those of the model where they lie.
Its name is a digest of everything that it depends on: heddle's sources, the versions of torch and of the compiler's products, the
processor, the structure of the part, and the kinds of its inputs.
"""

import json
import os
import tempfile
import types
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from heddle.native.measured import Measurements, machine

OPERATOR = (
    "AOTITorchError aoti_torch_cpu_few_rows(AtenTensorHandle, AtenTensorHandle, const AtenTensorHandle*, "
    "const AtenTensorHandle*, AtenTensorHandle*)"
)
OF_TORCH = frozenset(vars(nn.Module()))  # attributes of every module


class Undescribed(Exception):
    """A value whose meaning cannot be put into words, so that a part with it has no name."""


def described(value: object) -> Any:
    """A value as plain data: a module's structure without the values of its weights, a config's fields, a function's name.

    Raises:
        Undescribed: it is something else.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype | range):
        return str(value)
    if isinstance(value, Tensor):
        return [list(value.shape), list(value.stride()), str(value.dtype)]
    if isinstance(value, tuple | list):
        return [described(each) for each in value]
    if isinstance(value, Mapping):
        return [[described(key), described(each)] for key, each in value.items()]
    if isinstance(value, nn.Module):
        own = {name: each for name, each in vars(value).items() if name not in OF_TORCH}
        parts = (value.training, own, value._parameters, value._buffers, value._modules)
        return [_name(type(value)), *map(described, parts)]
    if isinstance(value, BaseModel):
        return [_name(type(value)), value.model_dump(mode="json")]
    if is_dataclass(value) and not isinstance(value, type):
        return [_name(type(value)), [described(getattr(value, field.name)) for field in fields(value)]]
    if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
        return _name(value)
    raise Undescribed(f"{type(value).__name__}")


def _name(value: Any) -> str:
    name = f"{value.__module__}.{value.__qualname__}"
    if "<" in name or not name.startswith(("heddle.", "torch.")):
        raise Undescribed(name)
    return name


@cache
def surroundings() -> str:
    """A digest of what every part depends on: the processor, torch, and heddle's sources."""
    digest = sha256(json.dumps({**machine(), "torch": torch.__version__}, sort_keys=True).encode())
    root = Path(__file__).parents[1]
    for folder in ("nn", "model", "native", "config"):
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in (".py", ".cpp", ".h"):
                digest.update(file.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Part:
    """A part of a decoding step, with the sizes of its inputs.

    Attributes:
        module: computes it.
        inputs: a description of the inputs, which decides what is compiled.
    """

    module: nn.Module
    inputs: Any

    @property
    def file(self) -> Path:
        """Where its library is, or will be.

        Raises:
            Undescribed: the module has an attribute that cannot be described.
        """
        about = json.dumps([surroundings(), described(self.module), described(self.inputs)])
        return steps_folder() / f"{sha256(about.encode()).hexdigest()[:32]}.so"


def steps_folder() -> Path:
    """The directory of compiled parts."""
    return Measurements.for_device().steps


class Library:
    """A compiled part, loaded for one module.

    Args:
        file: its library.
        module: whose weights it reads.
    """

    def __init__(self, file: Path, module: nn.Module) -> None:
        os.utime(file)  # those that are not used for long are removed
        self.runner: Any = torch._C._aoti.AOTIModelContainerRunnerCpu(str(file), 1)
        self.names: dict[str, str] = self.runner.get_constant_names_to_original_fqns()
        self.bind(module)

    def bind(self, module: nn.Module) -> None:
        """Read the weights of this module from now on, where they lie."""
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self.weights = {name: tensors[original].detach() for name, original in self.names.items()}
        self.runner.update_constant_buffer(self.weights, False, False, True)

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        outputs: list[Tensor] = self.runner.run(inputs)
        return outputs


def compile_part(module: nn.Module, file: Path, arguments: tuple[Tensor, ...], dynamic: Any) -> None:
    """Compile a part's module into a library.

    Args:
        module: in evaluation mode.
        file: the library; its directory exists.
        arguments: inputs to compile it for; only their shapes matter.
        dynamic: which of their sizes differ from call to call, as in `torch.export`.
    """
    from torch._inductor import aoti_compile_and_package

    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".") as folder, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, arguments, dynamic_shapes=dynamic, strict=False)
        packed = aoti_compile_and_package(
            program, package_path=str(Path(folder) / "part.pt2"), inductor_configs=_settings()
        )
        with zipfile.ZipFile(packed) as archive:
            # The library, and a list of the operators that it calls through torch, if there are any: the library comes last.
            names = {Path(name).suffix: name for name in archive.namelist() if name.endswith((".so", "wrapper.json"))}
            for suffix in sorted(names):
                partial = Path(folder) / f"part{suffix}"
                partial.write_bytes(archive.read(names[suffix]))
                os.replace(partial, file.with_suffix(suffix))


def _settings() -> dict[str, Any]:
    operator = torch.ops.heddle.few_rows.default
    return {
        "aot_inductor.package": True,
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.custom_ops_to_c_shims": {operator: [OPERATOR]},
        "aot_inductor.enable_line_tables": False,
        "always_keep_tensor_constants": True,  # else the values of weights with few numbers become a part of the code
        "cpp.dynamic_threads": True,
    }
