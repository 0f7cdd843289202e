"""The interface as an OpenAPI 3.1 document, made from the records that the bodies are read by.

Invariant: a route that takes a body describes each field that it knows.
"""

from functools import cache

import msgspec

from pelton import __version__
from pelton.serve.errors import ErrorAnswer
from pelton.serve.schema.answers import ChatAnswer, Text, TextAnswer, Tokens
from pelton.serve.schema.fields import (
    SLOT_ACTIONS,
    CallFields,
    ChatFields,
    CompletionFields,
    DetokenizeFields,
    MessageFields,
    PromptFields,
    SamplingFields,
    SessionFields,
    SlotFields,
    TokenizeFields,
)
from pelton.serve.schema.infill import InfillAnswer, InfillFields
from pelton.serve.schema.json_text import Json

REFERENCE = "#/components/schemas/{name}"
Records = tuple[type[msgspec.Struct], ...]

# path -> (what it does, records of its body (each alternative), record of its answer)
POSTS: dict[str, tuple[str, tuple[Records, ...], type[msgspec.Struct] | None]] = {
    "/v1/chat/completions": (
        "Answers to a conversation",
        ((MessageFields, ChatFields, CallFields, SamplingFields),),
        ChatAnswer,
    ),
    "/v1/completions": ("Answers to prompts", ((CompletionFields, CallFields, SamplingFields),), TextAnswer),
    "/infill": ("What stands between two texts", ((InfillFields,),), InfillAnswer),
    "/tokenize": (
        "Token ids of a prompt or a conversation",
        ((PromptFields, TokenizeFields), (MessageFields, TokenizeFields)),
        Tokens,
    ),
    "/detokenize": ("Text of token ids", ((DetokenizeFields,),), Text),
    "/reset_prefix_cache": ("Forgets cached blocks", (), None),
    "/end_session": ("Lets go of what is held for a session", ((SessionFields,),), None),
}
OPTIONAL = (SlotFields, SessionFields)  # bodies that may be missing
STREAMED = (ChatAnswer, TextAnswer, InfillAnswer)
GETS = {
    "/v1/models": "Names of the model",
    "/tokenizer_info": "Special tokens and the chat template",
    "/health": "Whether requests are taken",
    "/ping": "The same, by another name",
    "/version": "Version of the server",
    "/metrics": "Metrics in Prometheus' text form",
    "/load": "Answers in the making",
    "/kv/tree": "KV blocks, the prefix tree, and who holds them",
    "/slots": "Slots: sessions by number",
    "/openapi.json": "This document",
    "/": "Where to go from here",
}


@cache
def document() -> Json:
    """The whole document as JSON."""
    records: dict[type[msgspec.Struct], None] = {ErrorAnswer: None, SlotFields: None}
    for _, bodies, answer in POSTS.values():
        records |= dict.fromkeys(record for body in bodies for record in body)
        records |= {} if answer is None else {answer: None}
    _, schemas = msgspec.json.schema_components(records, ref_template=REFERENCE)
    paths: dict[str, Json] = {path: {"get": _operation(summary)} for path, summary in GETS.items()}
    paths["/v1/models/{id}"] = {"get": _operation("One name of the model", path_parameter="id")}
    slot = _operation(
        "Saves, restores or lets go what is held for a slot", bodies=((SlotFields,),), path_parameter="id"
    )
    slot["parameters"].append(
        {"name": "action", "in": "query", "required": True, "schema": {"type": "string", "enum": list(SLOT_ACTIONS)}}
    )
    paths["/slots/{id}"] = {"post": slot}
    for path, (summary, bodies, answer) in POSTS.items():
        paths[path] = {"post": _operation(summary, bodies=bodies, answer=answer)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pelton", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(
    summary: str,
    *,
    bodies: tuple[Records, ...] = (),
    answer: type[msgspec.Struct] | None = None,
    path_parameter: str | None = None,
) -> Json:
    good: Json = {"description": "Done"}
    if answer is not None:
        good["content"] = {"application/json": {"schema": _reference(answer)}}
        if answer in STREAMED:
            good["content"]["text/event-stream"] = {}
    bad = {"description": "What went wrong", "content": {"application/json": {"schema": _reference(ErrorAnswer)}}}
    operation: Json = {"summary": summary, "responses": {"200": good, "4XX": bad, "503": bad}}
    if bodies:
        kinds = [{"allOf": [_reference(record) for record in body]} for body in bodies]
        schema = {"anyOf": kinds} if len(kinds) > 1 else kinds[0]
        required = not set(OPTIONAL).issuperset(bodies[0])
        operation["requestBody"] = {"required": required, "content": {"application/json": {"schema": schema}}}
    if path_parameter is not None:
        operation["parameters"] = [
            {"name": path_parameter, "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    return operation


def _reference(record: type[msgspec.Struct]) -> Json:
    return {"$ref": REFERENCE.format(name=record.__name__)}
