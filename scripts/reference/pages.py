"""Every page of the reference, and the folder that they are written to."""

from pathlib import Path

from scripts.reference import api, commands, presets, run_directory, run_files
from scripts.reference.text import title

INDEX = f"""{title("Reference")}
Written from the code when the site is built: signatures, fields, defaults and help texts are the program's own.

.. toctree::
   :maxdepth: 2

   commands/index
   run-files
   presets
   run-directory
   api/index
"""


def pages() -> dict[str, str]:
    """Every page, by its path under the folder of the reference."""
    return {
        "index.rst": INDEX,
        "run-files.rst": run_files.page(),
        "presets.rst": presets.page(),
        "run-directory.rst": run_directory.page(),
        **commands.pages(),
        **api.pages(),
    }


def write(folder: Path) -> list[Path]:
    """Write the pages to a folder; pages that are as they were keep their time, and what is no page any more is removed."""
    paths = []
    for name, text in pages().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
        paths.append(path)
    for path in set(folder.rglob("*.rst")) - set(paths):
        path.unlink()
    return paths
