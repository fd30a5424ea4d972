"""Products of few rows, beside float64 products by numpy."""

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from heddle.native import library as module
from heddle.native import products
from heddle.native.library import FLAGS, SOURCE, compiler, library
from heddle.native.products import GROUP, KINDS, MANY, product, rounded_inputs
from tests.thorough import thorough

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler")

# Processors of other users: the narrowest vectors, and the widest that this machine can run.
MACHINES = ("-march=x86-64", *thorough("-march=x86-64-v3", "-march=x86-64-v4"))


def matrix(outputs: int, inputs: int, seed: int = 0) -> Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))


def weights(kind: str, outputs: int, inputs: int) -> tuple[Tensor, Tensor | None, np.ndarray]:
    """Weights of a kind with their scales, and the matrix that they represent; integers are stored as the interface says."""
    exact = matrix(outputs, inputs)
    if kind in ("float32", "bfloat16"):
        weight = exact.to(getattr(torch, kind))
        return weight, None, weight.double().numpy()
    groups = -(-inputs // GROUP)
    most = 127 if kind == "int8" else 7
    generator = np.random.default_rng(3)
    integers = generator.integers(-most - (most == 7), most + 1, (outputs, groups, GROUP))
    integers[:, -1, inputs - (groups - 1) * GROUP :] = 0
    scales = matrix(outputs, groups, seed=2).to(torch.bfloat16)
    dense = (integers * scales.double().numpy()[..., None]).reshape(outputs, -1)[:, :inputs]
    if kind == "int8":
        return torch.from_numpy(integers.reshape(outputs, -1)).to(torch.int8), scales, dense
    stored = np.full((outputs, groups + groups % 2, GROUP), 8)
    stored[:, :groups] = integers + 8
    pairs = stored.reshape(outputs, -1, 2, GROUP)
    return torch.from_numpy((pairs[:, :, 0] + 16 * pairs[:, :, 1]).reshape(outputs, -1)).to(torch.uint8), scales, dense


def expected(x: Tensor, dense: np.ndarray, bias: Tensor | None, integers: bool) -> np.ndarray:
    rows = rounded_by_numpy(x.float().numpy()) if integers else x.double().numpy()
    return rows @ dense.T + (0 if bias is None else bias.double().numpy())


def rounded_by_numpy(x: np.ndarray) -> np.ndarray:
    groups = np.pad(x, ((0, 0), (0, -x.shape[1] % GROUP))).reshape(len(x), -1, GROUP)
    scales = np.maximum(np.abs(groups).max(-1, keepdims=True) / np.float32(127), np.float32(1e-30))
    values: np.ndarray = (np.rint(groups / scales).astype(np.float64) * scales).reshape(len(x), -1)[:, : x.shape[1]]
    return values


@given(
    kind=st.sampled_from(["float32", "bfloat16", "int8", "uint8"]),
    rows=st.integers(1, 70),
    outputs=st.integers(1, 70),
    inputs=st.integers(1, 200),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    bias=st.sampled_from([None, torch.float32, torch.bfloat16]),
)
def test_beside_numpy(
    kind: str, rows: int, outputs: int, inputs: int, dtype: torch.dtype, bias: torch.dtype | None
) -> None:
    weight, scales, dense = weights(kind, outputs, inputs)
    assert weight.dtype in KINDS
    x, added = matrix(rows, inputs, seed=5).to(dtype), None if bias is None else matrix(1, outputs)[0].to(bias)
    out = product(x, weight, scales, added)
    assert out.dtype == dtype
    reference = expected(x, dense, added, weight.dtype in (torch.int8, torch.uint8))
    close = (1e-5 if dtype == torch.float32 else 2**-8) * (1 + np.abs(reference).max())
    np.testing.assert_allclose(out.double().numpy(), reference, atol=close)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "uint8"])
def test_a_row_does_not_depend_on_the_others(kind: str) -> None:
    """Bit for bit, for any number of rows and outputs that are left over at the end of a block."""
    weight, scales, _ = weights(kind, 131, 203)
    x = matrix(41, 203, seed=7)
    together = product(x, weight, scales)
    for rows in (1, 2, 3, 4, 5, 8, 33):
        assert torch.equal(torch.cat([product(part, weight, scales) for part in x.split(rows)]), together)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_does_not_matter(threads: int) -> None:
    weight, x, before = matrix(999, 256), matrix(3, 256, seed=1), torch.get_num_threads()
    together = product(x, weight)
    try:
        torch.set_num_threads(threads)
        assert torch.equal(product(x, weight), together)
    finally:
        torch.set_num_threads(before)


@given(width=st.integers(1, 100), rows=st.integers(1, 5), scale=st.sampled_from([0.0, 1e-38, 1.0, 1e30]))
def test_inputs_are_rounded_as_the_library_rounds_them(width: int, rows: int, scale: float) -> None:
    x = matrix(rows, width) * scale
    rounded = rounded_inputs(x)
    assert rounded.shape == x.shape
    np.testing.assert_allclose(rounded.double().numpy(), rounded_by_numpy(x.numpy()), rtol=1e-6, atol=0)
    identity = torch.eye(width, -(-width // GROUP) * GROUP).to(torch.int8)
    scales = torch.ones(width, identity.shape[1] // GROUP, dtype=torch.bfloat16)
    assert torch.equal(product(x, identity, scales), rounded)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_finite_stays_so(number: float, dtype: torch.dtype) -> None:
    x = torch.ones(2, 40, dtype=dtype)
    x[1, 3] = number
    out = product(x, torch.ones(5, 40, dtype=dtype))
    assert (out[0] == 40).all()
    assert torch.equal(out[1], torch.full((5,), number, dtype=dtype)) or out[1].isnan().all()
    assert not out[1].isfinite().any()


def test_bf16_is_rounded_to_the_nearest() -> None:
    numbers = torch.linspace(-3, 3, 1001)
    out = product(torch.ones(1, 1, dtype=torch.bfloat16), torch.zeros(1001, 1, dtype=torch.bfloat16), bias=numbers)
    assert torch.equal(out[0], numbers.to(torch.bfloat16))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("unpacked", [True, False])
def test_what_is_not_finite_is_not_rounded_away(
    number: float, kind: str, unpacked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "unpacks", lambda dtype: unpacked)
    weight, scales, _ = weights(kind, 5, 96)
    x = torch.ones(MANY, 96)
    x[1, 40] = number
    out = product(x, weight, scales)
    assert out[1].isnan().all()
    assert out[[0, *range(2, MANY)]].isfinite().all()


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inputs", [31, 96, 160])
@pytest.mark.parametrize("bias", [None, torch.float32, torch.bfloat16])
def test_many_rows_are_multiplied_with_unpacked_weights(
    kind: str, dtype: torch.dtype, inputs: int, bias: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "unpacks", lambda dtype: True)
    monkeypatch.setattr(products, "PIECE", 10 * inputs)  # the last piece is not full
    weight, scales, dense = weights(kind, 47, inputs)
    x, added = matrix(MANY, inputs, seed=5).to(dtype), None if bias is None else matrix(1, 47)[0].to(bias)
    out, reference = product(x, weight, scales, added), expected(x, dense, added, integers=True)
    assert out.dtype == dtype
    close = (1e-5 if dtype == torch.float32 else 2**-8) * (1 + np.abs(reference).max())
    np.testing.assert_allclose(out.double().numpy(), reference, atol=close)


def test_unpacking_is_measured_once(new_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(products, "_measure", lambda dtype: not calls.append(1))
    weight, scales, _ = weights("int8", 40, 64)
    for rows in (1, MANY - 1):
        product(matrix(rows, 64), weight, scales)
    assert not calls
    for _ in range(2):
        product(matrix(MANY, 64), weight, scales)
    assert len(calls) == 1


def test_unpacking_is_timed() -> None:
    assert isinstance(products._measure(torch.uint8), bool)


@pytest.mark.parametrize("shape", [(5,), (2, 3, 5), (0, 5)])
def test_any_leading_axes(shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape), matrix(7, 5)
    torch.testing.assert_close(product(x, weight), x @ weight.T)
    torch.testing.assert_close(product(x.expand(3, *shape), weight), (x @ weight.T).expand(3, *shape[:-1], 7))


@pytest.mark.parametrize("flag", MACHINES)
def test_other_processors_compute_the_same(flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source for narrower and wider vectors; what this processor cannot run is only compiled."""
    target = tmp_path / "rows.so"
    done = subprocess.run(
        [str(compiler()), *FLAGS, flag, str(SOURCE), "-o", str(target)], capture_output=True, text=True
    )
    if "march" in done.stderr:
        pytest.skip("another kind of processor, or an older compiler")
    assert done.returncode == 0, done.stderr
    if flag.endswith("v4") and not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return
    x, native = matrix(9, 100, seed=5), ctypes.CDLL(str(target))
    for kind in ("float32", "bfloat16", "int8", "uint8"):
        weight, scales, dense = weights(kind, 37, 100)
        with monkeypatch.context() as patch:
            patch.setattr("heddle.native.products.library", lambda: native)
            out = product(x, weight, scales)
        reference = expected(x, dense, None, kind.endswith("int8"))
        np.testing.assert_allclose(out.double().numpy(), reference, atol=1e-5 * (1 + np.abs(reference).max()))


def test_the_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[Any] = []

    def run(command: Any, real: Any = subprocess.run, **keywords: Any) -> Any:
        commands.append(command)
        return real(command, **keywords)

    monkeypatch.setenv("HEDDLE_CACHE", str(tmp_path))
    monkeypatch.setattr("heddle.native.library.subprocess.run", run)
    libraries = [module.library.__wrapped__() for _ in range(2)]
    assert all(each is not None for each in libraries)
    assert len(commands) == 1
    assert [file.suffix for file in tmp_path.iterdir()] == [".so"]


@pytest.mark.thorough
def test_another_processor_compiles_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_CACHE", str(tmp_path))
    for name in ("one", "another"):
        monkeypatch.setattr("heddle.native.library.processor", lambda name=name: name)
        assert module.library.__wrapped__() is not None
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.thorough
def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEDDLE_CACHE", str(tmp_path / "file"))
    assert module.library.__wrapped__() is not None


@pytest.mark.parametrize("name", ["", "no-such-compiler"])
def test_without_a_compiler_there_is_no_library(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEDDLE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", name)
    assert module.library.__wrapped__() is None


def test_a_compiler_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left behind, and torch computes the products."""
    monkeypatch.setenv("HEDDLE_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    assert module.library.__wrapped__() is None
    assert not list(tmp_path.iterdir())
