"""What the engine tells after each step: frozen records, one list per step for all requests."""

from dataclasses import dataclass

from pelton.core.plan import TokenLogprobs


@dataclass(frozen=True, slots=True)
class TokensGenerated:
    """New tokens of one request, in order; `logprobs` has as many entries."""

    request_id: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestScheduled:
    """A request entered a step for the first time (or again, after preemption)."""

    request_id: str
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RequestPreempted:
    """A request lost its blocks and waits to be computed again."""

    request_id: str


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """A request is over. `reason`: stop, length, abort or error; `stop_token`: the id that ended it, if one did."""

    request_id: str
    reason: str
    stop_token: int | None = None
    error: str | None = None


Event = TokensGenerated | RequestScheduled | RequestPreempted | RequestFinished
