"""GET /kv/tree and POST /end_session: the shape of the KV memory, and sessions' ends. No generation."""

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pelton.core.errors import EngineDeadError, RequestError
from pelton.engine.process.messages import DescribeCache, EndSession, Question
from pelton.serve.routes.generation import service_of
from pelton.serve.schema.body import Body
from pelton.serve.schema.fields import SessionFields
from pelton.serve.schema.json_text import read_object
from pelton.serve.service import Service

RUNS = 200
MOST_RUNS = 2000


async def tree(http: HttpRequest) -> Response:
    """How many blocks are what, and the prefix tree: `runs` of it at most, with token ids if `tokens` is true."""
    service = service_of(http)
    service.expect_running()
    query = http.query_params
    runs, tokens = query.get("runs", str(RUNS)), query.get("tokens", "false")
    if not (runs.isascii() and runs.isdigit() and len(runs) < 10 and int(runs) <= MOST_RUNS):
        raise RequestError(f"runs={runs[:40]!r} cannot work.", f"It is from 0 to {MOST_RUNS}.", param="runs")
    if tokens not in ("true", "false"):
        raise RequestError(f"tokens={tokens[:40]!r} cannot work.", "It is true or false.", param="tokens")
    if tokens == "true" and not service.settings.show_cached_tokens:
        raise RequestError(
            "The tokens of cached prompts are not shown: they are other clients' texts.",
            "Start the server with --show-cached-tokens, if all who may ask may read them.",
            param="tokens",
        )
    body = await _asked(service, DescribeCache(int(runs), tokens == "true"))
    return Response(body, media_type="application/json")


async def end_session(http: HttpRequest) -> Response:
    """Lets go of what is held for a session."""
    service = service_of(http)
    service.expect_running()
    body = Body(read_object(await http.body()), strict=service.settings.strict, known=(SessionFields,))
    fields = body.read(SessionFields)
    ended = await _asked(service, EndSession((fields.cache_salt or "", fields.session_id)))
    return Response(msgspec.json.encode({"ended": bool(ended)}), media_type="application/json")


async def _asked(service: Service, question: Question) -> bytes:
    answer = await service.engine.ask(question)
    if answer is None:
        raise EngineDeadError("The engine process ended before it could answer.", "Ask again in a few seconds.")
    return answer
