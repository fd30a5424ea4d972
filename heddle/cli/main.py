"""The `heddle` command: its subcommands, imported only when called, and how errors are reported."""

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
    """Raised on SIGTERM, so that partial files are removed as they are on Ctrl-C."""


def make_app(command: str | None = None) -> App:
    """Register every command by import path, so that `heddle --help` imports none of them.

    Args:
        command: the requested command; only its help lists settings.
    """
    app = App(
        name="heddle",
        help="Train, run and understand transformers, on the machine you have.",
        version=__version__,
        help_format="plaintext",
        console=PlainConsole(),
        default_parameter=Parameter(negative=()),  # a flag has no `--no-` form
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # handled by `run`
    )
    settings_help = None
    if command == "train":
        from heddle.cli.keys import keys

        settings_help = keys()
    elif command == "vectors":
        from heddle.cli.keys import vector_keys

        settings_help = vector_keys()
    app.command(
        "heddle.cli.train:train",
        name="train",
        help="Train a model on text; without arguments, a small demo.",
        help_epilogue=settings_help,
    )
    app.command("heddle.cli.generate:generate", name="generate", help="Generate text with a trained model.")
    app.command(
        "heddle.cli.predict:classify", name="classify", help="Classify texts, text pairs or words, or predict a number."
    )
    app.command("heddle.cli.predict:fill", name="fill", help="Fill in masked tokens.")
    app.command("heddle.cli.predict:embed", name="embed", help="Compute text embeddings.")
    app.command("heddle.cli.translate:translate", name="translate", help="Translate texts with beam search.")
    app.command("heddle.cli.chat:chat", name="chat", help="Chat with a model in the terminal.")
    app.command("heddle.cli.serve:serve", name="serve", help="Serve models over an OpenAI-compatible HTTP API.")
    app.command("heddle.cli.look:look", name="look", help="Look inside a model: attention, heads, logit lens.")
    app.command("heddle.cli.evaluate:evaluate", name="eval", help="Evaluate a model: loss and task metrics.")
    app.command("heddle.cli.count:count", name="count", help="Count a model's parameters, FLOPs and memory.")
    app.command(
        "heddle.cli.prove:prove",
        name="prove",
        help="Verify that a model predicts with the function it was trained with.",
    )
    app.command("heddle.cli.count:presets", name="presets", help="List the model presets, or print one.")
    app.command(
        "heddle.cli.weights:import_",
        name="import",
        help="Import published weights (GPT-2, Llama, Qwen3, T5, BERT and others).",
    )
    app.command(
        "heddle.cli.weights:export",
        name="export",
        help="Export a run to Hugging Face transformers or to GGUF for llama.cpp.",
    )
    app.command("heddle.cli.runs:runs", name="runs", help="List and compare runs.")
    app.command("heddle.cli.machine:machine", name="machine", help="Show this machine and its cached measurements.")
    for group in _groups(settings_help):
        app.command(group)
    return app


def _groups(settings_help: str | None) -> Iterator[App]:
    """Command groups.

    Args:
        settings_help: the settings to list below the help of `vectors train`.
    """
    adapter = App(name="adapter", help="Export a run's LoRA adapter, or merge one into a model.")
    adapter.command("heddle.cli.adapter:export", name="export", help="Export a run's adapter for peft.")
    adapter.command(
        "heddle.cli.adapter:merge", name="merge", help="Merge an adapter into its base model, as a new run."
    )
    yield adapter
    data = App(name="data", help="Inspect training data.")
    data.command("heddle.cli.data:show", name="show", help="Show a step's batch: tokens, targets, masks.")
    data.command("heddle.cli.data:lint", name="lint", help="Find common problems in training data.")
    yield data
    tokenizer = App(name="tokenizer", help="Train a tokenizer, or encode and decode text.")
    tokenizer.command("heddle.cli.tokenizer:train", name="train", help="Train a tokenizer on text.")
    tokenizer.command("heddle.cli.tokenizer:encode", name="encode", help="Show a text's tokens and ids.")
    tokenizer.command("heddle.cli.tokenizer:decode", name="decode", help="Decode ids to text.")
    tokenizer.command(
        "heddle.cli.tokenizer:compare", name="compare", help="Compare tokenizers of every kind on a text."
    )
    yield tokenizer
    vectors = App(name="vectors", help="Train word vectors, and query them.")
    vectors.command(
        "heddle.cli.vectors:train",
        name="train",
        help="Train word vectors: skip-gram, CBOW or GloVe.",
        help_epilogue=settings_help,
    )
    vectors.command("heddle.cli.vectors:near", name="near", help="Show the nearest words by cosine similarity.")
    vectors.command("heddle.cli.vectors:analogy", name="analogy", help="Solve an analogy: A is to B as C is to …")
    yield vectors


def run(argv: list[str] | None = None) -> None:
    """Run one command. Every error that a user can cause is one line on stderr and exit code 2.

    A signal exits with 128 plus its number, as in a shell: 130 for Ctrl-C, 143 for SIGTERM. A closed standard stream
    acts as the null device.
    """
    open_closed()
    words = _without_dash(sys.argv[1:] if argv is None else argv)
    # OpenMP threads that never spin cost an eighth of the speed on a quiet machine, and more in short steps. Threads that spin
    # for long make training many times slower as soon as another program wants a core (docs/benchmarks.md). torch reads these
    # variables when it is imported, which happens later.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # A script installed by pip does not search the current directory, where a custom mixer may be.
    with suppress(FileNotFoundError):  # the directory may be gone
        if (folder := os.getcwd()) not in sys.path:
            sys.path.append(folder)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # escape characters that the terminal cannot encode
    try:
        with _terminable():
            make_app(next(iter(words), None))(words, exit_on_error=False, print_error=False)
            sys.stdout.flush()  # write errors must surface here, where they are reported
    except HeddleError as error:
        _fail(str(error), words)
    except UnusedCliTokensError as error:
        command = " ".join(["heddle", *(error.command_chain or ())])
        _fail(
            f"`{command}` got unexpected arguments: {' '.join(error.unused_tokens or ())}; see {command} --help",
            words,
        )
    except CycloptsError as error:
        _fail(" ".join(str(error).split()), words)
    except KeyboardInterrupt as stop:
        signal_number = signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT
        _fail(str(stop) or "stopped", words, 128 + signal_number)
    except BrokenPipeError:  # the reader has exited, as in `heddle presets | head`
        drop(sys.stdout)
        sys.exit(0)
    except OSError as error:
        _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part), words)
    except (MemoryError, RuntimeError) as error:
        # torch raises a class of its own for accelerator memory, but a bare RuntimeError for host memory.
        if not isinstance(error, MemoryError) and not re.search("out of memory|allocate memory", str(error)):
            raise
        _fail("out of memory: use a smaller model, a smaller batch, or a shorter context", words)
    finally:
        settle()


def _without_dash(words: list[str]) -> list[str]:
    """Replace `-` by /dev/stdin, since cyclopts would parse it as a flag; an option's value stays `-`."""
    return [
        "/dev/stdin" if word == "-" and (not previous.startswith("--") or previous in FLAGS) else word
        for previous, word in zip(["", *words], words, strict=False)
    ]


@contextmanager
def _terminable() -> Iterator[None]:
    """Make SIGTERM raise `Terminated`, so that partial files are removed; a second SIGTERM kills the process."""
    default_handler = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not default_handler or threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(signal_number: int, frame: Any) -> None:
        signal.signal(signal_number, signal.SIG_DFL)
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _fail(message: str, words: list[str], code: int = 2) -> None:
    if "--json" in words:
        with suppress(OSError):  # the full disk may be stdout's
            print(json.dumps({"error": message}), flush=True)
    with suppress(OSError):  # stderr may be a broken pipe
        rank = os.environ.get("RANK", "0")  # set by torchrun; usually every rank fails for the same reason
        print(f"heddle{'' if rank == '0' else f' (rank {rank})'}: {message}", file=sys.stderr)
    sys.exit(code)
