"""Every preset: its sizes, its exact number of parameters, and its file."""

from importlib import resources

from heddle.account import preset_table
from heddle.config import preset
from scripts.reference.text import prose, table, title

OPENING = """
``heddle presets NAME`` prints one, ``heddle count NAME`` counts it line by line, ``heddle train preset=NAME`` trains it, and
``heddle.preset("NAME")`` gives its config. Parameters are counted from the model itself, without memory for them.

"""


def page() -> str:
    """A table of all presets, then the file of each."""
    rows = []
    for row in preset_table():
        name, config = str(row["name"]), preset(str(row["name"]))
        depths = " + ".join(str(stack.depth) for stack in (config.encoder, config.decoder) if stack is not None)
        sizes = (depths, f"{config.dim:,}", f"{config.vocab_size:,}", f"{config.context:,}")
        rows.append((f":ref:`{name} <preset-{name}>`", f"{row['parameters']:,}", str(row["family"]), *sizes))
    head = ("preset", "parameters", "family", "depth", "dim", "vocabulary", "context")
    files = [part for row in rows for part in _file(row[0].split("`")[1].split()[0])]
    return "\n".join([title("Presets"), OPENING, table(head, rows, name="numbers"), *files])


def about(name: str) -> str:
    """What the first line of a preset's file says of it."""
    first, _, _ = _text(name).partition("\n")
    return first.lstrip("# ") if first.startswith("#") else ""


def _text(name: str) -> str:
    return (resources.files("heddle.config") / "presets" / f"{name}.toml").read_text(encoding="utf-8")


def _file(name: str) -> list[str]:
    text = _text(name)
    body = text.partition("\n")[2] if about(name) else text
    block = "\n".join(f"   {line}".rstrip() for line in body.strip().splitlines())
    return [f".. _preset-{name}:\n", title(name, "-"), prose(about(name)) + "\n", f".. code-block:: toml\n\n{block}\n"]
