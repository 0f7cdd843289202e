"""Records of the probe: what was measured, on which machine, when. They measure nothing and read no file.

Invariant: they are made of builtin types, so that they go into a JSON file and come back the same; units are in names.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

PARTS, PIECES = "parts", "pieces"  # each thread has its part; or pieces go to whoever is free
FLOAT, INT8 = "float", "int8"
BUSY_LOAD = 0.5  # of each allowed core
BUSY_MARK = " (probed on a busy machine)"
BLOCK_WEIGHTS = 32 * 16  # of a K-block of one panel (native/kernels.h)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and extremes of so many samples."""

    median: float
    lowest: float
    highest: float
    samples: int

    @staticmethod
    def of(values: Sequence[float], factor: float = 1.0) -> "Spread":
        """Of values, each times `factor`; there must be one at least."""
        scaled = [value * factor for value in values]
        return Spread(statistics.median(scaled), min(scaled), max(scaled), len(scaled))


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes figures those of one machine and build.

    `host`: a hash that names nobody; `kernels`: a hash of the compiled code.
    """

    cpu: str
    cores: int
    threads: int
    isa: str
    memory_gib: float
    host: str
    kernels: str


@dataclass(frozen=True, slots=True)
class ReadRate:
    """Reading `working_set_bytes` again and again by so many threads."""

    threads: int
    working_set_bytes: int
    handing: str
    bytes_per_s: Spread


@dataclass(frozen=True, slots=True)
class CopyRate:
    """Bytes copied, each of which is read once and written once."""

    threads: int
    working_set_bytes: int
    bytes_per_s: Spread


@dataclass(frozen=True, slots=True)
class ProductRate:
    """The matmul kernel of one instruction set with so many rows, weights in the L2 cache; an FMA is 2 FLOPs.

    `inputs`: what the rows are, FLOAT or INT8.
    """

    isa: str
    format: str
    inputs: str
    rows: int
    threads: int
    flops_per_s: Spread


@dataclass(frozen=True, slots=True)
class ExpansionRate:
    """Packed weights that the kernel in use unpacks and multiplies for one row, data in the L2 cache."""

    isa: str
    format: str
    threads: int
    weight_bytes_per_s: Spread
    weights_per_s: float


@dataclass(frozen=True, slots=True)
class PeakRate:
    """One arithmetic instruction without memory behind it; a multiply-add is 2 operations."""

    name: str
    threads: int
    operations_per_s: Spread


@dataclass(frozen=True, slots=True)
class DiskRate:
    """One file in the cache folder, written until the disk says that it has it, and read back. None: see `note`."""

    file_bytes: int
    write_bytes_per_s: float | None
    read_bytes_per_s: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class MachineProbe:
    """All that was measured. `date`: UTC, as "2026-01-31 12:00 UTC". `quick`: fewer sizes, shorter. `load_before`: the
    system's load of the minute before.
    """

    identity: Identity
    date: str
    quick: bool
    seconds: float
    load_before: float
    reads: tuple[ReadRate, ...]
    copies: tuple[CopyRate, ...]
    products: tuple[ProductRate, ...]
    expansions: tuple[ExpansionRate, ...]
    peaks: tuple[PeakRate, ...]
    disk: DiskRate

    @property
    def busy(self) -> bool:
        """Whether others were at work, so that the figures may be too low."""
        return self.load_before > BUSY_LOAD * self.identity.cores

    @property
    def mark(self) -> str:
        """What stands behind whatever is told by these figures: nothing, or that they may be too low."""
        return BUSY_MARK if self.busy else ""
