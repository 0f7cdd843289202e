"""POST /infill: fills the gap between two texts, in the shape of llama.cpp's server."""

from dataclasses import replace

from starlette.requests import Request as HttpRequest
from starlette.types import Scope

from pelton.engine.texts.infill import Gap
from pelton.serve.replies.infill import InfillWriter
from pelton.serve.request_id import request_id_of
from pelton.serve.routes.generation import Asked, head_of, replied, requests_of, sampling_of
from pelton.serve.schema.body import Body
from pelton.serve.schema.fields import CallFields
from pelton.serve.schema.infill import GENERAL, HINTS, InfillFields, sampling_given
from pelton.serve.schema.json_text import read_object
from pelton.serve.service import Call, Service
from pelton.serve.streaming import Reply

USUAL_ANSWER = 256  # tokens for which room is kept where nobody says how many


async def infill(http: HttpRequest) -> Reply:
    """What stands between two texts."""
    return await replied(http, infill_call)


def infill_call(service: Service, scope: Scope, raw: bytes) -> Call:
    """The call that a body asks for; RequestError naming what of it cannot be."""
    given = read_object(raw)
    service.expect_running()
    # A plugin may send its slot to any server: where that has no effect, it is one hint more.
    slotless = given.get("cache_prompt") is False or bool(service.engine.front.config.cache.no_sessions)
    hints = HINTS | {"id_slot"} if slotless else HINTS
    body = Body(given, strict=service.settings.strict, known=(InfillFields,), hints=hints)
    fields = body.read(InfillFields)
    sampling = sampling_given(fields)
    # Without the cache means: with a salt that nobody else has.
    salt = f"infill {request_id_of(scope)}" if fields.cache_prompt is False else None
    slot = None if slotless else fields.id_slot
    common = CallFields(model=fields.model, stream=fields.stream, cache_salt=salt, id_slot=slot)
    asked = Asked(common, sampling, bool(fields.stream), service.model_name(fields.model))
    used = sampling_of(service, sampling, GENERAL)
    infilling = service.engine.requests.infill
    longest = used.params.max_tokens
    fitted = infilling.fitted(_gap(fields), USUAL_ANSWER if longest is None else longest)
    prompt = {"prompt_token_ids": fitted.ids}
    (request,) = requests_of(service, scope, [prompt], used.params, common, source="prompt", largest=None)
    if not used.params.ignore_eos:
        request = replace(request, stop_token_ids=request.stop_token_ids | infilling.ends)
    head = head_of(service, scope, "infill", asked, (request,), used)
    writer = InfillWriter(head, fields, cut=fitted.cut)
    return Call((request,), writer, asked.stream, body.ignored, used, marked=False)


def _gap(fields: InfillFields) -> Gap:
    files = tuple((file.filename, file.text) for file in fields.input_extra or ())
    return Gap(before=fields.input_prefix, after=fields.input_suffix, begun=fields.prompt or "", files=files)
