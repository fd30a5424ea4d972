"""The page in Chromium: every panel, numbers against the library's, exports, keyboard, live curves, odd texts."""

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch.nn.functional import cross_entropy

from heddle.look import ablate, lens, switch_off, trace
from heddle.page import write_page
from heddle.page.panels import PANELS, answer
from tests.page.conftest import CHROMIUM, Seen
from tests.page.subjects import make_subject, subject
from tests.page.test_panels import unpacked
from tests.thorough import thorough

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed: apt install chromium-headless-shell"
)
TEXT = "the warp is held"
SHOWN = {
    "decoder": ("prefixes", "write", "attention", "layers", "switches", "pass", "model"),
    "experts": ("prefixes", "write", "attention", "layers", "switches", "pass", "model"),
    "recurrent": ("prefixes", "write", "layers", "switches", "pass", "model"),
    "translation": ("prefixes", "write", "attention", "layers", "switches", "pass", "model"),
    "masked": ("prefixes", "write", "attention", "layers", "switches", "pass", "model"),
    "classes": ("prefixes", "attention", "pass", "model"),
    "vector": ("attention", "pass", "model"),
    "ids": ("prefixes", "write", "attention", "layers", "switches", "pass", "model"),
}
ODD = ("", "שלום עולם", "😀👩‍👩‍👧 é\u0301", "<script>alert(1)</script>\"'&", "\u202eabc\x07", "w" * 63)
CHOSEN = {
    **{"device": "cpu", "precision": "fp32", "compile": False, "threads": 1, "steps": 20, "batch": 4},
    **{
        "learning_rate": 1e-3,
        "warmup": 1,
        "evaluate_every": 4,
        "save_every": 4,
        "peak": 1e10,
        "tokens_per_second": 1e5,
    },
}
SMALL = """() => {
  const small = [], shown = (each) => each.getClientRects().length > 0 && !each.closest(".skip");
  for (const each of document.querySelectorAll("body *")) {
    if (!shown(each) || ![...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    const matrix = each.getScreenCTM?.(), scale = matrix ? Math.hypot(matrix.a, matrix.b) : 1;
    if (parseFloat(getComputedStyle(each).fontSize) * scale < 10.99) small.push("type: " + each.outerHTML.slice(0, 120));
  }
  for (const each of document.querySelectorAll("button, a[href], input, select, textarea, summary, [role=button]")) {
    const box = each.getBoundingClientRect();
    if (shown(each) && Math.min(box.width, box.height) < 23.99) small.push("target: " + each.outerHTML.slice(0, 120));
  }
  return small;
}"""
AXE = Path(__file__).parents[2] / ".node/node_modules/axe-core/axe.min.js"


def percent(text: str) -> float:
    """The number of a share as the page prints it: "4.1 %", "< 0.1 %"."""
    return float(text.replace("\xa0", " ").strip().removesuffix(" %").removeprefix("< "))


def cell(over: Any, shape: Sequence[int], row: int, column: int) -> dict[str, float]:
    """The middle of a cell of a map with so many rows and columns, from its corner."""
    left, top, across, down = (float(side) for side in over.get_attribute("data-grid").split())
    return {"x": left + (column + 0.5) * across / shape[1], "y": top + (row + 0.5) * down / shape[0]}


@pytest.mark.parametrize("kind", ["decoder", *thorough(*(kind for kind in SHOWN if kind != "decoder"))])
def test_every_panel_is_shown(look: Callable[..., Seen], kind: str) -> None:
    seen = look(kind, {"text": "3 14 15 3"} if kind == "ids" else {"text": TEXT})
    seen.show()
    seen.panel()
    buttons = seen.page.locator("#panels button")
    assert tuple(button.get_attribute("data-keep") for button in buttons.all()) == SHOWN[kind]
    for name in SHOWN[kind]:
        panel = seen.turn(name)
        assert panel.locator("h2").inner_text()
        assert panel.locator(".caption").first.inner_text()
        assert panel.locator(".error").count() == 0, panel.locator(".error").all_inner_texts()
        assert panel.locator("table").count() > 0


def test_the_loss_and_the_rows_are_the_library_s(look: Callable[..., Seen]) -> None:
    seen, page_model = look("decoder"), subject("decoder")
    panel = seen.show(panel="prefixes", text=TEXT)
    tokens = page_model.read(PANELS["heads"].query.of({"text": TEXT}, where="test")).tokens
    assert float(panel.locator("[data-loss]").get_attribute("data-loss")) == pytest.approx(
        float(lens(page_model.model, tokens).losses()[-1]), rel=1e-6
    )
    assert panel.locator("tbody tr").last.inner_text().split("\t")[2].strip() == "not yet written"


@pytest.mark.parametrize("kind", ["decoder", "translation"])
def test_hovered_numbers_are_the_library_s(look: Callable[..., Seen], kind: str) -> None:
    """With the pointer and with the arrow keys; masked pairs say so; without the mask the weights change."""
    seen, page_model = look(kind), subject(kind)
    more = {"target": "the weft"} if kind == "translation" else {}
    layer = "decoder.1.cross" if kind == "translation" else "decoder.1.mixer"
    panel = seen.show(panel="attention", text=TEXT, layer=layer, head="1", **more)
    text = page_model.read(PANELS["heads"].query.of({"text": TEXT} | more, where="test"))
    attention = trace(page_model.model, text.tokens, attention=layer, **text.more).attention[layer]
    weights, readout = attention.weights(heads=1)[0, 0], panel.locator(".readout")
    over = panel.locator("canvas.over")
    for row, column in ((5, 2), (3, 3), (0, 0)):
        over.hover(position=cell(over, weights.shape, row, column))
        assert float(readout.get_attribute("data-weight")) == pytest.approx(float(weights[row, column]), abs=2e-6)
        assert f"({row}) → " in readout.inner_text()
    over.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        seen.page.keyboard.press(key)
    assert float(readout.get_attribute("data-weight")) == pytest.approx(float(weights[2, 1]), abs=2e-6)
    if kind == "decoder":
        over.hover(position=cell(over, weights.shape, 2, 7))
        assert "blocked by the mask" in readout.inner_text()
        assert float(readout.get_attribute("data-weight")) == 0.0
        panel.locator(f'[data-keep="{layer}.mask"]').click()
        seen.page.locator(f'.panel[data-ready] [data-off="{layer}.mask"]').wait_for()
        over = panel.locator("canvas.over")
        over.hover(position=cell(over, weights.shape, 2, 7))
        free = attention.weights(heads=1, masked=False)[0, 0]
        shown = float(panel.locator(".readout").get_attribute("data-weight"))
        assert shown == pytest.approx(float(free[2, 7]), abs=2e-6)


@pytest.mark.thorough
def test_several_tokens_are_summed(look: Callable[..., Seen]) -> None:
    seen, page_model = look("decoder"), subject("decoder")
    panel = seen.show(panel="attention", text=TEXT, layer="decoder.0.mixer", head="0", rows="3,9")
    tokens = page_model.read(PANELS["heads"].query.of({"text": TEXT}, where="test")).tokens
    weights = trace(page_model.model, tokens, attention="*").attention["decoder.0.mixer"].weights(heads=0)[0, 0]
    shown = json.loads(panel.locator("[data-sums]").get_attribute("data-sums"))
    assert shown == pytest.approx((weights[3] + weights[9]).tolist(), abs=1e-5)
    panel = seen.show(panel="attention", text=TEXT, layer="decoder.0.mixer", head="0", rows="3", side="read")
    shown = json.loads(panel.locator("[data-sums]").get_attribute("data-sums"))
    assert shown == pytest.approx(weights[:, 3].tolist(), abs=1e-5)


@pytest.mark.thorough
def test_exports_are_what_is_shown(look: Callable[..., Seen]) -> None:
    seen, page_model = look("decoder"), subject("decoder")
    panel = seen.show(panel="attention", text="a,b =c", layer="decoder.0.mixer", head="1")
    tokens = page_model.read(PANELS["heads"].query.of({"text": "a,b =c"}, where="test")).tokens
    weights = trace(page_model.model, tokens, attention="*").attention["decoder.0.mixer"].weights(heads=1)[0, 0]
    files = {}
    for kind in ("SVG", "PNG", "CSV"):
        with seen.page.expect_download() as download:
            panel.locator(f'[data-export="{kind}"]').click()
        assert download.value.suggested_filename == f"decoder-0-mixer-head1.{kind.lower()}"
        files[kind] = Path(download.value.path()).read_bytes()
    assert ElementTree.fromstring(files["SVG"]).tag.endswith("svg")
    assert files["PNG"].startswith(b"\x89PNG")
    rows = list(csv.reader(io.StringIO(files["CSV"].decode())))
    assert rows[0] == ["", "a", ",", "b", "␣", "'=", "c"]
    numbers = torch.tensor([[float(cell) for cell in row[1:]] for row in rows[1:]])
    torch.testing.assert_close(numbers, weights)


@pytest.mark.parametrize("state", [{}, {"temperature": "0.5"}, {"topk": "3"}, {"topp": "0.5"}, {"temperature": "0"}])
def test_bars_are_the_probabilities_of_sampling(look: Callable[..., Seen], state: dict[str, str]) -> None:
    """In order, and they sum to the mass that is said."""
    from heddle.config import SamplingConfig
    from heddle.generate.sampling import process

    seen, page_model = look("decoder"), subject("decoder")
    panel = seen.show(panel="write", text=TEXT, **state)
    logits = unpacked(answer(page_model, "next", PANELS["next"].query.of({"text": TEXT}, where="test"))["logits"])
    names = {"temperature": "temperature", "topk": "top_k", "topp": "top_p"}
    settings: Any = {names[name]: float(value) if name != "topk" else int(value) for name, value in state.items()}
    expected = process(logits[None], SamplingConfig(**settings))[0].softmax(-1)
    bars = panel.locator(".bars .bar").all()
    shares = [percent(bar.locator(".many").inner_text()) for bar in bars]
    assert shares == sorted(shares, reverse=True)
    best = 100 * expected.topk(len(shares)).values
    assert shares[:3] == pytest.approx(best[:3].tolist(), abs=0.051)
    readout = panel.locator(".readout").inner_text()
    assert f"of {int((expected > 0).sum())} possible tokens" in readout
    assert float(re.search(r"have ([\d.]+)\s%", readout)[1]) == pytest.approx(float(best.sum()), abs=0.051)  # type: ignore[index]
    full = float(re.search(r"full bar is ([\d.]+)\s%", readout)[1])  # type: ignore[index]
    assert full in (10, 25, 50, 100)
    width = panel.locator(".bars .fill").first.evaluate("bar => parseFloat(bar.style.width)")
    assert width == pytest.approx(100 * float(best[0]) / full, abs=0.01)


def test_writing_appends_undoes_and_plays(look: Callable[..., Seen]) -> None:
    seen = look("decoder")
    panel = seen.show(panel="write", text="the warp")
    first = panel.locator(".bars .bar .what").first.inner_text()
    panel.locator(".bars .bar").first.click()
    tokens = seen.page.locator('[aria-label="Tokens of the text"] .token')
    seen.until(lambda: tokens.count() == 9)
    assert tokens.last.inner_text() == first
    assert "added=" in seen.page.url
    seen.page.locator("button", has_text="Draw one").click()
    seen.until(lambda: tokens.count() == 10)
    seen.page.locator("button", has_text="Play").click()
    seen.until(lambda: tokens.count() >= 12)
    seen.page.locator("button", has_text="Pause").click()
    seen.page.locator("button", has_text="Undo all").click()
    seen.until(lambda: tokens.count() == 8)
    seen.page.locator("summary", has_text="Beams").click()
    seen.page.locator("#search").click()
    seen.page.locator("ul.tree strong").first.wait_for()
    assert "rank 1" in " ".join(seen.page.locator("ul.tree strong").all_inner_texts())


@pytest.mark.thorough
def test_what_is_written_is_the_text_of_all_panels(look: Callable[..., Seen]) -> None:
    """The field keeps the prompt; the tokens after it are shown below, and are taken back with one click."""
    seen, page_model = look("decoder"), subject("decoder")
    panel = seen.show(panel="write", text=TEXT)
    piece = panel.locator(".bars .bar .what").first.inner_text()
    panel.locator(".bars .bar").first.click()
    seen.until(lambda: "added=" in seen.page.url)
    added = [int(re.search(r"added=(\d+)", seen.page.url)[1])]  # type: ignore[index]
    panel = seen.turn("attention")
    assert len(json.loads(panel.locator("[data-sums]").get_attribute("data-sums"))) == len(TEXT) + 1
    query = {"text": TEXT, "added": added}
    for name in ("prefixes", "switches"):
        panel = seen.turn(name)
        figure = panel.locator(".figure")
        loss = float(figure.get_attribute("data-loss") or figure.get_attribute("data-after"))
        expected = answer(page_model, "prefixes", PANELS["prefixes"].query.of(query, where="test"))["loss"]
        assert loss == pytest.approx(expected, rel=1e-6)
    assert seen.page.locator("#prompt").input_value() == TEXT
    assert seen.page.locator("#added .token").inner_text() == piece
    seen.page.locator("#project").click()
    seen.until(lambda: seen.page.locator("#bar .reading").inner_text() == TEXT + piece)
    seen.page.keyboard.press("Escape")
    seen.page.locator("#added button").click()
    seen.until(lambda: "added" not in seen.page.url and seen.page.locator("#added *").count() == 0)
    assert seen.page.locator("#prompt").input_value() == TEXT


@pytest.mark.thorough
def test_sliders_change_the_bars_without_the_model(look: Callable[..., Seen]) -> None:
    seen = look("decoder")
    panel = seen.show(panel="write", text=TEXT)
    before, requests = panel.locator(".bars .many").first.inner_text(), []
    seen.page.on("request", lambda request: requests.append(request.url))
    seen.page.locator("#temperature").focus()
    for _ in range(6):
        seen.page.keyboard.press("ArrowLeft")
    after = panel.locator(".bars .many").first.inner_text()
    assert percent(after) > percent(before)
    assert "temperature=0.7" in seen.page.url
    assert requests == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["decoder.1.mixer.heads.0", "decoder.*.mixer.mask", "decoder.positions"])
def test_a_part_that_is_switched_off_moves_the_loss_and_the_distribution(look: Callable[..., Seen], name: str) -> None:
    """All panels say so, in words; the numbers are the library's."""
    seen, page_model = look("decoder"), subject("decoder")
    panel = seen.show(panel="switches", text=TEXT)
    assert panel.locator(".figure").get_attribute("data-after") == panel.locator(".figure").get_attribute("data-before")
    panel.locator(f'[data-keep="{name}"]').click()
    seen.page.locator(f'.panel[data-ready] [data-off="{name}"]').wait_for()
    tokens = page_model.read(PANELS["heads"].query.of({"text": TEXT}, where="test")).tokens
    edit = ablate("decoder.1.mixer.heads", heads=[0]) if "heads" in name else switch_off(name)
    expected = trace(page_model.model, tokens, edits=[edit]).logits[0]
    figure = seen.page.locator(".figure")
    losses = [float(figure.get_attribute(f"data-{when}") or "nan") for when in ("before", "after")]
    whole = trace(page_model.model, tokens).logits[0]
    for loss, logits in zip(losses, (whole, expected), strict=True):
        assert loss == pytest.approx(float(cross_entropy(logits[:-1], tokens[0, 1:])), rel=1e-5)
    assert abs(losses[1] - losses[0]) > 1e-3
    rows = seen.page.locator("table", has_text="with parts off").locator("tbody tr").all()
    shares = [percent(row.inner_text().split("\t")[2]) for row in rows]
    assert max(shares) == pytest.approx(100 * float(expected[-1].softmax(-1).max()), abs=0.051)
    words = {"decoder.*.mixer.mask": "mask, attention of all layers", "decoder.positions": "positions"}
    assert words.get(name, "head 0, attention of layer 1") in seen.page.locator(".off").inner_text()
    seen.turn("attention")
    assert seen.page.locator(".off").get_attribute("data-off") == name


@pytest.mark.thorough
def test_what_is_off_and_unfolded_and_shown_before_is_kept(look: Callable[..., Seen]) -> None:
    """Other panels say what is switched off; what was unfolded stays so; the browser's Back returns to the panel before."""
    seen = look("decoder")
    panel = seen.show(panel="attention", text=TEXT)
    panel.locator("summary", has_text="as numbers").click()
    panel.locator("button.thumb").first.click()
    seen.page.wait_for_selector("button.thumb:first-child[aria-pressed='true']")
    assert seen.panel("attention").locator("details[open] summary", has_text="as numbers").count() == 1
    assert panel.locator(".off").count() == 0
    seen.page.locator("#panels button", has_text="Switch off").click()
    seen.panel("switches").locator('[data-keep="decoder.0.mixer.heads.0"]').click()
    seen.page.wait_for_selector('[data-keep="decoder.0.mixer.heads.0"][aria-pressed="true"]')
    seen.page.go_back()
    warned = seen.panel("attention").locator(".off")
    assert "decoder.0.mixer.heads.0" not in seen.page.url  # the address before
    assert warned.count() == 0
    seen.page.go_forward()
    seen.panel("switches")
    seen.page.locator("#panels button", has_text="Attention").click()
    assert seen.panel("attention").locator(".off").get_attribute("data-off") == "decoder.0.mixer.heads.0"
    seen.panel("attention").locator(".off button").click()
    seen.page.wait_for_selector('.panel[data-ready="yes"]:not(:has(.off))')


@pytest.mark.thorough
def test_tensors_and_steps_of_a_query(look: Callable[..., Seen]) -> None:
    seen, page_model = look("decoder"), subject("decoder")
    panel = seen.show(panel="pass", text=TEXT, name="decoder.0.mixer.heads", head="1")
    tokens = page_model.read(PANELS["heads"].query.of({"text": TEXT}, where="test")).tokens
    matrix = trace(page_model.model, tokens, "decoder.0.mixer.heads")["decoder.0.mixer.heads"][0, 1]
    cells = panel.locator(".viewer tbody tr").nth(2).inner_text().split("\t")
    assert cells[0].strip() == "T_2"
    assert [float(cell) for cell in (*cells[2:5], cells[6])] == pytest.approx(
        [float(matrix[2, place]) for place in (0, 1, 2, -1)], abs=0.006
    )
    panel = seen.show(panel="attention", text=TEXT, layer="decoder.0.mixer", head="1", query="4", steps="yes")
    panel.locator(".query tbody tr").first.wait_for()
    steps = trace(page_model.model, tokens, attention="*").attention["decoder.0.mixer"].steps(4, 1)
    shown = [row.inner_text().split("\t") for row in panel.locator(".query tbody tr").all()]
    assert [float(row[2]) for row in shown] == pytest.approx(steps.products.tolist(), rel=2e-3)
    assert [row[4] for row in shown] == ["yes" if each else "no" for each in steps.allowed.tolist()]


@pytest.mark.thorough
def test_a_pass_shows_one_layer_at_a_time(look: Callable[..., Seen]) -> None:
    """Another layer shows the same tensor of its own; what is shown is the one that is pressed."""
    seen = look("decoder")
    panel = seen.show(panel="pass", text=TEXT, name="decoder.0.mixer.q")
    pressed = panel.locator('.boxes .heads [aria-pressed="true"]')
    assert pressed.all_inner_texts() == ["q"]
    panel.locator('[data-keep="Part of the model decoder.1"]').click()
    seen.until(lambda: "decoder.1.mixer.q" in panel.locator(".viewer h3").inner_text())
    assert pressed.all_inner_texts() == ["q"]
    panel.locator('[data-keep="Part of the model decoder"]').click()
    seen.until(lambda: pressed.all_inner_texts() == ["embedded"])


@pytest.mark.thorough
def test_the_running_softmax_is_walked_tile_by_tile(look: Callable[..., Seen]) -> None:
    """With buttons and the slider; the tile is in the address; masked tiles say so; the end is the whole row's output."""
    seen, page_model = look("decoder"), subject("decoder")
    state = {
        "panel": "attention",
        "text": TEXT,
        "layer": "decoder.0.mixer",
        "head": "1",
        "query": "4",
        "running": "yes",
    }
    panel = seen.show(**state)
    panel.locator("dl.figures").wait_for()
    fields = {"text": TEXT, "layer": "decoder.0.mixer", "head": 1, "query": 4}
    running = answer(page_model, "running", PANELS["running"].query.of(fields, where="test"))

    def figures() -> list[str]:
        return [each.inner_text() for each in panel.locator("dl.figures strong").all()]

    assert float(figures()[0]) == pytest.approx(running["tiles"][0]["maximum"], rel=2e-3)
    panel.locator('[data-tile="next"]').click()
    assert "tileStep=1" in seen.page.url
    assert [float(each) for each in figures()[:3]] == pytest.approx(
        [running["tiles"][1][name] for name in ("maximum", "rescale", "total")], rel=2e-3
    )
    panel.locator('[aria-label="Tile of keys"]').focus()
    seen.page.keyboard.press("End")
    assert "skips it" in panel.locator("dl.figures").inner_text()
    assert panel.locator("tr[data-current]").count() == 1
    panel = seen.show(**state, tile="8")
    panel.locator("dl.figures").wait_for()
    assert float(panel.locator("[data-difference]").get_attribute("data-difference")) < 1e-5


@pytest.mark.thorough
@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_odd_texts_are_shown_as_they_are(look: Callable[..., Seen], text: str) -> None:
    """Empty, right to left, emoji, markup, controls, as long as the model reads: no error, nothing run."""
    seen = look("decoder", {"text": text})
    for panel in ("prefixes", "write", "attention", "pass"):
        shown = seen.show(**({} if text == "" else {"text": text})) if panel == "prefixes" else seen.turn(panel)
        assert shown.locator(".error").count() == 0, shown.locator(".error").all_inner_texts()
    assert seen.page.locator("main script").count() == 0


def test_a_text_that_is_too_long_is_refused_in_a_line(look: Callable[..., Seen]) -> None:
    seen = look("decoder")
    panel = seen.show(panel="attention", text="w" * 70)
    assert "64 learned positions; shorten it" in panel.locator(".error").inner_text()
    seen.page.locator("#prompt").fill("the warp")
    seen.until(lambda: seen.page.locator(".panel canvas.over").count() == 1)
    refusal = ("400", "learned positions")  # which browsers log, too
    seen.faults = [fault for fault in seen.faults if not any(part in fault for part in refusal)]


@pytest.mark.thorough
def test_the_projector_view_is_walked_with_the_arrow_keys(look: Callable[..., Seen]) -> None:
    """One panel at a time in large type; keys that a map or a slider takes stay theirs; a link opens it; Escape leaves."""
    seen = look("decoder")
    seen.show(panel="write", text=TEXT)
    size = "parseFloat(getComputedStyle(document.documentElement).fontSize)"
    usual = seen.page.evaluate(size)
    seen.page.locator("#project").click()
    seen.until(lambda: "projector=yes" in seen.page.url)
    seen.panel("write")
    assert seen.page.evaluate(size) > 1.1 * usual
    assert not seen.page.locator("#prompt").is_visible()
    seen.page.keyboard.press("ArrowRight")
    panel = seen.panel("attention")
    panel.locator("canvas.over").focus()
    seen.page.keyboard.press("ArrowRight")
    assert "weight" in panel.locator(".readout").first.inner_text()
    assert "panel=attention" in seen.page.url
    seen.page.locator('[data-bar="on"]').click()
    seen.panel("layers")
    assert seen.page.locator(":focus").get_attribute("data-bar") == "on"
    seen.page.keyboard.press("ArrowLeft")
    seen.panel("attention")
    assert "3 of 7" in seen.page.locator("#bar").inner_text()
    seen.page.keyboard.press("Escape")
    seen.until(lambda: "projector" not in seen.page.url and seen.page.locator("#prompt").is_visible())
    seen.page.keyboard.press("ArrowRight")
    seen.show(panel="layers", text=TEXT, projector="yes")
    assert seen.page.locator("#bar").is_visible()


@pytest.mark.thorough
def test_curves_are_read_with_the_pointer_and_the_arrow_keys(look: Callable[..., Seen]) -> None:
    seen, page_model = look("decoder"), subject("decoder")
    panel = seen.show(panel="model", text=TEXT)
    costs = answer(page_model, "model", PANELS["model"].query.of({}, where="test"))["costs"]
    chart, readout = panel.locator("svg.chart[tabindex]"), panel.locator("figure .readout")
    chart.focus()
    seen.page.keyboard.press("Home")
    assert readout.inner_text().startswith(f"tokens {costs[0]['length']}: grows with n ")
    seen.page.keyboard.press("ArrowRight")
    assert readout.inner_text().startswith(f"tokens {costs[1]['length']}: ")
    box = chart.bounding_box()
    chart.hover(position={"x": box["width"] - 15, "y": box["height"] / 2})
    assert readout.inner_text().startswith(f"tokens {costs[-1]['length']}: ")
    count = readout.inner_text().split("grows with n ")[1].split(";")[0]
    assert float(count[:-1]) * {"K": 1e3, "M": 1e6}[count[-1]] == pytest.approx(costs[-1]["linear"], rel=1e-3)


@pytest.mark.thorough
def test_a_large_map_is_read(look: Callable[..., Seen]) -> None:
    """A thousand tokens; how long it takes is measured by `python -m benchmarks.browser`."""
    page_model = make_subject("decoder", context=1024)
    seen = look(page_model, {"text": "the warp is held and " * 48})
    panel = seen.show(panel="attention")
    over = panel.locator("canvas.over")
    over.hover(position={"x": 300, "y": 400})
    assert "weight" in panel.locator(".readout").inner_text()


def test_the_keyboard_alone_reaches_everything(look: Callable[..., Seen]) -> None:
    seen = look("decoder")
    seen.show(text=TEXT)
    seen.page.keyboard.press("Tab")
    assert "Skip" in seen.page.locator(":focus").inner_text()
    for _ in range(30):
        seen.page.keyboard.press("Tab")
        if seen.page.locator(":focus").inner_text() == "Attention":
            break
    seen.page.keyboard.press("Enter")
    seen.panel("attention")
    assert seen.page.locator(":focus").inner_text() == "Attention"
    for _ in range(40):
        seen.page.keyboard.press("Tab")
        if "layer 0, head 1" in (seen.page.locator(":focus").get_attribute("aria-label") or ""):
            break
    seen.page.keyboard.press("Space")
    seen.until(lambda: "layer=decoder.0.mixer" in seen.page.url and "head=1" in seen.page.url)


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: npm install --prefix .node axe-core")
@pytest.mark.parametrize(("kind", "scheme"), [("decoder", "light"), ("translation", "light"), ("decoder", "dark")])
def test_axe_finds_nothing_serious(look: Callable[..., Seen], kind: str, scheme: str) -> None:
    """In the dark, colours alone are another: the rules about colours are asked again."""
    more = {"target": "weft"} if kind == "translation" else {}
    seen = look(kind, {"text": "warp"} | more, bypass_csp=True, color_scheme=scheme)
    rules = "resultTypes: ['violations']" + (", runOnly: ['cat.color']" if scheme == "dark" else "")
    seen.show()
    for panel in SHOWN[kind]:
        more = {"switches": {"off": "decoder.0.ffn"}, "attention": {"running": "yes"}}.get(panel)
        seen.turn(panel) if more is None else seen.show(panel=panel, **more)
        if not seen.page.evaluate("'axe' in window"):
            seen.page.evaluate(AXE.read_text())
        violations = seen.page.evaluate(f"axe.run({{{rules}}})")
        serious = [each for each in violations["violations"] if each["impact"] in ("serious", "critical")]
        problems = [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in serious]
        assert problems == [], (kind, panel)


def test_a_phone_shows_the_probability_beside_the_next_token(look: Callable[..., Seen]) -> None:
    panel = look("decoder", viewport={"width": 360, "height": 740}).show(panel="prefixes", text=TEXT)
    box = panel.locator("th", has_text="probability").first.bounding_box()
    assert box["x"] + box["width"] <= 360


@pytest.mark.thorough
@pytest.mark.parametrize("width", [360, 1920])
def test_nothing_is_wider_than_the_window(look: Callable[..., Seen], width: int) -> None:
    seen = look("decoder", {"text": TEXT}, viewport={"width": width, "height": 700})
    seen.show()
    for panel in SHOWN["decoder"]:
        seen.turn(panel)
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width, panel
    for panel in ("attention", "switches"):
        seen.show(panel=panel, projector="yes", running="yes", off="decoder.*.mixer.mask")
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width, panel


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["decoder", "translation"])
def test_on_a_phone_all_is_read_and_touched(look: Callable[..., Seen], kind: str) -> None:
    """Type of at least 11 CSS pixels, in drawings too, and targets of 24; the panel begins in the first third."""
    seen = look(kind, {"text": TEXT}, viewport={"width": 360, "height": 740})
    seen.show()
    for panel in SHOWN[kind]:
        seen.turn(panel)
        assert seen.page.evaluate("document.getElementById('main').getBoundingClientRect().top") < 740 / 3
        seen.page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        seen.page.wait_for_timeout(300)
        assert seen.page.evaluate(SMALL) == [], panel
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 360, panel


@pytest.mark.thorough
@pytest.mark.parametrize("size", [(1280, 720), (1920, 1080)], ids=lambda size: f"{size[1]}p")
def test_attention_is_one_screen_of_a_projector(look: Callable[..., Seen], size: tuple[int, int]) -> None:
    """All heads of 12 layers and the map, with a part switched off and tokens appended; the arrow keys go on."""
    stack = {"depth": 12, "entry": {"positions": "learned"}, "block": {"mixer": {"heads": 8}}}
    seen = look(make_subject("decoder", decoder=stack), viewport={"width": size[0], "height": size[1]})
    panel = seen.show(panel="attention", text=TEXT, projector="yes", off="decoder.positions", added="5,6")
    assert seen.page.evaluate("document.documentElement.scrollHeight") <= size[1]
    shown = [*panel.locator("button.thumb").all(), panel.locator("canvas.over")]
    assert len(shown) == 12 * 8 + 1
    for each in shown:
        box = each.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= size[0]
        assert box["y"] + box["height"] <= size[1]
        assert min(box["width"], box["height"]) >= 24
    seen.page.keyboard.press("ArrowRight")
    seen.panel("layers")


def test_a_file_works_without_a_server(look: Callable[..., Seen], tmp_path: Path) -> None:
    """Panels, maps of other heads and sliders; what needs the model is disabled, and says so."""
    page_model = subject("decoder")
    write_page(page_model, tmp_path / "a.html", TEXT)
    seen = look("decoder", url=(tmp_path / "a.html").as_uri())
    seen.show()
    for panel in SHOWN["decoder"]:
        shown = seen.turn(panel)
        assert shown.locator(".error").count() == 0, shown.locator(".error").all_inner_texts()
        assert shown.locator("h2").inner_text()
    shown = seen.show(panel="attention", layer="decoder.0.mixer", head="1")
    over = shown.locator("canvas.over")
    over.hover(position=cell(over, (len(TEXT), len(TEXT)), 0, 0))
    assert "weight 1.000," in shown.locator(".readout").inner_text()
    shown = seen.show(panel="write")
    assert shown.locator("button", has_text="Draw one").is_disabled()
    assert seen.page.locator("#prompt").is_disabled()
    assert seen.show(panel="layers").locator("#exchange").is_disabled()
    shown = seen.show(panel="switches")
    assert "This needs the model: heddle look RUN." in shown.inner_text()
    assert shown.locator('[data-keep="decoder.*.mixer.mask"]').is_disabled()


@pytest.mark.thorough
def test_a_running_run_s_curve_grows(look: Callable[..., Seen], tmp_path: Path) -> None:
    """And its samples; the runs beside it are drawn over it."""
    from heddle.page import PageModel
    from heddle.weights import save
    from heddle.weights.files import Hold, relist

    paths = [tmp_path / name for name in ("one", "two")]
    page_model = make_subject("decoder")
    for path in paths:
        save(page_model.model, path, page_model.tokenizer)
        saved = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(saved | {"chosen": CHOSEN}))
        relist(path, "config.json")
        lines = [
            {"step": step, "loss": 5.0 / step, "validation_loss": 6.0 / step, "validation_error": 0.1}
            for step in range(1, 9)
        ]
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (path / "samples.jsonl").write_text(json.dumps({"step": 8, "sample": "<b>warp</b>"}) + "\n")
    held = Hold(paths[0])  # as a trainer does
    seen = look(PageModel("one", page_model.model, page_model.tokenizer, paths[0], [paths[1]]))
    panel = seen.show(panel="training")
    assert panel.locator("path.curve").count() == 4
    assert panel.locator("pre").first.inner_text() == "<b>warp</b>"
    rows = panel.locator("table").locator("tbody tr")
    assert "0.625" in rows.first.inner_text()
    with (paths[0] / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 9, "loss": 0.125}) + "\n")
    seen.until(lambda: "0.125" in rows.first.inner_text())
    assert "training" in rows.first.inner_text()
    held.release()
    seen.until(lambda: "training" not in rows.first.inner_text())


@pytest.mark.thorough
def test_the_pass_is_walked_in_three_dimensions(look: Callable[..., Seen]) -> None:
    """With the slider, the keyboard, a click and by itself; the address holds the step."""
    seen, page_model = look("decoder"), subject("decoder")
    panel = seen.show(panel="pass", text=TEXT, step="1")
    levels = answer(page_model, "plates", PANELS["plates"].query.of({"text": TEXT}, where="test"))["levels"]
    solid, canvas = panel.locator(".solid"), panel.locator("canvas.isometric")

    def shown(level: int) -> bool:
        names = [plate["name"] for plate in levels[level]["plates"]]
        lines = solid.locator("li").all_inner_texts()
        return len(lines) == len(names) and all(
            each.startswith(f"{name}: ") for each, name in zip(lines, names, strict=True)
        )

    assert shown(1)
    canvas.focus()
    seen.page.keyboard.press("ArrowDown")
    assert shown(2)
    assert "step=2" in seen.page.url
    seen.page.keyboard.press("ArrowUp")
    seen.page.keyboard.press("ArrowUp")
    assert shown(0)
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] / 2, "y": box["height"] * (0.3 + 0.35)})
    assert shown(1)
    panel.locator("#step").fill(str(len(levels) - 2))
    assert shown(len(levels) - 2)
    panel.locator("#walk").click()
    seen.until(lambda: shown(len(levels) - 1))
    seen.until(lambda: panel.locator("#walk").inner_text() == "Play")


@pytest.mark.thorough
def test_readings_are_curves_of_layers_and_heads(look: Callable[..., Seen], tmp_path: Path) -> None:
    """A curve for each layer, or for each head of one layer, with its first and last value in a table."""
    from heddle.look.readings import READINGS, take_reading
    from heddle.page import PageModel
    from heddle.weights import save

    page_model, path = make_subject("decoder"), tmp_path / "one"
    assert page_model.tokenizer is not None
    save(page_model.model, path, page_model.tokenizer)
    (path / "metrics.jsonl").write_text('{"step": 2, "loss": 3.0}\n')
    for step in (0, 2):
        with torch.no_grad():
            next(page_model.model.parameters()).mul_(1.5)
        read = take_reading(page_model.model, torch.tensor([[1, 2, 3, 4, 5]]))
        with (path / READINGS).open("a") as file:
            file.write(json.dumps({"step": step, **read}) + "\n")
    seen = look(PageModel("one", page_model.model, page_model.tokenizer, path))
    panel = seen.show(panel="training", measure="norm")
    assert panel.locator("svg.chart").nth(1).locator("path.curve").count() == 3  # the entry and two layers
    panel = seen.show(panel="training", measure="previous", layer="decoder.1.mixer")
    chart = panel.locator("svg.chart").nth(1)
    assert chart.locator("path.curve").count() == 2
    rows = panel.get_by_role("table").nth(1).locator("tbody tr")
    assert [row.split("\t")[0] for row in rows.all_inner_texts()] == [
        "head 0, attention of layer 1",
        "head 1, attention of layer 1",
    ]
    shown = float(rows.first.locator("td").nth(2).inner_text())
    assert shown == pytest.approx(read["previous"]["decoder.1.mixer.heads.0"], abs=1e-3)
    panel.get_by_role("button", name="attention of layer 0").click()
    seen.until(lambda: "layer=decoder.0.mixer" in seen.page.url)


def test_a_box_of_the_drawing_says_what_it_is(look: Callable[..., Seen]) -> None:
    """With the pointer and the keyboard; its numbers are one click away."""
    seen, page_model = look("decoder"), subject("decoder")
    panel = seen.show(panel="model", text=TEXT)
    assert panel.locator("[data-box]").count() == 7 + 3 + 3
    panel.locator('[data-box="decoder.0.mixer"] rect').click()
    seen.until(lambda: "box=decoder.0.mixer" in seen.page.url)
    panel = seen.page.locator(".panel[data-ready]", has=seen.page.locator("h3", has_text="decoder.0.mixer"))
    panel.wait_for()
    mixer = page_model.model.get_submodule("decoder.blocks.0.mixer")
    description = panel.locator("table", has_text="This box").inner_text()
    assert f"{sum(each.numel() for each in mixer.parameters()):,}, in each of 2 layers" in description
    assert "weights o.weight (W_O)\t16 × 16" in description
    count = sum(each.numel() for each in mixer.parameters())
    caption = panel.locator('[data-box="decoder.0.mixer"] .soft').text_content()
    assert caption == f"64 × 16 · {count:,} parameters"
    panel.locator('[data-box="decoder.0.ffn"]').focus()
    seen.page.keyboard.press("Enter")
    seen.until(lambda: "box=decoder.0.ffn" in seen.page.url)
    seen.page.locator("h3", has_text="decoder.0.ffn").wait_for()
    seen.page.locator("button", has_text="Its numbers in this pass").click()
    seen.panel("pass")
    assert "name=decoder.0.ffn.output" in seen.page.url
