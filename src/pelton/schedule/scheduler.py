"""Scheduler: continuous batching and chunked prefill as one rule, "every request has `remaining` tokens to compute".

Counts tokens and blocks and names rows; sees no token value and no array. Papers: Orca (OSDI 2022), arXiv 2309.06180,
2403.02310. Invariant: the first running request in rank order gets a token in every step, so all requests end.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest

from pelton.core.config import ScheduleSection
from pelton.core.errors import CapacityError, RequestError
from pelton.core.plan import Admission, RowPlan, StepPlan
from pelton.kv.pool import BlockPool
from pelton.kv.table import BlockTable
from pelton.schedule.order import Order
from pelton.schedule.tracked import Tracked


@dataclass(slots=True)
class _Draft:
    """A plan in the making. `decodes`: running requests still to be planned that need one token each.

    `cap`: most tokens of one request, 0 for no limit.
    """

    budget: int
    cap: int
    decodes: int
    now: float
    rows: list[RowPlan] = field(default_factory=list)
    admitted: list[Admission] = field(default_factory=list)
    new_blocks: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)

    def cut(self, request: Tracked, share: int) -> int:
        """How many tokens the request computes if `share` of the budget may go to it."""
        return min(request.remaining, share, self.cap or share)

    def reserve(self, request: Tracked, count: int) -> bool:
        """Blocks for the request's next `count` tokens; False (nothing changed) where too few are free."""
        assert request.row is not None
        added = request.table.grow(request.computed + count)
        if added:
            self.new_blocks[request.row] = (added,)
        return added is not None

    def place(self, request: Tracked, count: int) -> None:
        """The request computes `count` tokens; after the last known one a token is drawn."""
        assert request.row is not None
        self.budget -= count
        self.rows.append(RowPlan(request.row, request.computed, count, sample=count == request.remaining))


class Scheduler:
    """Plans one step at a time: `plan`, then `commit` with what the step gave, then the next `plan`.

    `max_len`: tokens (prompt and answer) a request may have, the smaller of the model's length and the pool.
    """

    def __init__(
        self, limits: ScheduleSection, order: Order, pool: BlockPool, block_size: int, max_model_len: int
    ) -> None:
        self._limits = limits
        self._order = order
        self._pool = pool
        self._block_size = block_size
        self._max_model_len = max_model_len
        self.max_len = min(max_model_len, pool.total * block_size)
        self.preemptions = 0
        self.preempted: tuple[str, ...] = ()
        self._requests: dict[str, Tracked] = {}
        self._waiting: dict[str, Tracked] = {}
        self._rows: list[Tracked | None] = [None] * limits.max_num_seqs
        self._free_rows = list(range(limits.max_num_seqs - 1, -1, -1))
        self._released: list[int] = []
        self._added = 0

    # ---- requests come and go ----------------------------------------------------------------------------------------

    def add(self, request_id: str, prompt: int, max_tokens: int, *, priority: int = 0, arrival: float = 0.0) -> None:
        """A request of `prompt` tokens joins the waiting ones. Refused, with nothing changed, where it can never run:
        RequestError beyond the model's length, CapacityError beyond the pool.
        """
        if request_id in self._requests:
            raise RequestError(f"Request id {request_id!r} is in use.", "Ids of open requests must differ.")
        if prompt < 1:
            raise RequestError(f"Request {request_id!r} has an empty prompt.", param="prompt")
        if prompt + 1 > self._max_model_len:
            raise RequestError(
                f"The prompt has {prompt} tokens, and the model takes {self._max_model_len} including the answer.",
                f"Shorten it to at most {self._max_model_len - 1} tokens.",
                param="prompt",
            )
        if prompt + 1 > self.max_len:
            raise CapacityError(
                f"The prompt has {prompt} tokens, and the KV cache holds {self.max_len} "
                f"({self._pool.total} blocks of {self._block_size}) including the answer.",
                f"Shorten it to at most {self.max_len - 1} tokens, or raise kv_cache_memory_bytes.",
            )
        table = BlockTable(self._pool, self._block_size)
        tracked = Tracked(request_id, self._added, prompt, max_tokens, priority, arrival, table, total=prompt)
        self._added += 1
        self._requests[request_id] = self._waiting[request_id] = tracked

    def finish(self, request_id: str) -> None:
        """The request is over, in whatever state it is: its row and blocks are free at once."""
        request = self._requests.pop(request_id)
        self._waiting.pop(request_id, None)
        self._take_away(request)

    @property
    def num_running(self) -> int:
        return len(self._rows) - len(self._free_rows)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use, 0 to 1."""
        return self._pool.used / self._pool.total

    def request_at(self, row: int) -> str | None:
        """Id of the request that owns a row now."""
        request = self._rows[row]
        return request.request_id if request else None

    def check(self) -> None:
        """Asserts that requests, rows and blocks add up, with the numbers where they do not."""
        self._pool.check()
        held = sum(request.table.num_blocks for request in self._requests.values())
        assert held == self._pool.used, f"tables hold {held} blocks, the pool has given {self._pool.used}"
        running = {request.request_id: row for row, request in enumerate(self._rows) if request is not None}
        assert len(running) == self.num_running, f"{len(running)} in rows, {len(self._free_rows)} rows free"
        assert (
            running.keys() | self._waiting.keys() == self._requests.keys() and not running.keys() & self._waiting.keys()
        )
        for request in self._requests.values():
            assert request.row == running.get(request.request_id), (
                f"{request.request_id} thinks its row is {request.row}"
            )
            assert request.computed <= min(request.total - 1, request.table.capacity), f"{request}"
            assert request.row is not None or not request.table.num_blocks, f"{request.request_id} waits with blocks"

    # ---- one step ----------------------------------------------------------------------------------------------------

    def plan(self, now: float = 0.0) -> StepPlan | None:
        """The next step, None where there is nothing to compute. `preempted` then names who lost its blocks for it."""
        running = sorted((request for request in self._rows if request is not None), key=self._ranked(now))
        draft = _Draft(
            budget=self._limits.max_num_batched_tokens,
            cap=self._limits.long_prefill_token_threshold,
            decodes=sum(request.remaining == 1 for request in running),
            now=now,
        )
        self._continue_running(draft, running)
        if not draft.preempted:
            self._admit_waiting(draft)
        self.preempted = tuple(draft.preempted)
        if not draft.rows:
            assert not self._requests, f"no progress with {self.num_running} running and {self.num_waiting} waiting"
            return None
        released, self._released = tuple(self._released), []
        return StepPlan(tuple(draft.rows), tuple(draft.admitted), released, draft.new_blocks)

    def commit(self, plan: StepPlan, generated: Mapping[int, int], finished: Collection[int]) -> None:
        """The step is done: its tokens are cached, `generated[row]` new ones are known, `finished` rows are over."""
        for row in plan.rows:
            request = self._rows[row.row]
            if request is None:
                continue  # aborted while the step ran
            request.computed = row.start + row.count
            request.total += generated.get(row.row, 0)
            if row.row in finished:
                self.finish(request.request_id)
            else:
                assert request.remaining > 0, f"{request.request_id}: {request.computed} of {request.total} computed"

    def _ranked(self, now: float) -> Callable[[Tracked], tuple[float, ...]]:
        return lambda request: self._order.rank(request, now)

    def _continue_running(self, draft: _Draft, running: list[Tracked]) -> None:
        """Running requests in rank order; where blocks run out, later ones lose theirs.

        Prompts leave a token of the budget for each decode behind them. That is always possible: whoever is admitted
        gets a token of what the others left over, so there are never more running requests than tokens in the budget.
        """
        place = 0
        while place < len(running):
            request = running[place]
            decodes = request.remaining == 1
            draft.decodes -= decodes
            count = draft.cut(request, draft.budget if decodes else draft.budget - draft.decodes)
            while count and not draft.reserve(request, count):
                later = running[place + 1 :]
                victim = place + 1 + self._order.victim(later) if later else place
                gone = running.pop(victim)
                draft.decodes -= victim > place and gone.remaining == 1
                self._preempt(draft, gone)
                if gone is request:
                    break
            if request.row is None:
                continue  # it preempted itself: the next one has moved to its place
            if count:
                draft.place(request, count)
            place += 1
        assert draft.decodes == 0 <= draft.budget, f"{draft.decodes} decodes left over, budget {draft.budget}"

    def _admit_waiting(self, draft: _Draft) -> None:
        """Waiting requests in rank order, while there are rows, budget, and blocks for all their known tokens."""
        if not self._waiting or not self._free_rows or not draft.budget:
            return
        promised = sum(request.table.needed(request.total) for request in self._rows if request is not None)
        for request in nsmallest(len(self._free_rows), self._waiting.values(), key=self._ranked(draft.now)):
            count = draft.cut(request, draft.budget)
            promised += request.table.needed(request.total)
            # One block more for each running request: its next tokens must not preempt at once what is admitted here.
            if not count or promised + self.num_running > self._pool.free:
                return
            del self._waiting[request.request_id]
            request.row = self._free_rows.pop()
            self._rows[request.row] = request
            draft.admitted.append(Admission(request.row, request.request_id))
            reserved = draft.reserve(request, count)
            assert reserved, f"{request.request_id}: {self._pool.free} blocks free, {promised} promised"
            promised -= len(draft.new_blocks.get(request.row, ((),))[0])
            draft.place(request, count)

    def _preempt(self, draft: _Draft, request: Tracked) -> None:
        """By recompute: the request waits again and will compute its prompt and its drawn tokens once more."""
        self._take_away(request)
        request.computed = 0
        self.preemptions += 1
        self._waiting[request.request_id] = request
        draft.preempted.append(request.request_id)

    def _take_away(self, request: Tracked) -> None:
        request.table.release()
        if request.row is not None:
            self._rows[request.row] = None
            self._free_rows.append(request.row)
            self._released.append(request.row)
            request.row = None
