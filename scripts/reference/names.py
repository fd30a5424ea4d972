"""Every name on one page, a line each: commands, the packages' public names, keys of run files, presets."""

from heddle.cli.keys import SECTIONS, TITLES
from heddle.config import preset_names
from scripts.reference import api, commands, fields, presets
from scripts.reference.run_files import label
from scripts.reference.text import first_sentence, prose, table, title

OPENING = """
A line for each name, with a link to where it is explained. Your browser finds any of them on this page.

"""


def page() -> str:
    """The tables of all names, by what they are and where they belong."""
    typed = [(f":doc:`heddle {name} <commands/{name.split()[0]}>`", prose(help)) for name, help in commands.names()]
    parts = [title("Every name"), OPENING, title("Commands", "-"), _lines(typed)]
    for package in api.packages():
        parts += [title(package, "-"), _lines([each.line for each in api.public(package)])]
    for section, configs in SECTIONS.items():
        parts.append(title(f"Keys of [{section}]: {TITLES[section]}", "-"))
        keys = {
            row.name: (f":ref:`{row.name} <{label(section)}>`", prose(first_sentence(row.comment)))
            for config in reversed(configs)
            for row in fields.rows(config)
        }
        parts.append(_lines([keys[name] for name in sorted(keys)]))
    about = [(f":ref:`{name} <preset-{name}>`", prose(presets.about(name))) for name in preset_names()]
    return "\n".join([*parts, title("Presets", "-"), _lines(about)])


def count() -> int:
    """The number of public names of all packages."""
    return sum(len(api.public(package)) for package in api.packages())


def _lines(rows: list[tuple[str, str]]) -> str:
    return table(("name", "what it is"), rows, widths="35 65", name="names")
