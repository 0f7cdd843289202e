"""EvictedPrefixes: whether evicted blocks go to files and come back for a later request.

Two equal prompts, and another one between them, during which what nobody uses is driven out, come before the tested
request; it meets the files too. Invariant: the pair shares prefixes with nobody else where no two requests are to.
"""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from pelton.core.events import RequestScheduled
from pelton.measure.verify.cases import Prompt
from pelton.measure.verify.dimension import PREPARE, Ask, Draft, Live, StepSeen

FORGOTTEN, FILES = "forgotten", "in files"
EARLY = PREPARE - 20  # the phase of the pair's first, before those of other dimensions
ROOM = 1 << 30  # bytes of files
CHANCE = 0.2  # of driving everything out before a step
SALT = "pair"
BEGINNINGS = "times that nobody ran"
SURE = (2, 3, 4)  # of them; if somebody was preempted meanwhile, it is not the second


class EvictedPrefixes:
    """Files are written and read when the engine asks what is done, so that a schedule is the same each time."""

    values = (FORGOTTEN, FILES)

    def suits(self, value: str, prompt: Prompt, block_size: int) -> bool:
        return True

    def shape(self, value: str, draft: Draft, rng: Random) -> None:
        if value == FORGOTTEN:
            return
        draft.cache = replace(draft.cache, enable_prefix_caching=True, kv_disk_bytes=ROOM)
        prompt = rng.choice([one for one in draft.cases.prompts if len(one) > draft.block_size])
        (between,) = draft.cases.other_prompts(prompt, rng, 1)
        for place, asked in enumerate((prompt, between, prompt)):
            case = draft.cases.case(asked, draft.cases.shareable_way(rng))
            draft.asks.append(Ask(case, phase=EARLY + place, salt=SALT, keeps=True))

    def between(self, value: str, live: Live) -> None:
        """For certain when the request between the two begins, whose steps then save what was driven out."""
        offload = live.engine.scheduler.tiers.offload
        if offload is None:
            return
        live.counts[BEGINNINGS] += live.engine.scheduler.num_running == 0
        if (live.rng.random() < CHANCE or live.counts[BEGINNINGS] in SURE) and not live.fresh:
            offload.push_out()

    def count(self, seen: StepSeen) -> Mapping[str, int]:
        found = seen.after.disk_hit_tokens_total - seen.before.disk_hit_tokens_total
        begun = sum(isinstance(event, RequestScheduled) for event in seen.events)
        return {"requests begun without files": 0 if found else begun, "tokens found in files": found}

    def proof(self, value: str) -> str:
        return "tokens found in files" if value == FILES else "requests begun without files"
