"""The page over HTTP: its files, its policy, who may ask, and what is refused; and its tests in node."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from heddle.config.serve import ServeConfig
from heddle.page import make_page
from heddle.page.app import page_files
from heddle.page.panels import PANELS
from tests.page.subjects import make_subject
from tests.serve.conftest import Running

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "heddle/page/static"
NODE = shutil.which("node")
TSC = ROOT / ".node/node_modules/.bin/tsc"
LARGEST = 300_000  # bytes of the whole page


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    running = Running(make_page(make_subject("decoder"), ServeConfig(body=1 << 20), {"text": "the warp"}))
    with httpx2.Client(base_url=running.url, timeout=30) as client:
        yield client
    running.stop()


def test_the_files_are_served_with_a_strict_policy(http: httpx2.Client) -> None:
    """Nothing inline, nothing from elsewhere; types that browsers accept."""
    index = http.get("/")
    policy = index.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<script(?![^>]*src=)|<style|style=|onclick", index.text)
    kinds = {".js": "text/javascript", ".css": "text/css", ".html": "text/html"}
    for path in page_files():
        response = http.get(f"/static/{path}")
        assert response.status_code == 200
        assert response.headers["content-type"].startswith(kinds["." + path.rpartition(".")[2]])
        assert response.headers["x-content-type-options"] == "nosniff"
    assert http.get("/start").json() == {"text": "the warp"}


def test_the_page_is_small_and_names_no_other_address() -> None:
    pages = page_files()
    assert set(pages) == {str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file()}
    assert sum(len(text.encode()) for text in pages.values()) < LARGEST
    for path, text in pages.items():
        addresses = set(re.findall(r"https?://[^\s\"'`]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path
        assert "innerHTML" not in text, path
        assert "eval(" not in text, path


def test_what_is_asked_is_answered_or_refused_in_one_line(http: httpx2.Client) -> None:
    response = http.post("/look/prefixes", json={"text": "the warp"})
    assert response.status_code == 200
    assert response.json()["loss"] > 0
    for body in ({}, {"text": 3}, {"text": "a", "more": 1}, {"text": "a", "added": [-1]}, [], "a", {"text": "w" * 65}):
        response = http.post("/look/prefixes", json=body)
        assert response.status_code == 400
        assert "\n" not in response.json()["error"]["message"]
    for content in (b"{", b"", b"\xff", b"[" * 100_000):
        response = http.post("/look/heads", content=content, headers={"Content-Type": "application/json"})
        assert response.status_code == 400
    assert http.post("/look/nothing", json={}).status_code == 404
    assert http.get("/look/prefixes").status_code == 405
    assert http.post("/look/about", content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415
    assert http.get("/", headers={"Host": "elsewhere.example"}).status_code == 400
    assert http.post("/look/about", json={"text": "w" * (1 << 21)}).status_code == 413


@pytest.mark.parametrize(
    "path", ["../app.py", "%2e%2e/app.py", "..%2fapp.py", "/etc/passwd", "panels/../../app.py", "%00"]
)
def test_only_the_page_is_served(http: httpx2.Client, path: str) -> None:
    assert http.get(f"/static/{path}").status_code == 404


@pytest.mark.parametrize("panel", PANELS)
def test_an_unknown_field_is_refused(http: httpx2.Client, panel: str) -> None:
    assert http.post(f"/look/{panel}", json={"text": "a", "planted": 1}).status_code == 400


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_the_pure_functions_hold_in_node() -> None:
    done = subprocess.run(
        ["node", "--test", "--test-reporter=tap", str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"# pass (\d+)", done.stdout)[1]) >= 12  # type: ignore[index]


@pytest.mark.skipif(
    NODE is None or not TSC.exists(), reason="tsc is not installed: npm install --prefix .node typescript"
)
def test_the_types_of_the_page_hold() -> None:
    done = subprocess.run(
        [str(TSC), "-p", str(Path(__file__).parent / "jsconfig.json")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_keys_of_answers_are_spelled_alike_on_both_sides() -> None:
    """A stored answer is found by the fields of its question."""
    fields = {"text": 'a "quoted"\n\ttext é 漢 😀 \u2028', "head": 2, "layer": "decoder.0.mixer", "off": ["x", "y"]}
    code = (
        f"import {{ key }} from {json.dumps(str(STATIC / 'state.js'))};"
        "let all = ''; for await (const part of process.stdin) all += part;"
        "process.stdout.write(key('map', JSON.parse(all)));"
    )
    done = subprocess.run(
        ["node", "--input-type=module", "-e", code],
        input=json.dumps(fields),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == PANELS["map"].query.of(fields, where="test").key("map"), done.stderr
