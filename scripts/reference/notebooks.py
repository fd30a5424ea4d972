"""Executes the site's notebooks side by side, into the cache from which MyST-NB then reads their outputs."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import ExecutionResult, single_nb_execution
from myst_nb.core.config import NbParserConfig
from myst_nb.core.read import create_nb_reader
from myst_parser.config.main import MdParserConfig
from traitlets.config import Config

from heddle.native.cores import cores

SECONDS = "execution_seconds"
KERNELS = Config(KernelManager={"transport_encryption": "auto"})  # a kernel warns of TCP in plain text


def execute(docs: Path, cells: Path, timeout: int) -> dict[str, float]:
    """Execute the notebooks whose code has changed, one for each core at a time, longest pages first.

    A notebook that fails is left out: Sphinx executes it again and says where it fails.

    Args:
        docs: the folder of the pages.
        cells: the folder of the cache.
        timeout: of a cell, in seconds.

    Returns:
        The seconds that each notebook took when it was executed, by its path under `docs`.
    """
    cache = get_cache(cells)
    pages = dict(_notebooks(docs))
    seconds: dict[str, float] = {}
    changed = {}
    for path, notebook in pages.items():
        try:
            seconds[str(path.relative_to(docs))] = cache.match_cache_notebook(notebook).data.get(SECONDS, 0.0)
        except KeyError:
            changed[path] = notebook
    with ThreadPoolExecutor(max_workers=cores()) as pool:
        order = sorted(changed, key=lambda path: -path.stat().st_size)
        for path, result in zip(order, pool.map(lambda path: _run(changed[path], timeout), order), strict=True):
            if result.err is None:
                bundle = CacheBundleIn(result.nb, str(path), data={SECONDS: result.time})
                cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
                seconds[str(path.relative_to(docs))] = result.time
    return seconds


def _run(notebook: Any, timeout: int) -> ExecutionResult:
    with TemporaryDirectory() as folder:  # what a lesson writes goes there
        return single_nb_execution(notebook, cwd=folder, timeout=timeout, allow_errors=False, config=KERNELS)


def _notebooks(docs: Path) -> Iterator[tuple[Path, Any]]:
    """The pages with cells to execute."""
    for path in sorted(Path(folder) / name for folder, _, names in os.walk(docs, followlinks=True) for name in names):
        if path.suffix != ".md" or "_build" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        reader = (
            create_nb_reader(str(path), MdParserConfig(), NbParserConfig(), text) if "{code-cell}" in text else None
        )
        if reader is not None:
            yield path, reader.read(text)
