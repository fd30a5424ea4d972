"""The page of `heddle look` in Chromium: every panel in every size and scheme, pictures for the docs, and how fast it draws.

    python -m benchmarks.browser RUN... [--images docs/images] [--json FILE]

Each view is opened in a window of a phone, a laptop and a projector, in light and in dark. A view fails if the console has an
error, if it asks another machine, if it is wider than its window, or if it shows a refusal. Then a model of 12 layers with 12 heads
reads 1,000 tokens, and one of 1 layer 4,000: the times are those of drawing the heads, the map and the tables anew from answers
that the page has, and from the pointer's move to the number. It needs playwright and Chromium.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import torch
import uvicorn
from playwright.sync_api import sync_playwright

from heddle.config import TransformerConfig
from heddle.model import build
from heddle.page import PageModel, make_page
from heddle.serve.network import bind
from heddle.weights import load

SIZES = {"phone": (360, 740), "laptop": (1280, 800), "projector": (1920, 1080)}
PICTURED = {"prefixes", "write", "attention", "layers", "switches", "pass", "training", "model"}
CHROMIUM = ("/usr/lib/chromium/chromium-headless-shell", "chromium-headless-shell", "chromium")


@contextmanager
def served(subject: PageModel) -> Iterator[str]:
    """The address of the page of a model."""
    with bind("127.0.0.1", 0) as listening:
        server = uvicorn.Server(uvicorn.Config(make_page(subject), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        server.should_exit = True
        thread.join(20)


def views(browser: Any, run: Path, text: str, images: Path | None) -> list[dict[str, Any]]:
    """Every panel of a run, in each size and scheme."""
    model, tokenizer = load(run)
    viewed = []
    with served(PageModel(run.name, model.eval(), tokenizer, run)) as url:
        for size, (width, height) in SIZES.items():
            for scheme in ("light", "dark"):
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
                page, faults = context.new_page(), list[str]()
                page.on(
                    "console", lambda message, faults=faults: message.type == "error" and faults.append(message.text)
                )
                page.on("pageerror", lambda error, faults=faults: faults.append(str(error)))
                page.on(
                    "request",
                    lambda request, faults=faults: (
                        request.url.startswith((url, "data:", "blob:", "about:")) or faults.append(request.url)
                    ),
                )
                page.goto(f"{url}#{urlencode({'text': text})}")
                page.wait_for_selector('.panel[data-ready="yes"]', timeout=60_000)
                for number in range(page.locator("#panels button").count()):
                    page.locator("#panels button").nth(number).click()
                    page.wait_for_selector('.panel[data-ready="yes"]', timeout=60_000)
                    page.locator("#panels button").nth(number).and_(page.locator("[aria-current]")).wait_for()
                    page.wait_for_timeout(150)
                    name = page.locator(".panel").get_attribute("data-panel")
                    faults += page.locator(".panel .error").all_inner_texts()
                    if page.evaluate("document.documentElement.scrollWidth") > width:
                        faults.append(f"wider than {width}")
                    viewed.append(
                        {"run": run.name, "panel": name, "size": size, "scheme": scheme, "faults": list(faults)}
                    )
                    faults.clear()
                    if images is not None and size == "laptop" and name in PICTURED:
                        images.mkdir(parents=True, exist_ok=True)
                        path = images / f"{name}{'-dark' if scheme == 'dark' else ''}.png"
                        if not path.exists() and (scheme == "light" or name == "attention"):
                            page.screenshot(path=path)
                context.close()
    return viewed


def large(browser: Any, depth: int, heads: int, count: int, rounds: int) -> dict[str, Any]:
    """Seconds from the answer to the picture, and from the pointer's move to the number, of a text of so many tokens."""
    stack = {"depth": depth, "entry": {"positions": "sinusoidal"}, "block": {"mixer": {"heads": heads}}}
    config = {"vocab_size": 64, "dim": 16 * heads, "context": count, "decoder": stack}
    torch.manual_seed(0)
    subject = PageModel("large", build(TransformerConfig.of(config)).eval())
    text = " ".join(str(id) for id in torch.randint(64, (count,)).tolist())
    drawn, hovered = [], []
    with served(subject) as url:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.goto(f"{url}#{urlencode({'panel': 'attention', 'text': text})}")
        page.wait_for_selector('.panel[data-ready="yes"]', timeout=600_000)
        for number in range(rounds):  # the answers are known to the page now: a new view is drawing alone
            before = time.perf_counter()
            page.evaluate(
                f"location.hash = location.hash.replace(/&stage=\\w+|$/, '&stage={('scores', 'weights')[number % 2]}')"
            )
            page.wait_for_selector(
                f'.panel[data-ready="yes"] button[aria-pressed="true"]:has-text("{("Scores", "Softmax")[number % 2]}")',
                timeout=60_000,
            )
            page.evaluate("new Promise(requestAnimationFrame)")
            drawn.append(time.perf_counter() - before)
        over = page.locator("canvas.over")
        box = over.bounding_box()
        for number in range(5 * rounds):
            x, y = 30 + 9 * number, 60 + 11 * number
            before = time.perf_counter()
            page.mouse.move(box["x"] + x % 600, box["y"] + y % 600)
            page.evaluate("new Promise(requestAnimationFrame)")
            page.locator(".readout").first.inner_text()
            hovered.append(time.perf_counter() - before)
        context.close()
    times = {
        name: [min(all), statistics.median(all), max(all)] for name, all in (("drawn", drawn), ("hovered", hovered))
    }
    return {"layers": depth, "heads": heads, "tokens": count, **times}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--text", default="The man eats the fish, and the man")
    parser.add_argument("--images", type=Path, help="where to write pictures of the panels; those that exist stay")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    path = next((each for each in CHROMIUM if Path(each).exists() or shutil.which(each)), None)
    if path is None:
        sys.exit("benchmarks.browser: chromium is not installed: apt install chromium-headless-shell")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which(path) or path, args=["--no-sandbox"])
        every = [view for run in options.runs for view in views(browser, run, options.text, options.images)]
        bad = [view for view in every if view["faults"]]
        print(f"{len(every)} views of {len(options.runs)} runs, {len(bad)} with faults")
        for view in bad:
            print(f"  {view}")
        sizes = [large(browser, 12, 12, 1000, options.rounds), large(browser, 1, 2, 4000, options.rounds)]
        browser.close()
    for size in sizes:
        drawn, hovered = (" / ".join(f"{1000 * each:.0f}" for each in size[name]) for name in ("drawn", "hovered"))
        what = f"{size['layers']} layers of {size['heads']} heads, {size['tokens']} tokens"
        print(f"{what}, in ms (least / median / most): drawn {drawn}; hover {hovered}")
    if options.json:
        options.json.write_text(json.dumps({"views": every, "large": sizes}, indent=2))
    processor = subprocess.run("grep -m1 'model name' /proc/cpuinfo", shell=True, capture_output=True, text=True).stdout
    print(f"measured on {processor.partition(':')[2].strip() or 'this machine'}, torch {torch.__version__}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
