"""Chat template: messages -> the one text a chat model was trained on, by the Jinja template its checkpoint carries.

It does not tokenise (encode the text with special=True) and adds no BOS of its own. The template is foreign code: it
runs in Jinja's sandbox, which forbids changing arguments, private attributes and ranges above 100,000; nested loops may
still take any time.
Invariant: rendering changes none of its arguments.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from pelton.checkpoint.special_tokens import SpecialTokens
from pelton.core.errors import RequestError

Message = Mapping[str, object]

# Not white space, so that a template that trims contents keeps it; the space behind it shows whether it trims.
_END_MARK = "\ue000continue\ue001"


class ChatTemplate:
    """A compiled template. `special_tokens`: names such as "bos_token" -> text, seen by the template.

    `now` gives the time for templates that print the date. Raises RequestError(param="messages") for a template that
    does not compile, as all that can be done about it is to hand in another one.
    """

    def __init__(
        self,
        source: str | None,
        special_tokens: Mapping[str, str | None] | None = None,
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        if not source:
            raise RequestError(
                "This model has no chat template, so messages cannot be turned into a prompt.",
                "Use completion with a prompt, or give a chat template.",
                param="messages",
            )
        self.source = source
        self._special_tokens = {name: text for name, text in (special_tokens or {}).items() if text is not None}
        try:
            self._template = _environment(now).from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise RequestError(
                f"The chat template does not compile: {error.message} (line {error.lineno}).",
                "Give another chat template.",
                param="messages",
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        **kwargs: object,
    ) -> str:
        """The prompt text for `messages`; other keywords (such as enable_thinking) go to the template as they are.

        With `continue_final_message` the text ends where the last message's content ends, and no generation prompt is
        added. Raises RequestError(param="messages") with the template's own words if it refuses the conversation.
        """
        shown = list(messages)
        if continue_final_message:
            shown[-1:] = [_marked(shown)]
            add_generation_prompt = False
        values: dict[str, object] = {
            "documents": None,
            **self._special_tokens,
            **kwargs,
            "messages": shown,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = self._template.render(values)
        except Exception as error:  # the template is foreign code: whatever it raises is this request's error
            raise RequestError(
                f"The chat template refused the messages: {(str(error) or type(error).__name__).rstrip('.')}.",
                "Change the messages to what this model's template accepts.",
                param="messages",
            ) from error
        return _cut_at_mark(text) if continue_final_message else text


def build_chat_template(
    source: str | None, tokens: SpecialTokens, *, now: Callable[[], datetime] = datetime.now
) -> ChatTemplate:
    """A checkpoint's template (or one that replaces it) with the checkpoint's special tokens."""
    texts = {
        "bos_token": tokens.bos_token,
        "eos_token": tokens.eos_token,
        "pad_token": tokens.pad_token,
        "unk_token": tokens.unk_token,
    }
    return ChatTemplate(source, texts, now=now)


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks answers for training; here only its content counts."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _PublicNamespace(Namespace):
    """Jinja's namespace without names that start with an underscore, which lead to the interpreter's insides."""

    def __init__(*args: object, **kwargs: object) -> None:
        # As in Jinja, "self" is left free to be the name of a field.
        owner, *rest = args
        for name in dict(*rest, **kwargs):
            _check_public(name)
        Namespace.__init__(owner, *rest, **kwargs)

    def __setitem__(self, name: str, value: object) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """Jinja set up as `transformers` does, which is what templates are written for."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    environment.globals["dict"] = _make_dict
    environment.globals["namespace"] = _PublicNamespace
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _make_dict(*args: object, **kwargs: object) -> dict[str, object]:
    return dict(*args, **kwargs)


def _check_public(name: object) -> None:
    if str(name).startswith("_"):
        raise jinja2.exceptions.SecurityError(f"A template may not store the private name {name!r}.")


def _marked(messages: Sequence[Message]) -> Message:
    """The last message, its text ended by the mark."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, str):
        return {**messages[-1], "content": content + _END_MARK + " "}
    parts = list(content) if isinstance(content, (list, tuple)) else []
    for place in range(len(parts) - 1, -1, -1):
        part = parts[place]
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            parts[place] = {**part, "text": part["text"] + _END_MARK + " "}
            return {**messages[-1], "content": parts}
    raise RequestError(
        "continue_final_message is set, but the last message has no text to continue.",
        "End the messages with the text that is to be continued.",
        param="messages",
    )


def _cut_at_mark(text: str) -> str:
    end = text.rfind(_END_MARK)
    if end < 0:
        raise RequestError(
            "continue_final_message is set, but this chat template does not show the last message.",
            "Ask for a new message instead.",
            param="messages",
        )
    kept_spaces = text[end + len(_END_MARK) :].startswith(" ")
    return text[:end] if kept_spaces else text[:end].rstrip()
