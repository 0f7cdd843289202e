"""GET /slots and POST /slots/{id}: sessions by number, saved and restored, in the shape of llama.cpp's server."""

import os
from pathlib import Path

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pelton.core.errors import OverloadedError, RequestError
from pelton.core.request import slot_session
from pelton.engine.process.messages import DescribeSlots, EndSession, RestoreSession, SaveSession
from pelton.serve.errors import NOT_SUPPORTED
from pelton.serve.routes.generation import service_of
from pelton.serve.routes.kv import as_json
from pelton.serve.schema.body import Body
from pelton.serve.schema.fields import SLOT_ACTIONS, SlotFields
from pelton.serve.schema.json_text import Json, read_object
from pelton.serve.schema.query import Query
from pelton.serve.service import Service
from pelton.serve.terms import expect_slot

SAVE, RESTORE, ERASE = SLOT_ACTIONS
MOST_NAME = 255  # bytes
NEVER = frozenset('/\\:*?"<>|')  # in names of files, of whatever system


async def slots(http: HttpRequest) -> Response:
    """All slots; with fail_on_no_slot=1 a 503 where none is free."""
    service = service_of(http)
    service.expect_running()
    query: Query = http.state.query
    wanted = query.flag("fail_on_no_slot", "0", "1")
    body = await service.ask(DescribeSlots())
    if wanted:
        listed: list[dict[str, Json]] = msgspec.json.decode(body)
        if all(slot["is_processing"] for slot in listed):
            raise OverloadedError("No slot is free.", "Ask again in a moment.")
    return Response(body, media_type="application/json")


async def act(http: HttpRequest) -> Response:
    """What is held for a slot is saved to a file, restored from one, or let go, as the query's `action` says."""
    service = service_of(http)
    service.expect_running()
    query: Query = http.state.query
    number, action = _number(service, http.path_params["id"]), query.text("action")
    if action not in SLOT_ACTIONS:
        raise RequestError(
            f"action={action[:40]!r} cannot work.", f"It is {SAVE}, {RESTORE} or {ERASE}.", param="action"
        )
    raw = await http.body()
    body = Body(read_object(raw or b"{}"), strict=service.settings.strict, known=(SlotFields,))
    fields = body.read(SlotFields)
    session = (fields.cache_salt or "", slot_session(number))
    if action == ERASE:
        body.ignore(["filename"] if fields.filename is not None else [])
        tokens = await service.ask(EndSession(session))
        return as_json({"id_slot": number, "n_erased": int(tokens or b"0")}, body)
    path = os.fsencode(_path(service, fields.filename))
    done = await service.ask(SaveSession(session, path) if action == SAVE else RestoreSession(session, path))
    return as_json({"id_slot": number, "filename": fields.filename, **msgspec.json.decode(done)}, body)


def _number(service: Service, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RequestError(f"id_slot={text[:40]!r} cannot work.", "Name the slot by its number.", param="id_slot")
    return expect_slot(int(text), service.slots)


def _path(service: Service, name: str | None) -> Path:
    """Where a slot is saved. RequestError where none is, and for what is no name of a file in that folder."""
    folder, why = service.settings.slot_save_path, service.engine.front.config.cache.no_sessions
    if folder is None:
        raise RequestError(
            "This server neither saves nor restores slots.", "Start it with --slot-save-path.", code=NOT_SUPPORTED
        )
    if why:
        raise RequestError(f"No slot holds anything here: {why}.", "Start the server with another setting.")
    if name is None:
        raise RequestError("filename is missing.", "Give filename.", param="filename", code="missing_parameter")
    good = name.isprintable() and not NEVER & set(name) and name[0] not in ". " and name[-1] not in ". "
    if not good or len(name.encode()) > MOST_NAME:
        raise RequestError(
            f"filename={name[:40]!r} cannot work.",
            f"It is the name of a file in the server's folder: at most {MOST_NAME} bytes, no path, no dot in front.",
            param="filename",
        )
    return Path(folder).absolute() / name
