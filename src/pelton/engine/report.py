"""StartReport: what was loaded, in which arithmetic, how much room there is, and how long each phase took.

Invariant: it is made of builtin types, so that it can be sent to another process as it is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pelton.core.clock import Clock
from pelton.core.words.sizes import size_text
from pelton.kv.group import most_blocks

TYPICAL = 1024  # tokens of a request with its answer


@dataclass(frozen=True, slots=True)
class StartReport:
    """Facts of one start. Sizes in bytes, `phases` as (name, seconds) in order.

    `kv_groups`: for each KV group (blocks with the null block, bytes of a block, window or None).
    `weight_bytes`: of the file, `held_bytes`: in memory. `weights`: how they are stored and multiplied.
    `activation_bytes`: working memory of the largest step. `placing`: how the threads share the cores.
    `step`: why max_num_batched_tokens is what it is.
    `host_slots`: for each KV group, slots in host memory, for what `host_use` says. `disk`: what is kept in files.
    `notes`: sentences for the user, which are also logged as warnings.
    """

    model: str
    weight_bytes: int
    dtype: str
    kv_groups: tuple[tuple[int, int, int | None], ...]
    block_size: int
    max_model_len: int
    backend: str
    isa: str
    threads: int
    phases: tuple[tuple[str, float], ...]
    notes: tuple[str, ...] = ()
    weights: str = ""
    activation_bytes: int = 0
    held_bytes: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 1
    placing: str = ""
    step: str = ""
    host_slots: tuple[int, ...] = ()
    host_use: str = ""
    disk: str = ""

    @property
    def kv_blocks(self) -> int:
        """Blocks of the largest KV group."""
        return max(blocks for blocks, _, _ in self.kv_groups)

    @property
    def kv_block_bytes(self) -> int:
        """Bytes of a block in all groups."""
        return sum(size for _, size, _ in self.kv_groups)

    @property
    def kv_bytes(self) -> int:
        """Bytes of all KV blocks; they are taken from the system only as blocks are used."""
        return sum(blocks * size for blocks, size, _ in self.kv_groups)

    @property
    def swap_bytes(self) -> int:
        """Bytes of all host slots; they are taken from the system only as slots are used."""
        groups = zip(self.host_slots, self.kv_groups, strict=False)
        return sum(slots * size for slots, (_, size, _) in groups)

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache holds; block 0 holds none."""
        return (self.kv_blocks - 1) * self.block_size

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.phases)

    def concurrency(self, tokens: int) -> float:
        """How many requests of so many tokens each, answer included, the cache holds at once."""
        step, size = self.max_num_batched_tokens, self.block_size
        return min((blocks - 1) / most_blocks(window, tokens, step, size) for blocks, _, window in self.kv_groups)

    def lines(self) -> list[str]:
        """The report for people, without the notes."""
        phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.phases)
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        lengths = dict.fromkeys((self.max_model_len, min(TYPICAL, self.max_model_len)))
        fits = ", ".join(f"{self.concurrency(length):.1f}x of {length} tokens" for length in lengths)
        return [
            f"model    {self.model}: dtype {self.dtype}",
            *([f"weights  {self.weights}"] if self.weights else []),
            f"memory   weights {size_text(self.held_bytes)}, KV {size_text(self.kv_bytes)} when full, "
            f"activations at most {size_text(self.activation_bytes)}",
            f"kv       {self._kv_line()}, at most {self.max_model_len} per request",
            *([f"host     {self._host_line()}"] if any(self.host_slots) else []),
            *([f"disk     {self.disk}"] if self.disk else []),
            f"room     concurrency: {fits}; max_num_seqs {self.max_num_seqs}",
            f"step     at most {self.max_num_batched_tokens} tokens" + (f": {self.step}" if self.step else ""),
            f"backend  {self.backend}: {', '.join(filter(None, (self.isa, threads, self.placing)))}",
            f"start    {self.seconds:.2f} s ({phases})",
        ]

    def _host_line(self) -> str:
        slots = " and ".join(map(str, self.host_slots))
        return f"{slots} blocks of {self.host_use}, {size_text(self.swap_bytes)} when full"

    def _kv_line(self) -> str:
        groups = [
            f"{blocks - 1} blocks of {self.block_size} tokens" + (f" for windows of {window}" if window else "")
            for blocks, _, window in self.kv_groups
        ]
        return f"{' and '.join(groups)}: {self.kv_tokens} tokens"


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
