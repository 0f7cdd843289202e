"""What all chunks of one answer have in common, and the writing of events."""

from dataclasses import dataclass

import msgspec

from pelton.core.request import Request
from pelton.serve.replies.tokens import TokenWriter
from pelton.serve.schema.json_text import Json

DONE = b"data: [DONE]\n\n"
_ENCODER = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Head:
    """One call's identity and wishes. `requests`: one per prompt; `explained`: sampling values, if they are wanted."""

    id: str
    created: int
    model: str
    fingerprint: str
    requests: tuple[Request, ...]
    tokens: TokenWriter
    include_usage: bool
    usage_in_chunks: bool
    return_token_ids: bool
    explained: Json | None

    @property
    def told(self) -> Json:
        """Our own part of the answer."""
        return {"sampling": self.explained}


def encode(value: msgspec.Struct) -> bytes:
    """A record as JSON."""
    return _ENCODER.encode(value)


def event(value: msgspec.Struct) -> bytes:
    """A record as an event of a stream."""
    return b"data: " + _ENCODER.encode(value) + b"\n\n"
