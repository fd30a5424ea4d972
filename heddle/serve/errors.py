"""Errors in the shape of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`, never a trace, never a path."""

from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "service_unavailable_error"}


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": said,
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
    for status, said in {
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
"""What the description of the endpoints says of each status."""


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


# Fields that may be several things, in words, and what says more than that none of them fits.
SEVERAL = {
    "prompt": "a text, a list of texts, a list of ids, or a list of lists of ids",
    "input": "a text or a list of texts; ids are not read, since another tokenizer's would be taken for this one's",
    "text": "a text or a list of texts",
    "pair": "a text or a list of texts",
}
EXACT = ("too_long", "too_short", "string_too_long", "greater_than_equal")


def unreadable(error: RequestValidationError) -> ApiError:
    """The first thing that is wrong with a body."""
    found = error.errors()
    first = found[0]
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is not JSON", "invalid_json")
    if first["type"] == "model_attributes_type":
        return ApiError(400, "the body is no JSON object, or its Content-Type is not application/json", "invalid_json")
    field = first["loc"][1] if len(first["loc"]) > 2 else None
    if field in SEVERAL:
        exact = next((each for each in found if each["type"] in EXACT and each["loc"][1] == field), None)
        said = f"must be {SEVERAL[field]}" if exact is None else exact["msg"]
        return ApiError(400, f"{field}: {said}", "invalid_value", field)
    where = ".".join(str(part) for part in first["loc"] if part != "body") or None
    said = f"{where}: {first['msg']}" if where else f"the body: {first['msg']}"
    return ApiError(400, said, "unknown_parameter" if first["type"] == "extra_forbidden" else "invalid_value", where)
