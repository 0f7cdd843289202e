"""A conversation as the model's prompt: template applied, text tokenised. Shared by chat and /tokenize."""

import re
from dataclasses import dataclass

from pelton.core.errors import RequestError
from pelton.engine.prompts import check_template
from pelton.serve.schema.conversation import conversation, unread
from pelton.serve.schema.fields import MessageFields
from pelton.serve.schema.json_text import Json
from pelton.serve.service import Service

_NAME = re.compile(r"\w+")  # whatever a template's text does not name, it cannot look at by name


@dataclass(frozen=True, slots=True)
class Rendered:
    """The prompt's text and ids, and the messages as the template saw them. `ignored`: what nothing has looked at."""

    text: str
    ids: tuple[int, ...]
    messages: list[dict[str, Json]]
    ignored: tuple[str, ...]


def rendered(service: Service, fields: MessageFields, *, bos: bool) -> Rendered:
    """The prompt of a conversation; RequestError for what the template or the model cannot take.

    `bos`: the model's first token in front, where the template has not put it there already.
    """
    if fields.chat_template is not None and not service.settings.trust_request_chat_template:
        raise RequestError(
            "This server takes no chat_template from requests.",
            "Leave it out, or start the server with --trust-request-chat-template.",
            param="chat_template",
        )
    if fields.add_generation_prompt and fields.continue_final_message:
        raise RequestError(
            "add_generation_prompt and continue_final_message exclude each other.",
            "Set add_generation_prompt to false.",
            param="continue_final_message",
        )
    check_template(fields.chat_template, fields.chat_template_kwargs)
    messages = conversation(fields.messages)
    continued = bool(fields.continue_final_message)
    template = service.engine.front.template(fields.chat_template)
    text = template.render(
        messages,
        add_generation_prompt=fields.add_generation_prompt is not False and not continued,
        continue_final_message=continued,
        **(fields.chat_template_kwargs or {}),
    )
    names = frozenset(_NAME.findall(template.source))
    ignored = [*unread(fields.messages, names)]
    ignored += [f"chat_template_kwargs.{name}" for name in fields.chat_template_kwargs or () if name not in names]
    ids = service.engine.requests.encode(text, bos=bos, param="messages")
    return Rendered(text, ids, messages, tuple(ignored))
