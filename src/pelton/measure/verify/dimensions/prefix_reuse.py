"""PrefixReuse: whether a prompt's beginning comes out of blocks that another request computed, or is computing.

Invariant: what is shared is the tested request's prompt, never its answer.
"""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from pelton.core.config import BLOCK_TOKENS
from pelton.core.events import RequestScheduled
from pelton.measure.verify.cases import Case, Prompt
from pelton.measure.verify.dimension import PREPARE, TEST, Ask, Draft, Live, StepSeen

MISS, HIT, IN_FLIGHT, PART, SESSION = "miss", "hit", "in flight", "part of a block", "session"
MOST_BETWEEN = 6  # other requests between the one that computes the blocks and the one that finds them
MOST_COPIES = 3
LEAST_PART = 4  # tokens of a block in common, from which on it is copied


class PrefixReuse:
    """Miss: no cache, or salts of their own. Hit: the blocks are there. In flight: both requests join in one step.
    Part: another prompt was computed that is the same up to the midst of a block. Session: a request of the same
    session was over before, in a cache that keeps nothing else.
    """

    values: tuple[str, ...] = (MISS, HIT, IN_FLIGHT, PART, SESSION)

    def suits(self, value: str, prompt: Prompt, block_size: int) -> bool:
        if value == PART:
            return len(prompt) > LEAST_PART
        return value == MISS or len(prompt) > block_size

    def shape(self, value: str, draft: Draft, rng: Random) -> None:
        if value == MISS:
            caches = rng.random() < 0.5 or draft.cache.kv_disk_bytes > 0  # files hold what a cache gave up
            draft.cache = replace(draft.cache, enable_prefix_caching=caches)
            draft.private = True
            return
        draft.cache = replace(draft.cache, enable_prefix_caching=True)
        tested = draft.tested.case
        if tested.way.scores:
            draft.tested.case = draft.cases.case(
                tested.prompt, draft.cases.shareable_way(rng, greedy=tested.way.greedy)
            )
        if value == HIT:
            self._ask_before(draft, rng)
        elif value == PART:
            case = self._shareable(draft, _parted(draft, rng), rng)
            draft.asks.append(Ask(case, phase=PREPARE))
            draft.fresh = True  # of what comes back from files only whole blocks are found
        elif value == SESSION:
            draft.cache = replace(draft.cache, prefix_cache_tokens=0)
            draft.tested.session = "s"
            case = self._shareable(draft, _begun(draft), rng)
            draft.asks.append(Ask(case, phase=PREPARE, session="s"))
        else:
            self._ask_beside(draft, rng)

    def _ask_before(self, draft: Draft, rng: Random) -> None:
        """In turn one that begins alike, others that may drive it out of the cache, and the prompt itself."""
        prompt = draft.tested.case.prompt
        others = draft.cases.other_prompts(prompt, rng, rng.randint(0, MOST_BETWEEN))
        draft.scarce |= len(others) > MOST_BETWEEN // 2
        chain = [draft.cases.relative(prompt, rng), *others, prompt] if others else [prompt]
        for place, earlier in enumerate(reversed(chain)):
            draft.asks.append(Ask(self._shareable(draft, earlier, rng), phase=PREPARE - place))

    def _ask_beside(self, draft: Draft, rng: Random) -> None:
        """Copies of the prompt; the first joins right behind it, in a step that has room for both."""
        draft.schedule = replace(draft.schedule, max_num_batched_tokens=draft.step_tokens)
        prompt = draft.tested.case.prompt
        for number in range(rng.randint(1, MOST_COPIES)):
            copy = Ask(self._shareable(draft, prompt, rng), phase=TEST, after=number and rng.randrange(3))
            draft.asks.insert(1 + number, copy)

    def _shareable(self, draft: Draft, prompt: Prompt, rng: Random) -> Case:
        return draft.cases.case(prompt, draft.cases.shareable_way(rng))

    def between(self, value: str, live: Live) -> None:
        """Nothing: the schedule says all."""

    def count(self, seen: StepSeen) -> Mapping[str, int]:
        after, before = seen.after, seen.before
        inflight = after.prefix_inflight_total - before.prefix_inflight_total
        scheduled = [event for event in seen.events if isinstance(event, RequestScheduled)]
        return {
            "prompts not found in the cache": sum(
                not event.cached_tokens and event.request_id not in seen.left for event in scheduled
            ),
            "tokens found within a block": sum(
                event.cached_tokens % BLOCK_TOKENS for event in scheduled if event.lookup is not None
            ),
            "tokens found that a session held": sum(
                event.cached_tokens
                for event in scheduled
                if event.lookup is not None and seen.requests[event.request_id].session_id and before.sessions
            ),
            "tokens found in the cache": after.prefix_hits_total - before.prefix_hits_total - inflight,
            "tokens found while still being computed": inflight,
            "cached blocks given up": after.prefix_evictions_total - before.prefix_evictions_total,
        }

    def proof(self, value: str) -> str:
        return {
            MISS: "prompts not found in the cache",
            HIT: "tokens found in the cache",
            IN_FLIGHT: "tokens found while still being computed",
            PART: "tokens found within a block",
            SESSION: "tokens found that a session held",
        }[value]


def _begun(draft: Draft) -> Prompt:
    """The first half of the tested prompt's blocks: no more than sessions may hold of few blocks."""
    prompt, size = draft.tested.case.prompt, draft.block_size
    length = size * max(1, len(prompt) // size // 2)
    return Prompt(f"{prompt.name}, the first {length}", prompt.token_ids[:length])


def _parted(draft: Draft, rng: Random) -> Prompt:
    """The tested prompt up to a place within one of its blocks, and then other tokens to the end of that block; or all
    of it, where its last block is full: a request with the same prompt may not begin behind that.
    """
    prompt, size = draft.tested.case.prompt, draft.block_size
    if len(prompt) % size == 0 and rng.random() < 0.5:
        return prompt
    longest = max(size, len(prompt))
    places = [at for at in range(len(prompt)) if at % size >= LEAST_PART and at - at % size + size <= longest]
    place = rng.choice(places)
    tokens = sorted({token for other in draft.cases.prompts for token in other.token_ids})
    first = rng.choice([token for token in tokens if token != prompt.token_ids[place]])
    rest = rng.choices(tokens, k=size - 1 - place % size)
    return Prompt(f"{prompt.name}, another from {place} on", (*prompt.token_ids[:place], first, *rest))
