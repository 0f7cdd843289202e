"""Tiers: all that the scheduler asks of memory beside the blocks: host slots, and files where there are any.

Invariant: every host slot is free or has one holder.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from functools import partial

from pelton.core.config import CacheSection
from pelton.core.plan import StateOp
from pelton.kv.blocks import Blocks
from pelton.kv.tiers.host import HostSlots
from pelton.kv.tiers.worker import Carrier, Job
from pelton.schedule.tiers.fetch import Fetches
from pelton.schedule.tiers.offload import Offload
from pelton.schedule.tiers.swap import Rates, Swap, spoil
from pelton.schedule.tracked import Start, Tracked

PATIENCE = 2.0  # seconds that an engine with nothing else to do waits for files at a time


class Tiers:
    """`rates` are told how long steps take; `on_idle`, where set, is called when no request is open any more and all
    ends are told, and again by who has time as long as the `offload` writes.

    `worker` None: no files.
    """

    def __init__(self, blocks: Blocks, cache: CacheSection, worker: Carrier | None = None) -> None:
        self.rates = Rates(blocks.groups)
        self.host = HostSlots([group.slots for group in blocks.groups])
        self.swap = Swap(blocks, self.host, cache, self.rates)
        self.on_idle: Callable[[], None] | None = None
        self.offload: Offload | None = None
        self.fetches: Fetches | None = None
        self._worker = worker
        if worker is not None and blocks.tree is not None:
            self.offload = Offload(blocks, self.host, worker)
            self.fetches = Fetches(blocks, self.host, worker, self.rates)

    @property
    def deferred(self) -> int:
        """Requests that wait for files."""
        return 0 if self.fetches is None else self.fetches.deferred

    def extend(self, request: Tracked, start: Start) -> Start | None:
        """See Fetches."""
        return start if self.fetches is None else self.fetches.extend(request, start)

    def wait(self) -> bool:
        """Whether somebody waits for files; if so, waits until something has come for one, or nothing for a while."""
        if self.fetches is None or not self.fetches.deferred:
            return False
        awaited = self.fetches.awaited
        if len(awaited) == self.fetches.deferred:
            self.collect(PATIENCE, awaited)
        return True

    def abandon(self) -> None:
        """Nobody waits for files any longer."""
        if self.fetches is not None:
            self.fetches.abandon()

    def began(self, request: Tracked, start: Start) -> None:
        """The request begins: what it loads is free once the step is over."""
        self.swap.began(request, start)
        if self.fetches is not None:
            self.fetches.began(request, start)

    def over(self, request: Tracked) -> None:
        """The request is over."""
        self.swap.forget(request)
        if self.fetches is not None:
            self.fetches.forget(request)

    def distrust(self, request: Tracked) -> None:
        """What the request computed is bad."""
        if self.fetches is not None:
            self.fetches.distrust(request)

    def take_saves(self) -> tuple[StateOp, ...]:
        """What the next step is to save before all else: the blocks may be others' by now."""
        return (*self.swap.take_saves(), *(self.offload.take_saves() if self.offload is not None else ()))

    def settle(self) -> None:
        """The step that was planned last is over."""
        self.swap.settle()
        if self.offload is not None and self.fetches is not None:
            self.offload.settle()
            self.fetches.settle()
            self.collect()

    def broken(self, ops: Sequence[StateOp]) -> None:
        """The step that was planned last, with these operations, broke."""
        self.swap.broken(ops)
        if self.offload is not None:
            self.offload.broken()
        self.settle()

    def reset(self) -> Future[None]:
        """Nothing that is cached in files is used any more, nor what was on its way there; done once they are gone."""
        over: Future[None] = Future()
        if self.offload is not None:
            self.offload.reset()
        if self._worker is not None:
            self._worker.call(self._worker.files.clear)
            self._worker.call(partial(over.set_result, None))
        else:
            over.set_result(None)
        return over

    def figures(self) -> dict[str, int]:
        """What EngineStats has of all this, by its fields' names."""
        swap, found = self.swap.figures, dict[str, int]()
        if self.offload is not None and self.fetches is not None and self._worker is not None:
            files = self._worker.files
            found = {
                "disk_blocks": files.count,
                "disk_bytes": files.bytes,
                "disk_stored_total": int(files.counters.get("kv_disk_written")),
                "disk_loaded_total": self.fetches.figures.blocks,
                "disk_hit_tokens_total": self.fetches.figures.tokens,
                "disk_dropped_total": self.offload.figures.dropped,
                "disk_rejected_total": int(files.counters.get("kv_disk_rejected")),
                "disk_failed_total": int(files.counters.get("kv_disk_failed")),
            }
        return {
            "swapped": self.swap.waiting,
            "host_slots": sum(self.host.total),
            "host_slots_used": self.host.used,
            "swaps_total": swap.swapped,
            "swaps_lost_total": swap.lost,
            "saved_blocks_total": swap.saved,
            "loaded_blocks_total": swap.loaded,
            **found,
        }

    def check(self, waiting: Iterable[Tracked]) -> None:
        """Asserts the invariant, and that who waits in host memory waits."""
        among = {id(request) for request in waiting}
        assert all(id(request) in among for request in self.swap.waiters()), "slots are held for one that does not wait"
        held = [*self.swap.held()]
        if self.offload is not None and self.fetches is not None:
            held += (*self.offload.held(), *self.fetches.held())
        self.host.check(held)

    def collect(self, seconds: float = 0.0, awaited: Collection[Job] = ()) -> None:
        """Takes note of what the carrier has done; waits at most so long for one of `awaited`."""
        if self._worker is None or self.offload is None or self.fetches is None:
            return
        for done in self._worker.done(seconds, awaited):
            if done.job.read:
                self.fetches.took(done)
            else:
                for block, slot in zip(done.job.blocks, done.job.slots, strict=True):
                    self.offload.over(block.name.group, slot)


def overwrite(tiers: Tiers, places: Collection[tuple[int, int]]) -> None:
    """These blocks (group, block) are written to before the next step, which may have been about to save them."""
    spoil(tiers.swap, places)
    if tiers.offload is not None:
        tiers.offload.spoil(places)
