"""Errors in the shape of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`, never a trace, never a path."""

from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "service_unavailable_error"}


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: of HTTP.
        message: what is wrong and what to do.
        code: what clients compare, such as `model_not_found`.
        param: the field that is wrong.
        headers: of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.headers = status, code, param, dict(headers or {})

    def body(self) -> dict[str, Any]:
        """What is sent."""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def answer(self) -> JSONResponse:
        """As an answer."""
        return JSONResponse(self.body(), self.status, self.headers)


def unreadable(error: RequestValidationError) -> ApiError:
    """The first thing that is wrong with a body."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is not JSON", "invalid_json")
    where = ".".join(str(part) for part in first["loc"] if part != "body") or None
    said = f"{where}: {first['msg']}" if where else f"the body: {first['msg']}"
    return ApiError(400, said, "unknown_parameter" if first["type"] == "extra_forbidden" else "invalid_value", where)
