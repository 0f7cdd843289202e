"""StartReport: what was loaded, in which arithmetic, how much room there is, and how long each phase took."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pelton.core.clock import Clock

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StartReport:
    """Facts of one start. Sizes in bytes, `phases` as (name, seconds) in order.

    `weights`: how they are stored and multiplied. `notes`: sentences for the user, which are also logged as warnings.
    """

    model: str
    weight_bytes: int
    dtype: str
    kv_blocks: int
    kv_block_bytes: int
    block_size: int
    max_model_len: int
    backend: str
    isa: str
    threads: int
    phases: tuple[tuple[str, float], ...]
    notes: tuple[str, ...] = ()
    weights: str = ""

    @property
    def kv_bytes(self) -> int:
        """Bytes of all KV blocks; they are taken from the system only as blocks are used."""
        return self.kv_blocks * self.kv_block_bytes

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.phases)

    def lines(self) -> list[str]:
        """The report for people, without the notes."""
        tokens = (self.kv_blocks - 1) * self.block_size
        phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.phases)
        return [
            f"model    {self.model}: {self.weight_bytes / MIB:.1f} MiB of weights, dtype {self.dtype}",
            *([f"weights  {self.weights}"] if self.weights else []),
            f"kv       {self.kv_blocks} blocks of {self.block_size} tokens, {self.kv_bytes / MIB:.1f} MiB when full: "
            f"{tokens} tokens, at most {self.max_model_len} per request",
            f"backend  {self.backend}: {self.isa}, {self.threads} threads",
            f"start    {self.seconds:.2f} s ({phases})",
        ]


class Phases:
    """Times the phases of a start by the given clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._taken: list[tuple[str, float]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The time the block takes is noted under this name, also when it fails."""
        start = self._clock.now()
        try:
            yield
        finally:
            self._taken.append((name, self._clock.now() - start))

    @property
    def taken(self) -> tuple[tuple[str, float], ...]:
        return tuple(self._taken)
