"""What every test shares: one thread per worker, no network, repeatable examples, shapes checked as the code runs."""

import gc
import os
import signal
import sys

# Before torch is imported: two pytest workers share two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What computes on more threads nevertheless does not spin while it waits for one that another worker keeps from its core.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# No test leaves a process behind that compiles steps; tests of compiled steps compile them themselves.
os.environ.setdefault("HEDDLE_STEPS", "plain")

import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.shapes import check_shapes

# What tests measure of this machine is kept for their processes, not in the home directory.
if "HEDDLE_CACHE" not in os.environ:
    MEASUREMENTS = tempfile.TemporaryDirectory(prefix="heddle-", ignore_cleanup_errors=True)
    os.environ["HEDDLE_CACHE"] = MEASUREMENTS.name

# Collecting makes millions of objects that stay: looking through them for garbage again and again takes a twentieth of the time.
gc.disable()

settings.register_profile(
    "heddle", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("heddle")

# Every jaxtyping signature in these packages of heddle is checked by beartype, which nearly doubles the time of a pass of a tiny
# model: `scripts/check` checks all of them in the packages' own tests, and fewer in the others. torch.compile cannot trace the
# checks, so tests of compiled code start a process with HEDDLE_CHECKED="".
CHECKED = os.environ.get("HEDDLE_CHECKED", "nn model tasks train runs generate data").split()
if CHECKED:
    check_shapes([f"heddle.{name}" for name in CHECKED])


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Random numbers are the same in every run and in any order of the tests."""
    import torch  # tests of tokenizers and configs alone do not wait for it

    # Without a GPU, torch.manual_seed keeps the stack of each call for one to come, which takes longer than many tests.
    seed = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed
    seed(0)


@pytest.fixture
def new_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing has been measured on this machine; the directory where it will be kept."""
    monkeypatch.setenv("HEDDLE_CACHE", str(tmp_path / "measurements"))
    return tmp_path / "measurements"


def pytest_configure() -> None:
    """A shell lets its background jobs ignore Ctrl-C; tests raise it and expect it to arrive."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What tests do with a model that is there for a pair of options is thorough."""
    models = sys.modules.get("tests.models")
    pairs = {id(config) for config in getattr(models, "FOR_PAIRS", ())}
    for item in items:
        arguments = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if any(id(argument) in pairs for argument in arguments):
            item.add_marker("thorough")


def pytest_collection_finish() -> None:
    """From here on garbage is looked for among what tests make."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that settles rows of the lectures settles nothing where it is skipped or expected to fail: that is a failure."""
    report = yield
    if report.skipped and item.get_closest_marker("lecture") is not None:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} settles rows of the lectures, so it must run: {report.longrepr}"
    return report
