"""The page and what it shows as one HTML file, which works offline."""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

from heddle.checks import checked
from heddle.errors import HeddleError
from heddle.look.sites import sites
from heddle.page.app import page_files
from heddle.page.asked import CheckpointQuery, Document, Query
from heddle.page.panels import PANELS, answer
from heddle.page.subject import PageModel
from heddle.weights.files import write_file

NUMBERS = 4 << 20  # of all maps in a file: 16 MiB, 22 as text; the rest names `heddle look`
STEPPED = 128  # tokens up to which a file has all tensors, and the last query of each head step by step
IMPORT = re.compile(r'(from|import)\s+"(\.{1,2}/[^"]+)"')

Told = Callable[[int, int], None]


@checked()
def write_page(
    subject: PageModel, path: str | Path, text: str, target: str | None = None, told: Told | None = None
) -> None:
    """Write the page about one text as one file. What needs the model is disabled in it, and says so.

    Args:
        subject: the model.
        path: of the file, which ends in .html.
        text: what the model reads; of a model that translates, the source.
        target: what a model that translates reads after it, or in its decoder; None: its own translation.
        told: hears how many answers are computed, and of how many.

    Raises:
        HeddleError: the text does not fit, or the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise HeddleError(f"{path}: a page is an .html file")
    start = {"text": text} | ({} if target is None else {"target": target})
    stored: dict[str, Document] = {}
    questions = list(_questions(subject, start))
    for number, (panel, asked) in enumerate(questions):
        try:
            stored[asked.key(panel)] = answer(subject, panel, asked)
        except HeddleError as error:
            stored[asked.key(panel)] = {"error": str(error)}
        if told is not None:
            told(number + 1, len(questions))
    write_file(path, _whole(subject.name, {"start": start, "answers": stored}).encode(), replace=True)


def _questions(subject: PageModel, start: Document) -> Iterator[tuple[str, Query]]:
    """What the page asks about a text when it is opened, and what a click on a head or a token asks."""
    reading = CheckpointQuery.of(start, where="page")
    text = subject.read(reading)  # refuses a text that does not fit
    yield "about", PANELS["about"].asked.of({}, where="page")
    yield "model", PANELS["model"].asked.of({}, where="page")
    yield "training", PANELS["training"].asked.of({}, where="page")
    for panel in ("prefixes", "next", "heads", "layers", "divided", "walk", "plates"):
        yield panel, PANELS[panel].asked.of(start, where="page")
    short, left = text.tokens.shape[1] <= STEPPED, NUMBERS
    for name, layer in subject.attention(reading).items():
        for head in range(layer.heads):
            left -= layer.queries * layer.keys
            if left >= 0:
                yield "map", PANELS["map"].asked.of(start | {"layer": name, "head": head}, where="page")
            if short:
                yield "query", PANELS["query"].asked.of(start | {"layer": name, "head": head}, where="page")
    if short:
        for name in sites(subject.model):
            yield "tensor", PANELS["tensor"].asked.of(start | {"name": name}, where="page")


def _whole(name: str, data: Document) -> str:
    """The file: modules are named in an import map and carried in the file itself."""
    pages = page_files()
    modules = {path: text for path, text in pages.items() if path.endswith(".js")}
    addresses = {path: _address(_bare(path, text)) for path, text in modules.items()}
    table = json.dumps({"imports": {f"heddle/{path}": address for path, address in addresses.items()}})
    start = 'import "heddle/app.js"'
    safe = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    hashes = " ".join(f"'sha256-{_digest(each)}'" for each in (table, start))
    policy = (
        f"default-src 'none'; script-src {hashes} data:; style-src 'sha256-{_digest(pages['style.css'])}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    index = pages["index.html"]
    index = index.replace("<title>heddle</title>", f"<title>{escape(name)} - heddle</title>")
    index = index.replace(
        '<link rel="stylesheet" href="/static/style.css">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{pages["style.css"]}</style>',
    )
    return index.replace(
        '<script type="module" src="/static/app.js"></script>',
        f'<script type="application/json" id="stored">{safe}</script>\n'
        f'<script type="importmap">{table}</script>\n<script type="module">{start}</script>',
    )


def _bare(path: str, text: str) -> str:
    """A module whose imports are by the names in the import map."""

    def named(found: re.Match[str]) -> str:
        parts = [*path.split("/")[:-1]]
        for part in found[2].split("/"):
            if part == "..":
                parts.pop()
            elif part != ".":
                parts.append(part)
        return f'{found[1]} "heddle/{"/".join(parts)}"'

    return IMPORT.sub(named, text)


def _address(text: str) -> str:
    return "data:text/javascript;base64," + base64.b64encode(text.encode()).decode()


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
