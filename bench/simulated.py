"""Whether the simulator tells the truth: the same arrivals in virtual time and on the real engine, in turns.

python bench/simulated.py --trace FILE [--trace FILE2] [MODEL] [--requests 200] [--rates 0.5,0.8] [--cpu-time]

With --cpu-time one thread computes, and what counts is its CPU time in place of the clock's: figures then hold also
where others use the machine. Calls have one step each then.

Steps of the model are measured first, a few seconds. Then each trace is simulated and replayed in this process in real
time, at shares of the rate that the engine can just serve (which the simulator says): the first --requests of it,
scaled to fit --max-model-len. Figures are simulated over real; within 0.8 to 1.25 is the aim. Nothing else may
run meanwhile.
"""

import argparse
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import record
from cpu_time import ClockedBackend, CpuClock, CpuPace

from pelton.backends.cpu.backend import CpuBackend
from pelton.backends.cpu.machine import machine as this_machine
from pelton.checkpoint.fetch.pull import pull
from pelton.core.clock import Clock, SystemClock
from pelton.core.config import EngineConfig, resolve
from pelton.engine.build import build_engine
from pelton.measure.simulate import TRACES
from pelton.measure.simulate.arrivals import Choice, prepare
from pelton.measure.simulate.calibrate import measured, shapes_for, slack_of
from pelton.measure.simulate.outcome import outcome
from pelton.measure.simulate.replay import replay
from pelton.measure.simulate.simulation import simulate
from pelton.measure.simulate.step_seconds import Rates, StepSeconds
from pelton.measure.simulate.trace import Trace, source_of
from pelton.program.module import Module

COMPARED = {
    "ttft_p50_ms": "p50_ttft_ms",
    "ttft_p90_ms": "p90_ttft_ms",
    "itl_p50_ms": "p50_itl_ms",
    "tpot_p50_ms": "p50_tpot_ms",
    "e2el_p50_ms": "p50_e2el_ms",
    "out_tok_s": "output_throughput",
    "hit_rate": "prefix_hit_rate",
    "preemptions": "preemptions",
}
JUDGED = ("ttft_p50_ms", "itl_p50_ms", "out_tok_s")
LEAST, MOST = 0.8, 1.25
WARM = 24  # requests before those that count
Table = Mapping[str, Any]


class RealPace:
    """Waits by the system's clock. A timer makes the engine's wake-up readable when an arrival is due, as a message
    does in the engine's own process.
    """

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        self._idle = threading.Event()
        self._timer: threading.Timer | None = None

    def wait(self, seconds: float) -> None:
        self._idle.wait(seconds)

    def due(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            while os.read(self.reader, 64):
                pass
        except BlockingIOError:
            pass
        if math.isfinite(moment):
            seconds = max(moment - self.clock.now(), 0.0)
            self._timer = threading.Timer(seconds, os.write, (self._writer, b"x"))
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        os.close(self.reader)
        os.close(self._writer)


class Calibrated:
    """StepSeconds from steps measured now, once for all runs."""

    def __init__(self, config: EngineConfig, given: argparse.Namespace) -> None:
        self._config = config
        self._given = given
        self._found: StepSeconds | None = None

    def __call__(self, module: Module, exact: bool) -> StepSeconds:
        if self._found is None:
            probe = record.probe(self._given, self._config.backend.threads)
            if probe is None:
                raise SystemExit("simulated: --no-probe leaves nothing to compare steps with")
            rates = Rates.probed(probe, module)
            shapes, clock, backend = shapes_for(self._config, module.context), clock_of(self._given), None
            if isinstance(clock, CpuClock):
                backend = ClockedBackend(CpuBackend(), clock)
            steps = measured(self._config, shapes, module.vocab, clock, backend=backend)
            self._found = StepSeconds(module, rates, slack_of(module, rates, steps, exact=exact), exact=exact)
        return self._found


def read(file: str, count: int) -> Trace:
    source = source_of(Path(file), count=count)
    for kind in TRACES:
        reader = TRACES.get(kind)()
        if reader.claims(source.lines[0][1]):
            return reader.read(source)
    raise SystemExit(f"simulated: {file} is no trace that is known")


def clock_of(given: argparse.Namespace) -> Clock:
    return CpuClock() if given.cpu_time else SystemClock()


def real(config: EngineConfig, trace: Trace, choice: Choice, *, cpu_time: bool) -> Table:
    """The same arrivals on the real engine, paced by the clock."""
    pace = CpuPace() if cpu_time else RealPace()
    parts = build_engine(config, pace.clock)
    try:
        prepared = prepare(trace, choice, parts.engine.scheduler.max_len)
        # As in a server that has run for a while: memory is touched, and caches of code are warm.
        crowd = Trace(trace.calls[:WARM], timed=False)
        warm = prepare(crowd, replace(choice, rate=None), parts.engine.scheduler.max_len)
        replay(parts.engine, warm.arrivals, pace, parts.limits.vocab)
        parts.engine.reset_prefix_cache()
        before = parts.engine.stats
        if isinstance(pace, RealPace):
            parts.engine.runner.wake = pace.reader
        done = replay(parts.engine, prepared.arrivals, pace, parts.limits.vocab)
        table = outcome(done, parts.engine.stats, {})
        looked, found = "prefix_queries_tokens", "prefix_hit_tokens"
        asked = int(str(table[looked])) - before.prefix_queries_total
        hits = int(str(table[found])) - before.prefix_hits_total
        return {**table, "prefix_hit_rate": hits / asked if asked else None}
    finally:
        parts.close()
        if isinstance(pace, RealPace):
            pace.close()


def compared(simulated: Table, seen: Table) -> dict[str, dict[str, float | None]]:
    """Of each figure both, and the simulated over the real one."""
    found = {}
    for name, key in COMPARED.items():
        one, other = simulated[key], seen[key]
        ratio = None if one is None or not other else one / other
        found[name] = {"simulated": one, "real": other, "ratio": ratio}
    return found


def line(title: str, figures: Mapping[str, Mapping[str, float | None]]) -> str:
    words = []
    for name, one in figures.items():
        ratio = one["ratio"]
        told = (
            "-" if ratio is None else f"{ratio:.2f}{'' if name not in JUDGED or LEAST <= ratio <= MOST else ' (off)'}"
        )
        words.append(f"{name} {_shown(one['simulated'])}/{_shown(one['real'])} = {told}")
    return f"{title}: " + ", ".join(words)


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def main() -> None:
    flags = record.parser(__doc__)
    flags.add_argument(
        "--trace", action="append", required=True, help="a trace, as for pelton simulate; may be repeated"
    )
    flags.add_argument("--requests", type=int, default=200, help="the first ones of each trace (default: 200)")
    flags.add_argument(
        "--rates", default="0.5,0.8", help="shares of the rate that can just be served (default: 0.5,0.8)"
    )
    flags.add_argument("--max-model-len", type=int, default=4096)
    flags.add_argument("--max-num-seqs", type=int, default=32)
    flags.add_argument("--max-num-batched-tokens", type=int, default=256)
    flags.add_argument("--num-blocks", type=int, default=1024)
    flags.add_argument("--cpu-time", action="store_true", help="one thread, and its CPU time")
    given = flags.parse_args()
    before = record.machine()
    names = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "num_blocks")
    settings: dict[str, object] = {name: getattr(given, name) for name in names}
    if given.cpu_time:
        settings |= {"threads": 1, "max_steps_per_call": 1}
    config = resolve(pull(given.model), settings)
    times, machine = Calibrated(config, given), this_machine(config.backend.threads)
    figures: dict[str, object] = {}
    for file in given.trace:
        trace = read(file, given.requests)
        crowd = Choice(count=given.requests, rate=1e6)  # all at once: what can just be served
        full = outcome_of(simulate(config, trace, crowd, machine, times))["request_throughput"]
        for share in map(float, given.rates.split(",")):
            choice = Choice(count=given.requests, rate=share * full)
            title = f"{Path(file).name} at {choice.rate:.3g} requests/s"
            ours = outcome_of(simulate(config, trace, choice, machine, times))
            figures[title] = found = compared(ours, real(config, trace, choice, cpu_time=given.cpu_time))
            print(line(title, found), flush=True)
    if not given.dry:
        asked = {name: getattr(given, name) for name in ("model", "cpu_time", "requests", "rates")}
        record.keep("simulated", {**asked, **settings}, figures, before)


def outcome_of(done: Any) -> Table:
    return outcome(done.replayed, done.stats, {})


if __name__ == "__main__":
    main()
