"""The page and its documents as one HTML file, which works offline."""

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
from heddle.page.panels import PANELS, answer
from heddle.page.queries import Document, Query, TextQuery
from heddle.page.subject import PageModel
from heddle.weights.files import write_file

MAP_NUMBERS = 4 << 20  # of all maps in a file: 16 MiB, 22 as text. For the rest the page refers to `heddle look`
STEPPED = 128  # maximum number of tokens for which a file has all tensors, and the steps of the last query of each head
IMPORT = re.compile(r'(from|import)\s+"(\.{1,2}/[^"]+)"')

Progress = Callable[[int, int], None]


@checked()
def write_page(
    subject: PageModel, path: str | Path, text: str, target: str | None = None, progress: Progress | None = None
) -> None:
    """Write the page for one text as one file. Everything that needs the model is disabled in it, with a note.

    Args:
        subject: the model.
        path: the file; it must end in .html.
        text: a prompt; for translation models, the source.
        target: for translation models, the target; None: the model's own translation.
        progress: called with the number of computed answers and the total.

    Raises:
        HeddleError: the text does not fit, or the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise HeddleError(f"{path}: the page must be an .html file")
    start = {"text": text} | ({} if target is None else {"target": target})
    stored: dict[str, Document] = {}
    queries = list(_queries(subject, start))
    for number, (panel, query) in enumerate(queries):
        try:
            stored[query.key(panel)] = answer(subject, panel, query)
        except HeddleError as error:
            stored[query.key(panel)] = {"error": str(error)}
        if progress is not None:
            progress(number + 1, len(queries))
    write_file(path, _html(subject.name, {"start": start, "answers": stored}).encode(), replace=True)


def _queries(subject: PageModel, start: Document) -> Iterator[tuple[str, Query]]:
    """The queries of the page when it opens, and those of clicks on heads and tensors."""
    text_query = TextQuery.of(start, where="page")
    text = subject.read(text_query)  # raises if the text does not fit
    yield "about", PANELS["about"].query.of({}, where="page")
    yield "model", PANELS["model"].query.of({}, where="page")
    yield "training", PANELS["training"].query.of({}, where="page")
    for panel in ("prefixes", "next", "heads", "layers", "divided", "walk", "plates"):
        yield panel, PANELS[panel].query.of(start, where="page")
    short, left = text.tokens.shape[1] <= STEPPED, MAP_NUMBERS
    for name, layer in subject.attention(text_query).items():
        for head in range(layer.heads):
            left -= layer.queries * layer.keys
            if left >= 0:
                yield "map", PANELS["map"].query.of(start | {"layer": name, "head": head}, where="page")
            if short:
                for panel in ("query", "running"):
                    yield panel, PANELS[panel].query.of(start | {"layer": name, "head": head}, where="page")
    if short:
        for name in sites(subject.model):
            yield "tensor", PANELS["tensor"].query.of(start | {"name": name}, where="page")


def _html(name: str, data: Document) -> str:
    """The file. An import map gives each module a name and its text as a data URL."""
    pages = page_files()
    modules = {path: text for path, text in pages.items() if path.endswith(".js")}
    urls = {path: _data_url(_with_bare_imports(path, text)) for path, text in modules.items()}
    import_map = json.dumps({"imports": {f"heddle/{path}": url for path, url in urls.items()}})
    start = 'import "heddle/app.js"'
    escaped = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in (import_map, start))
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
        f'<script type="application/json" id="stored">{escaped}</script>\n'
        f'<script type="importmap">{import_map}</script>\n<script type="module">{start}</script>',
    )


def _with_bare_imports(path: str, text: str) -> str:
    """A module whose relative imports are replaced by the names in the import map."""

    def rename(match: re.Match[str]) -> str:
        parts = [*path.split("/")[:-1]]
        for part in match[2].split("/"):
            if part == "..":
                parts.pop()
            elif part != ".":
                parts.append(part)
        return f'{match[1]} "heddle/{"/".join(parts)}"'

    return IMPORT.sub(rename, text)


def _data_url(text: str) -> str:
    return "data:text/javascript;base64," + base64.b64encode(text.encode()).decode()


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
