"""Errors in the format of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`, without traces or paths."""

from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "service_unavailable_error"}


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": description,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {"error": {"type": "object", "required": ["message", "type", "param", "code"]}},
                }
            }
        },
    }
    for status, description in {
        400: "The request is invalid.",
        401: "The key is wrong.",
        404: "There is no such model.",
        408: "The body took too long.",
        413: "The body is too large.",
        422: "Not used; see 400.",
        429: "Too many texts wait.",
        500: "The model is broken.",
        503: "The answer took too long, or the server is shutting down.",
    }.items()
}
"""The OpenAPI description of each status."""


class ApiError(Exception):
    """An error response.

    Args:
        status: HTTP status.
        message: what is wrong and what to do.
        code: a code for clients to compare, such as `model_not_found`.
        param: the field that is wrong.
        headers: HTTP headers.
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
        """The document."""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def answer(self) -> JSONResponse:
        """The HTTP response."""
        return JSONResponse(self.body(), self.status, self.headers)


# Fields with a union type: pydantic reports an error for each member, which is unreadable.
UNIONS = {
    "prompt": "a text, a list of texts, a list of ids, or a list of lists of ids",
    "input": "a text or a list of texts; ids are not accepted, since they might come from another tokenizer",
    "text": "a text or a list of texts",
    "pair": "a text or a list of texts",
}
SPECIFIC = ("too_long", "too_short", "string_too_long", "greater_than_equal")  # errors to report as they are


def invalid_request(error: RequestValidationError) -> ApiError:
    """The first error of a body."""
    errors = error.errors()
    first = errors[0]
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is not JSON", "invalid_json")
    if first["type"] == "model_attributes_type":
        return ApiError(400, "the body must be a JSON object, with Content-Type: application/json", "invalid_json")
    field = first["loc"][1] if len(first["loc"]) > 2 else None
    if field in UNIONS:
        specific = next((each for each in errors if each["type"] in SPECIFIC and each["loc"][1] == field), None)
        message = f"must be {UNIONS[field]}" if specific is None else specific["msg"]
        return ApiError(400, f"{field}: {message}", "invalid_value", field)
    where = ".".join(str(part) for part in first["loc"] if part != "body") or None
    message = f"{where}: {first['msg']}" if where else f"the body: {first['msg']}"
    return ApiError(400, message, "unknown_parameter" if first["type"] == "extra_forbidden" else "invalid_value", where)
