"""The `heddle` command: its subcommands, imported only when called, and how errors are reported."""

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from heddle import __version__
from heddle.cli.streams import drop, open_closed, settle
from heddle.errors import OUT_OF_MEMORY, HeddleError, did_you_mean, ran_out_of_memory
from heddle.parallel.early import report
from heddle.parallel.launcher import follows, process_count

if TYPE_CHECKING:
    from cyclopts import App

Command = tuple[str, str, str]  # name, function, help

ABOUT = "Train, run and understand transformers, on the machine you have."

COMMANDS: tuple[Command, ...] = (
    ("train", "train:train", "Train a model on text; without arguments, a small demo."),
    ("generate", "generate:generate", "Generate text with a trained model."),
    ("classify", "predict:classify", "Classify texts, text pairs or words, or predict a number."),
    ("fill", "predict:fill", "Fill in masked tokens."),
    ("embed", "predict:embed", "Compute text embeddings."),
    ("translate", "translate:translate", "Translate texts with beam search."),
    ("chat", "chat:chat", "Chat with a model in the terminal."),
    ("serve", "serve:serve", "Serve models over an OpenAI-compatible HTTP API."),
    ("look", "look:look", "Look inside a model: attention, heads, logit lens."),
    ("eval", "evaluate:evaluate", "Evaluate a model: loss and task metrics."),
    ("count", "sizes.count:count", "Count a model's parameters, FLOPs and memory."),
    ("plan", "sizes.plan:plan", "Predict memory, communication and time on many devices; propose a layout."),
    ("prove", "prove:prove", "Verify that a model predicts with the function it was trained with."),
    ("lesson", "lessons:lesson", "List the lessons, or copy one as a notebook."),
    ("quiz", "lessons:quiz", "Ask questions about the lectures."),
    ("grade", "lessons:grade", "Grade homework: attention, a block or a model that you wrote."),
    ("presets", "sizes.count:presets", "List the model presets, or print one."),
    ("import", "published:import_", "Import published weights (GPT-2, Llama, Qwen3, T5, BERT and others)."),
    ("export", "published:export", "Export a run to Hugging Face transformers or to GGUF for llama.cpp."),
    ("runs", "runs:runs", "List and compare runs."),
    ("machine", "machine:machine", "Show this machine and its cached measurements."),
    ("bench", "machine:bench", "Measure this machine: speed of training and decoding beside other programs."),
)
GROUPS: dict[tuple[str, str], tuple[Command, ...]] = {
    ("adapter", "Export a run's LoRA adapter, or merge one into a model."): (
        ("export", "published:export_adapter", "Export a run's adapter for peft."),
        ("merge", "published:merge_adapter", "Merge an adapter into its base model, as a new run."),
    ),
    ("data", "Inspect training data, or tokenise it ahead."): (
        ("show", "data:show", "Show a step's batch: tokens, targets, masks."),
        ("lint", "data:lint", "Find common problems in training data."),
        ("tokenize", "data:tokenize", "Tokenise texts into a store, resumably, by several processes or machines."),
    ),
    ("tokenizer", "Train a tokenizer, or encode and decode text."): (
        ("train", "tokenizer:train", "Train a tokenizer on text."),
        ("encode", "tokenizer:encode", "Show a text's tokens and ids."),
        ("decode", "tokenizer:decode", "Decode ids to text."),
        ("explain", "tokenizer:explain", "Show step by step how a text is cut."),
        ("compare", "tokenizer:compare", "Compare tokenizers of every kind on a text."),
    ),
    ("vectors", "Train word vectors, and query them."): (
        ("train", "vectors:train", "Train word vectors: skip-gram, CBOW or GloVe."),
        ("near", "vectors:near", "Show the nearest words by cosine similarity."),
        ("analogy", "vectors:analogy", "Solve an analogy: A is to B as C is to …"),
    ),
}
# The commands whose processes share their work under torchrun. Any other would do it once in each.
DIVIDED = {"train"}
HELP = {"--help", "-h", "--version"}


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, so that partial files are removed as they are on Ctrl-C."""


def overview() -> str:
    """The help of `heddle` alone, without cyclopts, which takes a third of a second to import."""
    rows = [*((name, help) for name, _, help in COMMANDS), *GROUPS, ("--version", "Print the version.")]
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:{width}}  {help}" for name, help in rows]
    return "\n".join(["Usage: heddle COMMAND", "", ABOUT, "", *lines, "", "heddle COMMAND --help explains a command."])


def make_app(words: Sequence[str] = ()) -> "App":
    """Register every command by import path, so that the help of one imports no other.

    Args:
        words: the command line. The help of its command is the whole docstring, with settings; of any other, one line.
    """
    from cyclopts import App, Parameter

    from heddle.cli.formatter import Reflowed
    from heddle.cli.output import PlainConsole

    app = App(
        name="heddle",
        help=ABOUT,
        version=__version__,
        help_format="plaintext",
        help_formatter=Reflowed(),
        console=PlainConsole(),
        default_parameter=Parameter(negative=()),  # a flag has no `--no-` form
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # handled by `run`
    )
    first, second = [*words, "", ""][:2]
    settings_help = _settings_help(first) if HELP & set(words) else None
    _register(app, COMMANDS, first, settings_help)
    for (name, help), commands in GROUPS.items():
        group = App(name=name, help=help)
        _register(group, commands, second if name == first else "", settings_help)
        app.command(group)
    return app


def _register(app: "App", commands: Sequence[Command], called: str, settings_help: str | None) -> None:
    for name, function, line in commands:
        help = {} if name == called else {"help": line}
        app.command(
            f"heddle.cli.{function}", name=name, help_epilogue=settings_help if name == "train" else None, **help
        )


def _settings_help(command: str) -> str | None:
    """The settings to list below the help of `train` or `vectors train`."""
    if command not in ("train", "vectors"):
        return None
    from heddle.cli.keys import keys, vector_keys

    return keys() if command == "train" else vector_keys()


def run(argv: list[str] | None = None) -> None:
    """Run one command. Every error that a user can cause is one line on stderr and exit code 2.

    A signal exits with 128 plus its number, as in a shell: 130 for Ctrl-C, 143 for SIGTERM. A closed standard stream
    acts as the null device.
    """
    open_closed()
    words = sys.argv[1:] if argv is None else argv
    # OpenMP threads that never spin cost an eighth of the speed on a quiet machine, and more in short steps. Threads that spin
    # for long make training many times slower as soon as another program wants a core (docs/evidence). torch reads these
    # variables when it is imported, which happens later.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler speaks of itself
    # A script installed by pip does not search the current directory, where a custom mixer may be.
    with suppress(FileNotFoundError):  # the directory may be gone
        if (folder := os.getcwd()) not in sys.path:
            sys.path.append(folder)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # escape characters that the terminal cannot encode
    try:
        with _terminable():
            if (not words or HELP & set(words)) and follows():
                return
            if words in ([], ["--help"], ["-h"]):
                print(overview())
            else:
                _call(words)
            sys.stdout.flush()  # write errors must surface here, where they are reported
    except HeddleError as error:
        _fail(str(error), words)
    except KeyboardInterrupt as stop:
        signal_number = signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT
        _fail(str(stop) or "stopped", words, 128 + signal_number)
    except BrokenPipeError:  # the reader has exited, as in `heddle presets | head`
        drop(sys.stdout)
        sys.exit(0)
    except OSError as error:
        _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part), words)
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        _fail(OUT_OF_MEMORY, words)
    finally:
        settle()


def _call(words: list[str]) -> None:
    """Call the command that the words name. An unknown command and wrong arguments raise a HeddleError."""
    from cyclopts.exceptions import CycloptsError, UnknownCommandError, UnusedCliTokensError

    app = make_app(words)
    _check_alone(words)
    try:
        app(_without_dash(app, words), exit_on_error=False, print_error=False)
    except UnusedCliTokensError as error:
        command, unused = " ".join(["heddle", *(error.command_chain or ())]), " ".join(error.unused_tokens or ())
        raise HeddleError(f"`{command}` got unexpected arguments: {unused}; see {command} --help") from None
    except UnknownCommandError as error:  # for words of its own, it imports every command to list their names
        group, word = " ".join(error.command_chain or ()), (error.unused_tokens or [""])[0]
        hint = did_you_mean(word, app[group] if group else app)
        raise HeddleError(f"unknown command {word!r}.{hint} See {f'heddle {group}'.rstrip()} --help") from None
    except CycloptsError as error:
        raise HeddleError(" ".join(str(error).split())) from None


def _check_alone(words: list[str]) -> None:
    """Refuse a command under torchrun whose processes would all do the same."""
    groups = {name: commands for (name, _), commands in GROUPS.items()}
    length = 2 if words[0] in groups else 1
    names = {name for name, *_ in groups.get(words[0], COMMANDS)}
    command = " ".join(words[:length])
    called = len(words) >= length and words[length - 1] in names and not HELP & set(words)
    if called and command not in DIVIDED and process_count() > 1:
        raise HeddleError(
            f"`heddle {command}` is for one process, but torchrun started {process_count()}: start it without torchrun"
        )


def _without_dash(app: "App", words: list[str]) -> list[str]:
    """Replace `-` by /dev/stdin, since cyclopts would parse it as a flag; an option's value stays `-`."""
    if "-" not in words:
        return words
    options = _options(app, words)
    return [
        "/dev/stdin" if word == "-" and options.get(previous, not previous.startswith("--")) else word
        for previous, word in zip(["", *words], words, strict=False)
    ]


def _options(app: "App", words: list[str]) -> dict[str, bool]:
    """The options of the called command, and whether each is a flag, which has no value."""
    *_, command = app.parse_commands([word for word in words[:2] if not word.startswith("-")])[1]  # without `--help`
    arguments = command.assemble_argument_collection() if command.default_command else ()
    return {name: argument.hint is bool for argument in arguments for name in argument.names}


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
    report(message, lambda: _speak(message, words), code)
    sys.exit(code)


def _speak(message: str, words: list[str]) -> None:
    if "--json" in words and _options(make_app(words), words).get("--json", True):  # not the file of `bench`
        with suppress(OSError):  # the full disk may be stdout's
            print(json.dumps({"error": message}), flush=True)
    with suppress(OSError):  # stderr may be a broken pipe
        rank = os.environ.get("RANK", "0")  # set by torchrun
        print(f"heddle{'' if rank == '0' else f' (rank {rank})'}: {message}", file=sys.stderr, flush=True)
