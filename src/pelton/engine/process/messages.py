"""What the API process and the engine process say to each other: typed records in MessagePack, and nothing else.

Text of users stays in the API process: the engine needs token ids only. Invariant: what one side encodes the other
decodes to the same values, whatever seeds, infinities or lone surrogates are in it.
"""

import json

import msgspec

from pelton.core import errors
from pelton.core.config import EngineConfig
from pelton.core.counters import EngineStats
from pelton.core.errors import EngineDeadError, OverloadedError, PeltonError, RequestError
from pelton.core.events import Event, RequestFinished
from pelton.core.params import MAX_SEED, SamplingParams
from pelton.core.request import Request
from pelton.engine.prompts import PromptLimits
from pelton.engine.report import StartReport

TEXT = "(text)"  # stands for all texts of a parameter: whether there are any counts, also where their ids are looked at
LENGTH_BYTES = 4  # in front of each message: its length, little-endian
_ERRORS = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PeltonError)
}
_DEFAULTS = msgspec.to_builtins(SamplingParams())


class WireRequest(msgspec.Struct, frozen=True, array_like=True):
    """A core Request, all n answers of it, without its texts. `params`: what differs from SamplingParams' defaults."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: dict[str, object]
    stop_token_ids: frozenset[int]
    max_tokens: int
    arrival: float
    priority: int
    bad_word_ids: tuple[tuple[int, ...], ...]
    cache_salt: bytes
    owner: bytes = b""
    deadline: float | None = None
    session_id: str = ""

    @classmethod
    def of(cls, request: Request) -> "WireRequest":
        params = {
            name: _sendable(value)
            for name, value in msgspec.to_builtins(request.params).items()
            if value != _DEFAULTS[name]
        }
        return cls(
            request.request_id,
            request.prompt_token_ids,
            params,
            request.stop_token_ids,
            request.max_tokens,
            request.arrival,
            request.priority,
            request.bad_word_ids,
            request.cache_salt.encode("utf-8", "surrogatepass"),
            request.owner.encode("utf-8", "surrogatepass"),
            request.deadline,
            request.session_id,
        )

    def request(self) -> Request:
        """The Request again, with TEXT in place of all texts; RequestError where the parameters cannot be."""
        return Request(
            self.request_id,
            self.prompt_token_ids,
            SamplingParams(**self.params),  # type: ignore[arg-type]
            self.stop_token_ids,
            self.max_tokens,
            self.arrival,
            priority=self.priority,
            bad_word_ids=self.bad_word_ids,
            cache_salt=self.cache_salt.decode("utf-8", "surrogatepass"),
            owner=self.owner.decode("utf-8", "surrogatepass"),
            deadline=self.deadline,
            session_id=self.session_id,
        )


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """An error on its way: the name of its class and what it says."""

    kind: str
    cause: str
    remedy: str = ""
    param: str | None = None
    code: str | None = None
    retry_after: float = 1.0

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Of a PeltonError all that it says; of any other its class and text, as the cause."""
        if not isinstance(error, PeltonError):
            return cls("", printable(f"{type(error).__name__}: {error}"))
        param, code = (error.param, error.code) if isinstance(error, RequestError) else (None, None)
        after = error.retry_after if isinstance(error, OverloadedError) else 1.0
        return cls(type(error).__name__, printable(error.cause), printable(error.remedy), param, code, after)

    def error(self) -> PeltonError:
        """The same error again; EngineDeadError for one that is none of Pelton's."""
        kind = _ERRORS.get(self.kind, EngineDeadError)
        if issubclass(kind, RequestError):
            return kind(self.cause, self.remedy, param=self.param, code=self.code)
        if issubclass(kind, OverloadedError):
            return kind(self.cause, self.remedy, retry_after=self.retry_after)
        return kind(self.cause, self.remedy)


# To the engine process.


class Start(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first message. `config`: EngineConfig by `config_text`; `parent`: the process without which to end."""

    config: str
    parent: int
    log_level: int


class Add(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """All sequences of one request join the engine, or none. `sequences`: their ids."""

    request: WireRequest
    sequences: tuple[str, ...]


class Stop(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Sequences whose text met a stop string."""

    request_ids: tuple[str, ...]


class Abort(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Sequences that nobody waits for any more."""

    request_ids: tuple[str, ...]


class DescribeCache(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The shape of the memory, as JSON (kv/shape.py), and who holds it: `requests` at most (schedule/holdings.py)."""

    runs: int
    tokens: bool = False
    requests: int = 0


class EndSession(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What is held for a session, (salt, id), is let go. Answered by how many tokens that had, b"" for none."""

    session: tuple[str, str]


class DescribeSlots(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """All slots, as JSON: see Holdings.slots."""


class SaveSession(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What is held for a session goes to a file. Answered by JSON: see Slots.save."""

    session: tuple[str, str]
    path: bytes


class RestoreSession(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The opposite: see Slots.restore."""

    session: tuple[str, str]
    path: bytes


class ResetPrefixCache(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Drops every cached block that nobody uses, and the files of such. Answered by b"" once they are gone."""


Question = DescribeCache | EndSession | DescribeSlots | SaveSession | RestoreSession | ResetPrefixCache


class Ask(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Answered by a Told with the same number."""

    number: int
    question: Question


class Shutdown(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """End now, whatever is open."""


Inbound = Start | Add | Stop | Abort | Ask | Shutdown


# From the engine process.


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The model is loaded. `report`: StartReport as JSON."""

    report: str
    limits: PromptLimits

    @classmethod
    def of(cls, report: StartReport, limits: PromptLimits) -> "Ready":
        return cls(json.dumps(msgspec.to_builtins(report)), limits)

    def start_report(self) -> StartReport:
        return msgspec.convert(json.loads(self.report), StartReport)


class StartFailed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The model cannot be loaded; the process ends."""

    failure: Failure


class Step(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """All that one step brought; `began`, `now` in seconds of the clock that both processes share.

    `taken`: sequences received since the start, refused ones among them: `stats` know of these.
    """

    events: tuple[Event, ...]
    stats: EngineStats
    began: float
    now: float
    taken: int = 0


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The request of this id cannot run. `never`: its sequences that were not in the engine; the end of others is told.

    `taken` as in Step.
    """

    request_id: str
    failure: Failure
    never: tuple[str, ...]
    taken: int = 0


class Figures(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What memory holds has changed without a step, or something that was asked takes its time."""

    stats: EngineStats


class Told(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer to the question of this number, or why there is none, and the figures after it."""

    number: int
    body: bytes
    stats: EngineStats
    failure: Failure | None = None


class Finishing(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A signal has told the process to end: it takes no more requests, and ends when the open ones are over."""


class Gone(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The last message of a process that ends on purpose."""

    reason: str


Outbound = Ready | StartFailed | Step | Refused | Figures | Told | Finishing | Gone

_encoder = msgspec.msgpack.Encoder()
_inbound = msgspec.msgpack.Decoder(Inbound)
_outbound = msgspec.msgpack.Decoder(Outbound)


def encode(message: Inbound | Outbound) -> bytes:
    """The message with its length in front, ready to send."""
    try:
        body = _encoder.encode(message)
    except UnicodeEncodeError:
        # Only an error's text can hold what is no UTF-8: ids are refused at the door if they do.
        if not isinstance(message, Step):
            raise
        events = tuple(_printable_event(event) for event in message.events)
        body = _encoder.encode(msgspec.structs.replace(message, events=events))
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def decode_inbound(body: bytes) -> Inbound:
    return _inbound.decode(body)


def decode_outbound(body: bytes) -> Outbound:
    return _outbound.decode(body)


class Frames:
    """Cuts a stream of bytes into the messages it is made of."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that are complete with this data, in order."""
        rest = self._rest
        rest += data
        bodies: list[bytes] = []
        at = 0
        while len(rest) - at >= LENGTH_BYTES:
            body = at + LENGTH_BYTES
            end = body + int.from_bytes(rest[at:body], "little")
            if len(rest) < end:
                break
            bodies.append(bytes(rest[body:end]))
            at = end
        del rest[:at]
        return bodies


def config_text(config: EngineConfig) -> str:
    """All settings as JSON; paths that are no valid Unicode among them."""
    return json.dumps(msgspec.to_builtins(config))


def config_of(text: str) -> EngineConfig:
    """The settings that `config_text` wrote."""
    return msgspec.convert(json.loads(text), EngineConfig)


def printable(text: str) -> str:
    """The text with what is no valid Unicode escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _printable_event(event: Event) -> Event:
    if isinstance(event, RequestFinished) and event.error is not None:
        return msgspec.structs.replace(event, error=printable(event.error))
    return event


def _sendable(value: object) -> object:
    """The value of a parameter. Texts stay here: they have become ids, or are looked for in the answer's text."""
    if isinstance(value, int):
        return min(value, MAX_SEED)  # MessagePack has no larger numbers
    if isinstance(value, list | tuple) and any(isinstance(one, str) for one in value):
        return (TEXT,)
    return value
