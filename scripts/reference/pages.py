"""Every page of the reference, and the folder that they are written to."""

from pathlib import Path

from heddle.config import preset_names
from scripts.reference import api, commands, names, presets, run_directory, run_files
from scripts.reference.text import title

DOORS = {
    "names": ("Every name", "All of the below on one page, a line each: the place to search."),
    "commands/index": ("Command line", "What each of the {commands} commands does, and its options."),
    "api/index": ("Python API", "{names} classes, functions and constants in {packages} packages."),
    "run-files": ("Run files", "Each key of a run's data, model, task and training, with its default."),
    "presets": ("Presets", "{presets} models by name, with their sizes and files."),
    "run-directory": ("Run directory", "The files that a run leaves, and what reads them."),
}


def index() -> str:
    """The first page: a door for each part."""
    counts = {
        "commands": len(commands.names()),
        "names": names.count(),
        "packages": len(api.packages()),
        "presets": len(preset_names()),
    }
    cards = [
        f"   .. grid-item-card:: {heading}\n      :link: {path}\n      :link-type: doc\n\n      {words.format(**counts)}\n"
        for path, (heading, words) in DOORS.items()
    ]
    return "\n".join(
        [
            title("Reference"),
            "Written from the code when the site is built: signatures, fields, defaults and help texts are the program's own.\n",
            ".. grid:: 1 2 2 2\n   :gutter: 3\n   :padding: 0\n",
            *cards,
            ".. toctree::\n   :hidden:\n",
            *(f"   {path}" for path in DOORS),
            "",
        ]
    )


def pages() -> dict[str, str]:
    """Every page, by its path under the folder of the reference."""
    return {
        "index.rst": index(),
        "names.rst": names.page(),
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
