"""A simulation: the engine as it is started for real, but on the virtual backend, and a trace replayed on it.

Invariant: what is simulated is set up by the code that sets up the engine; nothing is counted differently here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pelton.backends.backend import Machine
from pelton.core.clock import FakeClock
from pelton.core.config import EngineConfig
from pelton.core.counters import EngineStats
from pelton.engine.build import build_engine
from pelton.engine.report import StartReport
from pelton.measure.simulate.arrivals import Choice, Prepared, prepare
from pelton.measure.simulate.cache_sizes import Reuse, reuse
from pelton.measure.simulate.replay import Replayed, VirtualPace, replay
from pelton.measure.simulate.trace import Trace
from pelton.measure.simulate.virtual import RatesOf, TimesOf, VirtualBackend


@dataclass(frozen=True, slots=True)
class Simulated:
    """What was replayed and what came of it. `reuse`: what any cache could find of these prompts; None where no two of
    them share a beginning. `stats`: the engine's in the end.
    """

    prepared: Prepared
    replayed: Replayed
    stats: EngineStats
    report: StartReport
    reuse: Reuse | None


def like_here(config: EngineConfig, machine: Machine) -> Machine:
    """The machine that is pretended. Where the settings say how large the cache is, its memory is not looked at, so
    that a cache that would not fit here can be simulated.
    """
    sized = config.cache.num_blocks is not None or config.cache.kv_cache_memory_bytes is not None
    return replace(machine, free_memory=0 if sized else machine.free_memory, notes=())


def simulate(
    config: EngineConfig,
    trace: Trace,
    choice: Choice,
    machine: Machine,
    times_of: TimesOf,
    started: Callable[[Prepared], Callable[[int], object]] = lambda prepared: lambda ended: None,
    rates_of: RatesOf = lambda threads, working_set, rounded: None,
) -> Simulated:
    """Replays the chosen part of the trace on an engine of these settings, in virtual time.

    `started` is told what will be replayed, and gives what is called with the number of requests that each step ends.
    `rates_of`: what the machine is known to do, by which an engine chooses the size of its steps.
    PeltonErrors as build_engine and prepare raise.
    """
    clock = FakeClock()
    backend = VirtualBackend(like_here(config, machine), rates_of, times_of, clock)
    parts = build_engine(config, clock, backend)
    try:
        assert backend.executable is not None
        prepared = prepare(trace, choice, parts.engine.scheduler.max_len)
        pace = VirtualPace(clock, backend.executable)
        replayed = replay(parts.engine, prepared.arrivals, pace, parts.limits.vocab, started(prepared))
        parts.engine.check()
        found = _reuse(prepared, parts.limits.vocab, parts=config.cache.partial_prefix_blocks)
        return Simulated(prepared, replayed, parts.engine.stats, parts.report, found)
    finally:
        parts.close()


def _reuse(prepared: Prepared, vocab: int, *, parts: bool) -> Reuse | None:
    first, shared = set[int](), False
    for arrival in prepared.arrivals:
        shared |= arrival.pieces[0][0] in first
        first.add(arrival.pieces[0][0])
    return reuse((arrival.ids(vocab) for arrival in prepared.arrivals), parts=parts) if shared else None
