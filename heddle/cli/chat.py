"""`heddle chat`."""

import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heddle.cli.models import Ready, check_writes, compile_model, open_model, strategy, tokenizer_of
from heddle.cli.output import find_run, pluralize
from heddle.cli.streams import is_piped
from heddle.config.decoding import SamplingConfig, WeightKind
from heddle.errors import HeddleError
from heddle.generate.chat import PLAIN_STOP, chat_template, plain_template, reply_pieces
from heddle.generate.stream import Finish
from heddle.text.chat_template import ChatTemplate
from heddle.text.tokenizer import Tokenizer

HELP = """/system TEXT   start again with another system prompt; without TEXT, with none
/reset         forget the conversation
/undo          forget the last exchange
/save FILE     write the conversation as a line of JSON, as task=chat reads it
/help          this list
/quit          leave, as Ctrl-D does
A line that ends with \\ continues on the next one. Ctrl-C stops an answer; Ctrl-D ends."""

USUAL = {"max_tokens": 500, "temperature": 0.8}
CUT: dict[Finish | None, str] = {"length": "it has --max-tokens tokens", "context": "the context is full"}


def chat(
    run: str,
    /,
    *,
    system: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    seed: int = 0,
    weights: WeightKind = "trained",
    compile: bool = False,
    device: str = "auto",
) -> None:
    """Talk with a model in the terminal, by the chat template that it was trained with.

    A model without a template sees a plain script of User and Assistant, and a line says so. In a conversation that no longer
    fits into the context, the oldest exchanges are forgotten. /help lists what can be typed besides messages.

    Parameters
    ----------
    run
        A run directory, or its name in runs/.
    system
        The system prompt.
    max_tokens
        Longest answer, in tokens. Defaults, as other settings do, to what an imported model's files say, else to 500.
    temperature
        Above 1 is bolder, below 1 safer; 0 always takes the most probable token. Defaults to 0.8.
    top_k
        Sample only from the k most probable tokens.
    top_p
        Sample only from the most probable tokens that together have this probability.
    min_p
        Sample only from tokens with at least this share of the largest probability.
    repetition_penalty
        Above 1, tokens that are already in the conversation become less probable.
    seed
        Equal seeds and messages give equal answers.
    weights
        int8 or int4: round the weights, which takes less memory on a CPU, and less time with one text at once. See
        docs/serving.md for what it costs.
    compile
        Compile the decoding steps first, which takes about half a minute: then a small model answers faster on most CPUs, see
        docs/serving.md. Needs a C++ compiler.
    device
        auto, cpu, cuda or mps.
    """
    asked = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
    }
    settings = {name: value for name, value in asked.items() if value is not None}
    SamplingConfig.of(settings, where="chat")  # before anything takes time
    path = find_run(run)
    ready = open_model(path, device, weights)
    sampling = strategy(ready, SamplingConfig, settings, USUAL)
    check_writes(path, ready)
    ready.model.check_predicts_next()
    if compile:
        compile_model(ready.model, 1)
    talk = _Talk(ready, tokenizer_of(ready, path), sampling, system)
    if talk.plain:
        print(f"{path} has no chat template: it sees a plain script of User and Assistant", file=sys.stderr)
    shown = not is_piped()
    if shown:
        print("/help lists what can be typed; Ctrl-D ends", file=sys.stderr)
        with suppress(ImportError):  # lines can be edited where the system has it
            import readline  # noqa: F401
    for line in _lines("> " if shown else ""):
        if line.strip() == "/quit":
            break
        if line.startswith("/"):
            _command(talk, line)
        elif line.strip():
            _answer(talk, line)


@dataclass
class _Talk:
    """A conversation as it goes on."""

    ready: Ready
    tokenizer: Tokenizer
    sampling: SamplingConfig
    system: str | None
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plain = self.ready.model.config.chat is None
        self.template: ChatTemplate
        if self.plain:
            self.template = plain_template(self.ready.model, self.tokenizer)
            self.sampling = self.sampling.model_copy(update={"stop": (PLAIN_STOP,)})
        else:
            self.template = chat_template(self.ready.model, self.tokenizer)

    def whole(self) -> list[dict[str, str]]:
        """All messages, the system's first."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.messages]

    def fit(self) -> int:
        """Forget the oldest exchanges until half of an answer has room, or only the last message is left; how many went.

        Raises:
            HeddleError: the last message alone does not fit; nothing is forgotten then.
        """
        context = self.ready.model.config.context
        if self._length(len(self.messages) - 1) > context:
            what = "the system prompt and the message do not fit" if self.system else "the message does not fit"
            raise HeddleError(f"{what} into the model's context of {context} tokens; shorten it")
        room, gone = min(self.sampling.max_tokens, context) // 2, 0
        while 2 * gone < len(self.messages) - 1 and self._length(2 * gone) + room > context:
            gone += 1
        del self.messages[: 2 * gone]
        return gone

    def _length(self, first: int) -> int:
        """Tokens of the conversation from this message on, with the system prompt."""
        messages = [*self.whole()[: -len(self.messages)], *self.messages[first:]]
        return len(self.template.render(messages, add_generation_prompt=True))

    def pieces(self) -> Generator[str, None, Finish | None]:
        """The next answer, and why it ended."""
        return reply_pieces(self.ready.model, self.tokenizer, self.template, self.whole(), self.sampling)


def _lines(sign: str) -> Iterator[str]:
    """What is typed, message by message, until the end of the input. Ctrl-C drops the line."""
    while True:
        parts: list[str] = []
        try:
            while not parts or parts[-1].endswith("\\"):
                parts.append(input(". " if parts and sign else sign))
        except UnicodeDecodeError:
            raise HeddleError("standard input is not UTF-8") from None
        except EOFError:
            if sign:
                print()
            if not parts:
                return
        except KeyboardInterrupt as stop:
            if type(stop) is not KeyboardInterrupt:  # SIGTERM
                raise
            print("\nCtrl-D ends", file=sys.stderr)
            continue
        yield "\n".join(
            part.removesuffix("\\") if number < len(parts) - 1 else part for number, part in enumerate(parts)
        )


def _answer(talk: _Talk, message: str) -> None:
    """Write the answer to a message as it comes. What was written before Ctrl-C stays part of the conversation."""
    talk.messages.append({"role": "user", "content": message})
    answer, begun = "", False
    try:
        if gone := talk.fit():
            print(f"the context is full: {pluralize(gone, 'exchange')} forgotten", file=sys.stderr)
        pieces = _Pieces(talk.pieces())
        for piece in pieces:
            new = piece if begun else piece.lstrip()  # the plain script leaves a blank before an answer
            begun = begun or bool(new)
            answer += new
            sys.stdout.write(new)
            sys.stdout.flush()
    except HeddleError as error:
        print(f"heddle: {error}", file=sys.stderr)
        if talk.messages and talk.messages[-1]["role"] == "user":
            talk.messages.pop()
        return
    except KeyboardInterrupt as stop:
        if type(stop) is not KeyboardInterrupt:
            raise
        sys.stdout.write(" [stopped]")
    print()
    if not begun:
        talk.messages.pop()  # there is no answer to remember
        return
    talk.messages.append({"role": "assistant", "content": answer})
    if pieces.finish in CUT:
        print(f"the answer is cut off: {CUT[pieces.finish]}", file=sys.stderr)


class _Pieces:
    """Pieces of an answer.

    Attributes:
        finish: after the last one, why the answer ended.
    """

    def __init__(self, pieces: Generator[str, None, Finish | None]) -> None:
        self.pieces = pieces
        self.finish: Finish | None = None

    def __iter__(self) -> Iterator[str]:
        self.finish = yield from self.pieces


def _command(talk: _Talk, line: str) -> None:
    """Do what a line that starts with / asks for."""
    name, _, rest = line.partition(" ")
    match name:
        case "/help":
            print(HELP)
        case "/reset":
            talk.messages.clear()
        case "/undo":
            del talk.messages[-2:]
        case "/system":
            talk.system = rest.strip() or None
            talk.messages.clear()
        case "/save":
            _save(talk, rest.strip())
        case _:
            print(f"heddle: there is no {name}; /help lists what there is", file=sys.stderr)


def _save(talk: _Talk, name: str) -> None:
    import json

    if not name:
        print("heddle: name a file: /save FILE", file=sys.stderr)
        return
    try:
        with Path(name).open("x", encoding="utf-8") as file:
            file.write(json.dumps({"messages": talk.whole()}, ensure_ascii=False) + "\n")
    except FileExistsError:
        print(f"heddle: {name} already exists; name another file", file=sys.stderr)
    except OSError as error:
        print(f"heddle: {name}: {error.strerror}", file=sys.stderr)
