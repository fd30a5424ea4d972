"""A browser, and pages of small models in it."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heddle.page import PageModel, make_page
from tests.page.subjects import make_subject
from tests.serve.conftest import Running

CHROMIUM = next(
    (
        path
        for path in (
            "/usr/lib/chromium/chromium-headless-shell",
            shutil.which("chromium-headless-shell"),
            shutil.which("chromium"),
        )
        if path and Path(path).exists()
    ),
    None,
)
WIDE = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser for a module: playwright's loop would hold up tests of servers in the same process."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt install chromium-headless-shell")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[[str, dict[str, str]], str]]:
    """The address of the page of a model; the model of each kind is one for a module, which only its servers use."""
    models, running = dict[str, PageModel](), dict[str, Running]()

    def call(kind: str, start: dict[str, str]) -> str:
        if kind not in models:
            models[kind] = make_subject(kind)
        key = f"{kind} {start}"
        if key not in running:
            running[key] = Running(make_page(models[kind], None, start))
        return running[key].url + "/"

    yield call
    for each in running.values():
        each.stop()


class Seen:
    """A page in the browser; whatever goes wrong in it fails the test.

    Attributes:
        page: playwright's page.
        faults: what the console and the network said.
    """

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url, self.faults = page, url, list[str]()
        page.on("console", lambda message: message.type in ("error", "warning") and self.faults.append(message.text))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on(
            "response",
            lambda response: (
                response.status >= 400 and self.faults.append(f"{response.request.post_data} {response.text()}")
            ),
        )
        page.on("request", lambda request: self._check(request.url))

    def show(self, **state: str) -> Any:
        """Open the page in a state; return the panel."""
        from urllib.parse import urlencode

        self.page.goto("about:blank")
        self.page.goto(f"{self.url}#{urlencode(state)}")
        return self.panel(state.get("panel"))

    def turn(self, name: str) -> Any:
        """Turn to another panel by its button; return it."""
        self.page.locator(f'#panels button[data-keep="{name}"]').click()
        return self.panel(name)

    def panel(self, name: str | None = None) -> Any:
        """The panel that is shown, when it is."""
        locator = self.page.locator(f'.panel[data-ready="yes"]{f"[data-panel={name}]" if name else ""}')
        locator.wait_for(timeout=60_000)
        return locator

    def until(self, what: Callable[[], bool], seconds: float = 10.0) -> None:
        """Wait until it holds. The page's policy forbids playwright's own `wait_for_function`."""
        for _ in range(int(seconds * 50)):
            if what():
                return
            self.page.wait_for_timeout(20)
        raise AssertionError("it did not come to hold")

    def _check(self, address: str) -> None:
        if not address.startswith((self.url, "data:", "blob:", "about:", "file:")):
            self.faults.append(f"asks {address}")


@pytest.fixture
def look(chromium: Any, serve: Callable[[str, dict[str, str]], str]) -> Iterator[Callable[..., Seen]]:
    """Show a model, `look("decoder")`, or what is at an address."""
    running: list[Running] = []
    contexts: list[Any] = []
    seen: list[Seen] = []

    def call(what: str | PageModel, start: dict[str, str] | None = None, url: str | None = None, **more: Any) -> Seen:
        start = {"text": "the warp is"} if start is None else start
        if url is None and isinstance(what, str):
            url = serve(what, start)
        elif url is None:
            running.append(Running(make_page(what, None, start)))
            url = running[-1].url + "/"
        contexts.append(chromium.new_context(**{"viewport": WIDE, **more}))
        seen.append(Seen(contexts[-1].new_page(), url))
        return seen[-1]

    yield call
    for each in contexts:
        each.close()
    for each in running:
        each.stop()
    assert "\n".join(fault for each in seen for fault in each.faults) == ""
