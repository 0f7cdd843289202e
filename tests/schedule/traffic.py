"""Traffic: a scheduler with real token lists and a simulated memory, which knows what stands in each place of a block.

A place holds the *path* of the token computed there: a number that stands for the salt and all tokens up to it. So a
stale, wrongly shared or too early read is seen as the wrong path. What a faulty row wrote is BAD.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from pelton.core.config import CacheSection, ScheduleSection
from pelton.core.plan import StepPlan
from pelton.kv.group import Held, KVGroup, first_block
from pelton.kv.pool import NULL_BLOCK, BlockPool
from pelton.kv.tiers.chain import Labelled
from pelton.kv.tiers.files import BlockFiles
from pelton.kv.tiers.in_turn import InTurn
from pelton.schedule.ahead.ahead import Ahead
from pelton.schedule.order import Order
from pelton.schedule.orders.fcfs import FirstComeFirstServed
from pelton.schedule.scheduler import Scheduler
from pelton.schedule.tracked import NewRequest

BLOCK = 4
NOTHING, BAD = 0, -1
WHOLE = CacheSection(partial_prefix_blocks=False)
Place = tuple[int, int]  # KV group and block


class TokenKeys:
    """BlockKeys over a list of tokens that grows."""

    def __init__(self, tokens: list[int], salt: str) -> None:
        self.tokens = tokens
        self.namespace = salt.encode()

    def key(self, block: int) -> bytes:
        ids = self.tokens[block * BLOCK : (block + 1) * BLOCK]
        assert len(ids) == BLOCK, f"block {block} of {len(self.tokens)} tokens is not full"
        return array("i", ids).tobytes()

    def part(self, block: int) -> bytes:
        return array("i", self.tokens[:-1][block * BLOCK : (block + 1) * BLOCK]).tobytes()


@dataclass
class Sequence:
    """One open request as the test knows it. `room`: tokens still to be drawn. `stops`: the next one ends it.

    `leans`: it read what others wrote, in `shared` whole blocks of theirs and perhaps in a copy.
    """

    name: str
    tokens: list[int]
    salt: str
    room: int
    seed: int = 0
    computed: int = 0
    shared: int = 0
    leans: bool = False
    private: bool = False
    settles: int | None = None
    prompt: int = 0
    drawn: list[int] = field(default_factory=list)
    stops: bool = False


class HostMemory:
    """The bytes of host slots: BLOCK paths each."""

    def __init__(self) -> None:
        self._slots: dict[Place, bytearray] = {}

    def slot(self, group: int, slot: int) -> memoryview:
        return memoryview(self._slots.setdefault((group, slot), bytearray(8 * BLOCK)))


class Carrier(InTurn):
    """`loses`: which of the blocks it cannot carry; what is in the slot then is anything."""

    def __init__(self, files: BlockFiles, host: HostMemory) -> None:
        super().__init__(files, host.slot)
        self.loses: Callable[[Labelled], bool] = lambda block: False
        self._host = host

    def carry(self, read: bool, block: Labelled, slot: int) -> bool:
        if self.loses(block):
            memory = self._host.slot(block.name.group, slot)
            memory[:] = bytes(len(memory))
            return False
        return super().carry(read, block, slot)


def make(
    rows: int = 4,
    budget: int = 16,
    blocks: int = 100,
    max_len: int = 1000,
    cap: int = 0,
    cache: CacheSection | None = None,
    order: Order | None = None,
    windows: tuple[int | None, ...] = (None,),
) -> Scheduler:
    """`windows`: of the KV groups, each of which has as many blocks. It plans single steps: see `in_series`.

    `cache` None: whole blocks are shared.
    """
    limits = ScheduleSection(
        max_num_seqs=rows,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=cap,
        max_steps_per_call=1,
    )
    groups = [KVGroup(BlockPool(blocks + 1), window) for window in windows]
    return Scheduler(limits, cache or WHOLE, order or FirstComeFirstServed(), groups, BLOCK, max_len)


def tiered(
    made: Scheduler, slots: int, cache: CacheSection | None = None, disk: Carrier | None = None, block_bytes: int = 1
) -> Scheduler:
    """One with the same sizes, and host slots for each group. `cache` as for `make`."""
    windows, order = [group.window for group in made._blocks.groups], made._planner.gate._order
    totals = [group.pool.total for group in made._blocks.groups]
    groups = [
        KVGroup(BlockPool(total + 1), window, slots, block_bytes) for total, window in zip(totals, windows, strict=True)
    ]
    return Scheduler(made.limits, cache or WHOLE, order, groups, BLOCK, made._max_model_len, disk)


def in_series(scheduler: Scheduler, steps: int) -> Scheduler:
    """The same scheduler, which plans so many steps as one call wherever it may, however long they take."""
    scheduler.limits = replace(scheduler.limits, max_steps_per_call=steps)
    scheduler.series.seconds = float("inf")
    return scheduler


def planning_ahead(scheduler: Scheduler) -> Scheduler:
    """The same scheduler with a planning depth of 2."""
    scheduler.limits = replace(scheduler.limits, planning_depth=2)
    scheduler.ahead = Ahead(scheduler._planner, scheduler._places, scheduler._blocks, scheduler.max_len)
    return scheduler


def _plan_behind(scheduler: Scheduler, plan: StepPlan) -> None:
    """While the plan is carried out."""
    if scheduler.ahead is not None:
        scheduler.ahead.make(plan, scheduler.limits)
        scheduler.check()


def take_back(sequence: Sequence | None, steps: int) -> None:
    """Who lost its row meanwhile is told nothing of what a series drew."""
    if sequence is not None and steps > 1:
        del sequence.tokens[1 - steps :], sequence.drawn[1 - steps :]
        sequence.room += steps - 1


def _shared(held: Held, most: int, loaded: set[Place]) -> int:
    """How many leading entries of new tables, `most` of which hold cached tokens, are blocks of others."""
    first = most
    for group, blocks in enumerate(held):
        first = min([first, *(entry for entry, block in enumerate(blocks) if (group, block) in loaded)])
    return first


class Traffic:
    """Requests with tokens; `step` plans, reads the plan as a runner would, computes in memory, and commits."""

    def __init__(
        self, scheduler: Scheduler, windows: tuple[int | None, ...] = (None,), host: HostMemory | None = None
    ) -> None:
        self.scheduler = scheduler
        self.windows = windows
        self.open: dict[str, Sequence] = {}
        self.over: dict[str, Sequence] = {}
        self.seen: Counter[str] = Counter()
        self.computed = 0
        self.noticed: set[Place] = set()
        self._paths: dict[tuple[object, int], int] = {}
        self._memory: dict[Place, list[int]] = {}
        self.host = host or HostMemory()
        self.outside: list[Place] = []  # blocks that somebody holds whom the scheduler does not know
        self._tables: dict[int, list[list[int]]] = {}
        self._names: dict[int, str] = {}

    def add(
        self,
        name: str,
        prompt: Collection[int],
        room: int = 3,
        *,
        salt: str = "",
        seed: int = 0,
        shared: bool = True,
        settles: int | None = None,
        session: str = "",
        **kind: object,
    ) -> None:
        sequence = Sequence(name, list(prompt), salt, min(room, self.scheduler.max_len - len(prompt)), seed)
        sequence.settles, sequence.prompt = settles, len(prompt)
        keys = TokenKeys(sequence.tokens, salt) if shared else None
        named = (salt, session) if session else None
        new = NewRequest(name, len(prompt), room, keys=keys, settles=settles, session=named, **kind)  # type: ignore[arg-type]
        self.scheduler.add(new)
        self.open[name] = sequence

    def abort(self, name: str) -> None:
        self.scheduler.finish(name)
        del self.open[name]

    def preempt(self, name: str) -> None:
        """Which of the open requests lost their blocks is read from the next plan."""
        self.scheduler.preempt(name)
        self.open[name].computed = 0

    def step(
        self,
        *,
        faulty: Callable[[Sequence], bool] | None = None,
        during: Callable[[], None] | None = None,
        most: int = 8,
    ) -> StepPlan | None:
        """One step in which every row that samples draws a token, or a series of `most` at most, of which none but the
        first may be faulty. `during` runs between plan and commit; so is the next step planned where that is wanted.
        """
        plan = self.scheduler.plan()
        if plan is None:
            assert not self.open, f"nothing to do with {len(self.open)} open requests"
            return None
        self.read(plan)
        _plan_behind(self.scheduler, plan)
        bad = self._compute(plan, faulty)
        steps = 1 if bad else self._series(plan, most)
        if during is not None:
            during()
        generated: dict[int, int] = {}
        finished: set[int] = set()
        for row in plan.rows:
            name = self.scheduler.request_at(row.row)
            if name is None:
                take_back(self.open.get(self._names[row.row]), steps)
                continue
            sequence = self.open[name]
            sequence.computed = row.start + row.count + steps - 1
            if row.row in bad and row.sample:
                self._fault(row.row, sequence, row.start, finished)
            elif row.sample:
                self._append(sequence)
                generated[row.row] = steps
                if not sequence.room or sequence.stops:
                    finished.add(row.row)
        names = {row: self.scheduler.request_at(row) for row in finished}
        self.scheduler.commit(plan, generated, finished, steps)
        for name in names.values():
            assert name is not None
            self.over[name] = self.open.pop(name)
            self.seen["finish"] += 1
        self.scheduler.check()
        return plan

    def break_step(self, rows: int = 1, ops: int | None = None) -> None:
        """A step of which some rows are computed, but never committed; whether it scrubbed anything is unknown. `ops`:
        it broke before that, when so many of its state ops were done.
        """
        plan = self.scheduler.plan()
        assert plan is not None
        computed, noticed = self.computed, set(self.noticed)
        self.read(plan, ops)
        _plan_behind(self.scheduler, plan)
        self._compute(replace(plan, rows=plan.rows[:rows] if ops is None else ()), None)
        self.noticed, self.computed = noticed, computed
        for sequence in self.open.values():
            sequence.computed = 0

    def run(self, most: int = 3000) -> int:
        """Steps until nobody is left; returns how many."""
        for steps in range(most):
            if self.step() is None:
                return steps
        raise AssertionError(f"{len(self.open)} requests are still open after {most} steps")

    def wipe(self) -> None:
        """Nobody holds a block: what stands there from earlier is not to be relied on."""
        for places in self._memory.values():
            places[:] = [NOTHING] * BLOCK

    def read(self, plan: StepPlan, ops: int | None = None) -> None:
        """What a runner does with a plan before it computes. `ops`: how many of the state ops; None: all."""
        limits = self.scheduler.limits
        assert 0 < plan.num_tokens <= limits.max_num_batched_tokens
        assert all(0 < row.count <= (limits.long_prefill_token_threshold or row.count) for row in plan.rows)
        assert len({row.row for row in plan.rows}) == len(plan.rows) <= limits.max_num_seqs
        for name in self.scheduler.preempted:
            assert name in self.open
            self.open[name].computed = 0
            self.seen["preempt"] += 1
        for row in plan.released:
            del self._tables[row], self._names[row]
        fresh: list[Place] = []
        arriving = {(op.group, op.target) for op in plan.state_ops if op.kind == "load"}
        loaded = set(arriving)
        for admission in plan.admitted:
            assert admission.row not in self._tables, "a row is released before it is taken"
            self._tables[admission.row] = [[] for _ in self.windows]
            self._names[admission.row] = admission.request_id
            sequence = self.open[admission.request_id]
            held = plan.new_blocks[admission.row]
            sequence.shared = _shared(held, admission.cached // BLOCK, loaded)
            # Whoever shares what another one loads in this very step comes after that one.
            own = loaded.intersection((group, block) for group, blocks in enumerate(held) for block in blocks)
            fresh += own
            loaded -= own
            others = [block for blocks in held for block in blocks[: sequence.shared] if block != NULL_BLOCK]
            assert sequence.computed == 0 and not (sequence.private and others)
            sequence.computed, sequence.leans = admission.cached, admission.cached > 0
            self.seen["hit"] += admission.cached > 0
            origin = self.scheduler._requests[admission.request_id].origin
            self.seen["part"] += origin is not None
            self.seen["tail"] += origin is not None and origin.tail
        for row, held in plan.new_blocks.items():
            assert len({len(blocks) for blocks in held}) == 1 and len(held) == len(self.windows)
            sequence = self.open[self._names[row]]
            for group, blocks in enumerate(held):
                table = self._tables[row][group]
                known = 0 if table else sequence.computed // BLOCK
                assert NULL_BLOCK not in blocks[known:], "a token has no place"
                self.seen["window hit"] += NULL_BLOCK in blocks
                table += blocks
                fresh += [place for block in blocks[known:] if (place := (group, block)) not in arriving]
        assert not loaded, f"nobody has {loaded}"
        self._state_ops(plan, fresh, len(plan.state_ops) if ops is None else ops)

    def _state_ops(self, plan: StepPlan, fresh: list[Place], most: int) -> None:
        assert len(set(fresh)) == len(fresh), "a block is handed out twice"
        scrubbed = {(op.group, op.target) for op in plan.state_ops if op.kind == "scrub"}
        missed = self.noticed.intersection(fresh) - scrubbed
        assert not missed, f"bad blocks {missed} are handed out as they are"
        assert scrubbed <= set(fresh)
        self.noticed -= scrubbed
        places = [("save", "scrub").index(op.kind) if op.kind in ("save", "scrub") else 2 for op in plan.state_ops]
        assert places == sorted(places), "what is given up is saved before its block is used again"
        for number, op in enumerate(plan.state_ops):
            self.seen[op.kind] += 1
            source, target = (op.group, op.source), (op.group, op.target)
            assert op.kind == "save" or target in fresh
            if number >= most:
                continue
            match op.kind:
                case "copy":
                    self._memory[target] = list(self._memory[source])
                case "save":
                    self.host.slot(*target)[:] = array("q", self._memory[source]).tobytes()
                case "load":
                    self._memory[target] = array("q", self.host.slot(*source).tobytes()).tolist()
                case _:
                    self._memory[target] = [NOTHING] * BLOCK

    def _compute(self, plan: StepPlan, faulty: Callable[[Sequence], bool] | None) -> set[int]:
        """All rows in order; returns those whose results are bad."""
        bad: set[int] = set()
        admitted = {admission.row for admission in plan.admitted}
        for row in plan.rows:
            sequence, tables = self.open[self._names[row.row]], self._tables[row.row]
            assert row.start == sequence.computed, f"{sequence.name}: starts at {row.start}, not {sequence.computed}"
            assert row.sample == (row.start + row.count == len(sequence.tokens)), "drawn after the last known token"
            spoilt = faulty is not None and faulty(sequence)
            path: object = sequence.salt
            for index in range(row.start + row.count):
                path = self._paths.setdefault((path, sequence.tokens[index]), len(self._paths) + 1)
                for group, window in enumerate(self.windows):
                    if window is not None and index <= row.start - window:
                        continue  # nobody sees it any more
                    block, place = (group, tables[group][index // BLOCK]), index % BLOCK
                    if index < row.start:
                        there = self._memory[block][place]
                        assert there in (path, BAD), f"{sequence.name}: {there} and not {path} stands at index {index}"
                        if there == BAD:
                            spoilt = True
                            assert row.row not in admitted or block not in self.noticed, "a bad block for another"
                    else:
                        assert isinstance(path, int)
                        self._memory.setdefault(block, [NOTHING] * BLOCK)[place] = BAD if spoilt else path
            if spoilt:
                bad.add(row.row)
            self.computed += row.count
            self.seen["chunk"] += not row.sample
        return bad

    def _append(self, sequence: Sequence) -> None:
        token = self._draw(sequence)
        sequence.tokens.append(token)
        sequence.drawn.append(token)
        sequence.room -= 1

    def _series(self, plan: StepPlan, most: int) -> int:
        """Draws all but the last step's tokens, each computed by the step behind it; returns the number of steps."""
        if plan.repeat == 1:
            return 1
        sequences = [self.open[self._names[row.row]] for row in plan.rows]
        for sequence, row in zip(sequences, plan.rows, strict=True):
            assert row.sample and row.count == 1 and sequence.drawn and sequence.room >= plan.repeat
            assert sequence.settles is not None and len(sequence.drawn) >= sequence.settles
        assert len(plan.rows) == self.scheduler.num_running
        steps = min(plan.repeat, most)
        for step in range(1, steps):
            rows = [replace(row, start=row.start + step) for row in plan.rows]
            for sequence, row in zip(sequences, rows, strict=True):
                self._append(sequence)
                sequence.computed = row.start
            assert not self._compute(replace(plan, rows=tuple(rows), admitted=()), None)
        self.seen["series"] += steps > 1
        self.seen["series cut short"] += steps < plan.repeat
        self.seen["series over a border"] += any(row.start // BLOCK < (row.start + steps) // BLOCK for row in plan.rows)
        return steps

    def _fault(self, row: int, sequence: Sequence, begun: int, finished: set[int]) -> None:
        """The step's first token of the row was at index `begun`."""
        again = self.scheduler.fault(row)
        assert again == (sequence.leans and not sequence.private)
        self.seen["fault again" if again else "fault"] += 1
        for group, window in enumerate(self.windows):
            first = max(sequence.shared, first_block(window, begun, BLOCK))
            self.noticed.update((group, block) for block in self._tables[row][group][first:])
        if again:
            sequence.private = True
            sequence.computed = 0
        else:
            finished.add(row)

    def _draw(self, sequence: Sequence) -> int:
        """The same after the same tokens and seed, whatever else runs."""
        return (sum(sequence.tokens) * 31 + len(sequence.tokens) * 7 + sequence.seed) % 3
