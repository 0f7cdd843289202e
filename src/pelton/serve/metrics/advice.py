"""CacheAdvice: says so in the log where prompts hardly ever begin like earlier ones, so that keeping them is no use.

Changes nothing. Invariant: at most one line an hour, and none before an hour's prompts are counted.
"""

import logging

from pelton.core.clock import Clock
from pelton.core.counters import EngineStats
from pelton.core.events import Event
from pelton.core.request import Request, RequestOutput

HOUR = 3600.0
FEWEST_TOKENS = 100_000  # looked up in an hour, below which nothing is said
LEAST_RATE = 0.01  # of them found
LEAST_FILLED = 0.5  # of the blocks, at some time: a cache that takes no memory costs none

_log = logging.getLogger("pelton")


class CacheAdvice:
    """An observer of the AsyncEngine."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.now()
        self._before = EngineStats()
        self._filled = 0.0

    def on_step(self, stats: EngineStats, events: tuple[Event, ...]) -> None:
        if stats.kv_blocks:
            self._filled = max(self._filled, (stats.cached_blocks + stats.held_blocks) / stats.kv_blocks)
        if self._clock.now() - self._began < HOUR:
            return
        asked = stats.prefix_queries_total - self._before.prefix_queries_total
        found = stats.prefix_hits_total - self._before.prefix_hits_total
        if asked >= FEWEST_TOKENS and found < LEAST_RATE * asked and self._filled >= LEAST_FILLED:
            _log.warning(
                "In the last hour %.2f %% of %s prompt tokens were found in the prefix cache, which with what is in "
                "use filled up to %.0f %% of the KV memory. Without it (--no-enable-prefix-caching) the default KV "
                "memory is a fourth; or give less by --kv-cache-memory-bytes. pelton:prefix_cache_lookups tells why so "
                "little is found.",
                100 * found / asked,
                f"{asked:,}",
                100 * self._filled,
            )
        self._start_anew(stats)

    def on_finished(self, output: RequestOutput, request: Request) -> None:
        """Nothing: steps tell enough."""

    def on_restart(self) -> None:
        self._start_anew(EngineStats())

    def on_rejected(self, reason: str) -> None:
        """Nothing: what was not taken was not looked up."""

    def _start_anew(self, stats: EngineStats) -> None:
        self._began, self._before, self._filled = self._clock.now(), stats, 0.0
