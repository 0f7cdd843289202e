"""The fields of the bodies that take effect, by the names and types clients know. Meanings are in docs/http.md.

A body is read as several of these records at once, so that what two routes share stands here once. Null is as good as
absent everywhere.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pelton.core.params import MAX_LOGPROBS, MAX_REPETITION, MAX_SEED, MAX_TEXTS
from pelton.engine.load.deadlines import MOST_SECONDS
from pelton.serve.schema.json_text import Json

MAX_N = 128
MAX_TEMPERATURE = 2.0
MAX_PRIORITY = 2**31 - 1
MAX_NAME = 256
MAX_SECONDS = MOST_SECONDS
SLOT_ACTIONS = ("save", "restore", "erase")

SEEDS = {"maximum": MAX_SEED}  # beyond what Meta can bound
TEXT_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"enum": ["text"]}, "text": {"type": "string"}},
}
MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": TEXT_PART}]},
    },
}
MESSAGES = {"minItems": 1, "allOf": [{"items": MESSAGE}]}  # the record's own type says "object" alone

Count = Annotated[int, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
TopCount = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Texts = Annotated[list[str], Meta(max_length=MAX_TEXTS)]
SlotNumber = Annotated[int, Meta(ge=-1, description="-1: none.")]
TokenIds = list[Annotated[int, Meta(ge=0)]]


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields that become SamplingParams of the same names."""

    n: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=MAX_REPETITION)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: Texts | None = None
    seed: Annotated[int, Meta(ge=-1, description="-1: a fresh one.", extra_json_schema=SEEDS)] | None = None
    stop: str | Texts | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    max_tokens: Count | None = None
    min_tokens: Count | None = None
    prompt_logprobs: TopCount | None = None
    skip_special_tokens: bool | None = None
    stream_granularity: Literal["token", "word", "sentence"] | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream tells besides the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


NESTED: dict[str, type[msgspec.Struct]] = {"stream_options": StreamOptions}  # fields that have fields


class CallFields(msgspec.Struct, kw_only=True):
    """Fields of a generation that are about neither prompt nor sampling."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    echo: bool | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    cache_salt: Name | None = None
    session_id: Name | None = None
    id_slot: SlotNumber | None = None
    request_id: Name | None = None
    user: Annotated[str, Meta(max_length=MAX_NAME)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=MAX_SECONDS, description="Seconds.")] | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    explain: bool | None = None


class MessageFields(msgspec.Struct, kw_only=True):
    """A conversation and how it becomes a prompt."""

    messages: Annotated[list[dict[str, Json]], Meta(extra_json_schema=MESSAGES)]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Json] | None = None


class ChatFields(msgspec.Struct, kw_only=True):
    """Fields of /v1/chat/completions alone."""

    logprobs: bool | None = None
    top_logprobs: TopCount | None = None
    max_completion_tokens: Count | None = None


class CompletionFields(msgspec.Struct, kw_only=True):
    """Fields of /v1/completions alone."""

    prompt: Annotated[
        Json,
        Meta(
            description="Text, token ids, or a list of either.",
            extra_json_schema={
                "anyOf": [
                    {"type": "string"},
                    {"type": "array", "items": {"type": "string"}, "minItems": 1},
                    {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
                    {
                        "type": "array",
                        "items": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
                        "minItems": 1,
                    },
                ]
            },
        ),
    ]
    logprobs: TopCount | None = None
    suffix: Annotated[str, Meta(description="What stands behind the answer.")] | None = None


class PromptFields(msgspec.Struct, kw_only=True):
    """A text for /tokenize, in place of a conversation."""

    prompt: str


class TokenizeFields(msgspec.Struct, kw_only=True):
    """Fields of /tokenize besides what is tokenised."""

    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class SessionFields(msgspec.Struct, kw_only=True):
    """A body of /end_session; the header may name the session too."""

    session_id: Name | None = None
    id_slot: SlotNumber | None = None
    cache_salt: Name | None = None


class SlotFields(msgspec.Struct, kw_only=True):
    """A body of /slots/{id}."""

    filename: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)] | None = None
    cache_salt: Name | None = None


class DetokenizeFields(msgspec.Struct, kw_only=True):
    """A body of /detokenize."""

    tokens: TokenIds
    model: str | None = None
