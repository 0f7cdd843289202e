"""Which parameters of a query a route takes. What else a client gives is told, or with `strict` refused."""

from collections.abc import Awaitable, Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pelton.serve.routes.generation import service_of
from pelton.serve.schema.body import IGNORED, told
from pelton.serve.schema.query import Query

Endpoint = Callable[[HttpRequest], Awaitable[ASGIApp]]


def taking(endpoint: Endpoint, *known: str) -> Endpoint:
    """The endpoint with a Query of the `known` parameters as `http.state.query`."""

    async def answer(http: HttpRequest) -> ASGIApp:
        query = Query(http.query_params, known, strict=service_of(http).settings.strict)
        http.state.query = query
        answered = await endpoint(http)
        return _Told(answered, query.ignored) if query.ignored else answered

    return answer


class _Told:
    """An answer whose header tells names of parameters too."""

    def __init__(self, answer: ASGIApp, names: tuple[str, ...]) -> None:
        self._answer = answer
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                headers[IGNORED] = ", ".join(filter(None, (headers.get(IGNORED), told(self._names))))
            await send(message)

        await self._answer(scope, receive, telling)
