"""Places: which requests wait and which run, both in rank order, and in which rows. Knows no blocks and no lengths.

Invariant: a request is in exactly one of the two lists, and in a row exactly while it runs.
"""

from bisect import bisect_left, insort
from operator import attrgetter

from pelton.schedule.tracked import Tracked

_RANK = attrgetter("rank")


class Places:
    """`waiting` and `running` are read by others and changed here alone. A row is owned for a run's whole length."""

    def __init__(self, rows: int) -> None:
        self.waiting: list[Tracked] = []
        self.running: list[Tracked] = []
        self._rows: list[Tracked | None] = [None] * rows
        self._free_rows = list(range(rows - 1, -1, -1))
        self._released: list[int] = []

    @property
    def free_rows(self) -> int:
        return len(self._free_rows)

    def at(self, row: int) -> Tracked | None:
        """Who runs in a row."""
        return self._rows[row]

    def wait(self, request: Tracked) -> None:
        """A request that has no place yet waits."""
        insort(self.waiting, request, key=_RANK)

    def run(self, request: Tracked) -> int:
        """A waiting request gets a row, which is returned."""
        _remove(self.waiting, request)
        insort(self.running, request, key=_RANK)
        row = request.row = self._free_rows.pop()
        self._rows[row] = request
        return row

    def leave(self, request: Tracked) -> None:
        """A request has no place any more."""
        if request.row is None:
            _remove(self.waiting, request)
            return
        _remove(self.running, request)
        self._rows[request.row] = None
        self._free_rows.append(request.row)
        self._released.append(request.row)
        request.row = None

    def take_released(self) -> tuple[int, ...]:
        """Rows that were left since the last call."""
        released, self._released = tuple(self._released), []
        return released

    def check(self) -> None:
        """Asserts the invariant."""
        in_rows = {row: request for row, request in enumerate(self._rows) if request is not None}
        assert {id(request) for request in in_rows.values()} == {id(request) for request in self.running}
        assert len(in_rows) + len(self._free_rows) == len(self._rows), f"{len(in_rows)} rows taken, {self._free_rows}"
        for row, request in in_rows.items():
            assert request.row == row, f"{request.request_id} is in row {row} and thinks {request.row}"
        for listed in (self.waiting, self.running):
            ranks = [request.rank for request in listed]
            assert ranks == sorted(set(ranks)), f"not in rank order: {ranks}"
        assert all(request.row is None for request in self.waiting)


def _remove(ranked: list[Tracked], request: Tracked) -> None:
    place = bisect_left(ranked, request.rank, key=_RANK)
    assert ranked[place] is request, f"{request.request_id} is not where its rank {request.rank} is"
    del ranked[place]
