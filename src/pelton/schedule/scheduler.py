"""Scheduler: which requests are open, and one step after the other: `plan`, `commit`, the next `plan`.

Counts tokens and blocks and names rows; sees no token value and no array. Invariant: a block is found by others as
computed only once the step that fills it is committed, or in that very step.
"""

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from pelton.core.config import CacheSection, ScheduleSection
from pelton.core.counters import EngineStats
from pelton.core.errors import CapacityError, RequestError
from pelton.core.plan import StepPlan
from pelton.kv.blocks import Blocks
from pelton.kv.group import KVGroup, most_blocks
from pelton.kv.shape import spared
from pelton.kv.table import BlockTable
from pelton.kv.tiers.worker import Carrier
from pelton.schedule.ahead.ahead import Ahead
from pelton.schedule.draft import Draft
from pelton.schedule.forks import Forks
from pelton.schedule.gate import Gate
from pelton.schedule.holdings import Holdings
from pelton.schedule.order import Order
from pelton.schedule.places import Places
from pelton.schedule.planner import Planner
from pelton.schedule.series import Series
from pelton.schedule.sharing import Sharing
from pelton.schedule.tiers.tiers import Tiers
from pelton.schedule.tracked import NewRequest, Tracked


@dataclass(slots=True)
class _Figures:
    """Counts since the start, and how many waited for room in a step or for another request when the last was planned:
    those whose wait ends with that step are among them. `lost`: who lost its blocks since then, by a word from outside.
    """

    added: int = 0
    computed: int = 0
    copied: int = 0
    deferred: int = 0
    lost: list[str] = field(default_factory=list)


class Scheduler:
    """`max_len`: tokens (prompt and answer) a request may have, the smaller of the model's length and the pool.

    `limits` may be replaced between steps by others with as many rows. `series` decides how many decode steps are one
    call, and is told how long they take; so are the `rates` of the `tiers`. `sharing` knows what is kept of prefixes.
    `ahead`, where the limits want it, makes the next plan while a step runs.
    `preempted` names who lost its blocks between the last plan and the one before it or for the last plan.
    """

    def __init__(
        self,
        limits: ScheduleSection,
        cache: CacheSection,
        order: Order,
        groups: Sequence[KVGroup],
        block_size: int,
        max_model_len: int,
        disk: Carrier | None = None,
    ) -> None:
        self.limits = limits
        self.max_len = min(max_model_len, *(_longest(group, limits, block_size) for group in groups))
        self.preempted: tuple[str, ...] = ()
        self._max_model_len = max_model_len
        self._blocks = Blocks(groups, block_size, cache)
        self._forks = Forks(self._blocks)
        self.sharing = Sharing(self._blocks, cache)
        self._places = Places(limits.max_num_seqs)
        self.series = Series(self._blocks, self.max_len)
        self.tiers = Tiers(self._blocks, cache, disk)
        gate = Gate(order, self._forks, self.sharing)
        self._planner = Planner(gate, self._places, self._blocks, self._forks, self.sharing, self.tiers)
        self.ahead: Ahead | None = None
        if limits.planning_depth > 1:
            self.ahead = Ahead(self._planner, self._places, self._blocks, self.max_len)
        self._requests: dict[str, Tracked] = {}
        self._figures = _Figures()
        self._open: tuple[Draft, StepPlan] | None = None

    # ---- requests come and go ----------------------------------------------------------------------------------------

    def add(self, request: NewRequest) -> None:
        """A request joins the waiting ones. Refused, with nothing changed, where it can never run: RequestError beyond
        the model's length, CapacityError beyond the pool. A parent that is not open is no parent.
        """
        self._refuse(request)
        parent = self._requests.get(request.parent) if request.parent is not None else None
        number = self._figures.added
        # Behind all with a smaller rank than the parent's, before all with a greater one.
        rank = self._planner.gate.rank(request, number) if parent is None else (*parent.rank, number)
        table = BlockTable(self._blocks, b"" if request.keys is None else request.keys.namespace)
        tracked = Tracked(request, number, rank, table, total=request.prompt)
        if parent is not None:
            self._forks.join(tracked, parent)
        self._figures.added += 1
        self._requests[request.request_id] = tracked
        self._places.wait(tracked)

    def _refuse(self, request: NewRequest) -> None:
        name, prompt, blocks = request.request_id, request.prompt, self._blocks
        if name in self._requests:
            raise RequestError(f"Request id {name!r} is in use.", "Ids of open requests must differ.")
        if prompt < 1:
            raise RequestError(f"Request {name!r} has an empty prompt.", param="prompt")
        if prompt + 1 > self._max_model_len:
            raise RequestError(
                f"The prompt has {prompt} tokens, and the model takes {self._max_model_len} including the answer.",
                f"Shorten it to at most {self._max_model_len - 1} tokens.",
                param="prompt",
                code="context_length_exceeded",
            )
        if prompt + 1 > self.max_len:
            raise CapacityError(
                f"The prompt has {prompt} tokens, and the KV cache holds {self.max_len} "
                f"({' and '.join(map(str, blocks.total))} blocks of {blocks.block_size}) including the answer.",
                f"Shorten it to at most {self.max_len - 1} tokens, or raise kv_cache_memory_bytes.",
            )

    def finish(self, request_id: str) -> None:
        """The request is over, in whatever state it is: its row and blocks are free at once. KeyError if not open."""
        request = self._requests.pop(request_id)
        self._forks.over(request)
        self.sharing.over(request)
        self._planner.over(request)
        self.tiers.over(request)
        self._places.leave(request)
        request.table.release()
        if request_id in self._figures.lost:
            self._figures.lost.remove(request_id)

    def preempt(self, request_id: str, *, keep: bool = True) -> None:
        """The request loses its blocks now and goes on later; one that waits is let be. KeyError if not open.

        `keep`: what it has computed is good, so it may be saved.
        """
        request = self._requests[request_id]
        if request.row is not None:
            self._planner.preempt(request, keep=keep)
            self._figures.lost.append(request_id)

    def fault(self, row: int) -> bool:
        """What the row computed in the open step is bad. Blocks it wrote are given to nobody and scrubbed before reuse.

        True: it had used blocks that others wrote, and is computed once more without them. False: it is to end.
        """
        request = self._places.at(row)
        assert request is not None, f"nobody runs in row {row}"
        held, path = request.table.blocks, request.table.path()
        self._blocks.poison_nodes(path[request.shared : request.shared + 1])
        self._blocks.poison((group, block) for group, own in enumerate(held) for block in own[request.shared :])
        self._forks.distrust(request)
        self.tiers.distrust(request)
        if request.private or not (request.shared or request.copied):
            request.private = True  # it gives nothing any more
            return False
        tree = self._blocks.tree
        shared = [(group, block) for group, blocks in enumerate(held) for block in blocks[: request.shared]]
        nodes = [tree.at(group, block) for group, block in shared] if tree is not None else []
        nodes.append(request.origin)
        request.suspects = tuple(dict.fromkeys(node for node in nodes if node is not None))
        request.private = True
        self.preempt(request.request_id, keep=False)
        return True

    def reset_prefix_cache(self) -> Future[None]:
        """Drops every cached block that no request uses, and all sessions; done once files are gone too."""
        self.sharing.sessions.end_all()
        if self._blocks.tree is not None:
            self._blocks.tree.reset()
        return self.tiers.reset()

    # ---- one step ----------------------------------------------------------------------------------------------------

    def plan(self, now: float = 0.0) -> StepPlan | None:
        """The next step, None where there is nothing to compute. A step that was never committed is taken back.

        `now`: seconds of the clock that arrivals are told by.
        """
        self.take_back()
        self.sharing.sessions.expire(now)
        begun = None if self.ahead is None else self.ahead.take(self.limits)
        draft = self._planner.draft(self.limits, now, begun)
        step_is_full = self._places.free_rows and not draft.budget and not draft.preempted
        waits = self._forks.deferred + self.sharing.deferred + self.tiers.deferred
        self._figures.deferred = self.num_waiting if step_is_full else waits
        self.preempted, self._figures.lost = (*self._figures.lost, *draft.preempted), []
        if not draft.rows:
            assert not self._requests, f"no progress with {self.num_running} running and {self.num_waiting} waiting"
            return None
        if not waits:  # else somebody waits for no more than what this step computes
            self.series.extend(draft, self._places.running, self.limits)
        saves = self.tiers.take_saves()
        plan = draft.plan(self._places.take_released(), self._blocks.take_scrubs(), saves)
        self._open = draft, plan
        return plan

    def commit(self, plan: StepPlan, generated: Mapping[int, int], finished: Collection[int], steps: int = 1) -> None:
        """The step is done, or so many of its series: its tokens are cached, `generated[row]` new ones are known,
        `finished` rows are over.
        """
        assert self._open is not None and self._open[1] is plan, "this is not the step that was planned last"
        draft, self._open = self._open[0], None
        self.tiers.settle()
        for node in draft.entered:
            node.computed = True
        self._figures.computed += steps * plan.num_tokens
        self._figures.copied += sum(op.kind == "copy" for op in draft.copies)
        for row in plan.rows:
            request = self._places.at(row.row)
            if request is None:
                continue  # aborted or preempted while the step ran
            drawn = generated.get(row.row, 0)
            request.computed = row.start + row.count + steps - 1
            request.total += drawn
            before = row.start if row.start > request.served else request.served
            if request.computed > before:
                request.served = request.computed
                self._planner.gate.served(request, request.computed - before)
            if steps > 1 and request.table.fills(request.computed) and (keys := request.gives) is not None:
                for node in request.table.enter(keys, request.computed):
                    node.computed = True
            if row.sample:
                self._forks.computed(request)
                if request.suspects and drawn:
                    # Alone it went well.
                    self._blocks.poison_nodes(request.suspects)
                    request.suspects = ()
            if row.row in finished:
                self.finish(request.request_id)
            else:
                assert request.remaining > 0, f"{request.request_id}: {request.computed} of {request.total} computed"
                request.table.slide(request.computed)

    def take_back(self) -> None:
        """A step that was planned and never committed broke: what it was to compute is not there, so nobody may rely on
        it. To be told before its requests are finished, who would leave it to others.
        """
        if self._open is None:
            return
        (draft, plan), self._open = self._open, None
        self._forks.give_back(force=True)
        for request in list(self._places.running):
            self.preempt(request.request_id, keep=False)
        self._blocks.poison_nodes(draft.entered)
        self._blocks.poison((op.group, op.target) for op in plan.state_ops if op.kind != "save")
        self.tiers.broken(plan.state_ops)

    # ---- figures -----------------------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return len(self._places.running)

    @property
    def num_waiting(self) -> int:
        return len(self._places.waiting)

    def request_at(self, row: int) -> str | None:
        """Id of the request that owns a row now."""
        request = self._places.at(row)
        return request.request_id if request else None

    def stats(self) -> EngineStats:
        """The state now; times and what a single step did are left to the caller."""
        blocks, tree, held = self._blocks, self._blocks.tree, self._blocks.held
        groups, places = len(held), sum(held) * blocks.block_size
        empty = sum(request.table.capacity - request.computed for request in self._places.running)
        return EngineStats(
            running=self.num_running,
            waiting=self.num_waiting,
            deferred=min(self._figures.deferred, self.num_waiting),
            kv_blocks=sum(blocks.total),
            held_blocks=sum(held),
            kv_usage=max(used / total for used, total in zip(held, blocks.total, strict=True)),
            kv_waste=groups * (empty + self._forks.waste()) / places if places else 0.0,
            cached_blocks=sum(tree.num_unused(group) for group in range(groups)) if tree is not None else 0,
            spared_blocks=spared(blocks),
            prefix_queries_total=self.sharing.asked,
            prefix_hits_total=self.sharing.found,
            prefix_inflight_total=self.sharing.in_flight,
            prefix_evictions_total=tree.evictions if tree is not None else 0,
            preemptions_total=self._planner.preemptions,
            copied_blocks_total=self._figures.copied,
            **self.tiers.figures(),
            **({} if self.ahead is None else self.ahead.totals()),
            session_blocks=self.sharing.sessions.num_blocks,
            sessions=len(self.sharing.sessions),
            computed_tokens_total=self._figures.computed,
        )

    def check(self) -> None:
        """Asserts that requests, rows and blocks add up, with the numbers where they do not."""
        self._blocks.check()
        self._places.check()
        holders, tree = Counter((*self._forks.check(), *self.sharing.sessions.check())), self._blocks.tree
        for request in self._requests.values():
            table = request.table
            holders.update((group, block) for group, own in enumerate(table.blocks) for block in own if block)
            assert request.computed <= min(request.total - 1, table.capacity), f"{request}"
            table.check(request.computed)
            assert request.row is not None or not table.num_blocks, f"{request.request_id} waits with blocks"
            assert not table.node or not table.node.attached or len(table.path()) == table.depth, f"{request}"
        for number, group in enumerate(self._blocks.groups):
            for block in range(1, group.pool.total + 1):
                held, cached = holders[number, block], tree is not None and tree.at(number, block) is not None
                references = group.pool.references(block)
                assert held + cached == references, f"{number}/{block}: {held} holders, {cached=}, {references=}"
        self.tiers.check(self._places.waiting)
        listed = {id(request) for request in (*self._places.waiting, *self._places.running)}
        assert listed == {id(request) for request in self._requests.values()}


def holdings_of(scheduler: Scheduler) -> Holdings:
    """Who holds what, now and whenever it is asked."""
    return Holdings(scheduler._places, scheduler._blocks, scheduler.sharing.sessions, scheduler.tiers)


def _longest(group: KVGroup, limits: ScheduleSection, block_size: int) -> int:
    """Tokens a request may have as far as one KV group goes: behind a window it needs no more blocks, however long."""
    whole = group.pool.total * block_size
    if group.window is None:
        return whole
    window = most_blocks(group.window, whole + block_size, limits.max_num_batched_tokens, block_size)
    return whole if window > group.pool.total else sys.maxsize
