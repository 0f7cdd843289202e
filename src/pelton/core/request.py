"""What goes into the engine and what comes out, with vLLM's names and shapes."""

import hashlib
from dataclasses import dataclass, field, replace

from pelton.core.params import SamplingParams
from pelton.core.plan import Lookup

SLOT = "slot-"  # begins the ids of sessions of slots


@dataclass(frozen=True, slots=True)
class Request:
    """One generation to do. `prompt_token_ids` are final: templates and special tokens are already applied.

    `params.seed` is never None here: whoever builds the request draws one. `arrival` is in seconds of the
    engine's clock. `stop_token_ids` joins the model's end tokens (unless ignore_eos) and the request's own.
    `session_id`: its blocks are held when it is over, for the next request of that session; "": they are not.
    `bad_word_ids`: token sequences that must not be completed. `cache_salt`: prefixes are shared only between requests
    with the same one. Of n answers each is a Request of its own (see `children`): `child` counts them, `parent` is the
    id of the first one, None for that one itself. `owner`: whose it is, where the order shares between owners.
    `deadline`: when nobody waits for it any more, in seconds of the engine's clock; None: never.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    stop_token_ids: frozenset[int]
    max_tokens: int
    arrival: float
    prompt: str | None = None
    priority: int = 0
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    cache_salt: str = ""
    child: int = 0
    parent: str | None = None
    owner: str = ""
    deadline: float | None = None
    session_id: str = ""

    @property
    def session(self) -> tuple[str, str] | None:
        """The name of its session in the engine, None where it has none. Of n answers the first one's is kept."""
        return (self.cache_salt, self.session_id) if self.session_id and not self.child else None

    def children(self) -> "tuple[Request, ...]":
        """The n Requests that the engine works on; the first one has this one's id, and alone scores the prompt."""
        others = (
            replace(self, request_id=f"{self.request_id}/{child}", child=child, parent=self.request_id)
            for child in range(1, self.params.n)
        )
        return (self, *others)

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of the prompt's tokens are to be told."""
        return self.params.prompt_logprobs is not None and self.child == 0


def owner_of_key(key: str) -> str:
    """Who sends this API key, by a name from which the key cannot be read."""
    return "key-" + hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def slot_session(slot: int) -> str:
    """The id of the session of a slot: what llama.cpp's server calls so, by its number."""
    return f"{SLOT}{slot}"


def slot_of(session_id: str) -> int | None:
    """The number of the slot whose session this is, None for other sessions."""
    number = session_id.removeprefix(SLOT)
    whole = number.isascii() and number.isdigit() and len(number) < 10 and slot_session(int(number)) == session_id
    return int(number) if whole else None


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of one token at one place; `rank` counts from 1; `decoded_token` is its text alone."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One answer. `finish_reason`: None while running, then "stop", "length", "abort" or "error".

    `stop_reason`: the stop string or stop token id that ended it, None for the model's own end token or another reason.
    `logprobs`: for each token a dict token id -> Logprob.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request in seconds of the engine's clock; None while not reached."""

    arrival: float
    first_scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None


@dataclass(slots=True)
class RequestOutput:
    """All that is known of a request so far.

    `seed` is the one used, also where none was given. `error` tells a failure, `error_code` one by the request's own
    fault, as in RequestError. `prefix_lookup`: why no more than `num_cached_tokens` were found, once it is computed.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    seed: int
    metrics: RequestMetrics
    num_cached_tokens: int = 0
    error: str | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    error_code: str | None = None
    prefix_lookup: Lookup | None = None
