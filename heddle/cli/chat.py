"""`heddle chat`."""

import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heddle.cli.models import check_generates, compile_model, decoding_config, open_model, tokenizer_of
from heddle.cli.options import Compile, Device, Precision, Run, SamplingOptions, Text, Weights
from heddle.cli.output import find_run, pluralize
from heddle.cli.streams import is_piped
from heddle.config.decoding import SamplingConfig
from heddle.errors import HeddleError
from heddle.generate.chat import Conversation
from heddle.generate.logprobs import Finish

HELP = """/system TEXT   start over with this system prompt, or with none
/reset         clear the conversation
/undo          remove the last exchange
/save FILE     save the conversation as a line of JSON for task=chat
/help          show this help
/quit          exit (also Ctrl-D)
End a line with \\ to continue on the next one. Ctrl-C stops an answer; Ctrl-D exits."""

DEFAULTS = {"max_tokens": 500, "temperature": 0.8}
TRUNCATED: dict[Finish | None, str] = {"length": "--max-tokens reached", "context": "the context is full"}


@dataclass(frozen=True, kw_only=True)
class ChatOptions(SamplingOptions):
    """Settings of `SamplingConfig`, with other defaults."""

    max_tokens: int | None = None
    """Maximum tokens per answer. This and other options default to an imported model's generation config, else to 500."""
    temperature: float | None = None
    """Sampling temperature: higher is more random, 0 is greedy. Defaults to 0.8."""


UNSET = ChatOptions()


def chat(
    run: Run,
    /,
    *,
    system: Text = None,
    sampling: Annotated[ChatOptions, Parameter(name="*")] = UNSET,
    weights: Weights = "trained",
    precision: Precision = "auto",
    compile: Compile = False,
    device: Device = "auto",
) -> None:
    """Chat with a model in the terminal, using its chat template.

    A model without a template gets a plain transcript of User and Assistant. When the context is full, the oldest exchanges are
    dropped. /help lists the commands.

    Parameters
    ----------
    system
        The system prompt.
    """
    settings = sampling.settings()
    SamplingConfig.of(settings, where="chat")  # before anything takes time
    path = find_run(run)
    ready = open_model(path, device, weights, precision)
    config = decoding_config(ready, SamplingConfig, settings, DEFAULTS)
    check_generates(path, ready)
    ready.model.check_predicts_next()
    if compile:
        compile_model(ready.model, 1)
    conversation = Conversation(ready.model, tokenizer_of(ready, path), config, system)
    if conversation.plain:
        print(f"{path} has no chat template: using a plain transcript of User and Assistant", file=sys.stderr)
    interactive = not is_piped()
    if interactive:
        print("/help lists commands; Ctrl-D exits", file=sys.stderr)
        with suppress(ImportError):  # enables line editing where available
            import readline  # noqa: F401
    for line in _read_messages("> " if interactive else ""):
        if line.strip() == "/quit":
            break
        if line.startswith("/"):
            _command(conversation, line)
        elif line.strip():
            _answer(conversation, line)


def _read_messages(prompt: str) -> Iterator[str]:
    """Yield messages until the input ends. Ctrl-C discards the current line."""
    while True:
        parts: list[str] = []
        try:
            while not parts or parts[-1].endswith("\\"):
                parts.append(input(". " if parts and prompt else prompt))
        except UnicodeDecodeError:
            raise HeddleError("standard input is not UTF-8") from None
        except EOFError:
            if prompt:
                print()
            if not parts:
                return
        except KeyboardInterrupt as stop:
            if type(stop) is not KeyboardInterrupt:  # SIGTERM
                raise
            print("\nCtrl-D exits", file=sys.stderr)
            continue
        yield "\n".join(
            part.removesuffix("\\") if number < len(parts) - 1 else part for number, part in enumerate(parts)
        )


def _answer(conversation: Conversation, message: str) -> None:
    """Stream the answer to a message. An answer stopped by Ctrl-C stays in the conversation."""
    conversation.messages.append({"role": "user", "content": message})
    answer, started = "", False
    try:
        if forgotten := conversation.fit():
            print(f"the context is full: dropped {pluralize(forgotten, 'exchange')}", file=sys.stderr)
        pieces = _Pieces(conversation.reply())
        for piece in pieces:
            text = piece if started else piece.lstrip()  # the plain transcript leaves a space before an answer
            started = started or bool(text)
            answer += text
            sys.stdout.write(text)
            sys.stdout.flush()
    except HeddleError as error:
        print(f"heddle: {error}", file=sys.stderr)
        if conversation.messages and conversation.messages[-1]["role"] == "user":
            conversation.messages.pop()
        return
    except KeyboardInterrupt as stop:
        if type(stop) is not KeyboardInterrupt:
            raise
        sys.stdout.write(" [stopped]")
    print()
    if not started:
        conversation.messages.pop()  # there is no answer to remember
        return
    conversation.messages.append({"role": "assistant", "content": answer})
    if pieces.finish in TRUNCATED:
        print(f"the answer was cut off: {TRUNCATED[pieces.finish]}", file=sys.stderr)


class _Pieces:
    """The pieces of an answer.

    Attributes:
        finish: why the answer ended, set after the last piece.
    """

    def __init__(self, pieces: Generator[str, None, Finish | None]) -> None:
        self.pieces = pieces
        self.finish: Finish | None = None

    def __iter__(self) -> Iterator[str]:
        self.finish = yield from self.pieces


def _command(conversation: Conversation, line: str) -> None:
    """Run a command, a line that starts with /."""
    name, _, rest = line.partition(" ")
    match name:
        case "/help":
            print(HELP)
        case "/reset":
            conversation.messages.clear()
        case "/undo":
            del conversation.messages[-2:]
        case "/system":
            conversation.system = rest.strip() or None
            conversation.messages.clear()
        case "/save":
            _save(conversation, rest.strip())
        case _:
            print(f"heddle: unknown command {name}; /help lists commands", file=sys.stderr)


def _save(conversation: Conversation, name: str) -> None:
    import json

    if not name:
        print("heddle: usage: /save FILE", file=sys.stderr)
        return
    try:
        with Path(name).open("x", encoding="utf-8") as file:
            file.write(json.dumps({"messages": conversation.all_messages()}, ensure_ascii=False) + "\n")
    except FileExistsError:
        print(f"heddle: {name} already exists; choose another file", file=sys.stderr)
    except OSError as error:
        print(f"heddle: {name}: {error.strerror}", file=sys.stderr)
