"""Compiles and renders chat templates in Jinja's sandbox.

`heddle.text.template_process` runs this module as a program. It must not import heddle, so that it starts at once.
"""

import json
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import IO, Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARACTERS = 10_000_000  # of a rendered conversation
SECONDS = 1  # to compile a template or to render a conversation in a subprocess
MEMORY = 1 << 30  # bytes
ERROR_LENGTH = 500  # characters of an error
ESCAPED = re.compile(r"\\u(fd[de][0-9a-f])")


class _Generation(Extension):
    """Accepts `{% generation %}` … `{% endgeneration %}`, which mark the assistant's text in some templates, and ignores them."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def compiled(template: str, date: str | None = None) -> Template:
    """A template with the functions and the whitespace handling that published templates rely on.

    Raises:
        ValueError: the template is not valid Jinja.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: (
        datetime.now() if date is None else datetime.fromisoformat(date)
    ).strftime(form)
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise ValueError(f"the chat template is not valid Jinja: {_one_line(error)}") from None
    except Exception as error:  # constants are computed here
        raise ValueError(f"the chat template cannot be compiled ({type(error).__name__}: {_one_line(error)})") from None


def rendered(template: Template, messages: Sequence[Mapping[str, str]], variables: Mapping[str, Any]) -> str:
    """The text of a conversation.

    Raises:
        ValueError: the template refuses it, fails, or writes more than `MAX_CHARACTERS` characters.
    """
    pieces, length = list[str](), 0
    try:
        for piece in template.generate(messages=[dict(message) for message in messages], **variables):
            pieces.append(piece)
            length += len(piece)
            if length > MAX_CHARACTERS:
                raise TemplateError(f"it would be longer than {MAX_CHARACTERS:,} characters")
    except TemplateError as error:
        raise ValueError(f"the chat template refuses this conversation: {_one_line(error)}") from None
    except Exception as error:  # a template can fail in any way
        reason = f"{type(error).__name__}: {_one_line(error)}"
        raise ValueError(f"the chat template cannot render this conversation ({reason})") from None
    return "".join(pieces)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:ERROR_LENGTH]


def _refuse(reason: str) -> None:
    raise TemplateError(reason)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter. The marks that `ChatTemplate` puts into special tokens stay."""
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return ESCAPED.sub(lambda match: chr(int(match[1], 16)), text) if ensure_ascii else text


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests, which are lines of JSON, until the stream ends.

    `{"template", "date"}` compiles a template, and `{"messages", "variables"}` renders a conversation with it. An answer
    is `{"text"}` or `{"error"}`; an empty first one signals that the process is ready.
    """
    _answer(answers, {"text": ""})
    template: Template | None = None
    for line in requests:
        request = json.loads(line)
        _set_alarm(2 * SECONDS)
        try:
            if "template" in request:
                template, text = compiled(request["template"], request["date"]), ""
            else:
                assert template is not None
                text = rendered(template, request["messages"], request["variables"])
            _answer(answers, {"text": text})
        except ValueError as error:
            _answer(answers, {"error": str(error)})
        _set_alarm(0)


def _answer(answers: IO[bytes], answer: Mapping[str, str]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _set_alarm(seconds: int) -> None:
    """Let the system end this process after so many seconds, in case its parent is gone; 0 cancels. Not on Windows."""
    if sys.platform != "win32":
        signal.alarm(seconds)


def _limit_memory() -> None:
    """Limit the address space to `MEMORY`, where the system supports it."""
    if sys.platform != "win32":
        import resource

        with suppress(OSError, ValueError):  # no such limit on this system, or a lower one
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    _limit_memory()
    serve(sys.stdin.buffer, sys.stdout.buffer)
