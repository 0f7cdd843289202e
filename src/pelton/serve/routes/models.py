"""GET /v1/models and /v1/models/{id}: the names of the model, once it is loaded."""

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pelton.serve.replies.head import encode
from pelton.serve.routes.generation import service_of
from pelton.serve.service import Service


class ModelCard(msgspec.Struct):
    """One name of the model. `max_model_len`: tokens of a prompt with its answer."""

    id: str
    object: str
    created: int
    owned_by: str
    root: str
    max_model_len: int


class ModelList(msgspec.Struct):
    """All names; none while the model is not loaded."""

    object: str
    data: list[ModelCard]


async def models(http: HttpRequest) -> Response:
    """Every name that requests may use."""
    service = service_of(http)
    cards = [_card(service, name) for name in service.names] if service.running else []
    return Response(encode(ModelList("list", cards)), media_type="application/json")


async def model(http: HttpRequest) -> Response:
    """One name's card."""
    service = service_of(http)
    name = service.model_name(http.path_params["name"])
    return Response(encode(_card(service, name)), media_type="application/json")


def _card(service: Service, name: str) -> ModelCard:
    root = service.engine.front.config.model.model
    return ModelCard(name, "model", service.created, "pelton", root, service.engine.limits.max_len)
