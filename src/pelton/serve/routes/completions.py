"""POST /v1/completions."""

from collections.abc import Mapping

from starlette.requests import Request as HttpRequest
from starlette.types import Scope

from pelton.core.errors import RequestError
from pelton.serve.replies.completion import CompletionWriter
from pelton.serve.routes.generation import asked, head_of, replied, requests_of, sampling_of
from pelton.serve.schema.body import Body
from pelton.serve.schema.fields import CallFields, CompletionFields, SamplingFields
from pelton.serve.schema.json_text import read_object
from pelton.serve.schema.prompts import Given, prompts_of
from pelton.serve.service import Call, Service
from pelton.serve.streaming import Reply

RECORDS = (CallFields, SamplingFields, CompletionFields)


async def completions(http: HttpRequest) -> Reply:
    """Answers to one prompt or several."""
    return await replied(http, completions_call)


def completions_call(service: Service, scope: Scope, raw: bytes) -> Call:
    """The call that a body asks for; RequestError naming what of it cannot be."""
    body = Body(read_object(raw), strict=service.settings.strict, known=RECORDS)
    own = body.read(CompletionFields)
    common = asked(service, body)
    echo = bool(common.fields.echo)
    given = dict(common.sampling)
    if own.logprobs is not None:
        given["logprobs"] = own.logprobs
        if echo:
            asked_for = given.get("prompt_logprobs")
            given["prompt_logprobs"] = max(own.logprobs, asked_for if isinstance(asked_for, int) else 0)
    used = sampling_of(service, given, None)
    bos = common.fields.add_special_tokens is not False
    if own.suffix:
        _check_beside_suffix(echo, bos)
    prompts = [_prompt(service, prompt, bos, own.suffix) for prompt in prompts_of(own.prompt)]
    largest = "max_tokens" if "max_tokens" in given else None
    requests = requests_of(service, scope, prompts, used.params, common.fields, source="prompt", largest=largest)
    head = head_of(service, scope, "cmpl", common, requests, used)
    writer = CompletionWriter(
        head, echo=echo, logprobs=own.logprobs is not None, prompt_logprobs="prompt_logprobs" in common.sampling
    )
    return Call(requests, writer, common.stream, body.ignored, used)


def _check_beside_suffix(echo: bool, bos: bool) -> None:
    """RequestError for what has no meaning where an answer fills a gap."""
    if echo:
        raise RequestError(
            "echo puts the prompt in front, and with suffix that is no beginning of a text.",
            "Leave one of them out.",
            param="echo",
        )
    if not bos:
        raise RequestError(
            "With suffix the prompt is put together of special tokens.",
            "Leave add_special_tokens out.",
            param="add_special_tokens",
        )


def _prompt(service: Service, given: Given, bos: bool, suffix: str | None) -> str | Mapping[str, object]:
    """The prompt as RequestMaker takes it."""
    if suffix:
        return {"prompt_token_ids" if isinstance(given, list) else "prompt": given, "suffix": suffix}
    if isinstance(given, list):
        return {"prompt_token_ids": given}
    if bos:
        return given
    return {"prompt": given, "prompt_token_ids": service.engine.requests.encode(given, bos=False, param="prompt")}
