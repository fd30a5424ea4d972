"""Every key of a run file, from the classes that read it."""

from heddle.cli.keys import SECTIONS, TITLES
from heddle.config.vectors import VectorsConfig
from scripts.reference.api import summary_of
from scripts.reference.fields import field_table
from scripts.reference.text import prose, title

OPENING = """
A run file is TOML with the four tables below. ``heddle train run.toml`` reads it, and ``heddle train run.toml steps=500``
changes one setting of it. On the command line, a key needs its table only if two tables have it.

.. code-block:: toml

   [data]
   sources = ["my.txt"]

   [model]
   depth = 4

   [train]
   steps = 1000

"""


def label(section: str) -> str:
    """The name by which other pages link to a table's section."""
    return f"keys-of-{section}"


def page() -> str:
    """The tables of a run file, and the settings of `heddle vectors train`."""
    parts = [title("Run files"), OPENING]
    for name, configs in SECTIONS.items():
        parts += [f".. _{label(name)}:\n", title(f"[{name}]: {TITLES[name]}", "-")]
        for config in configs:
            if len(configs) > 1:
                parts.append(title(f'kind = "{config.model_fields["kind"].default}"', "~"))
            parts += [prose(summary_of(config)) + "\n", field_table(config)]
    parts += [title("Word vectors", "-"), "The settings of ``heddle vectors train``, in a file or as words.\n"]
    return "\n".join([*parts, field_table(VectorsConfig)])
