"""The page over HTTP: its files and the documents of its panels. The browser loads nothing from other servers."""

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

MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_files() -> dict[str, str]:
    """The page's files by path: `index.html`, `panels/attention.js`, …"""
    root, texts = files("heddle.page") / "static", dict[str, str]()

    def visit(folder: Any, prefix: str) -> None:
        for path in sorted(folder.iterdir(), key=lambda path: path.name):
            if path.is_dir():
                visit(path, f"{prefix}{path.name}/")
            elif any(path.name.endswith(suffix) for suffix in MEDIA_TYPES):
                texts[prefix + path.name] = path.read_text(encoding="utf-8")

    visit(root, "")
    return texts


def make_page(subject: PageModel, config: ServeConfig | None = None, start: dict[str, Any] | None = None) -> FastAPI:
    """The application that serves the page of a model.

    Args:
        subject: the model.
        config: allowed hosts, and the maximum size of a query.
        start: the text that the page shows first: `{"text": "…", "target": "…"}`.
    """
    pages = page_files()
    app = FastAPI(title="heddle look", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/")
    def index() -> Response:
        return Response(pages["index.html"], media_type="text/html", headers=HEADERS)

    @app.get("/start")
    def started() -> Response:
        return JSONResponse(start or {}, headers=HEADERS)

    @app.get("/static/{path:path}")
    def static(path: str) -> Response:
        if path not in pages:
            raise ApiError(404, f"there is no file {path!r}")
        return Response(pages[path], media_type=MEDIA_TYPES["." + path.rpartition(".")[2]], headers=HEADERS)

    @app.post("/look/{panel}")
    async def look(panel: str, request: Request) -> Response:
        if panel not in PANELS:
            raise ApiError(404, f"there is no panel {panel!r}")
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise ApiError(415, "send JSON, with Content-Type: application/json")
        try:
            query = PANELS[panel].query.of(await request.json(), where=panel)
            return JSONResponse(await run_in_threadpool(answer, subject, panel, query), headers=HEADERS)
        except (HeddleError, ValueError, RecursionError) as error:
            message = str(error) if isinstance(error, HeddleError) else "the query is not JSON"
            raise ApiError(400, message, "invalid_value") from None

    handlers: list[tuple[Any, Any]] = [
        (ApiError, lambda request, error: error.answer()),
        (HTTPException, lambda request, error: ApiError(error.status_code, str(error.detail)).answer()),
        (Exception, lambda request, error: ApiError(500, "internal error; see the terminal").answer()),
    ]
    for kind, handler in handlers:
        app.add_exception_handler(kind, handler)
    app.add_middleware(Guard, config=config or ServeConfig())
    return app
