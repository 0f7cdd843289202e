"""Baselines: the same requests served the way it was done before each technique, on the same engine and kernels.

For measuring alone: nothing here is a way to serve. What is played is who is under way when, what memory a request
would have been given, and what would have been computed again. Invariant: all ways draw the same tokens.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pelton.core.clock import Clock
from pelton.core.config import BLOCK_TOKENS
from pelton.core.errors import BackendError
from pelton.core.events import RequestFinished, TokensGenerated
from pelton.core.params import SamplingParams
from pelton.core.request import Request
from pelton.engine.engine import Engine

PROMPTS, ANSWERS = (32, 512), (8, 256)  # shortest and longest, equally many in each doubling


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a prompt and of its answer."""

    prompt: int
    answer: int


def mixed_lengths(count: int, seed: int, longest: int) -> list[Lengths]:
    """Lengths as mixed as people's: from PROMPTS and ANSWERS, together at most `longest`."""
    rng = np.random.default_rng(seed)

    def drawn(bounds: tuple[int, int]) -> list[int]:
        low, high = (np.log(min(bound, longest // 2)) for bound in bounds)
        return [int(number) for number in np.exp(rng.uniform(low, high, count))]

    return [Lengths(prompt, answer) for prompt, answer in zip(drawn(PROMPTS), drawn(ANSWERS), strict=True)]


def requests_of(lengths: Sequence[Lengths], vocab: int, seed: int) -> list[Request]:
    """Greedy requests with random prompts."""
    rng = np.random.default_rng(seed)
    made = []
    for number, one in enumerate(lengths):
        params = SamplingParams(temperature=0.0, seed=0, max_tokens=one.answer, ignore_eos=True)
        ids = tuple(rng.integers(0, vocab, one.prompt).tolist())
        made.append(Request(f"baseline{number}", ids, params, frozenset(), one.answer, arrival=0.0))
    return made


@dataclass(slots=True)
class Way:
    """One way of serving, and what came of it. `tokens`: each request's answer.

    `held` and `used`: tokens for which memory was held, and that stood in it, over all steps; `at_once`: requests.
    """

    tokens: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0
    steps: int = 0
    at_once: int = 0
    held: int = 0
    used: int = 0

    def figures(self) -> Mapping[str, float]:
        """Output tokens per second, mean requests at once, waste of held memory in percent."""
        drawn = sum(map(len, self.tokens.values()))
        return {
            "output_tokens_per_second": drawn / self.seconds if self.seconds else 0.0,
            "mean_running": self.at_once / self.steps if self.steps else 0.0,
            "kv_waste_percent": 100 * (1 - self.used / self.held) if self.held else 0.0,
        }


def continuous(engine: Engine, requests: Sequence[Request], clock: Clock) -> Way:
    """As it is done here: paged memory, and a request begins whenever there is room."""
    return _served(engine, requests, clock, len(requests))


def static(engine: Engine, requests: Sequence[Request], clock: Clock) -> Way:
    """Batches of as many as there are rows, each of which is over when its last answer is."""
    rows, way = engine.scheduler.limits.max_num_seqs, Way()
    for start in range(0, len(requests), rows):
        _served(engine, requests[start : start + rows], clock, rows, way)
    return way


def reserved(engine: Engine, requests: Sequence[Request], clock: Clock, places: int, longest: int) -> Way:
    """Each request has memory for the longest one there may be from its beginning on; `places`: tokens of the cache."""
    return _served(engine, requests, clock, max(1, places // longest), reserve=longest)


def uncached(engine: Engine, requests: Sequence[Request], clock: Clock) -> Way:
    """Nothing is kept: for each token the whole sequence is computed, of all requests together."""
    way, salts = Way({request.request_id: [] for request in requests}), iter(range(1 << 62))
    start = clock.now()
    left = list(requests)
    while left:
        # A salt of its own keeps each from finding what was computed for it before.
        asked = [_whole(request, way.tokens[request.request_id], str(next(salts))) for request in left]
        once = _served(engine, asked, clock, len(asked))
        for name, drawn in once.tokens.items():
            way.tokens[name] += drawn
        way.steps += once.steps
        way.at_once += once.at_once
        left = [request for request in left if len(way.tokens[request.request_id]) < request.max_tokens]
    way.seconds = clock.now() - start
    return way


def _whole(request: Request, drawn: Sequence[int], salt: str) -> Request:
    """One more token behind all that there is."""
    ids = (*request.prompt_token_ids, *drawn)
    params = replace(request.params, max_tokens=1)
    return replace(request, prompt_token_ids=ids, params=params, max_tokens=1, cache_salt=f"uncached {salt}")


def _served(
    engine: Engine, requests: Sequence[Request], clock: Clock, most: int, way: Way | None = None, reserve: int = 0
) -> Way:
    """The requests, at most so many of them under way at once. `reserve`: tokens that each has memory for; 0: pages."""
    way = way or Way()
    engine.reset_prefix_cache()
    waiting, lengths, under_way = deque(requests), dict[str, int](), set[str]()
    start = clock.now()
    while waiting or under_way:
        while waiting and len(under_way) < most:
            request = waiting.popleft()
            engine.add_request(replace(request, arrival=clock.now()))
            under_way.add(request.request_id)
            lengths[request.request_id] = len(request.prompt_token_ids)
        for name, tokens, over in _events(engine):
            way.tokens.setdefault(name, []).extend(tokens)
            lengths[name] += len(tokens)
            if over:
                under_way.discard(name)
        _count(engine, way, reserve)
    way.seconds += clock.now() - start
    return way


def _events(engine: Engine) -> Iterator[tuple[str, Sequence[int], bool]]:
    """(request, its new tokens, whether it is over) of a step; BackendError where one failed."""
    for event in engine.step():
        if isinstance(event, TokensGenerated):
            yield event.request_id, event.tokens, False
        elif isinstance(event, RequestFinished):
            if event.error is not None:
                raise BackendError(f"A request of the baselines failed: {event.error}")
            yield event.request_id, (), True


def _count(engine: Engine, way: Way, reserve: int) -> None:
    """What is held and used after a step, or a series of them."""
    stats, steps = engine.stats, max(1, engine.stats.step_steps)
    paged = stats.held_blocks * BLOCK_TOKENS
    used = round(paged * (1 - stats.kv_waste))
    way.steps += steps
    way.at_once += steps * stats.step_sequences
    way.held += steps * (stats.running * reserve if reserve else paged)
    way.used += steps * used
