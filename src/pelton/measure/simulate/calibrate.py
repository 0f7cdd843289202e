"""Calibration: a few real steps of a model, from which Slack is made. Loads the model's weights; prints nothing.

Invariant: what is made of the times depends on them alone, so that the same times give the same Slack.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pelton.backends.backend import Backend
from pelton.core.clock import Clock
from pelton.core.config import BLOCK_TOKENS, EngineConfig, resolve
from pelton.core.params import SamplingParams
from pelton.core.request import Request
from pelton.engine.build import build_engine
from pelton.engine.engine import Engine
from pelton.measure.simulate.step_seconds import (
    ATTENTION,
    ENTRY,
    HEAD,
    PRODUCTS,
    REST,
    Curve,
    Group,
    Rates,
    Slack,
    groups_of,
)
from pelton.measure.step_time import Pools, Shape, StepTime, measure_step
from pelton.program import OPS
from pelton.program.module import Module
from pelton.program.values import StepShape

REPEATS = 7
DECODES = 16  # steps by which the engine's own work is measured
# (tokens, context, sequences): decoding alone and together, pieces of prompts early and late.
SHAPES = (
    (1, 256, 1), (1, 1024, 1), (1, 256, 2), (1, 512, 4), (1, 512, 8), (1, 256, 12), (1, 256, 16), (1, 256, 24),
    (1, 256, 32),
    (16, 128, 1), (64, 0, 1), (128, 512, 1), (256, 0, 1), (256, 1792, 1), (512, 0, 1), (2048, 0, 1),
)  # fmt: skip
MOST_TOKENS = 512  # of a step that is always measured
LEAST = 1e-12


@dataclass(frozen=True, slots=True)
class Timed:
    """One shape's times, and whether equal steps differed much."""

    shape: Shape
    time: StepTime

    @property
    def step(self) -> StepShape:
        contexts = ((self.shape.context, self.shape.tokens),) * self.shape.sequences
        return StepShape(contexts, self.shape.sequences)

    @property
    def tokens(self) -> int:
        return self.shape.tokens * self.shape.sequences


@dataclass(frozen=True, slots=True)
class Steps:
    """What was measured: steps by themselves, at least one, and of calls with so many sequences the seconds that the
    engine took beside the backend, where its steps were real ones: behind these the caches hold weights and not what
    Python needs, so that it takes several times as long as with nothing to compute.
    """

    timed: tuple[Timed, ...]
    beside: tuple[tuple[int, float], ...]


def shapes_for(config: EngineConfig, context: int) -> list[Shape]:
    """Those of SHAPES that make sense: no longer texts than the model and the settings allow, no more sequences, and
    the larger steps only as far as the settings go beyond them.
    """
    schedule = config.schedule
    most = max(schedule.max_num_batched_tokens, MOST_TOKENS)
    return [
        Shape(tokens, before, sequences)
        for tokens, before, sequences in SHAPES
        if tokens * sequences <= most
        and tokens + before <= min(config.model.max_model_len or context, context)
        and sequences <= schedule.max_num_seqs
    ]


def measured(
    config: EngineConfig,
    shapes: Sequence[Shape],
    vocab: int,
    clock: Clock,
    told: Callable[[], object] = lambda: None,
    backend: Backend | None = None,
) -> Steps:
    """The shapes' times on the real backend of the settings, or on this one. `told` is called behind each."""
    blocks = max(shape.sequences * shape.blocks for shape in shapes)
    longest = max(shape.context + shape.tokens for shape in shapes)
    sizes: dict[str, object] = {
        "max_num_seqs": max(shape.sequences for shape in shapes),
        "max_num_batched_tokens": max(shape.tokens * shape.sequences for shape in shapes),
        "max_steps_per_call": 1,
    }
    schedule = resolve(config.model.model, sizes).schedule
    cache = replace(config.cache, num_blocks=max(blocks, -(-longest // BLOCK_TOKENS)), kv_cache_memory_bytes=None)
    model = replace(config.model, max_model_len=longest)
    parts = build_engine(replace(config, model=model, schedule=schedule, cache=cache), clock, backend)
    try:
        groups = parts.report.kv_groups
        pools = Pools(tuple(count for count, _, _ in groups), tuple(window for _, _, window in groups))
        found = []
        for shape in shapes:
            found.append(Timed(shape, measure_step(parts.executable, pools, shape, vocab, REPEATS, clock)))
            told()
        counts = sorted({shape.sequences for shape in shapes})
        beside = tuple((count, _beside(parts.engine, count, vocab)) for count in (counts[0], counts[-1]))
        return Steps(tuple(found), beside)
    finally:
        parts.close()


def _beside(engine: Engine, sequences: int, vocab: int) -> float:
    """Seconds that the engine takes beside the backend for a step that decodes so many sequences, the median."""
    prompts = np.random.default_rng(sequences).integers(0, vocab, (sequences, 2)).tolist()
    most = DECODES + 1
    params = SamplingParams(seed=0, max_tokens=most, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        engine.add_request(Request(f"{sequences}/{number}", tuple(prompt), params, frozenset(), most, arrival=0.0))
    taken = []
    while engine.has_work:
        before = engine.stats.backend_seconds_total
        engine.step()
        if engine.stats.step_tokens == sequences:
            taken.append(engine.stats.step_seconds - (engine.stats.backend_seconds_total - before))
    return max(statistics.median(taken), 0.0)


class _Fit:
    """Times of groups of ops beside their limits."""

    def __init__(self, module: Module, rates: Rates, times: Sequence[Timed], *, exact: bool) -> None:
        self._tables = module.tables(ENTRY, exact=exact)
        self._groups = groups_of(module, exact=exact)
        self._rates = rates
        self.times = times

    def taken(self, timed: Timed, kind: str) -> float:
        """Seconds of all ops of a kind. Ops' medians are scaled so that they and the rest make up the step."""
        ops = timed.time.ops
        scale = max(timed.time.step - timed.time.around, LEAST) / max(sum(ops), LEAST)
        return scale * sum(ops[place] for group in self._of(kind) for place in group.places)

    def limit(self, timed: Timed, kind: str) -> float:
        """What they take at least. Of attention sequence by sequence, as StepSeconds adds it up."""
        if kind != ATTENTION:
            return self._cost(kind, timed.step)
        one = StepShape(((timed.shape.context, timed.shape.tokens),), 0)
        return timed.shape.sequences * self._cost(kind, one)

    def curve(self, kind: str, rows: Callable[[Timed], int], less: float = 0.0) -> Curve:
        """Over the limit, by rows: where several steps have as many, the mean of what their sums say."""
        sums: dict[int, list[float]] = {}
        for timed in self.times:
            taken, limit = self.taken(timed, kind) - less, self.limit(timed, kind)
            known = sums.setdefault(rows(timed), [0.0, 0.0])
            known[0] += max(taken, 0.0)
            known[1] += limit
        return tuple((count, taken / max(limit, LEAST)) for count, (taken, limit) in sorted(sums.items()))

    @property
    def attends(self) -> int:
        return sum(group.times for group in self._of(ATTENTION))

    def attend_s(self) -> float:
        """Seconds of an attend op whatever its size: where the line through decode steps meets no work at all."""
        decoding = [timed for timed in self.times if timed.shape.tokens == 1]
        limits = [self.limit(timed, ATTENTION) for timed in decoding]
        taken = [self.taken(timed, ATTENTION) for timed in decoding]
        if len(decoding) < 2 or not self.attends or max(limits) - min(limits) < LEAST:
            return 0.0
        start = statistics.linear_regression(limits, taken).intercept
        return min(max(start, 0.0), min(taken) / 2) / self.attends

    def _of(self, kind: str) -> list[Group]:
        return [group for group in self._groups if group.kind == kind]

    def _cost(self, kind: str, step: StepShape) -> float:
        costs = ((group.times, OPS.get(group.op.kind)().cost(group.op, self._tables, step)) for group in self._of(kind))
        return sum(times * self._rates.seconds(cost) for times, cost in costs)


def slack_of(module: Module, rates: Rates, steps: Steps, *, exact: bool = False) -> Slack:
    """Of measured steps of this module."""
    fit = _Fit(module, rates, steps.timed, exact=exact)
    attend_s = fit.attend_s()
    call_s, row_s = _line(steps.beside)
    return Slack(
        products=fit.curve(PRODUCTS, lambda timed: timed.tokens),
        attention=fit.curve(ATTENTION, lambda timed: timed.shape.tokens, attend_s * fit.attends),
        head=fit.curve(HEAD, lambda timed: timed.shape.sequences),
        rest=fit.curve(REST, lambda timed: timed.tokens),
        attend_s=attend_s,
        around_s=statistics.median(timed.time.around for timed in steps.timed),
        call_s=call_s,
        row_s=row_s,
    )


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(at none, for each more), neither below 0."""
    counts, seconds = zip(*points, strict=True)
    if len(set(counts)) < 2:
        return min(seconds), 0.0
    slope, start = statistics.linear_regression(counts, seconds)
    if slope < 0:
        return statistics.median(seconds), 0.0
    return max(start, 0.0), slope
