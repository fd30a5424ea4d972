"""`heddle look`."""

import importlib.util
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from threading import Timer
from typing import Annotated

from cyclopts import Parameter

from heddle.cli.drawn import print_model
from heddle.cli.inside import print_attention, print_heads, print_lens, print_names
from heddle.cli.models import Ready, open_model
from heddle.cli.network import address_of, bind, is_loopback
from heddle.cli.output import bar, console, find_run, print_json
from heddle.config.serve import ServeConfig
from heddle.errors import HeddleError
from heddle.look.picture import check_image
from heddle.look.texts import read_text

NEEDED = ("fastapi", "uvicorn")


def look(
    run: str,
    /,
    *others: str,
    prompt: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    target: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    attention: str | None = None,
    lens: bool = False,
    heads: bool = False,
    names: bool = False,
    png: Path | None = None,
    model: Path | None = None,
    html: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    allow_host: list[str] | None = None,
    no_browser: bool = False,
    device: str = "auto",
    json: bool = False,
) -> None:
    """Look inside a model, in a browser: what it predicts, its attention, its layers, every tensor of a pass, its training.

    With --html the page is written as one file that works offline. With --attention, --lens, --heads or --names, one thing is
    printed instead, or drawn with --png.

    Parameters
    ----------
    run
        A run directory, or its name in runs/.
    others
        Runs whose curves are drawn over those of the first.
    prompt
        The text that the model reads; of an encoder-decoder, the source.
    target
        What the decoder of an encoder-decoder reads. Defaults to its own translation.
    attention
        The map of a layer and head, such as 3.2, or of all heads of a layer, such as 3, or of all layers: all. The layers of
        an encoder-decoder's encoder are encoder.3, and those of cross-attention cross.3.
    lens
        The most probable token after each layer.
    heads
        What each head looks at: on the prompt, or without one on random tokens that repeat.
    names
        What can be named in heddle.look.trace, with the shapes.
    png
        Write a picture, too: .png, .svg or .pdf.
    model
        Draw the model as an .svg file: of a run, or of a preset.
    html
        Write the page about the prompt as one .html file, instead of serving it.
    host
        The address of this machine to serve the page at.
    port
        The port to serve the page at; 0 takes a free one.
    allow_host
        Another host name that the page may be addressed by; may be repeated.
    no_browser
        Only say where the page is.
    device
        auto, cpu, cuda or mps.
    json
        One JSON document on stdout; for the page, its address or file.
    """
    wanted = [
        name for name, given in (("attention", attention), ("lens", lens), ("heads", heads), ("names", names)) if given
    ]
    serving = {"--host": host != "127.0.0.1", "--port": port, "--allow-host": allow_host, "--no-browser": no_browser}
    texts = {"--prompt": prompt is not None, "--target": target is not None}
    if model is not None:
        _refuse({**texts, **serving, "--device": device != "auto"}, "--model draws the model alone")
        _refuse(
            {f"--{name}": True for name in wanted} | {"--png": png, "--html": html}, "--model draws the model alone"
        )
        _refuse(dict.fromkeys(others, True), "--model draws one model")
        print_model(run, model, json)
        return
    _check(wanted, prompt, target, html, png)
    if wanted:
        _refuse(serving, f"--{wanted[0]} serves no page")
        _refuse(dict.fromkeys(others, True), f"--{wanted[0]} looks at one run")
    if html is not None:
        _refuse(serving, "--html serves no page")
    if not wanted:
        _check_page(host, html)
    ready = open_model(find_run(run), device)
    if names:
        print_names(ready, json)
    elif heads:
        print_heads(
            ready, None if prompt is None else read_text(ready.model, ready.tokenizer, prompt, target), png, json
        )
    elif wanted:
        text = read_text(ready.model, ready.tokenizer, prompt or "", target)
        if attention is not None:
            print_attention(ready, text, attention, png, json)
        else:
            print_lens(ready, text, png, json)
    elif html is not None:
        _write(ready, [find_run(run), *(find_run(each) for each in others)], html, prompt or "", target, json)
    else:
        start = {name: text for name, text in (("text", prompt), ("target", target)) if text is not None}
        paths = [find_run(run), *(find_run(each) for each in others)]
        _serve(ready, paths, start, (host, port), allow_host or [], not no_browser, json)


def _refuse(given: Mapping[str, object], because: str) -> None:
    """Refuse options that would be ignored.

    Raises:
        HeddleError: one is given.
    """
    if odd := [name for name, value in given.items() if value]:
        raise HeddleError(f"{because}: leave out {odd[0]}")


def _check(wanted: list[str], prompt: str | None, target: str | None, html: Path | None, png: Path | None) -> None:
    """Refuse what does not go together.

    Raises:
        HeddleError: it does not.
    """
    if len(wanted) > 1:
        raise HeddleError("name one thing to look at: --attention LAYER.HEAD, --lens, --heads or --names")
    if prompt is None and wanted and wanted[0] in ("attention", "lens"):
        raise HeddleError(f"--{wanted[0]} needs a text: --prompt TEXT")
    if html is not None and prompt is None and not wanted:
        raise HeddleError("--html needs a text for the page to be about: --prompt TEXT")
    if target is not None and prompt is None:
        raise HeddleError("--target needs a source: --prompt TEXT")
    if wanted == ["names"]:
        _refuse({"--prompt": prompt is not None}, "--names are those of the model")
    if html is not None:
        _refuse({f"--{name}": True for name in wanted}, "--html writes the whole page")
    if png is not None:
        check_image(png)
        if not wanted or wanted[0] == "names":
            raise HeddleError("--png draws one of --attention, --lens and --heads")


def _check_page(host: str, html: Path | None) -> None:
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise HeddleError(f"the page needs {', '.join(missing)}: pip install 'heddle-lm[serve]'")
    if html is None and not is_loopback(host):
        raise HeddleError(
            f"{host} can be reached from other machines, and the page has no key: use this machine's address"
        )
    if html is not None and html.suffix.lower() not in (".html", ".htm"):
        raise HeddleError(f"--html {html}: a page is an .html file")


def _write(ready: Ready, paths: list[Path], html: Path, prompt: str, target: str | None, json: bool) -> None:
    from heddle.page import PageModel, write_page

    subject = PageModel(paths[0].resolve().name, ready.model.eval(), ready.tokenizer, paths[0], paths[1:])
    with bar(console(as_json=json), "computing what the page shows") as told:
        write_page(subject, html, prompt, target, told)
    size = html.stat().st_size
    if json:
        print_json({"page": str(html), "bytes": size})
    else:
        console().print(f"written: {html}, {size / 1e6:.1f} MB; it works without a network", markup=False)


def _serve(
    ready: Ready,
    paths: list[Path],
    start: dict[str, str],
    where: tuple[str, int],
    hosts: list[str],
    browser: bool,
    json: bool,
) -> None:
    import uvicorn

    from heddle.page import PageModel, make_page

    with bind(*where) as listening:
        subject = PageModel(paths[0].resolve().name, ready.model.eval(), ready.tokenizer, paths[0], paths[1:])
        config = ServeConfig.of(
            {"hosts": [*ServeConfig().hosts, where[0].lower(), *(name.lower() for name in hosts)]}, where="look"
        )
        address = f"http://{address_of(listening)}/"
        if json:
            print_json({"page": address})
            sys.stdout.flush()
        print(f"{subject.name} at {address} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        if browser:
            Timer(0.5, webbrowser.open, [address]).start()
        options = uvicorn.Config(
            make_page(subject, config, start), log_level="warning", access_log=False, timeout_graceful_shutdown=3
        )
        uvicorn.Server(options).run(sockets=[listening])
