"""`heddle look`."""

import importlib.util
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from threading import Timer

from heddle.cli.look_tables import print_attention, print_heads, print_lens, print_model, print_names
from heddle.cli.models import Ready, open_model
from heddle.cli.options import AllowHost, Device, Run, Text
from heddle.cli.output import bar, console, find_run, print_json
from heddle.config.serve import ServeConfig
from heddle.errors import HeddleError, for_each
from heddle.look.picture import check_image
from heddle.look.texts import read_text
from heddle.serve.network import address_of, bind, is_loopback

REQUIRED = ("fastapi", "uvicorn")


def look(
    run: Run,
    /,
    *others: str,
    prompt: Text = None,
    target: Text = None,
    attention: str | None = None,
    lens: bool = False,
    heads: bool = False,
    names: bool = False,
    png: Path | None = None,
    model: Path | None = None,
    html: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    allow_host: AllowHost = None,
    no_browser: bool = False,
    device: Device = "auto",
    json: bool = False,
) -> None:
    """Look inside a model in the browser: predictions, attention, layers, every activation, training curves.

    --html writes the page as one offline file instead. --attention, --lens, --heads and --names print one view in the terminal,
    and --png draws it.

    Parameters
    ----------
    others
        More runs whose training curves are drawn for comparison.
    prompt
        The input text; for an encoder-decoder, the source.
    target
        The decoder input of an encoder-decoder. Defaults to the model's own output.
    attention
        Attention maps: of a head, such as 3.2; of a layer, such as 3; or all. For an encoder-decoder, encoder.3 and cross.3
        are encoder self-attention and cross-attention.
    lens
        The logit lens: the most probable token after each layer.
    heads
        What each head attends to, on the prompt or, by default, on repeated random tokens.
    names
        The names that heddle.look.trace accepts, with their shapes.
    png
        Also draw the view to this file: .png, .svg or .pdf.
    model
        Draw the architecture of a run, a preset or a config file to this .svg file.
    html
        Write the page for the prompt to this .html file instead of serving it.
    host
        The address to serve the page at.
    port
        The port to serve the page at; 0 picks a free one.
    no_browser
        Do not open a browser; only print the address.
    json
        One JSON document on stdout; for the page, its address or file.
    """
    chosen = {"attention": attention, "lens": lens, "heads": heads, "names": names}
    views = [name for name, value in chosen.items() if value]
    serving = {"--host": host != "127.0.0.1", "--port": port, "--allow-host": allow_host, "--no-browser": no_browser}
    text_options = {"--prompt": prompt is not None, "--target": target is not None}
    if model is not None:
        _refuse({**text_options, **serving, "--device": device != "auto"}, "--model draws the model alone")
        _refuse({f"--{name}": True for name in views} | {"--png": png, "--html": html}, "--model draws the model alone")
        _refuse(dict.fromkeys(others, True), "--model draws one model")
        print_model(run, model, json)
        return
    _check(views, prompt, target, html, png)
    if views:
        _refuse(serving, f"--{views[0]} does not serve a page")
        _refuse(dict.fromkeys(others, True), f"--{views[0]} looks at one run")
    if html is not None:
        _refuse(serving, "--html does not serve a page")
    if not views:
        _check_page(host, html)
    paths = for_each(find_run, (run, *others))
    ready = open_model(paths[0], device)
    if names:
        print_names(ready, json)
    elif heads:
        text = None if prompt is None else read_text(ready.model, ready.tokenizer, prompt, target)
        print_heads(ready, text, png, json)
    elif views:
        text = read_text(ready.model, ready.tokenizer, prompt or "", target)
        if attention is not None:
            print_attention(ready, text, attention, png, json)
        else:
            print_lens(ready, text, png, json)
    elif html is not None:
        _write(ready, paths, html, prompt or "", target, json)
    else:
        start = {name: text for name, text in (("text", prompt), ("target", target)) if text is not None}
        _serve(ready, paths, start, (host, port), allow_host or [], not no_browser, json)


def _refuse(options: Mapping[str, object], reason: str) -> None:
    """Refuse options that would be ignored."""
    if set_options := [name for name, value in options.items() if value]:
        raise HeddleError(f"{reason}: leave out {set_options[0]}")


def _check(views: list[str], prompt: str | None, target: str | None, html: Path | None, png: Path | None) -> None:
    """Refuse conflicting or incomplete options."""
    if len(views) > 1:
        raise HeddleError("choose one view: --attention LAYER.HEAD, --lens, --heads or --names")
    if prompt is None and views and views[0] in ("attention", "lens"):
        raise HeddleError(f"--{views[0]} needs a text: --prompt TEXT")
    if html is not None and prompt is None and not views:
        raise HeddleError("--html needs a text: --prompt TEXT")
    if target is not None and prompt is None:
        raise HeddleError("--target needs a source: --prompt TEXT")
    if views == ["names"]:
        _refuse({"--prompt": prompt is not None}, "--names does not read a text")
    if html is not None:
        _refuse({f"--{name}": True for name in views}, "--html writes all views")
    if png is not None:
        check_image(png)
        if not views or views[0] == "names":
            raise HeddleError("--png draws --attention, --lens or --heads: add one of them")


def _check_page(host: str, html: Path | None) -> None:
    if missing := [name for name in REQUIRED if importlib.util.find_spec(name) is None]:
        raise HeddleError(f"the page needs {', '.join(missing)}: pip install 'heddle-lm[serve]'")
    if html is None and not is_loopback(host):
        raise HeddleError(
            f"{host} can be reached from other machines, but the page has no access key: use a loopback address"
        )
    if html is not None and html.suffix.lower() not in (".html", ".htm"):
        raise HeddleError(f"--html {html}: must end in .html")


def _write(ready: Ready, paths: list[Path], html: Path, prompt: str, target: str | None, json: bool) -> None:
    from heddle.page import PageModel, write_page

    page_model = PageModel(paths[0].resolve().name, ready.model.eval(), ready.tokenizer, paths[0], paths[1:])
    with bar(console(as_json=json), "computing the page") as progress:
        write_page(page_model, html, prompt, target, progress)
    size = html.stat().st_size
    if json:
        print_json({"page": str(html), "bytes": size})
    else:
        console().print(f"written: {html}, {size / 1e6:.1f} MB; works offline")


def _serve(
    ready: Ready,
    paths: list[Path],
    initial: dict[str, str],
    address: tuple[str, int],
    hosts: list[str],
    browser: bool,
    json: bool,
) -> None:
    import uvicorn

    from heddle.page import PageModel, make_page

    with bind(*address) as listening:
        page_model = PageModel(paths[0].resolve().name, ready.model.eval(), ready.tokenizer, paths[0], paths[1:])
        config = ServeConfig.of(
            {"hosts": [*ServeConfig().hosts, address[0].lower(), *(name.lower() for name in hosts)]}, where="look"
        )
        url = f"http://{address_of(listening)}/"
        if json:
            print_json({"page": url})
            sys.stdout.flush()
        print(f"{page_model.name} at {url} (Ctrl-C to stop)", file=sys.stderr, flush=True)
        if browser:
            Timer(0.5, webbrowser.open, [url]).start()
        options = uvicorn.Config(
            make_page(page_model, config, initial), log_level="warning", access_log=False, timeout_graceful_shutdown=3
        )
        uvicorn.Server(options).run(sockets=[listening])
