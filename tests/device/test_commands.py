"""Commands on the imitated GPU: what it does not have or cannot do is one line, exit code 2, and nothing is written."""

import contextlib
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import heddle
from heddle.cli.main import run
from heddle.errors import HeddleError
from heddle.model.quantize import quantize
from heddle.runs import prepare
from heddle.weights import load, save
from tests.cli.conftest import TINY, tree
from tests.cli.test_devices import COMPUTING, commands_with
from tests.device.imitated import imitated
from tests.device.imitation import Imitation
from tests.running import run_config, write_corpus
from tests.serve.conftest import TOKENIZER, models

OLD = (7, 5)  # a compute capability without units for bf16


@contextlib.contextmanager
def folder(name: str = "plain") -> Iterator[None]:
    """A folder with a text and a run, `runs/a`, in which the commands work."""
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        write_corpus(Path())
        save(models()[name], Path("runs/a"), TOKENIZER)
        yield


def refusal(*words: str) -> str:
    """The line of a command that is refused."""
    before, out, errors = tree(Path()), io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), pytest.raises(SystemExit) as end:
        run(list(words))
    assert end.value.code == 2, errors.getvalue()
    assert out.getvalue() == ""
    assert tree(Path()) == before
    *earlier, last = errors.getvalue().splitlines()
    assert last.startswith("heddle: ")
    assert not earlier, words
    return last.removeprefix("heddle: ")


def words_of(command: str) -> list[str]:
    return [command, *COMPUTING[command].split(), *(TINY[:-4] if command == "train" else [])]


@imitated
def test_a_card_beyond_the_last() -> None:
    with folder(), Imitation():
        for command in COMPUTING:
            for name in ("cuda:1", "cuda:7"):
                line = f"device = {name!r}: this machine has one GPU, cuda:0"
                assert refusal(*words_of(command), "--device", name) == line, command


@imitated
def test_a_card_without_units() -> None:
    line = "precision = bf16: imitated has no units for bf16, so it would be slower; use fp32 or auto"
    with folder(), Imitation(capability=OLD):
        for command in (*commands_with("--precision"), "train"):
            words = ["precision=bf16"] if command == "train" else ["--precision", "bf16"]
            assert refusal(*words_of(command), "--device", "cuda", *words) == line, command


@imitated
def test_weights_that_only_a_cpu_quantizes() -> None:
    """Also where `auto` takes the card."""
    with folder(), Imitation():
        for command in commands_with("--weights"):
            for kind in ("int8", "int4"):
                line = f"weights = {kind!r} needs a model on a CPU, not on cuda: set device = cpu"
                for words in ([], ["--device", "cuda:0"]):
                    assert refusal(*words_of(command), "--weights", kind, *words) == line, command


@imitated
def test_python() -> None:
    model = models()["plain"]
    with folder(), Imitation(capability=OLD):
        for call in (
            lambda: heddle.fit(model, TOKENIZER, ["the warp " * 99], steps=1, device="cuda:7"),
            lambda: heddle.build(model.config, device="cuda:7"),
            lambda: load(Path("runs/a"), "cuda:7"),
            lambda: prepare(run_config(Path("corpus.txt"), device="cuda:7"), "runs/b"),
        ):
            with pytest.raises(HeddleError, match=r"^device = 'cuda:7': this machine has one GPU, cuda:0$"):
                call()
        for call in (
            lambda: heddle.fit(model, TOKENIZER, ["the warp " * 99], steps=1, device="cuda", precision="bf16"),
            lambda: prepare(run_config(Path("corpus.txt"), device="cuda", precision="bf16"), "runs/b"),
        ):
            with pytest.raises(HeddleError, match=r"^precision = bf16: imitated has no units for bf16, so it would"):
                call()
        with pytest.raises(HeddleError, match=r"^weights = 'int4' needs a model on a CPU, not on cuda"):
            quantize(model.to("cuda"), "int4")
        assert [path.name for path in Path("runs").iterdir()] == ["a"]


@imitated
def test_weights_that_do_not_fit() -> None:
    """Also those of a server, which then does not start."""
    with folder(), Imitation() as gpu:
        gpu.full = lambda place: True
        for command in COMPUTING:
            if command not in ("train", "bench"):
                line = "out of memory with 0 MiB of weights on cuda: use a smaller model, or another device"
                assert refusal(*words_of(command)) == line, command
