"""What tells about the server itself: probes, version, metrics, load, the prefix cache's reset. No generation."""

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pelton import __version__
from pelton.serve.openapi import document
from pelton.serve.routes.generation import service_of
from pelton.serve.routes.kv import as_json
from pelton.serve.schema.body import Body
from pelton.serve.schema.json_text import read_object


async def health(http: HttpRequest) -> Response:
    """200 if requests are taken, 503 if not (yet)."""
    service_of(http).expect_running()
    return Response()


async def version(http: HttpRequest) -> Response:
    """The version of the package."""
    return _json({"version": __version__})


async def metrics(http: HttpRequest) -> Response:
    """Everything measured, in Prometheus' text form."""
    body, kind = service_of(http).metrics.render()
    return Response(body, headers={"content-type": kind})


async def load(http: HttpRequest) -> Response:
    """How many answers are in the making or waiting."""
    return _json({"server_load": service_of(http).engine.load})


async def reset_prefix_cache(http: HttpRequest) -> Response:
    """Forgets every cached block that no request uses. A body says nothing more."""
    service = service_of(http)
    service.expect_running()
    raw = await http.body()
    body = Body(read_object(raw or b"{}"), strict=service.settings.strict, known=())
    return as_json({"reset": await service.engine.reset_prefix_cache()}, body)


async def openapi(http: HttpRequest) -> Response:
    """This server's interface, as OpenAPI 3.1."""
    return _json(document())


async def root(http: HttpRequest) -> Response:
    """Where to go from here."""
    return _json({"name": "pelton", "version": __version__, "interface": "/openapi.json"})


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
