"""The server's app: routes, middleware and error handlers put together. It opens no socket and starts no engine."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from pelton.core.errors import PeltonError
from pelton.serve.errors import answer_bug, answer_error
from pelton.serve.metrics import Metrics
from pelton.serve.middleware import ApiKey, BodyLimit, RootPath
from pelton.serve.request_id import HEADER, RequestId
from pelton.serve.routes import kv, slots, status
from pelton.serve.routes.chat import chat
from pelton.serve.routes.completions import completions
from pelton.serve.routes.infill import infill
from pelton.serve.routes.models import model, models
from pelton.serve.routes.taking import Endpoint, taking
from pelton.serve.routes.tokens import detokenize, tokenize, tokenizer_info
from pelton.serve.schema.body import IGNORED
from pelton.serve.service import ServedEngine, Service
from pelton.serve.settings import ServeSettings

GET, POST = ("GET",), ("POST",)
# path, methods, who answers, parameters of the query
ROUTES: tuple[tuple[str, tuple[str, ...], Endpoint, tuple[str, ...]], ...] = (
    ("/v1/chat/completions", POST, chat, ()),
    ("/v1/completions", POST, completions, ()),
    ("/infill", POST, infill, ()),
    ("/v1/models", GET, models, ()),
    ("/v1/models/{name:path}", GET, model, ()),
    ("/tokenize", POST, tokenize, ()),
    ("/detokenize", POST, detokenize, ()),
    ("/tokenizer_info", GET, tokenizer_info, ()),
    ("/health", GET, status.health, ()),
    ("/ping", GET + POST, status.health, ()),
    ("/version", GET, status.version, ()),
    ("/metrics", GET, status.metrics, ()),
    ("/load", GET, status.load, ()),
    ("/reset_prefix_cache", POST, status.reset_prefix_cache, ()),
    ("/kv/tree", GET, kv.tree, ("runs", "requests", "tokens")),
    ("/end_session", POST, kv.end_session, ()),
    ("/slots", GET, slots.slots, ("fail_on_no_slot",)),
    ("/slots/{id}", POST, slots.act, ("action",)),
    ("/openapi.json", GET, status.openapi, ()),
    ("/", GET, status.root, ()),
)


def create_app(engine: ServedEngine, settings: ServeSettings, metrics: Metrics) -> Starlette:
    """The ASGI app over an engine, which may still be starting: until it runs, generations answer 503."""
    app = Starlette(
        routes=[Route(path, taking(act, *known), methods=methods) for path, methods, act, known in ROUTES],
        middleware=_middleware(settings),
        exception_handlers={
            PeltonError: answer_error,
            HTTPException: answer_error,
            ClientDisconnect: answer_error,
            Exception: answer_bug,
        },
    )
    # A path with a slash too many is unknown, as everywhere else here; a redirect would lose the body's method.
    app.router.redirect_slashes = False
    app.state.service = Service(engine, settings, metrics)
    return app


def _middleware(settings: ServeSettings) -> list[Middleware]:
    """From the outside in."""
    chain = [Middleware(RequestId)]
    if settings.allowed_origins:
        chain.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.allowed_origins,
                allow_methods=("*",),
                allow_headers=("*",),
                expose_headers=(HEADER, IGNORED, "X-Pelton-Cache"),
            )
        )
    chain.append(Middleware(RootPath, root_path=settings.root_path))
    if settings.api_keys:
        chain.append(Middleware(ApiKey, keys=settings.api_keys))
    chain.append(Middleware(BodyLimit, most=settings.max_body_bytes))
    return chain
