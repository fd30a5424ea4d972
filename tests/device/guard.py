"""Compiling `guard.cpp` once for a version of torch, and loading it before torch is."""

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".cpp")


def missing() -> str:
    """Why a GPU cannot be imitated here; empty: it can."""
    if not sys.platform.startswith("linux"):
        return "the imitated GPU is built on Linux alone"
    return "" if shutil.which("g++") else "the imitated GPU needs g++"


@cache
def torch_folder() -> Path:
    """Where torch is, without importing it."""
    return Path(importlib.util.find_spec("torch").origin).parent


def library() -> Path:
    """The compiled guard, in a folder of this user below the temporary directory; another version of torch has another one."""
    version = importlib.metadata.version("torch")
    key = hashlib.sha256(f"{version} {torch_folder()} {SOURCE.read_text()}".encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"heddle-device-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    target = folder / f"guard-{key}.so"
    if not target.exists():
        made = folder / f"guard-{key}.{os.getpid()}"
        subprocess.run([*command(), "-o", made], check=True)
        made.rename(target)  # another process may have been first: its file is the same
    return target


def command() -> list[str | Path]:
    """What compiles the guard."""
    options = ["-std=c++20", "-O0", "-w", "-shared", "-fPIC"]
    libraries = [f"-L{torch_folder() / 'lib'}", "-lc10", "-ltorch_cpu"]
    return ["g++", *options, SOURCE, f"-I{torch_folder() / 'include'}", *libraries]


def load() -> None:
    """Load the guard into this process, which has not imported torch."""
    assert "torch" not in sys.modules, "torch asks for a device's hooks once, when it is imported"
    for path in (torch_folder() / "lib" / "libtorch_cpu.so", library()):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
