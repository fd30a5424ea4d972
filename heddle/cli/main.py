"""The command line: argv to one library call to print. Commands are imported when they are called, torch with them."""

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
from cyclopts.exceptions import CycloptsError

from heddle.cli.say import Words
from heddle.cli.streams import drop, open_closed, settle
from heddle.errors import HeddleError


class Terminated(KeyboardInterrupt):
    """SIGTERM came. What was being written is cleared away, as with Ctrl-C."""


def make_app(command: str | None = None) -> App:
    """All commands, by import path: `heddle --help` reads their names and first lines only.

    Args:
        command: the one that was asked for, whose own help may need more.
    """
    app = App(
        name="heddle",
        help="Train, run and understand transformers, on the machine you have.",
        version="0.1.0",
        help_format="plaintext",
        console=Words(),
        default_parameter=Parameter(negative=()),  # a flag is given or not
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # `run` says it
    )
    settings = None
    if command == "train":
        from heddle.cli.keys import keys

        settings = keys()
    app.command(
        "heddle.cli.train:train",
        name="train",
        help="Train a model on text; without arguments, a small demo.",
        help_epilogue=settings,
    )
    app.command("heddle.cli.generate:generate", name="generate", help="Let a trained model write.")
    app.command("heddle.cli.evaluate:evaluate", name="eval", help="Score text: loss, perplexity, bits per byte.")
    app.command("heddle.cli.count:count", name="count", help="Parameters, FLOPs and memory of a model, itemised.")
    app.command(
        "heddle.cli.prove:prove", name="prove", help="Prove that what predicts is the function that was trained."
    )
    app.command("heddle.cli.count:presets", name="presets", help="List the named models, or show one.")
    app.command(
        "heddle.cli.weights:import_",
        name="import",
        help="Take over published weights (GPT-2, Llama, Qwen3, T5, BERT and others).",
    )
    app.command("heddle.cli.weights:export", name="export", help="Write a run as a directory that transformers loads.")
    app.command("heddle.cli.runs:runs", name="runs", help="List the runs here.")
    tokenizer = App(name="tokenizer", help="Train a tokenizer, or turn text into ids and back.")
    tokenizer.command("heddle.cli.tokenizer:train", name="train", help="Train a tokenizer on text.")
    tokenizer.command("heddle.cli.tokenizer:encode", name="encode", help="Show the pieces and ids of a text.")
    tokenizer.command("heddle.cli.tokenizer:decode", name="decode", help="Turn ids into text.")
    tokenizer.command("heddle.cli.tokenizer:compare", name="compare", help="Cut a text with every kind of tokenizer.")
    app.command(tokenizer)
    return app


def run(argv: list[str] | None = None) -> None:
    """Run one command; every error a user can cause is one line on stderr and exit code 2.

    A signal ends it with 128 and the signal's number, as a shell says it: 130 for Ctrl-C, 143 for SIGTERM. A standard
    stream that is closed is as the null device.
    """
    open_closed()
    words = sys.argv[1:] if argv is None else argv
    # Threads that spin for long make training ten times slower as soon as another program wants a core; threads that never spin
    # cost an eighth of the speed on a quiet machine. A short spin, then sleep, costs nothing measurable in either. The setting
    # counts when torch is loaded, which is later than this.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # A script that pip installs does not look for modules in the folder it is called in, where a user's own mixer stands.
    with suppress(FileNotFoundError):  # the folder may be gone
        if (folder := os.getcwd()) not in sys.path:
            sys.path.append(folder)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without a character gets its number instead
    try:
        with _terminable():
            make_app(next(iter(words), None))(words, exit_on_error=False, print_error=False)
            sys.stdout.flush()  # what goes wrong with it goes wrong here, where it is said
    except HeddleError as error:
        _fail(str(error), words)
    except CycloptsError as error:
        _fail(" ".join(str(error).split()), words)
    except KeyboardInterrupt as stop:
        number = signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT
        _fail(str(stop) or "stopped", words, 128 + number)
    except BrokenPipeError:  # the reader has gone, as in `heddle presets | head`
        drop(sys.stdout)
        sys.exit(0)
    except OSError as error:
        _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part), words)
    except (MemoryError, RuntimeError) as error:
        # torch has an error class for an accelerator's memory, and only words for the machine's own.
        if not isinstance(error, MemoryError) and not re.search("out of memory|allocate memory", str(error)):
            raise
        _fail("out of memory: take a smaller model, fewer rows at once, or a shorter context", words)
    finally:
        settle()


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM raise `Terminated`, so that nothing half-written stays; a second one ends the process at once."""
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
        with suppress(OSError):  # it may be stdout that is full
            print(json.dumps({"error": message}), flush=True)
    with suppress(OSError):  # nobody may read it
        print(f"heddle: {message}", file=sys.stderr)
    sys.exit(code)
