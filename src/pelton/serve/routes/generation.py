"""What chat and completions have in common: from a checked body to the Requests of one call.

Invariant: whatever the client asked and cannot have is refused here, before the engine sees any of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.types import Scope

from pelton.core.errors import RequestError
from pelton.core.params import SamplingParams
from pelton.core.request import Request
from pelton.sampling.effective import Effective, effective
from pelton.serve.replies.head import Head
from pelton.serve.replies.tokens import TokenWriter
from pelton.serve.request_id import request_id_of
from pelton.serve.schema.body import Body
from pelton.serve.schema.fields import CallFields, SamplingFields
from pelton.serve.service import Call, Service, explained, unix_time
from pelton.serve.streaming import Reply
from pelton.serve.terms import session_of, terms_of

MOST_SEQUENCES = 4096  # answers of one call


@dataclass(frozen=True, slots=True)
class Asked:
    """What both routes read from a body. `sampling`: the fields that were given, by SamplingParams' names."""

    fields: CallFields
    sampling: dict[str, object]
    stream: bool
    model: str


async def replied(http: HttpRequest, make: Callable[[Service, Scope, bytes], Call]) -> Reply:
    """The answer to a generation route's request, whose body `make` reads."""
    service = service_of(http)
    raw = await http.body()
    call = await service.prepare(lambda body: make(service, http.scope, body), raw)
    service.log(request_id_of(http.scope), call)
    return Reply(service, call)


def service_of(http: HttpRequest) -> Service:
    """The Service of the app that a request came to."""
    service: Service = http.app.state.service
    return service


def asked(service: Service, body: Body) -> Asked:
    """The fields that both routes share, checked against each other."""
    fields = body.read(CallFields)
    sampling = body.read(SamplingFields)
    stream = bool(fields.stream)
    if fields.stream_options is not None and not stream:
        raise RequestError(
            "stream_options is given, but stream is not true.", "Set stream, or leave it out.", param="stream_options"
        )
    if stream and sampling.prompt_logprobs is not None:
        raise RequestError(
            "prompt_logprobs cannot be streamed.", "Leave stream out, or prompt_logprobs.", param="prompt_logprobs"
        )
    given = {name: value for name, value in msgspec.structs.asdict(sampling).items() if value is not None}
    if given.get("seed") == -1:
        del given["seed"]
    return Asked(fields, given, stream, service.model_name(fields.model))


def sampling_of(service: Service, given: Mapping[str, object], general: Mapping[str, object] | None) -> Effective:
    """Effective values: the request's, over the settings' and the model's, over `general`, over the usual ones."""
    return effective(given, service.engine.front.defaults, general)


def requests_of(
    service: Service,
    scope: Scope,
    prompts: Sequence[str | Mapping[str, object]],
    params: SamplingParams,
    fields: CallFields,
    *,
    source: str,
    largest: str | None,
) -> tuple[Request, ...]:
    """A Request for each prompt. `source`: the field of the body that the prompts are from.

    `largest`: the field by which the client gave max_tokens, if it did; then that has to fit.
    """
    if len(prompts) * params.n > MOST_SEQUENCES:
        raise RequestError(
            f"{len(prompts)} prompts with n={params.n} are {len(prompts) * params.n} answers.",
            f"Ask for at most {MOST_SEQUENCES} in one request.",
            param=source if len(prompts) > MOST_SEQUENCES else "n",
        )
    terms = terms_of(service.settings, scope, fields.user, fields.timeout)
    session = session_of(scope, service.slots, fields.session_id, fields.id_slot)
    made = []
    for place, prompt in enumerate(prompts):
        try:
            request = service.engine.requests.make(
                prompt,
                params,
                priority=fields.priority or 0,
                cache_salt=fields.cache_salt or "",
                session_id=session or None,
            )
            if largest is not None and params.max_tokens is not None and request.max_tokens < params.max_tokens:
                raise _too_much(service, request, params.max_tokens, largest)
        except RequestError as error:
            raise _placed(error, source if len(prompts) == 1 else f"{source}[{place}]") from error
        made.append(terms.on(request))
    return tuple(made)


def head_of(
    service: Service, scope: Scope, kind: str, asked_for: Asked, requests: tuple[Request, ...], used: Effective
) -> Head:
    """Identity and wishes for the writers. `kind`: the beginning of the answer's id."""
    fields = asked_for.fields
    options = fields.stream_options
    wants_usage = options is not None and bool(options.include_usage)
    return Head(
        id=f"{kind}-{fields.request_id or request_id_of(scope)}",
        created=unix_time(),
        model=asked_for.model,
        fingerprint=service.fingerprint,
        requests=requests,
        tokens=TokenWriter(service.engine.front.tokenizer, bool(fields.return_tokens_as_token_ids)),
        include_usage=wants_usage or service.settings.enable_force_include_usage,
        usage_in_chunks=options is not None and bool(options.continuous_usage_stats),
        return_token_ids=bool(fields.return_token_ids),
        explained=explained(used, requests) if fields.explain else None,
    )


def _too_much(service: Service, request: Request, asked_for: int, name: str) -> RequestError:
    size, most = len(request.prompt_token_ids), service.engine.limits.max_len
    return RequestError(
        f"{name}={asked_for} does not fit: the prompt has {size} tokens, and with its answer it may have {most}.",
        f"Ask for at most {most - size}, or leave {name} out.",
        param=name,
        code="context_length_exceeded",
    )


def _placed(error: RequestError, source: str) -> RequestError:
    """The same error by the name of the body's field, `source` for what is about the prompt."""
    if error.param not in ("prompt", "prompt_token_ids"):
        return error
    cause = f"{source}: {error.cause}" if source.endswith("]") else error.cause
    return RequestError(cause, error.remedy, param=source, code=error.code)
