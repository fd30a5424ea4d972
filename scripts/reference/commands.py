"""A page for each command, from its docstring and its parameters."""

import inspect
from typing import TYPE_CHECKING, Any

from heddle.cli.main import ABOUT, COMMANDS, GROUPS, make_app
from scripts.reference.fields import default_text, type_text
from scripts.reference.text import code, prose, table, title

if TYPE_CHECKING:
    from cyclopts import App

SETTINGS = {
    "train": "The settings are listed under :doc:`/reference/run-files`.",
    "vectors train": "The settings are listed under :doc:`/reference/run-files`.",
}


def names() -> list[tuple[str, str]]:
    """Every command as it is typed, with its line of help."""
    alone = [(name, help) for name, _, help in COMMANDS]
    grouped = [(f"{group} {name}", help) for (group, _), commands in GROUPS.items() for name, _, help in commands]
    return alone + grouped


def pages() -> dict[str, str]:
    """A page for each command and each group of commands, and their index."""
    stems = [*(name for name, _, _ in COMMANDS), *(group for group, _ in GROUPS)]
    made = {f"commands/{name}.rst": command_page([name]) for name, _, _ in COMMANDS}
    for (group, help), commands in GROUPS.items():
        parts = [title(f"heddle {group}"), prose(help) + "\n"]
        parts += [_command([group, name], "-") for name, _, _ in commands]
        made[f"commands/{group}.rst"] = "\n".join(parts)
    rows = [(f":doc:`heddle {name} <{name.split()[0]}>`", prose(help)) for name, help in names()]
    toctree = "\n".join(f"   heddle {stem} <{stem}>" for stem in stems)
    made["commands/index.rst"] = "\n".join(
        [
            title("Command line"),
            f"{ABOUT}\n",
            table(("command", "what it does"), rows, widths="30 70", name="names"),
            "Tables become one JSON document with ``--json``. An error is one line, with exit code 2.\n",
            f".. toctree::\n   :hidden:\n\n{toctree}\n",
        ]
    )
    return made


def command_page(words: list[str]) -> str:
    """The page of one command."""
    return _command(words, "=")


def _command(words: list[str], line: str) -> str:
    app = _app(words)
    arguments = _arguments(app)
    usage = " ".join(["heddle", *words, *(each.usage for each in arguments if not each.option)])
    parts = [
        title(f"heddle {' '.join(words)}", line),
        f".. code-block:: text\n\n   {usage}{' [OPTIONS]' * any(each.option for each in arguments)}\n",
        *(prose(paragraph) + "\n" for paragraph in _description(app)),
        *(text + "\n" for command, text in SETTINGS.items() if command == " ".join(words)),
    ]
    for heading, option in (("Arguments", False), ("Options", True)):
        rows = [each.cells for each in arguments if each.option is option]
        if rows:
            parts += [
                f"**{heading}**\n",
                table((heading.lower()[:-1], "type", "default", "meaning"), rows, name="fields"),
            ]
    return "\n".join(parts)


def _app(words: list[str]) -> "App":
    app = make_app(words)
    for word in words:
        app = app[word]
    return app


def _description(app: "App") -> list[str]:
    """The paragraphs of a command's docstring before its parameters."""
    text = inspect.cleandoc(inspect.getdoc(app.default_command) or "")
    return text.partition("\nParameters\n---")[0].strip().split("\n\n")


class _Argument:
    """A parameter of a command, as the help shows it."""

    def __init__(self, argument: Any) -> None:
        self.names = argument.names
        self.option = self.names[0].startswith("-")
        self.many = argument.field_info.kind.name == "VAR_POSITIONAL"
        self.required = bool(argument.required) and not self.many
        self.type = "flag" if argument.hint is bool else type_text(argument.hint).removesuffix(" or none")
        default = argument.field_info.default
        unset = default is inspect.Parameter.empty or default is None or default is False
        self.default = "required" * self.required if unset else default_text(default)
        self.help = argument.parameter.help or ""

    @property
    def usage(self) -> str:
        """How the usage line shows it."""
        return f"[{self.names[0]}...]" if self.many else self.names[0] if self.required else f"[{self.names[0]}]"

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Its row of the table."""
        return " ".join(map(code, self.names)), self.type, code(self.default), prose(self.help)


def _arguments(app: "App") -> list[_Argument]:
    from cyclopts import Parameter

    plain = Parameter(negative=())  # as `make_app` has it
    collection = app.assemble_argument_collection(default_parameter=plain, parse_docstring=True)
    return [_Argument(argument) for argument in collection if argument.show]
