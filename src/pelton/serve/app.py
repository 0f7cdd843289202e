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
from pelton.serve.routes.tokens import detokenize, tokenize, tokenizer_info
from pelton.serve.service import ServedEngine, Service
from pelton.serve.settings import ServeSettings

ROUTES = (
    Route("/v1/chat/completions", chat, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/infill", infill, methods=["POST"]),
    Route("/v1/models", models),
    Route("/v1/models/{name:path}", model),
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
    Route("/tokenizer_info", tokenizer_info),
    Route("/health", status.health),
    Route("/ping", status.health, methods=["GET", "POST"]),
    Route("/version", status.version),
    Route("/metrics", status.metrics),
    Route("/load", status.load),
    Route("/reset_prefix_cache", status.reset_prefix_cache, methods=["POST"]),
    Route("/kv/tree", kv.tree),
    Route("/end_session", kv.end_session, methods=["POST"]),
    Route("/slots", slots.slots),
    Route("/slots/{id}", slots.act, methods=["POST"]),
    Route("/openapi.json", status.openapi),
    Route("/", status.root),
)


def create_app(engine: ServedEngine, settings: ServeSettings, metrics: Metrics) -> Starlette:
    """The ASGI app over an engine, which may still be starting: until it runs, generations answer 503."""
    app = Starlette(
        routes=ROUTES,
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
                expose_headers=(HEADER, "X-Pelton-Ignored", "X-Pelton-Cache"),
            )
        )
    chain.append(Middleware(RootPath, root_path=settings.root_path))
    if settings.api_keys:
        chain.append(Middleware(ApiKey, keys=settings.api_keys))
    chain.append(Middleware(BodyLimit, most=settings.max_body_bytes))
    return chain
