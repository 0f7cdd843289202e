"""`pelton program --measure`: the described step run on real memory, with the time of each op beside what it must move.

Loads the model; shows and decides nothing else. Invariant: the bytes and FLOPs are those of the cost rules.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pelton.backends.cpu.machine import worker_cores
from pelton.backends.cpu.probe.cached import load
from pelton.backends.cpu.probe.figures import FLOAT, INT8, MachineProbe
from pelton.backends.cpu.probe.identity import identify
from pelton.backends.cpu.probe.limits import expansion_rate, matrix_rate, read_rate
from pelton.cli.fold import Run, fold
from pelton.cli.terminal import Status, count_text, emit, say, say_notes, shows_progress, table_lines
from pelton.core.clock import SystemClock
from pelton.core.config import EngineConfig, resolve
from pelton.core.words.sizes import size_text
from pelton.engine.build import build_engine
from pelton.measure.step_time import Pools, Shape, StepTime, measure_step
from pelton.program.costs import OpCost
from pelton.program.module import Module
from pelton.program.op import Cost

NOT_PROBED = "not probed: run pelton probe"
HEADER = ("op", "what", "weights", "bytes", "ms", "step", "GB/s", "GFLOP/s", "of limit")
HEAD = "head"


@dataclass(frozen=True, slots=True)
class Described:
    """The step as `pelton program` describes it. `columns`: of each op its kind, outputs and weights, as texts."""

    module: Module
    costs: Sequence[OpCost]
    columns: Sequence[tuple[str, str, str]]
    record: dict[str, object]


@dataclass(frozen=True, slots=True)
class Limits:
    """The machine's rates: bytes read and FLOPs per second. `inputs`: of the products whose rate this is."""

    bandwidth: float
    matrix: float
    inputs: str
    probe: MachineProbe

    @staticmethod
    def of(working_set: int, threads: int, inputs: str) -> "Limits | None":
        """From the kept probe of this machine; None where there is none."""
        probe = load(identify(threads))
        if probe is None:
            return None
        bandwidth = read_rate(probe, working_set, len(worker_cores(threads)))
        return Limits(bandwidth, matrix_rate(probe, inputs), inputs, probe)

    def bounds(self, cost: Cost) -> dict[str, float]:
        """Seconds that the work takes at least, by what takes them."""
        return {
            "moving its bytes": (cost.read + cost.written) / self.bandwidth,
            "computing its products": cost.flops / self.matrix,
        }

    def seconds(self, cost: Cost) -> float:
        """The longer of them."""
        return max(self.bounds(cost).values())

    def expanding(self, weights: dict[str, int]) -> float | None:
        """Seconds of unpacking these bytes of each packed format for one row; None where one is unknown."""
        rates = {name: expansion_rate(self.probe, name) for name in weights}
        known = [count / rate for name, count in weights.items() if (rate := rates[name])]
        return sum(known) if len(known) == len(weights) else None


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of a described step, the bytes it read of each packed format, and what the machine could do."""

    described: Described
    shape: Shape
    time: StepTime
    weights: dict[str, int]
    limits: Limits | None

    @property
    def total(self) -> Cost:
        total = Cost()
        for item in self.described.costs:
            total += item.cost
        return total

    @property
    def head(self) -> float:
        """Seconds of the ops that draw the tokens."""
        kinds = (kind for kind, *_ in self.described.columns)
        return sum(seconds for kind, seconds in zip(kinds, self.time.ops, strict=True) if kind == HEAD)

    def least(self) -> tuple[str, float] | None:
        """What bounds the step, and its seconds."""
        if self.limits is None:
            return None
        bounds = self.limits.bounds(self.total)
        expanding = self.limits.expanding(self.weights) if self.shape.tokens * self.shape.sequences == 1 else None
        if expanding is not None:
            bounds["unpacking its weights"] = expanding
        name = max(bounds, key=bounds.__getitem__)
        return name, bounds[name]


def show(
    described: Described,
    shape: Shape,
    settings: dict[str, object],
    repeats: int,
    *,
    fold_layers: bool,
    as_json: bool,
) -> None:
    """Loads the model of `settings["model"]`, measures, and prints. SettingError and the errors of a start come out."""
    config = _config(shape, settings)
    if not shows_progress():
        say("loading and measuring ...", dim=True)
    with Status("loading and measuring ...") as status:
        measured = _measure(config, described, shape, repeats)
    say_notes(status.warnings)
    if as_json:
        emit(json.dumps(record(measured), indent=1) + "\n")
    else:
        emit("\n".join([*op_lines(measured, fold_layers=fold_layers), "", *sum_lines(measured)]) + "\n")


def _config(shape: Shape, settings: dict[str, object]) -> EngineConfig:
    """An engine with room for this step and no more."""
    sizes = {
        "num_blocks": shape.sequences * shape.blocks,
        "max_num_batched_tokens": shape.sequences * shape.tokens,
        "max_num_seqs": shape.sequences,
        "max_model_len": settings.get("max_model_len") or shape.context + shape.tokens,
    }
    given = {name: value for name, value in settings.items() if name != "model" and value is not None}
    return resolve(str(settings["model"]), {**given, **sizes})


def _measure(config: EngineConfig, described: Described, shape: Shape, repeats: int) -> Measured:
    parts = build_engine(config)
    try:
        groups = parts.report.kv_groups
        pools = Pools(tuple(blocks for blocks, _, _ in groups), tuple(window for _, _, window in groups))
        before = parts.executable.counters()
        vocab, clock = described.module.vocab, SystemClock()
        time = measure_step(parts.executable, pools, shape, vocab, repeats, clock)
        after = parts.executable.counters()
    finally:
        parts.close()
    steps = after["steps"] - before["steps"]
    weights = {
        name.partition(":")[2]: (count - before[name]) // steps
        for name, count in after.items()
        if name.startswith("weight_bytes:") and count > before[name]
    }
    total = sum(item.cost.read + item.cost.written for item in described.costs)
    inputs = INT8 if config.model.activations == INT8 else FLOAT
    return Measured(described, shape, time, weights, Limits.of(total, config.backend.threads, inputs))


def op_lines(measured: Measured, *, fold_layers: bool) -> list[str]:
    """The table; equal layers are shown once, with the sums of their times and bytes."""
    columns, costs = measured.described.columns, measured.described.costs
    alike = [(*names, item.cost) for names, item in zip(columns, costs, strict=True)]
    runs = fold(alike) if fold_layers else [Run(0, len(alike), 1)]
    shown: list[tuple[str, ...]] = [HEADER]
    titles: dict[int, str] = {}
    for run in runs:
        if run.times > 1:
            titles[len(shown)] = f"-- {run.times} times these {run.length} ops, together:"
            titles[len(shown) + run.length] = "--"
        shown += [_row(measured, columns[run.start + place], list(_places(run, place))) for place in range(run.length)]
    lines = table_lines(shown, left=3)
    return [text for place, line in enumerate([*lines, ""]) for text in (titles.get(place), line) if text]


def _places(run: Run, place: int) -> Iterator[int]:
    return (run.start + place + run.length * turn for turn in range(run.times))


def _row(measured: Measured, names: tuple[str, str, str], places: list[int]) -> tuple[str, ...]:
    seconds = sum(measured.time.ops[place] for place in places)
    cost = Cost()
    for place in places:
        cost += measured.described.costs[place].cost
    moved, limits = cost.read + cost.written, measured.limits
    return (
        *names,
        size_text(moved),
        _ms(seconds),
        _share(seconds, measured.time.step),
        f"{moved / seconds / 1e9:.1f}" if seconds else "-",
        f"{cost.flops / seconds / 1e9:.1f}" if seconds else "-",
        "-" if limits is None else _share(limits.seconds(cost), seconds),
    )


def sum_lines(measured: Measured) -> list[str]:
    """Where the step's time goes, and how near that is to what the machine can do."""
    time, shape, total = measured.time, measured.shape, measured.total
    both, moved = time.step + time.python, total.read + total.written

    def part(seconds: float, what: str) -> str:
        return f"{_ms(seconds)} ms, {_share(seconds, time.parts)} of the step: {what}"

    quick, slow = time.quartiles
    busy = f"the machine was busy: half of the steps took {_ms(quick)} to {_ms(slow)} ms"
    lines = [
        ("step", f"{_ms(time.step)} ms in the backend, median of {time.repeats}: {shape.sequences} x {shape.tokens} "
                 f"tokens after {shape.context}"),
        *([("busy", busy)] if time.busy else []),
        ("kernels", part(time.kernels, "one thread at work")),
        ("head", part(measured.head, "lm_head, and drawing the tokens")),
        ("waiting", part(time.waiting, "one thread for the others, at the ends of stages")),
        ("around", part(time.around, "before, between and behind the ops")),
        ("Python", f"{_ms(time.python)} ms a step, {_share(time.python, both)} of both, less where steps are a series"),
        ("moved", f"{size_text(moved)}, {moved / time.step / 1e9:.1f} GB/s"),
        ("computed", f"{count_text(total.flops)} FLOPs, {total.flops / time.step / 1e9:.1f} GFLOP/s"),
        ("limit", _limit_text(measured)),
    ]  # fmt: skip
    return table_lines(lines, left=2)


def _limit_text(measured: Measured) -> str:
    least, limits = measured.least(), measured.limits
    if least is None or limits is None:
        return NOT_PROBED
    name, seconds = least
    reached = _share(seconds, measured.time.step)
    rows = " with rows of 8 bits" if limits.inputs == INT8 else ""
    rates = f"{limits.bandwidth / 1e9:.1f} GB/s, {limits.matrix / 1e9:.0f} GFLOP/s{rows}"
    return f"{_ms(seconds)} ms for {name} (probed: {rates}): {reached} of it reached{limits.probe.mark}"


def record(measured: Measured) -> dict[str, object]:
    """All of it as JSON values; times in seconds."""
    time, limits, least = measured.time, measured.limits, measured.least()
    ops = measured.described.record["ops"]
    assert isinstance(ops, list)
    timed = [
        {
            **op,
            "seconds": seconds,
            "waiting_seconds": waits,
            "limit_seconds": None if limits is None else limits.seconds(item.cost),
        }
        for op, seconds, waits, item in zip(ops, time.ops, time.waits, measured.described.costs, strict=True)
    ]
    return {
        **measured.described.record,
        "ops": timed,
        "sequences": measured.shape.sequences,
        "repeats": time.repeats,
        "step_seconds": time.step,
        "step_quartiles_seconds": list(time.quartiles),
        "busy": time.busy,
        "kernel_seconds": time.kernels,
        "head_seconds": measured.head,
        "waiting_seconds": time.waiting,
        "around_seconds": time.around,
        "python_seconds": time.python,
        "packed_weight_bytes": measured.weights,
        "limit_seconds": None if least is None else least[1],
        "limit": NOT_PROBED if least is None else least[0],
        "limit_probed_busy": None if limits is None else limits.probe.busy,
    }


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3f}"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"
