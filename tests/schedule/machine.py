"""A state machine of traffic with shared prefixes, forks, faults and preemptions on tiny pools; see `Traffic`."""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.schedule.traffic import (
    BLOCK,
    Carrier,
    HostMemory,
    Sequence,
    Traffic,
    in_series,
    make,
    planning_ahead,
    tiered,
)

from pelton.core.config import CacheSection
from pelton.core.counters import Counters
from pelton.kv.group import most_blocks
from pelton.kv.pool import NULL_BLOCK
from pelton.kv.shape import Wanted, shape
from pelton.kv.tiers.files import BlockFiles
from pelton.schedule import ORDERS

BASES = ([0, 1, 2] * 10, [0, 1, 2, 0, 0, 1] * 5, [2] * 30)
MAX_LEN = 30
HOST = ((0, False), (3, False), (30, False), *[(60, True)] * 4)  # slots, and whether they lead to files
# Most with windows: a model without any is an edge of that.
WINDOWS = ((None,), (None,), (None, 6), (9, None), (7,), (5, 11, None))


def state_of(traffic: Traffic, name: str) -> str:
    """Where an open request is at the moment."""
    scheduler = traffic.scheduler
    request, tiers = scheduler._requests[name], scheduler.tiers
    if request.row is not None:
        begun = scheduler._open is not None and any(one.request_id == name for one in scheduler._open[1].admitted)
        return "just admitted" if begun else "running"
    if request in tiers.swap.waiters():
        return "swapped out"
    if tiers.fetches is not None and request in tiers.fetches._open:
        return "waiting for files"
    if scheduler._forks.family(request) is not None:
        return "another answer"
    return "waiting for what another computes" if request in scheduler.sharing._waits else "waiting"


def abort_one(traffic: Traffic, data: st.DataObject, seen: Counter[str]) -> None:
    """An open request, whatever state it is in: those that few are in come as often as the others."""
    states: dict[str, list[str]] = {}
    for name in sorted(traffic.open):
        states.setdefault(state_of(traffic, name), []).append(name)
    state = data.draw(st.sampled_from(sorted(states)))
    seen[f"abort, {state}"] += 1
    traffic.abort(data.draw(st.sampled_from(states[state])))


def count_given_back(traffic: Traffic, seen: Counter[str]) -> None:
    """Counts families that give their blocks back."""
    forks = traffic.scheduler._forks
    give_back = forks.give_back

    def counted(force: bool = False) -> bool:
        given = give_back(force)
        seen["given back"] += given
        return given

    forks.give_back = counted  # type: ignore[method-assign]


def end_sessions(traffic: Traffic, now: float, seen: Counter[str]) -> None:
    """After a long time none is left."""
    sessions = traffic.scheduler.sharing.sessions
    seen["session over"] += len(sessions)
    sessions.expire(now + 10_000)
    assert not len(sessions) and not traffic.scheduler.stats().session_blocks
    traffic.scheduler.check()


def count_all(traffic: Traffic, seen: Counter[str]) -> None:
    """What happened, as the traffic and the scheduler count it."""
    seen.update(traffic.seen)
    stats = traffic.scheduler.stats()
    seen["session given up"] += traffic.scheduler.sharing.sessions.given_up
    seen["prefix hit"] += stats.prefix_hits_total
    seen["in flight"] += stats.prefix_inflight_total
    seen["evict"] += stats.prefix_evictions_total
    seen["copied"] += stats.copied_blocks_total
    seen["disk hit"] += stats.disk_hit_tokens_total
    seen["ahead"] += stats.plans_ahead_total
    seen["ahead, trimmed"] += stats.plans_trimmed_total
    seen["ahead, taken back"] += stats.plans_taken_back_total


class SchedulerMachine(RuleBasedStateMachine):
    """Effects are counted, so that a run in which one of them never happens fails."""

    seen: Counter[str] = Counter()

    @initialize(
        blocks=st.sampled_from((0, -1, 8, 10, 24, 60)),
        budget=st.sampled_from((5, 9, 40)),
        cap=st.sampled_from((0, 4, 5)),
        caching=st.sampled_from((True, True, True, False)),
        most=st.sampled_from((None, None, 0, 12)),
        order=st.sampled_from(ORDERS.names()),
        cost=st.sampled_from((0.0, 0.0, 0.05)),
        shape=st.tuples(
            st.sampled_from(WINDOWS),
            st.sampled_from((1, 3, 8)),
            st.sampled_from((True, True, False)),
            st.sampled_from(HOST),
            st.sampled_from((1, 2)),
        ),
    )
    def begin(
        self,
        blocks: int,
        budget: int,
        cap: int,
        caching: bool,
        most: int | None,
        order: str,
        cost: float,
        shape: tuple[tuple[int | None, ...], int, bool, tuple[int, bool], int],
    ) -> None:
        """`blocks`: of each group; from 0 down, what the longest request needs and so many more.

        `shape`: windows of the KV groups, most steps of a call, whether parts of blocks are copied, host slots of
        each group and whether evicted blocks go to files, and how many steps deep it plans.
        """
        windows, steps, parts, (slots, self.filed), depth = shape
        if blocks <= 0:
            blocks = max(most_blocks(window, MAX_LEN, budget, BLOCK) for window in windows) - blocks
        cache = CacheSection(enable_prefix_caching=caching, prefix_cache_tokens=most, partial_prefix_blocks=parts)
        self.caching = caching
        made = make(4, budget, blocks, MAX_LEN, cap, order=ORDERS.get(order)(), windows=windows)
        self.folder, host = Path(mkdtemp()), HostMemory()
        disk = Carrier(BlockFiles(self.folder, bytes(32), 1 << 20, Counters()), host) if self.filed else None
        if disk is not None:
            disk.loses = lambda block: block.name.digest[0] % 4 == 0
        made = in_series(tiered(made, slots, cache, disk), steps)
        self.traffic = Traffic(planning_ahead(made) if depth == 2 else made, windows, host)
        self.traffic.scheduler.limits = replace(self.traffic.scheduler.limits, context_cost=cost)
        self.number = 0
        self.now = 0.0
        count_given_back(self.traffic, self.seen)

    @rule(
        base=st.sampled_from((*BASES, [])),
        length=st.integers(1, 24),
        tail=st.lists(st.integers(0, 2), max_size=2),
        answer=st.integers(1, 12),
        answers=st.sampled_from((1, 1, 1, 2, 4)),
        twins=st.sampled_from((1, 1, 3)),
        kind=st.sampled_from(("", "", "", "", "salted", "scored", "alone", "session 1", "session 2", "session 3")),
        rank=st.tuples(st.integers(0, 2), st.sampled_from((0, 0, 0, 0, 2, None))),
    )
    def add(
        self,
        base: list[int],
        length: int,
        tail: list[int],
        answer: int,
        answers: int,
        twins: int,
        kind: str,
        rank: tuple[int, int | None],
    ) -> None:
        """`base` empty: all that a request which is over has said. `rank`: its priority, and from how many tokens on it
        settles.
        """
        said = next(reversed(self.traffic.over.values()), None)
        prompt = (base[:length] + tail)[:26] if base or said is None else (said.tokens + tail)[:26]
        prompt = prompt or [1]
        self.seen["fork"] += answers > 1
        for child in (child for _ in range(twins) for child in range(answers)):
            self.number += not child
            name = f"r{self.number}"
            self.traffic.add(
                f"{name}/{child}" if child else name,
                prompt,
                answer,
                salt="salt" if kind == "salted" else "",
                seed=child,
                shared=kind != "alone",
                scored=kind == "scored" and not child,
                session=kind if kind.startswith("session") and not child else "",
                parent=name if child else None,
                arrival=float(self.number // 2),
                priority=rank[0],
                owner=f"owner {rank[0]}",
                settles=rank[1],
            )

    @precondition(lambda self: any("/" not in name for name in self.traffic.open))
    @rule(data=st.data())
    def late_child(self, data: st.DataObject) -> None:
        """Another answer to the prompt of a request that may be far beyond it."""
        parent = data.draw(st.sampled_from(sorted(name for name in self.traffic.open if "/" not in name)))
        sequence = self.traffic.open[parent]
        prompt = sequence.tokens[: len(sequence.tokens) - len(sequence.drawn)]
        self.number += 1
        late = f"{parent}/late{self.number}"
        self.traffic.add(late, prompt, 3, salt=sequence.salt, seed=self.number, parent=parent, settles=0)
        self.seen["late child"] += len(sequence.drawn) > 0

    @precondition(lambda self: self.traffic.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        abort_one(self.traffic, data, self.seen)

    @precondition(lambda self: self.traffic.open)
    @rule(data=st.data(), gone=st.booleans())
    def preempt(self, data: st.DataObject, gone: bool) -> None:
        """One that runs, if any does. `gone`: and then nobody waits for it any more."""
        requests = self.traffic.scheduler._requests
        running = [name for name in sorted(self.traffic.open) if requests[name].row is not None]
        name = data.draw(st.sampled_from(running or sorted(self.traffic.open)))
        self.seen["preempted from outside"] += self.traffic.open[name].computed > 0
        self.traffic.preempt(name)
        if gone:
            self.seen[f"abort, {state_of(self.traffic, name)}"] += 1
            self.traffic.abort(name)

    @precondition(lambda self: len(self.traffic.scheduler.sharing.sessions))
    @rule(seconds=st.sampled_from((300, 700, 1400)))
    def wait(self, seconds: int) -> None:
        before = len(self.traffic.scheduler.sharing.sessions)
        self.now += seconds
        self.traffic.scheduler.sharing.sessions.expire(self.now)
        self.seen["session over"] += len(self.traffic.scheduler.sharing.sessions) < before

    @precondition(lambda self: len(self.traffic.scheduler.sharing.sessions))
    @rule(data=st.data())
    def end_session(self, data: st.DataObject) -> None:
        sessions = self.traffic.scheduler.sharing.sessions
        name = data.draw(st.sampled_from(sorted(sessions._open)))
        assert sessions.end(name) and name not in sessions
        self.seen["session ended"] += 1

    @rule(chance=st.integers(0, 2), cap=st.sampled_from((0, 4, 5)))
    def reset_or_limit(self, chance: int, cap: int) -> None:
        if chance == 1:
            limits = self.traffic.scheduler.limits
            self.traffic.scheduler.limits = replace(limits, long_prefill_token_threshold=cap)
        if chance:
            return
        self.traffic.scheduler.reset_prefix_cache()
        assert not self.traffic.scheduler.stats().sessions
        assert self.traffic.scheduler.stats().cached_blocks == 0

    @precondition(lambda self: self.filed and self.caching)
    @rule()
    def push_out(self) -> None:
        """All that nobody uses goes to files."""
        offload = self.traffic.scheduler.tiers.offload
        assert offload is not None
        offload.push_out()

    @rule(faults=st.sampled_from((-1, -1, 0, 1, 2)), most=st.sampled_from((1, 2, 8, 8)))
    def step(self, faults: int, most: int) -> None:
        def faulty(sequence: Sequence) -> bool:
            return (len(sequence.name) + len(sequence.tokens)) % 3 == faults

        self.traffic.step(faulty=faulty, most=most)
        tables = [request.table.blocks for request in self.traffic.scheduler._requests.values()]
        self.seen["slide"] += any(NULL_BLOCK in blocks for held in tables for blocks in held)
        self.seen["wait"] += len(self.traffic.scheduler.sharing._waits)

    @rule(most=st.sampled_from((1, 2, 8)))
    def several_steps(self, most: int) -> None:
        for _ in range(6):
            self.step(-1, most)

    @precondition(lambda self: self.traffic.open)
    @rule(data=st.data(), kind=st.sampled_from(("abort", "preempt", "stop")))
    def disturbed_step(self, data: st.DataObject, kind: str) -> None:
        def disturb() -> None:
            if kind == "abort":
                abort_one(self.traffic, data, self.seen)
                return
            name = data.draw(st.sampled_from(sorted(self.traffic.open)))
            self.seen[f"{kind} during a step"] += self.traffic.open[name].computed > 0
            if kind == "stop":
                self.traffic.open[name].stops = True
            else:
                self.traffic.preempt(name)

        self.traffic.step(during=disturb)

    @precondition(lambda self: self.traffic.open)
    @rule(data=st.data(), rows=st.integers(0, 3), ops=st.sampled_from((None, None, 0, 1, 3)))
    def broken_step(self, data: st.DataObject, rows: int, ops: int | None) -> None:
        """Planned, partly computed, never committed; some of the requests are told their failure. `ops`: as the
        traffic's.
        """
        self.traffic.break_step(rows, ops)
        self.seen["broken step"] += 1
        for name in data.draw(st.sets(st.sampled_from(sorted(self.traffic.open)))):
            self.seen["abort after a broken step"] += 1
            self.traffic.abort(name)

    @invariant()
    def adds_up(self) -> None:
        traffic, scheduler = self.traffic, self.traffic.scheduler
        scheduler.check()
        stats = scheduler.stats()
        assert stats.running + stats.waiting == len(traffic.open)
        assert 0 <= stats.deferred <= stats.waiting
        assert stats.computed_tokens_total == traffic.computed
        memory: Any = shape(scheduler._blocks, Wanted(0))
        assert stats.spared_blocks == sum(group["saved"] for group in memory["groups"])
        self.seen["spared"] += stats.spared_blocks
        assert 0 <= stats.kv_waste <= 1 and 0 <= stats.kv_usage <= 1
        assert 0 <= stats.prefix_inflight_total <= stats.prefix_hits_total <= stats.prefix_queries_total
        held = stats.held_blocks - len(traffic.outside)
        assert traffic.open or held == stats.session_blocks, "nobody is there and blocks are held"
        self.seen["session"] += stats.sessions
        assert self.caching or stats.prefix_queries_total == stats.cached_blocks == 0
        assert stats.swapped <= stats.waiting
        idle = scheduler._open is None and not self.filed
        assert stats.swapped or not stats.host_slots_used or not idle, "slots nobody waits for"

    def teardown(self) -> None:
        """Not after a failed rule, whose error would be hidden by what follows from it."""
        if hasattr(self, "folder") and sys.exc_info()[0] is not None:
            rmtree(self.folder)
        if not hasattr(self, "traffic") or sys.exc_info()[0] is not None:
            return
        self.traffic.run()
        self.adds_up()
        end_sessions(self.traffic, self.now, self.seen)
        count_all(self.traffic, self.seen)
        rmtree(self.folder)
