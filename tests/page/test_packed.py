"""The page as one file: it holds the answers, and nothing but itself."""

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from heddle.errors import HeddleError
from heddle.page import write_page
from heddle.page.panels import PANELS, answer
from tests.page.subjects import subject
from tests.thorough import thorough

WORDS = 'the <script>alert("warp")</script> & é 漢'


def stored(page: str) -> dict:  # type: ignore[type-arg]
    (text,) = re.findall(r'<script type="application/json" id="stored">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["decoder", *thorough("translation", "masked", "classes", "recurrent")])
def test_a_file_holds_what_the_page_asks(tmp_path: Path, kind: str) -> None:
    page_model, progress = subject(kind), list[tuple[int, int]]()
    write_page(page_model, tmp_path / "a.html", WORDS, progress=lambda done, of: progress.append((done, of)))
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    answers = stored(page)["answers"]
    assert progress[-1] == (len(answers), len(answers))
    assert page.count("</script>") == 3
    assert "/static/" not in page
    for panel in ("prefixes", "heads", "walk"):
        query = PANELS[panel].query.of({"text": WORDS}, where="test")
        assert answers[query.key(panel)] == json.loads(json.dumps(answer(page_model, panel, query)))
    maps = [name for name in answers if name.startswith("map{")]
    assert len([name for name in answers if name.startswith("query{")]) == len(maps)
    assert {name for name in answers if name.startswith("tensor{")}
    assert len(maps) == {"decoder": 4, "translation": 12, "masked": 4, "classes": 4, "recurrent": 0}[kind]


def test_its_policy_allows_its_own_scripts_alone(tmp_path: Path) -> None:
    write_page(subject("decoder"), tmp_path / "a.html", "the warp")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)
    assert policy.startswith("default-src 'none'")
    assert "connect-src" not in policy
    inline = re.findall(r"<script(?: type=\"(?:importmap|module)\")>(.*?)</script>", page, re.DOTALL)
    assert len(inline) == 2
    for text in [*inline, *re.findall(r"<style>(.*?)</style>", page, re.DOTALL)]:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    table = json.loads(inline[0])["imports"]
    for address in table.values():
        module = base64.b64decode(address.partition(",")[2]).decode()
        for named in re.findall(r'(?:from|import) "([^"]+)"', module):
            assert named in table


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    page_model = subject("decoder")
    for name, text, message in (
        ("a.txt", "warp", "the page must be an .html file"),
        ("a.html", "w" * 65, "learned positions"),
    ):
        with pytest.raises(HeddleError, match=message):
            write_page(page_model, tmp_path / name, text)
    assert not list(tmp_path.iterdir())
