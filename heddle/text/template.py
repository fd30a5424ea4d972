"""Chat templates, in Jinja: compiled and rendered in its sandbox.

Run as a program, it does so for another process (`heddle.text.template_process`). It imports nothing but Jinja, so that it starts
at once: nothing of heddle may be imported here.
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

LONGEST = 10_000_000  # characters that a template may write
SECONDS = 1  # that another process gives it
MEMORY = 1 << 30  # bytes
SHOWN = 500  # characters of an error
ESCAPED = re.compile(r"\\u(fd[de][0-9a-f])")


class _Generation(Extension):
    """`{% generation %}` … `{% endgeneration %}`, by which some templates show what is the assistant's, changes no text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def compiled(template: str, date: str | None = None) -> Template:
    """A template with the functions and the handling of blanks that published ones rely on.

    Raises:
        ValueError: it is not valid Jinja.
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
        raise ValueError(f"the chat template is not valid Jinja: {_said(error)}") from None
    except Exception as error:  # constants are computed here
        raise ValueError(f"the chat template cannot be compiled ({type(error).__name__}: {_said(error)})") from None


def rendered(template: Template, messages: Sequence[Mapping[str, str]], told: Mapping[str, Any]) -> str:
    """The text of a conversation.

    Raises:
        ValueError: the template refuses it, fails, or writes more than `LONGEST` characters.
    """
    pieces, length = list[str](), 0
    try:
        for piece in template.generate(messages=[dict(message) for message in messages], **told):
            pieces.append(piece)
            length += len(piece)
            if length > LONGEST:
                raise TemplateError(f"it would be longer than {LONGEST:,} characters")
    except TemplateError as error:
        raise ValueError(f"the chat template refuses this conversation: {_said(error)}") from None
    except Exception as error:  # whatever the template does with its values
        said = f"{type(error).__name__}: {_said(error)}"
        raise ValueError(f"the chat template cannot render this conversation ({said})") from None
    return "".join(pieces)


def _said(error: Exception) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split())[:SHOWN]


def _refuse(reason: str) -> None:
    raise TemplateError(reason)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the escapes for HTML of Jinja's own filter; the marks in special tokens are not escaped either."""
    found = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return ESCAPED.sub(lambda match: chr(int(match[1], 16)), found) if ensure_ascii else found


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests, lines of JSON, until there are no more.

    `{"template", "date"}` compiles a template, and `{"messages", "told"}` renders a conversation with it. An answer is
    `{"text"}` or `{"error"}`; the first one says that requests can come.
    """
    _answer(answers, {"text": ""})
    template: Template | None = None
    for line in requests:
        request = json.loads(line)
        _hurry(2 * SECONDS)
        try:
            if "template" in request:
                template, text = compiled(request["template"], request["date"]), ""
            else:
                assert template is not None
                text = rendered(template, request["messages"], request["told"])
            _answer(answers, {"text": text})
        except ValueError as error:
            _answer(answers, {"error": str(error)})
        _hurry(0)


def _answer(answers: IO[bytes], answer: Mapping[str, str]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _hurry(seconds: int) -> None:
    """Where the system can, end this process after so many seconds, though the one that waits for it be gone; 0: not any more."""
    if sys.platform != "win32":
        signal.alarm(seconds)


def _spare() -> None:
    """Where the system can, take no more than `MEMORY`."""
    if sys.platform != "win32":
        import resource

        with suppress(OSError, ValueError):  # a system without such a limit, or with a lower one
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    _spare()
    serve(sys.stdin.buffer, sys.stdout.buffer)
