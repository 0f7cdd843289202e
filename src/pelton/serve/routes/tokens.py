"""POST /tokenize and /detokenize, GET /tokenizer_info, in vLLM's shape. They start nothing in the engine."""

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pelton.core.errors import RequestError
from pelton.serve.replies.head import encode
from pelton.serve.routes.generation import service_of
from pelton.serve.routes.rendering import rendered
from pelton.serve.schema.answers import Text, TokenizerInfo, Tokens
from pelton.serve.schema.body import Body, told_of
from pelton.serve.schema.fields import DetokenizeFields, MessageFields, PromptFields, TokenizeFields
from pelton.serve.schema.json_text import read_object
from pelton.serve.service import Service


async def tokenize(http: HttpRequest) -> Response:
    """Token ids of a prompt or of a conversation."""
    service = service_of(http)
    return await service.prepare(lambda raw: _tokenize(service, raw), await http.body())


async def detokenize(http: HttpRequest) -> Response:
    """Text of token ids."""
    service = service_of(http)
    return await service.prepare(lambda raw: _detokenize(service, raw), await http.body())


async def tokenizer_info(http: HttpRequest) -> Response:
    """The tokenizer's special tokens and the chat template."""
    service = service_of(http)
    service.expect_running()
    front = service.engine.front
    tokenizer, tokens = front.tokenizer, front.special_tokens
    info = TokenizerInfo(
        tokenizer_class=type(tokenizer).__name__,
        vocab_size=tokenizer.vocab_size,
        model_max_length=service.engine.limits.max_len,
        add_bos_token=tokenizer.add_bos,
        bos_token=tokens.bos_token,
        eos_token=tokens.eos_token,
        pad_token=tokens.pad_token,
        unk_token=tokens.unk_token,
        chat_template=front.config.model.chat_template or front.chat_template,
    )
    return Response(encode(info), media_type="application/json")


def _tokenize(service: Service, raw: bytes) -> Response:
    given = read_object(raw)
    body = Body(given, strict=service.settings.strict, known=(TokenizeFields, PromptFields, MessageFields))
    fields = body.read(TokenizeFields)
    service.model_name(fields.model)
    if given.get("prompt") is not None:
        text = body.read(PromptFields).prompt
        body.ignore(name for name in MessageFields.__struct_fields__ if given.get(name) is not None)
        ids = service.engine.requests.encode(text, bos=fields.add_special_tokens is not False, param="prompt")
    else:
        prompt = rendered(service, body.read(MessageFields), bos=bool(fields.add_special_tokens))
        body.ignore(prompt.ignored)
        ids = prompt.ids
    tokenizer = service.engine.front.tokenizer
    strings = [tokenizer.token_text(token) for token in ids] if fields.return_token_strs else None
    return _json(body, Tokens(len(ids), service.engine.limits.max_len, list(ids), strings))


def _detokenize(service: Service, raw: bytes) -> Response:
    body = Body(read_object(raw), strict=service.settings.strict, known=(DetokenizeFields,))
    fields = body.read(DetokenizeFields)
    service.model_name(fields.model)
    try:
        text = service.engine.front.tokenizer.decode(fields.tokens, skip_special=False)
    except RequestError as error:
        raise RequestError(error.cause, error.remedy, param="tokens", code=error.code) from error
    return _json(body, Text(text))


def _json(body: Body, value: msgspec.Struct) -> Response:
    return Response(encode(value), headers=told_of(body.ignored), media_type="application/json")
