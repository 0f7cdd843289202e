"""CPU time in place of the clock's: what one thread computes takes as long of it whoever else runs on the machine.

For comparisons on a machine that others use. Waiting takes none of it, and is added. It measures nothing by itself.
"""

from dataclasses import replace

from pelton.backends.backend import (
    Backend,
    BlockOps,
    CompileOptions,
    Executable,
    Machine,
    StepInputs,
    StepOutputs,
    WorkingMemory,
)
from pelton.core.clock import Clock, cpu_seconds
from pelton.program.module import Module
from pelton.program.op import Op


class CpuClock:
    """Seconds of this process, and what was skipped."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def now(self) -> float:
        return cpu_seconds() + self._skipped

    def skip(self, seconds: float) -> None:
        self._skipped += seconds


class CpuPace:
    """See replay.Pace. Nothing ends a call of several steps early: a thread that could would need time of its own."""

    def __init__(self) -> None:
        self.clock = CpuClock()

    def wait(self, seconds: float) -> None:
        self.clock.skip(seconds)

    def due(self, moment: float) -> None:
        """Nothing."""


class ClockedExecutable:
    """Another one, whose steps are timed by a clock of ours."""

    def __init__(self, inner: Executable, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock

    @property
    def block_bytes(self) -> tuple[int, ...]:
        return self._inner.block_bytes

    @property
    def memory(self) -> WorkingMemory:
        return self._inner.memory

    def allocate(self, blocks: tuple[int, ...]) -> None:
        self._inner.allocate(blocks)

    def labels(self) -> tuple[str, ...]:
        return self._inner.labels()

    def run(self, inputs: StepInputs) -> StepOutputs:
        began = self._clock.now()
        outputs = self._inner.run(inputs)
        return replace(outputs, seconds=self._clock.now() - began)

    def blocks(self) -> BlockOps:
        return self._inner.blocks()

    def counters(self) -> dict[str, int]:
        return self._inner.counters()

    def close(self) -> None:
        self._inner.close()


class ClockedBackend:
    """Another one, whose executables are clocked."""

    def __init__(self, inner: Backend, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock

    def refuses(self, op: Op) -> str | None:
        return self._inner.refuses(op)

    def compile(self, module: Module, options: CompileOptions) -> ClockedExecutable:
        return ClockedExecutable(self._inner.compile(module, options), self._clock)

    def machine(self, threads: int = 0) -> Machine:
        return self._inner.machine(threads)

    def rates(self, threads: int, working_set: int, *, rounded: bool = False) -> None:
        """Those of the machine are by the system's clock."""
