"""What stands before every route: key, path prefix, size of bodies. Plain ASGI, as it is on the way of each request.

Invariant: nothing here reads a body; a body that is too large is never held in memory.
"""

import hmac

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pelton.core.errors import RequestError
from pelton.serve.errors import http_error

OPEN_PATHS = frozenset({"/health", "/ping", "/version", "/metrics"})
_MOST_DIGITS = 18


class RootPath:
    """The prefix under which a proxy shows this server; paths are found with it and without it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope.get("root_path"):
            scope["root_path"] = self._root_path
        await self._app(scope, receive, send)


class ApiKey:
    """Only requests with one of the keys as bearer token get in; probes and metrics are open."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._keys = tuple(key.encode() for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        closed = scope["type"] == "http" and scope["method"] != "OPTIONS" and _path(scope) not in OPEN_PATHS
        if closed and not self._fits(scope):
            error = RequestError(
                "The API key is missing or wrong.", "Send it as Authorization: Bearer KEY.", code="invalid_api_key"
            )
            response = http_error(error).response()
            response.headers["WWW-Authenticate"] = "Bearer"
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _fits(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        # Every key is compared in full, so that the time taken tells nothing about them.
        fits = [hmac.compare_digest(token.strip(), key) for key in self._keys]
        return scheme.lower() == b"bearer" and any(fits)


class BodyLimit:
    """Bodies above `most` bytes end the request with 413, as soon as that is known."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        told = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if told.isdigit() and (len(told) > _MOST_DIGITS or int(told) > self._most):
            await http_error(self._too_large()).response()(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._most:
                raise self._too_large()
            return message

        await self._app(scope, counted, send)

    def _too_large(self) -> HTTPException:
        # The connection still holds the rest of the body, which nobody wants to read.
        return HTTPException(413, f"It may have {self._most} bytes.", {"Connection": "close"})


def _path(scope: Scope) -> str:
    """The path without the prefix, as the routes see it."""
    path, prefix = scope["path"], scope.get("root_path", "")
    shortened: str = path[len(prefix) :] if prefix and path.startswith(prefix + "/") else path
    return shortened
