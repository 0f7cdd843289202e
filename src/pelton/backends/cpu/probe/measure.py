"""Measures the machine: reading, copying, products, unpacking, arithmetic and the disk. It keeps nothing.

Invariant: when it returns or raises, the threads it started are gone.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from pelton.backends.cpu import _native
from pelton.backends.cpu.machine import free_memory, worker_cores
from pelton.backends.cpu.probe.disk import disk_rate
from pelton.backends.cpu.probe.figures import (
    BLOCK_WEIGHTS,
    FLOAT,
    INT8,
    PARTS,
    PIECES,
    CopyRate,
    DiskRate,
    ExpansionRate,
    Identity,
    MachineProbe,
    PeakRate,
    ProductRate,
    ReadRate,
    Spread,
)
from pelton.backends.cpu.probe.identity import identify
from pelton.core.clock import Clock, SystemClock
from pelton.core.environment import cache_folder
from pelton.core.errors import BackendError, CapacityError

MIB = 1 << 20
SMALL_SET = MIB // 2  # of one thread: its L2 cache
PART_OF_MEMORY = 4  # a working set is at most so much of what is free
ROW_FORMAT, INT8_FORMAT = "bf16", "q8"  # of the products that show the number of rows

Progress = Callable[[int, int, str], None]  # measured so far, of so many, what comes next


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured. `working_sets` of all threads together, beside that of the L2 caches; seconds of each."""

    quick: bool
    working_sets: tuple[int, ...]
    rows: tuple[int, ...]
    read_seconds: float
    product_seconds: float
    disk_bytes: int


FULL = Effort(
    False, tuple(n * MIB for n in (8, 32, 96, 160, 256, 512)), (1, 2, 4, 8, 16, 32, 64, 256), 0.2, 0.08, 256 * MIB
)
QUICK = Effort(True, tuple(n * MIB for n in (32, 96, 256)), (1, 8, 64), 0.12, 0.03, 32 * MIB)

_Job = tuple[str, Callable[[], None]]


def measure(
    effort: Effort = FULL, progress: Progress | None = None, *, threads: int = 0, clock: Clock | None = None
) -> MachineProbe:
    """Everything of one effort, with `threads` as the engine's setting. Ten to twenty seconds, or about three.

    CapacityError or BackendError where memory or threads for it cannot be had; SettingError as identify raises.
    """
    clock = clock or SystemClock()
    identity = identify(threads)
    session = _Session(identity, effort, clock)
    load = os.getloadavg()[0]
    start = clock.now()
    jobs = list(session.jobs())
    for number, (label, job) in enumerate(jobs):
        if progress:
            progress(number, len(jobs), label)
        job()
    if progress:
        progress(len(jobs), len(jobs), "done")
    return session.result(round(clock.now() - start, 2), round(load, 2))


@contextmanager
def _native_errors(what: str) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise CapacityError(f"No memory for {what}.", "Close other programs, or measure with --quick.") from error
    except RuntimeError as error:
        raise BackendError(f"{what} cannot be had: {error}.", "Set fewer threads.") from error


class _Session:
    """Figures as they come."""

    def __init__(self, identity: Identity, effort: Effort, clock: Clock) -> None:
        self._identity = identity
        self._effort = effort
        self._clock = clock
        self._isas = _native.instruction_sets()
        self._reads: list[ReadRate] = []
        self._copies: list[CopyRate] = []
        self._products: list[ProductRate] = []
        self._expansions: list[ExpansionRate] = []
        self._peaks: list[PeakRate] = []
        self._disk = DiskRate(0, None, None)

    def jobs(self) -> Iterator[_Job]:
        """(what, how) of all that is to be measured, in order."""
        counts, most = self._thread_counts(), self._identity.threads
        for threads in counts:
            yield f"reading, {_named(threads)}", lambda threads=threads: self._read(threads)  # type: ignore[misc]
        yield f"copying, {_named(most)}", self._copy
        for isa in [self._identity.isa] if self._effort.quick else self._isas:
            yield f"products, {isa}", lambda isa=isa: self._rows(isa)  # type: ignore[misc]
        for threads in sorted({1, most}):
            yield f"unpacking weights, {_named(threads)}", lambda threads=threads: self._expand(threads)  # type: ignore[misc]
        for threads in sorted({1, most}):
            yield f"arithmetic, {_named(threads)}", lambda threads=threads: self._arithmetic(threads)  # type: ignore[misc]
        yield "disk", self._file

    def result(self, seconds: float, load: float) -> MachineProbe:
        return MachineProbe(
            identity=self._identity,
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            quick=self._effort.quick,
            seconds=seconds,
            load_before=load,
            reads=tuple(self._reads),
            copies=tuple(self._copies),
            products=tuple(self._products),
            expansions=tuple(self._expansions),
            peaks=tuple(self._peaks),
            disk=self._disk,
        )

    def _thread_counts(self) -> list[int]:
        """One, all, and powers of two between them."""
        most = self._identity.threads
        between = [] if self._effort.quick else [1 << bit for bit in range(1, most.bit_length()) if 1 << bit < most]
        return sorted({1, *between, most})

    def _working_sets(self, threads: int) -> list[int]:
        """Of all sizes for one thread and all of them, of the largest for other numbers."""
        most = max(SMALL_SET * threads, free_memory() // PART_OF_MEMORY)
        sizes = sorted({SMALL_SET * threads, *(size for size in self._effort.working_sets if size <= most)})
        if self._effort.quick and threads == 1:
            return sizes[-1:]
        return sizes if threads in (1, self._identity.threads) else sizes[-1:]

    def _read(self, threads: int) -> None:
        probe = _open(threads)
        sizes = self._working_sets(threads)
        for size in sizes[::-1]:  # the largest first: memory is asked for once
            for handing in (PARTS, PIECES) if threads > 1 else (PARTS,):
                with _native_errors(f"a working set of {size // MIB} MiB"):
                    rates = probe.read(size, handing == PIECES, self._effort.read_seconds)
                self._reads.append(ReadRate(threads, size, handing, Spread.of(rates)))

    def _copy(self) -> None:
        threads = self._identity.threads
        probe = _open(threads)
        size = self._working_sets(threads)[-1]
        with _native_errors(f"a working set of {size // MIB} MiB"):
            rates = probe.copy(size, self._effort.read_seconds)
        self._copies.append(CopyRate(threads, size, Spread.of(rates)))

    def _rows(self, isa: str) -> None:
        """Products of ROW_FORMAT by rows; of the path in use also those of every format with the most rows."""
        threads = self._identity.threads
        probe = _open(threads)
        most = self._effort.rows[-1]
        wanted = [(ROW_FORMAT, FLOAT, rows) for rows in self._effort.rows]
        if _native.has_int8_products(isa):
            wanted += [(INT8_FORMAT, INT8, rows) for rows in self._effort.rows]
        if isa == self._identity.isa and not self._effort.quick:
            wanted += [(name, FLOAT, most) for name in _native.packed_formats() if name != ROW_FORMAT]
        for name, inputs, rows in wanted:
            with _native_errors("the products' rows"):
                rates = probe.products(isa, name, rows, self._effort.product_seconds, inputs == INT8)
            flops = Spread.of(rates, 2.0 * BLOCK_WEIGHTS * rows)
            self._products.append(ProductRate(isa, name, inputs, rows, threads, flops))

    def _expand(self, threads: int) -> None:
        probe = _open(threads)
        isa = self._identity.isa
        for name, block_bytes in _native.packed_formats().items():
            with _native_errors("the weights to unpack"):
                rates = probe.products(isa, name, 1, self._effort.product_seconds)
            spread = Spread.of(rates, float(block_bytes))
            weights = spread.median / block_bytes * BLOCK_WEIGHTS
            self._expansions.append(ExpansionRate(isa, name, threads, spread, weights))

    def _arithmetic(self, threads: int) -> None:
        probe = _open(threads)
        for name in _native.peak_names():
            rates = probe.peak(name, self._effort.product_seconds)
            self._peaks.append(PeakRate(name, threads, Spread.of(rates)))

    def _file(self) -> None:
        self._disk = disk_rate(cache_folder(), self._effort.disk_bytes, self._clock)


def _open(threads: int) -> _native.Probe:
    """Its threads are gone as soon as nobody holds it."""
    with _native_errors(_named(threads)):
        return _native.Probe(worker_cores(threads))


def _named(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"
