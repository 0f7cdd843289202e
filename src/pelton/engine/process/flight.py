"""FlightRecord: what the engine's present step does, kept where a crash does not reach: in memory its parent shares.

After a crash or a hang the parent reads what the step was at. It is no log: only the last step is kept, cut to a fixed
size. Invariant: writing takes no longer than some microseconds and never fails the step.
"""

import mmap
import os
import struct
from dataclasses import dataclass

from pelton.core.plan import Admission, StepPlan

MOST_NAMES = 1024  # rows whose request's id is kept
MOST_ROWS = 128  # rows of a step that are described
NAME_BYTES = 64
_HEADER = struct.Struct("<QQdIIII")  # running, step, began, rows, described, tokens, state ops
_ROW = 12  # three int32: row, start, count
SIZE = _HEADER.size + MOST_ROWS * _ROW + MOST_NAMES * NAME_BYTES
_NAMES_AT = _HEADER.size + MOST_ROWS * _ROW


@dataclass(frozen=True, slots=True)
class Flight:
    """One step: `began` in seconds of the engine's clock; `described`: (request id, start, count) of its first rows."""

    running: bool
    step: int
    began: float
    rows: int
    tokens: int
    state_ops: int
    described: tuple[tuple[str, int, int], ...]

    def __str__(self) -> str:
        if self.step == 0:
            return "no step was begun"
        what = "was being computed" if self.running else "was over"
        parts = [f"{name} [{start}, {start + count})" for name, start, count in self.described]
        if self.rows > len(parts):
            parts.append(f"and {self.rows - len(parts)} more")
        copies = f", {self.state_ops} block operations" if self.state_ops else ""
        return f"step {self.step} {what}: {self.tokens} tokens of {self.rows} rows{copies}: {', '.join(parts)}"


class FlightRecord:
    """The shared memory behind the file descriptor `fd`; both processes map it."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, SIZE)
        self._step = 0

    def begin(self, plan: StepPlan, now: float) -> None:
        """The plan is about to run."""
        for admission in plan.admitted:
            self._name(admission)
        shown = plan.rows[:MOST_ROWS]
        self._step += 1
        more = plan.repeat - 1
        numbers = [number for row in shown for number in (row.row, row.start, row.count + more)]
        struct.pack_into(f"<{len(numbers)}i", self._map, _HEADER.size, *numbers)
        sizes = (len(plan.rows), len(shown), plan.num_tokens * plan.repeat, len(plan.state_ops))
        _HEADER.pack_into(self._map, 0, 1, self._step, now, *sizes)

    def end(self) -> None:
        """The step is over."""
        self._map[0] = 0

    def read(self) -> Flight:
        """The last step that was begun."""
        running, step, began, rows, described, tokens, ops = _HEADER.unpack_from(self._map, 0)
        numbers = struct.unpack_from(f"<{3 * described}i", self._map, _HEADER.size)
        told = tuple(
            (self._named(row), start, count)
            for row, start, count in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
        )
        return Flight(bool(running), step, began, rows, tokens, ops, told)

    def close(self) -> None:
        self._map.close()

    def _name(self, admission: Admission) -> None:
        if admission.row < MOST_NAMES:
            name = admission.request_id.encode("utf-8", "backslashreplace")[:NAME_BYTES]
            struct.pack_into(f"{NAME_BYTES}s", self._map, _NAMES_AT + admission.row * NAME_BYTES, name)

    def _named(self, row: int) -> str:
        if row >= MOST_NAMES:
            return f"row {row}"
        at = _NAMES_AT + row * NAME_BYTES
        return self._map[at : at + NAME_BYTES].rstrip(b"\0").decode("utf-8", "replace") or f"row {row}"


def shared_memory() -> int:
    """File descriptor of fresh memory for a FlightRecord, all zero; it goes when the last who has it closes it."""
    fd = os.memfd_create("pelton-flight")
    try:
        os.ftruncate(fd, SIZE)
    except OSError:
        os.close(fd)
        raise
    return fd
