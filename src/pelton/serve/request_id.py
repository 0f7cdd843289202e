"""The id of an HTTP request: the client's X-Request-Id, or one made here. The engine has ids of its own.

Invariant: every answer carries the header, errors included.
"""

import re
from uuid import uuid4

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-Id"
_NAME = HEADER.lower().encode()
_SCOPE_KEY = "pelton.request_id"
_GOOD = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestId:
    """Middleware that notes the id in the scope and puts it on the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == _NAME), b"")
        request_id = given.decode() if _GOOD.fullmatch(given) else uuid4().hex
        scope[_SCOPE_KEY] = request_id

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, tell)


def request_id_of(scope: Scope) -> str:
    """The id noted in the scope."""
    request_id: str = scope.get(_SCOPE_KEY, "")
    return request_id
