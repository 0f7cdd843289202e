"""What the engine tells after each step: frozen records, one list per step for all requests.

They are what crosses the border between processes too, as they stand. Invariant: the last event of a request is its
RequestFinished.
"""

import msgspec

from pelton.core.plan import Lookup, TokenLogprobs


class TokensGenerated(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """New tokens of one request, in order; `logprobs` has as many entries."""

    request_id: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


class PromptScored(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Log-probabilities of prompt tokens: of those at indices start, start + 1, ... (index 0 has none).

    A request that was preempted may tell the same indices again, with the same numbers.
    """

    request_id: str
    start: int
    scores: tuple[TokenLogprobs, ...]


class RequestScheduled(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A request entered a step for the first time (or again, after preemption).

    `lookup`: what became of looking its prompt up in the prefix cache; told once for each prompt.
    """

    request_id: str
    cached_tokens: int = 0
    lookup: Lookup | None = None


class RequestPreempted(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A request lost its blocks and waits to be computed again."""

    request_id: str


class RequestFinished(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A request is over. `reason`: stop, length, abort or error; `stop_token`: the id that ended it, if one did.

    `code`: of an `error` that is the request's own fault, as in RequestError.
    """

    request_id: str
    reason: str
    stop_token: int | None = None
    error: str | None = None
    code: str | None = None


Event = TokensGenerated | PromptScored | RequestScheduled | RequestPreempted | RequestFinished
