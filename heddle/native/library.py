"""`rows.cpp`, compiled for this processor by the machine's C++ compiler, and cached on disk.

A wheel would have to serve the oldest processor. The compiler of the machine uses all of its instructions. Without a compiler,
products are computed by torch, which is slower.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch

from heddle.native.measured import directory, processor

SOURCE, OPERATORS = (Path(__file__).with_name(name) for name in ("rows.cpp", "operators.cpp"))
COMPILERS = ("c++", "g++", "clang++")
# A sum must not depend on which of two equal roundings a compiler prefers.
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-shared", "-fPIC", "-Wno-psabi")
# To try in this order: not every compiler has OpenMP or names the processor alike.
MACHINE_FLAGS = (("-march=native", "-fopenmp"), ("-mcpu=native", "-fopenmp"), ("-march=native",), ("-mcpu=native",), ())
SECONDS = 300  # after which a compiler is given up


def compiler() -> str | None:
    """The path of a C++ compiler, or None: $CXX, or the first of `COMPILERS`."""
    names = (os.environ.get("CXX"), *COMPILERS)
    return next((path for name in names if name and (path := shutil.which(name))), None)


@cache
def library() -> ctypes.CDLL | None:
    """The library, compiled if this processor has not compiled it yet; None without a compiler that can."""
    return _load(SOURCE)


@cache
def operators() -> ctypes.CDLL | None:
    """The products as operators of compiled steps; None without a compiler that can, or if torch's headers are missing."""
    root = Path(torch.__file__).parent
    flags = (f"-I{root / 'include'}", f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}", "-ltorch_cpu")
    return None if library() is None else _load(OPERATORS, flags)


def _load(source: Path, flags: tuple[str, ...] = ()) -> ctypes.CDLL | None:
    # Functions are global: compiled steps refer to operators by name, and these to the products.
    with suppress(OSError):
        file = _compiled(source, flags, directory())
        return None if file is None else ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    with suppress(OSError), tempfile.TemporaryDirectory(prefix="heddle-") as folder:  # the cache cannot be written
        file = _compiled(source, flags, Path(folder))
        return None if file is None else ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    return None


def _compiled(source: Path, flags: tuple[str, ...], folder: Path) -> Path | None:
    """The library's file in this directory; None if it cannot be compiled.

    Raises:
        OSError: the directory cannot be written.
    """
    about = (source.read_bytes(), repr((FLAGS, MACHINE_FLAGS, flags, torch.__version__)).encode(), processor().encode())
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
