"""Errors as HTTP: which status and which JSON an exception becomes.

Invariant: what a client did wrong is 4xx and names its field where there is one; 5xx tells of the server alone.
"""

import logging
import math

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pelton.core.errors import CapacityError, EngineDeadError, OverloadedError, PeltonError, RequestError
from pelton.engine.load.deadlines import LATE
from pelton.kv.tiers.slot_file import BUSY
from pelton.serve.request_id import HEADER, request_id_of

LOG = logging.getLogger("pelton.serve")
MOST_TOLD = 1000  # characters
RESTART_SECONDS = 5.0  # an engine that starts again is worth asking again after this
NOT_SUPPORTED = "not_supported"  # by the server's settings
_STATUS_OF_CODE = {"model_not_found": 404, "invalid_api_key": 401, LATE: 408, BUSY: 409, NOT_SUPPORTED: 501}
_TYPE_OF_STATUS = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    500: "internal_error",
    501: "not_supported_error",
    503: "unavailable_error",
}


class AnswerFailedError(PeltonError):
    """The engine could not finish this answer; others are not affected."""


class AnswerAbortedError(PeltonError):
    """The server took this request out, because it shuts down."""


class ErrorObject(msgspec.Struct):
    """What went wrong, for people (`message`) and for programs."""

    message: str
    type: str
    param: str | None
    code: str | int | None


class ErrorAnswer(msgspec.Struct):
    """The body of every answer that is not 2xx."""

    error: ErrorObject


class HttpError(msgspec.Struct, frozen=True):
    """Status, body and headers of an error."""

    status: int
    error: ErrorObject
    headers: dict[str, str]

    def response(self) -> Response:
        """The error as the whole answer."""
        body = msgspec.json.encode(ErrorAnswer(self.error))
        return Response(body, self.status, self.headers, media_type="application/json")

    def event(self) -> bytes:
        """The error as an event of a stream that has begun."""
        return b"data: " + msgspec.json.encode(ErrorAnswer(self.error)) + b"\n\n"


def http_error(error: Exception) -> HttpError:
    """The HTTP form of any exception; what is not meant for users is told as an internal error without its text."""
    match error:
        case RequestError():
            status = _STATUS_OF_CODE.get(error.code or "", 400)
            kind = _TYPE_OF_STATUS.get(status, "invalid_request_error")
            made = _made(status, str(error), kind, error.param, error.code or "invalid_value")
            if error.code == LATE:
                # Clients such as OpenAI's send again what met a 408; nobody waits for this one any more.
                made.headers["X-Should-Retry"] = "false"
            return made
        case CapacityError():
            return _made(400, str(error), "invalid_request_error", None, "context_length_exceeded")
        case OverloadedError():
            return _later(str(error), "overloaded", error.retry_after)
        case EngineDeadError():
            return _later(str(error), "engine_unavailable", RESTART_SECONDS)
        case AnswerAbortedError():
            return _later(str(error), "shutting_down", RESTART_SECONDS)
        case PeltonError():
            return _made(500, str(error), "internal_error", None, "answer_failed")
        case HTTPException():
            return _of_starlette(error)
        case _:
            return _made(500, "Internal error; the server's log tells more.", "internal_error", None, "internal_error")


async def answer_error(request: Request, error: Exception) -> Response:
    """Handler for what a route raised before its answer began."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=400)  # nobody reads it
    made = http_error(error)
    if made.status == 500:
        LOG.error("request %s failed: %s", request_id_of(request.scope), error)
    return made.response()


async def answer_bug(request: Request, error: Exception) -> Response:
    """Handler for what nobody expected; the exception itself goes on to the server's log afterwards."""
    LOG.error("request %s: internal error %s", request_id_of(request.scope), type(error).__name__)
    response = http_error(error).response()
    response.headers[HEADER] = request_id_of(request.scope)  # the middleware for it is further inside
    return response


def _of_starlette(error: HTTPException) -> HttpError:
    status = error.status_code
    messages = {
        404: "This server has no such path.",
        405: "This path does not take that method.",
        408: f"The request came too slowly. {error.detail}",
        413: f"The body is too large. {error.detail}",
        414: f"The URL is too long. {error.detail}",
        431: f"The headers are too large. {error.detail}",
    }
    codes = {
        400: "invalid_http",
        404: "not_found",
        405: "method_not_allowed",
        408: "request_too_slow",
        413: "body_too_large",
        414: "url_too_long",
        431: "headers_too_large",
    }
    made = _made(
        status,
        messages.get(status, error.detail),
        _TYPE_OF_STATUS.get(status, "invalid_request_error"),
        None,
        codes.get(status, status),
    )
    made.headers.update(error.headers or {})
    return made


def _later(message: str, code: str, seconds: float) -> HttpError:
    made = _made(503, message, "overloaded" if code == "overloaded" else "unavailable_error", None, code)
    made.headers["Retry-After"] = str(max(1, math.ceil(seconds)))
    return made


def _made(status: int, message: str, kind: str, param: str | None, code: str | int | None) -> HttpError:
    return HttpError(status, ErrorObject(_cut(message), kind, param and _cut(param), code), {})


def _cut(text: str) -> str:
    """What a client sent comes back in messages, but not all of it."""
    return text if len(text) <= MOST_TOLD else text[:MOST_TOLD] + "..."
