"""Fetches: a request that finds more of its beginning in files than in the tree waits until that is in host slots.

Invariant: a slot is held for a request that waits, or until the step is over that loads it, or until a reader that
nobody waits for any more is done with it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pelton.core.plan import Lookup
from pelton.kv.blocks import Blocks
from pelton.kv.group import first_block
from pelton.kv.misses import explain
from pelton.kv.node import Node
from pelton.kv.pool import NULL_BLOCK
from pelton.kv.prefix import BlockKeys
from pelton.kv.tiers.chain import Name, Path
from pelton.kv.tiers.host import HostSlots
from pelton.kv.tiers.reach import Place, lacking, path_of, reach_of
from pelton.kv.tiers.worker import Carrier, Done, Job
from pelton.schedule.tiers.swap import Rates
from pelton.schedule.tracked import Start, Tracked

MOST_BLOCKS = 1024  # of tokens that one request waits for
RETRY = (
    64  # of so many that files would take too long for one is read: else nobody would know of a disk that got faster
)


@dataclass(slots=True, eq=False)
class _Fetch:
    """`slots`: where each place's block comes to; `good`: those that have come, once the job is `done`."""

    slots: dict[Place, int]
    job: Job
    names: Path
    done: bool = False
    good: frozenset[Place] = frozenset()


@dataclass(slots=True)
class _Figures:
    """Counts since the start: blocks loaded for requests, and the tokens that they had not to compute for that."""

    blocks: int = 0
    tokens: int = 0


class Fetches:
    """`figures` may be read."""

    def __init__(self, blocks: Blocks, host: HostSlots, worker: Carrier, rates: Rates) -> None:
        self.figures = _Figures()
        self._blocks = blocks
        self._host = host
        self._worker = worker
        self._rates = rates
        self._open: dict[Tracked, _Fetch] = {}
        self._reading: dict[Job, _Fetch] = {}
        self._used: dict[Tracked, tuple[Name, ...]] = {}
        self._tried: set[Tracked] = set()
        self._left: set[_Fetch] = set()
        self._spent: list[_Fetch] = []
        self._dear = 0  # requests for which reading would have taken longer than computing

    @property
    def deferred(self) -> int:
        """Requests that wait for files."""
        return len(self._open)

    @property
    def awaited(self) -> set[Job]:
        """What reads for those who wait, without what has come."""
        return {fetch.job for fetch in self._open.values() if not fetch.done}

    def extend(self, request: Tracked, start: Start) -> Start | None:
        """With what a request begins that would begin with `start`: more, if files have it; None: it waits for that."""
        keys, tree, size = request.takes, self._blocks.tree, self._blocks.block_size
        if keys is None or tree is None or request in self._tried:
            return start
        fetch = self._open.get(request)
        if fetch is not None and not fetch.done:
            return None
        path = path_of(tree.root_of(keys.namespace), keys, (request.total - 1) // size)
        if fetch is None:
            begun = self._begin(request, keys, path, start)
            if begun is not None:
                self._open[request] = begun
            return start if begun is None else None
        groups, most = self._blocks.groups, (request.total - 1) // size
        reach = reach_of(groups, size, path, most, lambda *place: place in fetch.good)
        if reach * size <= start.cached:
            self._tried.add(request)
            self._host.give_back(_slots(self._open.pop(request)))
            return start
        lookup = None if start.lookup is None else self._told(fetch.names, keys, path[:reach], reach, most)
        return self._start(fetch, path, reach, replace(start, lookup=lookup))

    def began(self, request: Tracked, start: Start) -> None:
        """A request begins; what was fetched for it is free once the step is over."""
        fetch = self._open.pop(request, None)
        if fetch is None:
            return
        if not fetch.done:
            self._left.add(fetch)
            return
        self._spent.append(fetch)
        if start.loads:
            self._used[request] = tuple(fetch.names.name(*place) for place in fetch.good)
            self.figures.blocks += len(start.loads)
            self.figures.tokens += start.cached - start.full * self._blocks.block_size

    def forget(self, request: Tracked) -> None:
        """The request is over."""
        self._tried.discard(request)
        self._used.pop(request, None)
        fetch = self._open.pop(request, None)
        if fetch is None:
            return
        if fetch.done:
            self._host.give_back(_slots(fetch))
        else:
            self._left.add(fetch)

    def abandon(self) -> None:
        """Nobody waits any longer: all compute what they wanted."""
        for request in list(self._open):
            self.forget(request)
            self._tried.add(request)

    def distrust(self, request: Tracked) -> None:
        """What the request computed is bad, perhaps because what it was given was: nobody is given that again."""
        for name in self._used.pop(request, ()):
            self._worker.call(partial(self._worker.files.drop, name))

    def took(self, done: Done) -> None:
        """A reader is done."""
        fetch = self._reading.pop(done.job)
        fetch.done = True
        fetch.good = frozenset(place for place, good in zip(fetch.slots, done.good, strict=True) if good)
        self._rates.read(self._rates.bytes(group for group, _ in fetch.good), done.seconds)
        if fetch in self._left:
            self._left.discard(fetch)
            self._host.give_back(_slots(fetch))

    def settle(self) -> None:
        """The step that was planned last is over, or it broke."""
        for fetch in self._spent:
            self._host.give_back(_slots(fetch))
        self._spent.clear()

    def held(self) -> Iterator[tuple[int, int]]:
        """Slots (group, slot) in use."""
        for fetch in (*self._open.values(), *self._left, *self._spent):
            yield from _slots(fetch)

    def _begin(self, request: Tracked, keys: BlockKeys, path: Sequence[Node], start: Start) -> _Fetch | None:
        """What is to be fetched; None where files have no more than the tree, or room lacks, or it does not pay: then
        that is settled for the request.
        """
        groups, size, tree = self._blocks.groups, self._blocks.block_size, self._blocks.tree
        assert tree is not None
        names = Path(tree.root_of(keys.namespace), keys)

        def has(group: int, entry: int) -> bool:
            return self._worker.has(names.name(group, entry))

        most = min((request.total - 1) // size, start.full + min(MOST_BLOCKS, max(self._host.free)))
        slots, places, wanted = None, list[Place](), most
        while slots is None:
            reach = reach_of(groups, size, path, most, has)
            places = lacking(groups, size, path, reach)
            if reach * size <= start.cached:
                return None
            if not self._pays(reach * size - start.cached, places):
                if most == wanted:  # else it may pay with more room
                    self._tried.add(request)
                return None
            counts = self._host.counts(group for group, _ in places)
            slots = self._host.alloc(counts)
            # One entry less needs at most one slot less of each group.
            lack = max(count - free for count, free in zip(counts, self._host.free, strict=True))
            most = reach - max(1, lack)
        free = [iter(own) for own in slots]
        placed = {place: next(free[place[0]]) for place in places}
        blocks = tuple(names.labelled(*place) for place in places)
        fetch = _Fetch(placed, Job(True, blocks, tuple(placed.values())), names)
        self._reading[fetch.job] = fetch
        self._worker.start(fetch.job)
        return fetch

    def _start(self, fetch: _Fetch, path: Sequence[Node], reach: int, start: Start) -> Start:
        size = self._blocks.block_size
        places = lacking(self._blocks.groups, size, path, reach)
        shared = min(len(path), reach)
        held = []
        for number, group in enumerate(self._blocks.groups):
            first = first_block(group.window, reach * size, size)
            held.append(tuple(NULL_BLOCK if i < first else path[i].blocks[number] for i in range(shared)))
        whole = min([shared, *(entry for _, entry in places)])
        loads = tuple((place[0], fetch.slots[place]) for place in places)
        node = path[whole - 1] if whole else fetch.names.root
        return replace(
            start,
            blocks=tuple(held),
            cached=reach * size,
            source=(),
            origin=None,
            loads=loads,
            mixed=shared - whole,
            node=node,
        )

    def _told(self, names: Path, keys: BlockKeys, path: Sequence[Node], reach: int, most: int) -> Lookup:
        """Why no more than `reach` of `most` blocks were found, of which the tree has the nodes `path`."""
        tree, size = self._blocks.tree, self._blocks.block_size
        assert tree is not None
        if len(path) == reach:
            return explain(tree, keys, path, most, reach * size, size)
        if reach == most:
            return Lookup("complete", reach * size)
        return Lookup("evicted" if names.name(0, reach).digest in tree.ghosts else "unseen", reach * size)

    def _pays(self, tokens: int, places: Sequence[Place]) -> bool:
        """Whether reading takes less time than computing so many tokens, as far as speeds are known, or it is time to
        see how fast files are now.
        """
        if not self._rates.prefill:
            return True
        size = self._rates.bytes(group for group, _ in places)
        if size * (1 / self._rates.disk + 1 / self._rates.copy) < tokens / self._rates.prefill:
            return True
        self._dear += 1
        return self._dear % RETRY == 0


def _slots(fetch: _Fetch) -> Iterator[tuple[int, int]]:
    """All (group, slot) that it has."""
    return ((group, slot) for (group, _), slot in fetch.slots.items())
