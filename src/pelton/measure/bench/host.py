"""Host work: what a run in this process did beside computing: time outside of the backend, CPU outside of its kernels.

It changes nothing. Invariant: what is told is the difference between two moments, so that loading is no part of it.
"""

from dataclasses import dataclass

from pelton.core.clock import cpu_seconds
from pelton.engine.llm import LLM, work_done

NANO = 1e-9


@dataclass(frozen=True, slots=True)
class _Moment:
    """Seconds since some beginning: CPU time of all threads, in the backend, its workers' in steps, of that waiting."""

    cpu: float
    backend: float
    workers: float
    waits: float

    @staticmethod
    def of(llm: LLM) -> "_Moment":
        work = work_done(llm)
        backend = llm.get_metrics()["backend_seconds_total"]
        return _Moment(cpu_seconds(), backend, NANO * work.get("worker_ns", 0), NANO * work.get("wait_ns", 0))


class HostWork:
    """Counts from the moment it is made."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._before = _Moment.of(llm)

    def figures(self, elapsed: float) -> dict[str, float]:
        """Of a run that took so many seconds. `share`: of the time, outside of the backend.

        A worker that waits spins first, so that some of its waiting is CPU time; a backend that does not count its
        workers has all of its CPU time outside.
        """
        before, now = self._before, _Moment.of(self._llm)
        kernels = (now.workers - before.workers) - (now.waits - before.waits)
        cpu, backend = now.cpu - before.cpu, now.backend - before.backend
        return {
            "share": max(0.0, 1 - backend / elapsed) if elapsed else 0.0,
            "backend_seconds": backend,
            "cpu_seconds": cpu,
            "cpu_seconds_outside_kernels": max(0.0, cpu - kernels),
            "worker_wait_seconds": now.waits - before.waits,
        }


def host_line(figures: dict[str, float]) -> str:
    """The same for people."""
    return (
        f"Host: {figures['share']:.1%} of the time outside the backend; CPU {figures['cpu_seconds']:.2f} s, "
        f"{figures['cpu_seconds_outside_kernels']:.2f} s of it outside kernels; workers waited "
        f"{figures['worker_wait_seconds']:.2f} s"
    )
