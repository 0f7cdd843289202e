"""GET /kv/tree and POST /end_session: the KV memory's shape and who holds it, and sessions' ends. No generation."""

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pelton.core.errors import RequestError
from pelton.engine.process.messages import DescribeCache, EndSession
from pelton.serve.routes.generation import service_of
from pelton.serve.schema.body import Body, told_of
from pelton.serve.schema.fields import SessionFields
from pelton.serve.schema.json_text import read_object
from pelton.serve.schema.query import Query
from pelton.serve.terms import SESSION_HEADER, session_of

LISTED = 200
MOST_LISTED = 2000


async def tree(http: HttpRequest) -> Response:
    """How many blocks are what, the prefix tree, and who holds blocks: at most `runs` and `requests` of them.

    With token ids and sessions' names if `tokens` is true.
    """
    service = service_of(http)
    service.expect_running()
    query: Query = http.state.query
    runs, requests = _count(query, "runs"), _count(query, "requests")
    tokens = query.flag("tokens", "false", "true")
    if tokens and not service.settings.show_cached_tokens:
        raise RequestError(
            "The tokens of cached prompts are not shown: they are other clients' texts.",
            "Start the server with --show-cached-tokens, if all who may ask may read them.",
            param="tokens",
        )
    body = await service.ask(DescribeCache(runs, tokens, requests))
    return Response(body, media_type="application/json")


async def end_session(http: HttpRequest) -> Response:
    """Lets go of what is held for a session, which the body names or the header."""
    service = service_of(http)
    service.expect_running()
    raw = await http.body()
    body = Body(read_object(raw or b"{}"), strict=service.settings.strict, known=(SessionFields,))
    fields = body.read(SessionFields)
    session = session_of(http.scope, service.slots, fields.session_id, fields.id_slot)
    if not session:
        raise RequestError(
            "session_id is missing.",
            f"Give session_id, or the header {SESSION_HEADER}.",
            param="session_id",
            code="missing_parameter",
        )
    ended = await service.ask(EndSession((fields.cache_salt or "", session)))
    return as_json({"ended": bool(ended)}, body)


def as_json(value: object, body: Body) -> Response:
    """An answer to a body; the header tells what of that took no effect."""
    return Response(msgspec.json.encode(value), headers=told_of(body.ignored), media_type="application/json")


def _count(query: Query, name: str) -> int:
    text = query.text(name, str(LISTED))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= MOST_LISTED):
        raise RequestError(f"{name}={text[:40]!r} cannot work.", f"It is from 0 to {MOST_LISTED}.", param=name)
    return int(text)
