"""The page over HTTP: its files, and the panels' answers. Nothing is loaded from anywhere else."""

from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from heddle.config.serve import ServeConfig
from heddle.errors import HeddleError
from heddle.page.panels import PANELS, answer
from heddle.page.subject import PageModel
from heddle.serve.errors import ApiError
from heddle.serve.guard import Guard

KINDS = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_files() -> dict[str, str]:
    """The page's files by path: `index.html`, `panels/attention.js`, …"""
    root, found = files("heddle.page") / "static", dict[str, str]()

    def visit(folder: Any, before: str) -> None:
        for each in sorted(folder.iterdir(), key=lambda path: path.name):
            if each.is_dir():
                visit(each, f"{before}{each.name}/")
            elif any(each.name.endswith(kind) for kind in KINDS):
                found[before + each.name] = each.read_text(encoding="utf-8")

    visit(root, "")
    return found


def make_page(subject: PageModel, config: ServeConfig | None = None, start: dict[str, Any] | None = None) -> FastAPI:
    """The application that shows a model.

    Args:
        subject: the model.
        config: which hosts it may be called by, and how large a question may be.
        start: what the page shows first: `{"text": "…", "target": "…"}`.
    """
    pages = page_files()
    app = FastAPI(title="heddle look", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/")
    def index() -> Response:
        return Response(pages["index.html"], media_type="text/html", headers=SAFE)

    @app.get("/start")
    def started() -> Response:
        return JSONResponse(start or {}, headers=SAFE)

    @app.get("/static/{path:path}")
    def static(path: str) -> Response:
        if path not in pages:
            raise ApiError(404, f"there is no file {path!r}")
        return Response(pages[path], media_type=KINDS["." + path.rpartition(".")[2]], headers=SAFE)

    @app.post("/look/{panel}")
    async def look(panel: str, request: Request) -> Response:
        if panel not in PANELS:
            raise ApiError(404, f"there is no panel {panel!r}")
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise ApiError(415, "send JSON, with Content-Type: application/json")
        try:
            asked = PANELS[panel].asked.of(await request.json(), where=panel)
            return JSONResponse(await run_in_threadpool(answer, subject, panel, asked), headers=SAFE)
        except (HeddleError, ValueError, RecursionError) as error:
            said = str(error) if isinstance(error, HeddleError) else "the question is not JSON"
            raise ApiError(400, said, "invalid_value") from None

    handlers: list[tuple[Any, Any]] = [
        (ApiError, lambda request, error: error.answer()),
        (HTTPException, lambda request, error: ApiError(error.status_code, str(error.detail)).answer()),
        (Exception, lambda request, error: ApiError(500, "an error inside heddle; the terminal says more").answer()),
    ]
    for kind, handler in handlers:
        app.add_exception_handler(kind, handler)
    app.add_middleware(Guard, config=config or ServeConfig())
    return app
