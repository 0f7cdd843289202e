"""PrefixReuse: whether a prompt's beginning comes out of blocks that another request computed, or is computing.

Invariant: what is shared is the tested request's prompt as far as its blocks are full, never its answer.
"""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from pelton.core.events import RequestScheduled
from pelton.measure.verify.cases import Case, Prompt
from pelton.measure.verify.dimension import PREPARE, TEST, Ask, Draft, Live, StepSeen

MISS, HIT, IN_FLIGHT = "miss", "hit", "in flight"
MOST_BETWEEN = 6  # other requests between the one that computes the blocks and the one that finds them
MOST_COPIES = 3


class PrefixReuse:
    """Miss: no cache, or salts of their own. Hit: the blocks are there. In flight: both requests join in one step."""

    values = (MISS, HIT, IN_FLIGHT)

    def suits(self, value: str, prompt: Prompt, block_size: int) -> bool:
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
            "tokens found in the cache": after.prefix_hits_total - before.prefix_hits_total - inflight,
            "tokens found while still being computed": inflight,
            "cached blocks given up": after.prefix_evictions_total - before.prefix_evictions_total,
        }

    def proof(self, value: str) -> str:
        return {
            MISS: "prompts not found in the cache",
            HIT: "tokens found in the cache",
            IN_FLIGHT: "tokens found while still being computed",
        }[value]
