"""What a client of the service reads where it gets no answer: one form, OpenAI's, which its clients turn into errors.

A request that is wrong gets 400, as from OpenAI, with the field in `param`. No message repeats what was sent.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from forerun.errors import ForerunError
from forerun.infer.batching import QueueFull

NOT_JSON = {"model_attributes_type", "dict_type", "missing"}
"""pydantic's kinds of error where the body is no JSON object, or was not read as JSON."""
TYPE_NAMES = {"str", "int", "float", "bool"}
"""What pydantic puts behind a field that may be of several types."""
GATE_CODES: dict[int, tuple[str, str | None]] = {
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("permission_error", None),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}
"""Type and code of what the gate refuses, by status."""
WANTS_JSON = "a JSON object must be sent, with the header Content-Type: application/json"

FIELDS = ("messages", "tools", "prompt")
"""What a refusal of ours may begin with, which clients read as `param`."""


class Busy(Exception):
    """Too many wait already."""


def problem(message: str, kind: str, field: str | None, *, code: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}


def gate_problem(status: int, message: str) -> dict[str, Any]:
    """What is refused before anybody reads the body (`infer/gate.py`), in the same form."""
    kind, code = GATE_CODES.get(status, ("invalid_request_error", None))
    return problem(message, kind, None, code=code)


def add_errors(app: FastAPI) -> None:
    """Every error of `app` in one form."""

    @app.exception_handler(RequestValidationError)
    async def wrong_request(request: Request, error: RequestValidationError) -> JSONResponse:
        field, text = _wrong_field(error.errors())
        return JSONResponse(problem(f"{field or 'body'}: {text}.", "invalid_request_error", field or None), 400)

    @app.exception_handler(ForerunError)
    async def refused(request: Request, error: ForerunError) -> JSONResponse:
        field = next((name for name in FIELDS if str(error).startswith(f"{name}: ")), None)
        return JSONResponse(problem(str(error), "invalid_request_error", field), 400)

    @app.exception_handler(Busy)
    @app.exception_handler(QueueFull)
    async def busy(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse(
            problem("Too many requests are waiting. Try again in a while.", "rate_limit_error", None), 429,
            headers={"Retry-After": "1"},
        )  # fmt: skip

    @app.exception_handler(HTTPException)
    async def no_such_path(request: Request, error: HTTPException) -> JSONResponse:
        paths = {path for route in app.routes if (path := getattr(route, "path", "")).startswith(("/v1", "/h"))}
        text = f"{error.detail}. This model is served at {', '.join(sorted(paths)).replace(':path', '')}."
        return JSONResponse(problem(text, "invalid_request_error", None), error.status_code, headers=error.headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse(problem("The service failed; its log says why.", "server_error", None), 500)


def _wrong_field(errors: Sequence[Any]) -> tuple[str, str]:
    """The first wrong field and what it must be; where it may be one of several things, all of them."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return "", f"JSON must be sent; found other text from character {first['loc'][-1]} on"
    if tuple(first["loc"]) == ("body",) and first["type"] in NOT_JSON:
        return "", WANTS_JSON
    fields = [_field(each["loc"]) for each in errors]
    ways = [_rule(each) for each, field in zip(errors, fields, strict=True) if field == fields[0]]
    return fields[0], "; or ".join(dict.fromkeys(ways))


def _rule(error: Any) -> str:
    """What a field must be."""
    if error["type"] == "extra_forbidden":
        return "this service does not offer it. Leave it out"
    return str(error["msg"]).removeprefix("Value error, ")


def _field(place: Sequence[str | int]) -> str:
    """`messages.0.role` of where an error is; pydantic puts the names of types behind it."""

    def is_name(part: str | int) -> bool:
        return isinstance(part, int) or (part.isidentifier() and part not in TYPE_NAMES)

    return ".".join(map(str, itertools.takewhile(is_name, place[1:])))
