"""CPU time in place of the clock's: what one thread computes takes as long of it whoever else runs on the machine.

For comparisons on a machine that others use. Waiting takes none of it, and is added. It measures nothing by itself.
"""

from dataclasses import replace

from pelton.backends.backend import Backend, CompileOptions, Executable, Machine, StepInputs, StepOutputs
from pelton.backends.passed_on import PassedOn
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


class ClockedExecutable(PassedOn):
    """Another one, whose steps are timed by a clock of ours."""

    def __init__(self, inner: Executable, clock: Clock) -> None:
        super().__init__(inner)
        self._clock = clock

    def run(self, inputs: StepInputs) -> StepOutputs:
        began = self._clock.now()
        outputs = self.inner.run(inputs)
        return replace(outputs, seconds=self._clock.now() - began)


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
