"""POST /v1/chat/completions."""

from starlette.requests import Request as HttpRequest
from starlette.types import Scope

from pelton.core.errors import RequestError
from pelton.serve.replies.chat import ROLE, ChatWriter
from pelton.serve.routes.generation import Asked, asked, head_of, replied, requests_of, sampling_of
from pelton.serve.routes.rendering import Rendered, rendered
from pelton.serve.schema.body import Body
from pelton.serve.schema.fields import CallFields, ChatFields, MessageFields, SamplingFields
from pelton.serve.schema.json_text import read_object
from pelton.serve.service import Call, Service
from pelton.serve.streaming import Reply

RECORDS = (CallFields, SamplingFields, MessageFields, ChatFields)


async def chat(http: HttpRequest) -> Reply:
    """Answers to a conversation."""
    return await replied(http, chat_call)


def chat_call(service: Service, scope: Scope, raw: bytes) -> Call:
    """The call that a body asks for; RequestError naming what of it cannot be."""
    body = Body(read_object(raw), strict=service.settings.strict, known=RECORDS)
    own = body.read(ChatFields)
    messages = body.read(MessageFields)
    common = asked(service, body)
    given, largest = _given(common, own)
    # No word about length means all the room there is, unless the model or the settings say otherwise.
    used = sampling_of(service, given, {"max_tokens": None})
    prompt = rendered(service, messages, bos=bool(common.fields.add_special_tokens))
    body.ignore(prompt.ignored)
    asking = {"prompt": prompt.text, "prompt_token_ids": prompt.ids}
    requests = requests_of(service, scope, [asking], used.params, common.fields, source="messages", largest=largest)
    head = head_of(service, scope, "chatcmpl", common, requests, used)
    echo = _echo(prompt) if common.fields.echo else ""
    top = (own.top_logprobs or 0) if own.logprobs else None
    return Call(requests, ChatWriter(head, echo=echo, top=top), common.stream, body.ignored, used)


def _given(common: Asked, own: ChatFields) -> tuple[dict[str, object], str | None]:
    """The sampling fields with the route's own among them, and the name by which the length was given."""
    given = dict(common.sampling)
    largest = "max_tokens" if "max_tokens" in given else None
    if own.max_completion_tokens is not None:
        given["max_tokens"], largest = own.max_completion_tokens, "max_completion_tokens"
    if own.top_logprobs and not own.logprobs:
        raise RequestError("top_logprobs needs logprobs.", "Set logprobs to true.", param="top_logprobs")
    if own.logprobs:
        given["logprobs"] = own.top_logprobs or 0
    return given, largest


def _echo(prompt: Rendered) -> str:
    """What stands in front of the answers: the last message, if it is the assistant's own."""
    last = prompt.messages[-1]
    content = last["content"]
    return content if last["role"] == ROLE and isinstance(content, str) else ""
