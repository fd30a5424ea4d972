"""The built site, and a browser for it."""

import os
from pathlib import Path

import pytest

from tests.page.conftest import chromium as chromium

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built site. `scripts/check docs` names it; one that was built at another time may be out of date."""
    folder = os.environ.get("HEDDLE_SITE")
    if folder is None:
        pytest.skip("the site is built and tried by: scripts/check docs")
    return Path(folder).resolve()
