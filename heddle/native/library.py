"""The libraries in C++, compiled for this processor by the machine's compiler, and cached on disk.

A wheel would have to serve the oldest processor. The compiler of the machine uses all of its instructions. Without a compiler,
torch computes, which is slower.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch

from heddle.native.measured import directory, processor

SOURCE, OPERATORS, BEST, VECTORS = (
    Path(__file__).with_name(name) for name in ("rows.cpp", "operators.cpp", "best.cpp", "vectors.h")
)
COMPILERS = ("c++", "g++", "clang++")
# A sum must not depend on which of two equal roundings a compiler prefers.
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-shared", "-fPIC", "-Wno-psabi")
# To try in this order: not every compiler has OpenMP or names the processor alike.
MACHINE_FLAGS = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-march=native",), ("-mcpu=native",), ())
SECONDS = 300  # after which a compiler is given up
# Of torch, in the order of `Functions` in operators.cpp.
TORCH_FUNCTIONS = (
    "aoti_torch_get_sizes",
    "aoti_torch_get_dtype",
    "aoti_torch_get_data_ptr",
    "aoti_torch_empty_strided",
    "aoti_torch_dtype_bfloat16",
    "aoti_torch_dtype_int8",
    "aoti_torch_dtype_uint8",
    "aoti_torch_device_type_cpu",
    "aoti_torch__reinterpret_tensor",
    "aoti_torch_delete_tensor_object",
    "aoti_torch_cpu_mm_out",
    "aoti_torch_cpu_addmm_out",
)
MOST_ROWS = 24  # of a product; torch computes more rows faster


def compiler() -> str | None:
    """The path of a C++ compiler, or None: $CXX, or the first of `COMPILERS`."""
    names = (os.environ.get("CXX"), *COMPILERS)
    return next((path for name in names if name and (path := shutil.which(name))), None)


@cache
def library() -> ctypes.CDLL | None:
    """The products of few rows, compiled if this processor has not compiled them yet; None without a compiler that can."""
    return _load(SOURCE)


@cache
def best_library() -> ctypes.CDLL | None:
    """The largest log probabilities of rows, likewise."""
    return _load(BEST)


@cache
def operators() -> ctypes.CDLL | None:
    """The products as operators of compiled steps; None without a compiler that can, or if torch's headers are missing."""
    products, root = library(), Path(torch.__file__).parent
    # Compiled steps refer to operators by name. What this library were linked with would be global as well.
    native = products and _load(OPERATORS, (f"-I{root / 'include'}",), ctypes.RTLD_GLOBAL)
    if products is None or native is None:
        return None
    suffix = "dylib" if sys.platform == "darwin" else "so"
    with suppress(OSError, AttributeError):
        interface = ctypes.CDLL(str(root / "lib" / f"libtorch_cpu.{suffix}"))
        functions = (products.heddle_product, *(getattr(interface, name) for name in TORCH_FUNCTIONS))
        addresses = (ctypes.cast(function, ctypes.c_void_p) for function in functions)
        most = (ctypes.c_int64(most_rows(dtype)) for dtype in (torch.float32, torch.bfloat16))
        native.heddle_use((ctypes.c_void_p * len(functions))(*addresses), *most)
        return native
    return None


def most_rows(dtype: torch.dtype) -> int:
    """The rows of a product in fp32 or bf16 up to which the library is faster than torch on this processor."""
    return sys.maxsize if dtype == torch.bfloat16 and not multiplies_bf16() else MOST_ROWS


def multiplies_bf16() -> bool:
    """Whether torch multiplies bf16 fast on this CPU."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _load(source: Path, flags: tuple[str, ...] = (), mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL | None:
    with suppress(OSError):
        file = _compiled(source, flags, directory())
        return None if file is None else ctypes.CDLL(str(file), mode)
    with suppress(OSError), tempfile.TemporaryDirectory(prefix="heddle-") as folder:  # the cache cannot be written
        file = _compiled(source, flags, Path(folder))
        return None if file is None else ctypes.CDLL(str(file), mode)
    return None


def _compiled(source: Path, flags: tuple[str, ...], folder: Path) -> Path | None:
    """The library's file in this directory; None if it cannot be compiled.

    Raises:
        OSError: the directory cannot be written.
    """
    about = (
        source.read_bytes(),
        VECTORS.read_bytes(),
        repr((FLAGS, MACHINE_FLAGS, flags, torch.__version__)).encode(),
        processor().encode(),
    )
    target = folder / f"{source.stem}-{sha256(b' '.join(about)).hexdigest()[:16]}.so"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    for command in _commands():
        number, partial = tempfile.mkstemp(dir=folder, prefix=".", suffix=".partial")
        os.close(number)
        try:
            words = [*command, str(source), "-o", partial, *flags]
            with suppress(subprocess.TimeoutExpired):
                if subprocess.run(words, capture_output=True, timeout=SECONDS, check=False).returncode == 0:
                    os.replace(partial, target)
                    return target
        finally:
            Path(partial).unlink(missing_ok=True)
    return None


def _commands() -> Iterator[list[str]]:
    if (path := compiler()) is not None:
        yield from ([path, *FLAGS, *flags] for flags in MACHINE_FLAGS)
