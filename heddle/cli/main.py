"""The command line: argv, one library call, print. A command, and torch with it, is imported when it is called."""

import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from cyclopts import App, Parameter
from cyclopts.exceptions import CycloptsError, UnusedCliTokensError

from heddle import __version__
from heddle.cli.output import PlainConsole
from heddle.cli.streams import drop, open_closed, settle
from heddle.errors import HeddleError

# Options without a value.
FLAGS = frozenset(
    f"--{name}"
    for name in (
        "all", "compile", "crop", "dry-run", "follow", "forget", "heads", "hub", "json", "lens", "lookup", "lowercase", "names",
        "no-browser", "normalise", "skip-invalid", "special", "window",
    )
)  # fmt: skip


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived. Half-written files are removed, as with Ctrl-C."""


def make_app(command: str | None = None) -> App:
    """All commands, by import path: `heddle --help` reads their names and first lines only.

    Args:
        command: the requested one, whose help may need more.
    """
    app = App(
        name="heddle",
        help="Train, run and understand transformers, on the machine you have.",
        version=__version__,
        help_format="plaintext",
        console=PlainConsole(),
        default_parameter=Parameter(negative=()),  # a flag has no `--no-` form
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # `run` handles it
    )
    settings = None
    if command == "train":
        from heddle.cli.keys import keys

        settings = keys()
    elif command == "vectors":
        from heddle.cli.keys import vector_keys

        settings = vector_keys()
    app.command(
        "heddle.cli.train:train",
        name="train",
        help="Train a model on text; without arguments, a small demo.",
        help_epilogue=settings,
    )
    app.command("heddle.cli.generate:generate", name="generate", help="Generate text with a trained model.")
    app.command(
        "heddle.cli.predict:classify", name="classify", help="Predict classes of texts, pairs or words, or numbers."
    )
    app.command("heddle.cli.predict:fill", name="fill", help="Fill in masks with the most probable tokens.")
    app.command("heddle.cli.predict:embed", name="embed", help="Compute a vector for each text.")
    app.command("heddle.cli.translate:translate", name="translate", help="Translate texts by beam search.")
    app.command("heddle.cli.chat:chat", name="chat", help="Talk with a model in the terminal.")
    app.command("heddle.cli.serve:serve", name="serve", help="Serve runs over HTTP to clients of OpenAI's API.")
    app.command(
        "heddle.cli.look:look", name="look", help="Look inside a model: attention, what each layer predicts, its heads."
    )
    app.command("heddle.cli.evaluate:evaluate", name="eval", help="Score files: the loss and the task's other metrics.")
    app.command("heddle.cli.count:count", name="count", help="Parameters, FLOPs and memory of a model, itemised.")
    app.command(
        "heddle.cli.prove:prove", name="prove", help="Prove that a model predicts with the function that was trained."
    )
    app.command("heddle.cli.count:presets", name="presets", help="List the named models, or show one.")
    app.command(
        "heddle.cli.weights:import_",
        name="import",
        help="Import published weights (GPT-2, Llama, Qwen3, T5, BERT and others).",
    )
    app.command(
        "heddle.cli.weights:export",
        name="export",
        help="Write a run for Hugging Face transformers, or as one .gguf file for llama.cpp.",
    )
    app.command("heddle.cli.runs:runs", name="runs", help="List and compare runs.")
    app.command("heddle.cli.machine:machine", name="machine", help="Show this machine and what was measured on it.")
    for group in _groups(settings):
        app.command(group)
    return app


def _groups(settings: str | None) -> Iterator[App]:
    """The commands that have commands of their own.

    Args:
        settings: what to list below the help of `vectors train`.
    """
    adapter = App(name="adapter", help="Write a run's adapter alone, or merge one into a model.")
    adapter.command("heddle.cli.adapter:export", name="export", help="Write a run's adapter for peft.")
    adapter.command("heddle.cli.adapter:merge", name="merge", help="Merge an adapter into its base, as a new run.")
    yield adapter
    data = App(name="data", help="Look at what a run is trained on.")
    data.command("heddle.cli.data:show", name="show", help="Show what a step reads: tokens, targets, masks.")
    data.command(
        "heddle.cli.data:lint", name="lint", help="Look for what goes wrong in data, before or after training."
    )
    yield data
    tokenizer = App(name="tokenizer", help="Train a tokenizer, or convert text to ids and back.")
    tokenizer.command("heddle.cli.tokenizer:train", name="train", help="Train a tokenizer on text.")
    tokenizer.command("heddle.cli.tokenizer:encode", name="encode", help="Show the pieces and ids of a text.")
    tokenizer.command("heddle.cli.tokenizer:decode", name="decode", help="Convert ids to text.")
    tokenizer.command(
        "heddle.cli.tokenizer:compare", name="compare", help="Tokenize a text with every kind of tokenizer."
    )
    yield tokenizer
    vectors = App(name="vectors", help="Learn word vectors from text, and look at their neighbours.")
    vectors.command(
        "heddle.cli.vectors:train",
        name="train",
        help="Learn word vectors: skip-gram, CBOW or GloVe.",
        help_epilogue=settings,
    )
    vectors.command("heddle.cli.vectors:near", name="near", help="Show the nearest words by cosine.")
    vectors.command("heddle.cli.vectors:analogy", name="analogy", help="Show what is to C as B is to A.")
    yield vectors


def run(argv: list[str] | None = None) -> None:
    """Run one command; every error a user can cause is one line on stderr and exit code 2.

    A signal exits with 128 plus its number, as in a shell: 130 for Ctrl-C, 143 for SIGTERM. A closed standard stream
    acts as the null device.
    """
    open_closed()
    words = _without_dash(sys.argv[1:] if argv is None else argv)
    # Threads that never spin cost an eighth of the speed on a quiet machine, more in short steps; threads that spin for long make
    # training many times slower as soon as another program wants a core (docs/benchmarks.md). torch reads the setting when it
    # is loaded, which happens later.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # A script installed by pip does not search the current directory, where a custom mixer is.
    with suppress(FileNotFoundError):  # the directory may be gone
        if (folder := os.getcwd()) not in sys.path:
            sys.path.append(folder)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that lacks a character shows its number
    try:
        with _terminable():
            make_app(next(iter(words), None))(words, exit_on_error=False, print_error=False)
            sys.stdout.flush()  # errors in writing must occur here, where they are reported
    except HeddleError as error:
        _fail(str(error), words)
    except UnusedCliTokensError as error:
        command = " ".join(["heddle", *(error.command_chain or ())])
        _fail(
            f"`{command}` does not take {' '.join(error.unused_tokens or ())}; {command} --help lists what it takes",
            words,
        )
    except CycloptsError as error:
        _fail(" ".join(str(error).split()), words)
    except KeyboardInterrupt as stop:
        number = signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT
        _fail(str(stop) or "stopped", words, 128 + number)
    except BrokenPipeError:  # the reader is gone, as in `heddle presets | head`
        drop(sys.stdout)
        sys.exit(0)
    except OSError as error:
        _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part), words)
    except (MemoryError, RuntimeError) as error:
        # torch has an error class for an accelerator's memory, but only a message for the machine's.
        if not isinstance(error, MemoryError) and not re.search("out of memory|allocate memory", str(error)):
            raise
        _fail("out of memory: take a smaller model, fewer rows at once, or a shorter context", words)
    finally:
        settle()


def _without_dash(words: list[str]) -> list[str]:
    """The words with standard input's other name for `-`, which would be read as a flag; not if it is an option's value."""
    return [
        "/dev/stdin" if word == "-" and (not before.startswith("--") or before in FLAGS) else word
        for before, word in zip(["", *words], words, strict=False)
    ]


@contextmanager
def _terminable() -> Iterator[None]:
    """Make SIGTERM raise `Terminated`, so that no half-written file stays; a second one ends the process at once."""
    usual = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _fail(message: str, words: list[str], code: int = 2) -> None:
    if "--json" in words:
        with suppress(OSError):  # stdout may be what is full
            print(json.dumps({"error": message}), flush=True)
    with suppress(OSError):  # stderr may have no reader
        rank = os.environ.get("RANK", "0")  # torchrun's; usually rank 0 fails for the same reason
        print(f"heddle{'' if rank == '0' else f' (rank {rank})'}: {message}", file=sys.stderr)
    sys.exit(code)
