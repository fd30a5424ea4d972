"""The built site in a browser: nothing is asked of another server, nothing is wider than a phone, axe finds nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.page.conftest import Seen
from tests.site.conftest import ROOT

AXE = ROOT / ".node/node_modules/axe-core/axe.min.js"
# A page of each kind.
KINDS = (
    "index.html",
    "start.html",
    "learn.html",
    "reference/index.html",
    "reference/commands/generate.html",
    "reference/run-files.html",
    "reference/presets.html",
    "reference/api/heddle.nn.html",
    "reference/api/heddle.config.html",
)


@pytest.fixture
def open_page(chromium: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Open a page of the site; whatever it asks of another address, and every error, fails the test."""
    contexts: list[Any] = []
    seen: list[Seen] = []

    def call(name: str, **more: Any) -> Any:
        contexts.append(chromium.new_context(base_url=address, **more))
        seen.append(Seen(contexts[-1].new_page(), address))
        seen[-1].page.goto(f"/{name}")
        return seen[-1].page

    yield call
    for each in contexts:
        each.close()
    assert "\n".join(fault for each in seen for fault in each.faults) == ""


def kinds(site: Path) -> list[str]:
    """Those of KINDS and, where they are, the first lesson, guide and other pages in folders."""
    folders = ("lessons", "guides", "look", "prove", "internals", "evidence")
    firsts = [path for folder in folders for path in sorted(site.glob(f"{folder}/*.html"))[:1]]
    singles = [path for name in ("map", "glossary", "quiz", "faq", "reading") for path in site.glob(f"{name}.html")]
    return [*KINDS, *(str(path.relative_to(site)) for path in [*firsts, *singles])]


def test_every_page_asks_nothing_of_another_server(open_page: Callable[..., Any], site: Path) -> None:
    pages = [path.relative_to(site) for path in site.rglob("*.html") if "_static" not in path.parts]
    assert len(pages) > 40
    page = open_page("index.html")
    for path in pages:
        page.goto(f"/{path}")
        assert page.locator("article[role=main]").count() == 1, path


def test_the_front_page_works_from_disk(chromium: Any, site: Path) -> None:
    page = chromium.new_page()
    seen = Seen(page, site.as_uri())
    page.goto(f"{site.as_uri()}/index.html")
    page.locator(".sd-card").first.click()
    assert page.locator("h1").inner_text().startswith("Learn")
    page.close()
    assert seen.faults == []


def test_the_code_of_a_row_takes_one_line(open_page: Callable[..., Any]) -> None:
    page = open_page("map.html", viewport={"width": 360, "height": 740})
    codes = page.locator("article .whole")
    assert codes.count() > 100
    assert codes.evaluate_all("codes => codes.filter(code => code.getClientRects().length > 1).length") == 0
    assert "L0-32" in codes.all_inner_texts()


def test_the_front_page_counts(open_page: Callable[..., Any]) -> None:
    page = open_page("index.html")
    numbers = [
        int(text.replace(",", "")) for text in page.locator(".numbers strong").all_inner_texts() if text[-1] != "s"
    ]
    assert len(numbers) == 3
    assert min(numbers) > 40
    assert "is thrown" in page.locator(".cell_output").inner_text()


def test_nothing_is_wider_than_a_phone(open_page: Callable[..., Any], site: Path) -> None:
    page = open_page("index.html", viewport={"width": 360, "height": 740})
    wide = {}
    for name in kinds(site):
        page.goto(f"/{name}")
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 360:
            wide[name] = width
    assert wide == {}


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: npm install --prefix .node axe-core")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(open_page: Callable[..., Any], site: Path, scheme: str) -> None:
    """In the dark, colours alone are another."""
    rules = "" if scheme == "light" else ", runOnly: {type: 'rule', values: ['color-contrast']}"
    page = open_page("index.html", color_scheme=scheme)
    problems = {}
    for name in kinds(site):
        page.goto(f"/{name}")
        page.evaluate(AXE.read_text())
        violations = page.evaluate(f"axe.run({{preload: false, resultTypes: ['violations']{rules}}})")["violations"]
        if violations:
            problems[name] = [(each["id"], [node["html"][:200] for node in each["nodes"]][:3]) for each in violations]
    assert problems == {}


def test_prose_is_at_most_75_characters_wide(open_page: Callable[..., Any]) -> None:
    page = open_page("start.html", viewport={"width": 1440, "height": 900})
    script = """() => {
      const widest = [...document.querySelectorAll('article p')].sort((a, b) => b.clientWidth - a.clientWidth)[0];
      const rule = document.createElement('span'); rule.style.position = 'absolute'; rule.textContent = '0'.repeat(75);
      widest.append(rule); return [widest.clientWidth, rule.offsetWidth]; }"""
    width, most = page.evaluate(script)
    assert 0 < width <= most + 1


def test_the_search_page_finds_a_config(open_page: Callable[..., Any]) -> None:
    page = open_page("search.html?q=rotary")
    page.get_by_text("Search finished").wait_for(timeout=60_000)
    assert "heddle.config.RotaryConfig" in page.locator("#search-results").inner_text()
