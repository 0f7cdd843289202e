"""The JSON that clients get for a generation or for tokens; names and shapes are OpenAI's, some are vLLM's.

A field that is UNSET does not appear.
"""

import msgspec
from msgspec import UNSET, UnsetType

from pelton.serve.schema.json_text import Json

PromptLogprobs = list[dict[str, Json] | None]


class PromptDetails(msgspec.Struct):
    """How much of the prompt was taken from the prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct):
    """Tokens of all prompts and all answers of a request. The details come once they are known of all prompts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | UnsetType = UNSET


class TopLogprob(msgspec.Struct):
    """One of the likeliest tokens at a place. `bytes` are the token's own, also where they are no whole character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """The drawn token at a place, and the likeliest ones."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """One entry per token."""

    content: list[TokenLogprob]


class Message(msgspec.Struct):
    """The answer of a chat."""

    role: str
    content: str


class ChatChoice(msgspec.Struct):
    """One of n answers."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET


class ChatAnswer(msgspec.Struct):
    """The body of a chat that does not stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    pelton: Json | UnsetType = UNSET


class Delta(msgspec.Struct):
    """What is new of an answer."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    """What is new of one of n answers; `finish_reason` with its last piece."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct):
    """One event of a chat that streams."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str
    usage: Usage | None | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    pelton: Json | UnsetType = UNSET


class TextLogprobs(msgspec.Struct):
    """Lists of one length, an entry per token; `text_offset` counts characters from the start of the choice's text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(msgspec.Struct):
    """One of the answers to one or several prompts, or what is new of it."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | None | UnsetType = UNSET


class TextAnswer(msgspec.Struct):
    """The body of a completion, or one event of it."""

    id: str
    object: str
    created: int
    model: str
    choices: list[TextChoice]
    system_fingerprint: str
    usage: Usage | None | UnsetType = UNSET
    pelton: Json | UnsetType = UNSET


class Tokens(msgspec.Struct):
    """The ids of a text, and what each looks like if that is wanted."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class TokenizerInfo(msgspec.Struct):
    """What a client that works with token ids asks of a tokenizer. Tokens by their text, null where there is none."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    add_bos_token: bool
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None


class Text(msgspec.Struct):
    """The text of token ids, special tokens shown."""

    prompt: str
