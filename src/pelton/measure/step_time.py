"""How long each op of a step takes, and what is around the ops: measured on real memory, many times.

Decides nothing and prints nothing. Invariant: the steps read blocks that hold numbers, and each time the same ones.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pelton.backends.backend import (
    SAMPLING,
    BlockOps,
    Executable,
    Float32,
    Int32,
    StepInputs,
    StepOutputs,
    WorkingMemory,
)
from pelton.core.clock import Clock
from pelton.core.config import BLOCK_TOKENS, CacheSection, ScheduleSection
from pelton.core.counters import Counters
from pelton.core.params import SamplingParams
from pelton.core.request import Request
from pelton.engine.engine import Engine
from pelton.kv.group import KVGroup, first_block
from pelton.kv.pool import NULL_BLOCK, BlockPool
from pelton.runner.rows import RowStates
from pelton.runner.runner import Runner
from pelton.sampling.encode import encode
from pelton.schedule import ORDERS
from pelton.schedule.scheduler import Scheduler

WARMUPS = 3
PYTHON_STEPS = 40
BUSY_SPREAD = 0.3  # between the quartiles of equal steps
SIZE = 0.5  # of the random numbers in the blocks


@dataclass(frozen=True, slots=True)
class Shape:
    """`sequences` of `tokens` tokens each, behind `context` cached ones; a token is drawn for each sequence."""

    tokens: int
    context: int
    sequences: int = 1

    @property
    def blocks(self) -> int:
        """Of one sequence in a KV group."""
        return -(-(self.context + self.tokens) // BLOCK_TOKENS)


@dataclass(frozen=True, slots=True)
class Pools:
    """KV memory that an executable was given: of each group its blocks, the null block included, and its window."""

    blocks: tuple[int, ...]
    windows: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds, medians of `repeats` steps. `ops` in the order of the executable's labels; of that, `waits`: one
    thread's waiting for others. `step`: in the backend, and `quartiles` of it. `kernels`, `waiting` and `around`: what
    a step's ops computed, waited, and took less than the step. `python`: what the engine does for a step outside of it.

    The three are medians of sums of one step each. Sums of the ops' medians are too small where each step is held up in
    another op, as on a busy machine, and what is missing would be called `around`.
    """

    ops: tuple[float, ...]
    waits: tuple[float, ...]
    step: float
    quartiles: tuple[float, float]
    kernels: float
    waiting: float
    around: float
    python: float
    repeats: int

    @property
    def parts(self) -> float:
        """What the three parts of a step take together: near `step`, but of other steps."""
        return self.kernels + self.waiting + self.around

    @property
    def busy(self) -> bool:
        """Whether equal steps took such different times that something else must have been at work."""
        return self.quartiles[1] > self.quartiles[0] * (1 + BUSY_SPREAD)


def measure_step(
    executable: Executable, pools: Pools, shape: Shape, vocab: int, repeats: int, clock: Clock
) -> StepTime:
    """Times of the step on this executable, whose KV blocks are written to. ValueError where its sizes do not fit."""
    inputs = step_inputs(pools, shape, vocab)
    _fill(executable, pools, inputs.tables)
    taken: list[float] = []
    ops = []
    for number in range(WARMUPS + repeats):
        outputs = executable.run(inputs)
        if number >= WARMUPS:
            assert outputs.timing is not None, "the backend does not time its ops"
            ops.append(outputs.timing * 1e-9)
            taken.append(outputs.seconds)
    return step_time(np.array(taken), np.array(ops), python_seconds(shape, vocab, clock))


def step_time(taken: NDArray[np.float64], ops: NDArray[np.float64], python: float) -> StepTime:
    """Of seconds by step, [steps] in the backend and [steps, ops, (time, waiting of it)]."""
    times, waits = ops[..., 0], ops[..., 1]
    in_ops, waiting = times.sum(1), waits.sum(1)
    return StepTime(
        ops=tuple(np.median(times, axis=0).tolist()),
        waits=tuple(np.median(waits, axis=0).tolist()),
        step=float(np.median(taken)),
        quartiles=(float(np.quantile(taken, 0.25)), float(np.quantile(taken, 0.75))),
        kernels=float(np.median(in_ops - waiting)),
        waiting=float(np.median(waiting)),
        around=max(0.0, float(np.median(taken - in_ops))),
        python=python,
        repeats=len(taken),
    )


def step_inputs(pools: Pools, shape: Shape, vocab: int) -> StepInputs:
    """The step, timed. Each sequence has blocks of its own; behind a window it has none."""
    count, total = shape.sequences, shape.sequences * shape.tokens
    rng = np.random.default_rng(0)
    drawn = encode(SamplingParams(seed=0), 0)
    index = np.arange(shape.context, shape.context + shape.tokens, dtype=np.int32)
    return StepInputs(
        tokens=rng.integers(0, vocab, total).astype(np.int32),
        positions=np.tile(index, count),
        starts=np.full(count, shape.context, np.int32),
        counts=np.full(count, shape.tokens, np.int32),
        tables=np.array([_table(*pool, shape) for pool in zip(pools.blocks, pools.windows, strict=True)], np.int32),
        table_offsets=np.arange(count + 1, dtype=np.int32) * np.int32(shape.blocks),
        logit_rows=np.arange(1, count + 1, dtype=np.int32) * np.int32(shape.tokens) - np.int32(1),
        sampling=np.array([drawn] * count, SAMPLING),
        timing=True,
    )


def _table(blocks: int, window: int | None, shape: Shape) -> list[int]:
    """One group's entries of all sequences."""
    first = first_block(window, shape.context, BLOCK_TOKENS)
    free = iter(range(1, blocks))
    return [
        NULL_BLOCK if entry < first else next(free) for _ in range(shape.sequences) for entry in range(shape.blocks)
    ]


def _fill(executable: Executable, pools: Pools, tables: Int32) -> None:
    """Numbers in every block of the step: memory that was never written is not there, and read in no time."""
    blocks, rng = executable.blocks(), np.random.default_rng(1)
    for group, table in enumerate(tables):
        used = np.unique(table[table != NULL_BLOCK]).tolist()
        shape = blocks.export_canonical(group, used[0], BLOCK_TOKENS).shape
        blocks.import_canonical(group, used[0], rng.normal(0, SIZE, shape).astype(np.float32))
        for block in used[1:]:
            blocks.copy(group, used[0], block)


class _Idle:
    """An Executable that computes nothing: what a step of it takes is the engine's own work."""

    block_bytes = (1,)
    memory = WorkingMemory(0, 0)

    def allocate(self, blocks: tuple[int, ...]) -> None:
        """Nothing."""

    def labels(self) -> tuple[str, ...]:
        return ()

    def run(self, inputs: StepInputs) -> StepOutputs:
        """Token 0 for every row."""
        rows = len(inputs.logit_rows)
        zeros, none = np.zeros(rows, np.int32), np.zeros((rows, 0), np.int32)
        scores: Float32 = np.zeros(rows, np.float32)
        return StepOutputs(zeros, scores, zeros, zeros, none, none.astype(np.float32))

    def blocks(self) -> BlockOps:
        raise NotImplementedError

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        """Nothing."""


def python_seconds(shape: Shape, vocab: int, clock: Clock) -> float:
    """What the engine does for one step of so many sequences and tokens beside computing it: plan, gather, tell."""
    engine = _idle_engine(shape, clock)
    prompt = tuple(np.random.default_rng(2).integers(0, vocab, shape.tokens * (PYTHON_STEPS + 2)).tolist())
    decodes = shape.tokens == 1
    for number in range(shape.sequences):
        params = SamplingParams(seed=number, max_tokens=PYTHON_STEPS + 2, ignore_eos=True)
        ids = prompt[:1] if decodes else prompt
        engine.add_request(Request(str(number), ids, params, frozenset(), PYTHON_STEPS + 2, arrival=0.0))
    taken = []
    for number in range(PYTHON_STEPS):
        began = clock.now()
        engine.step()
        if number:
            taken.append(clock.now() - began)
    return float(np.median(taken))


def _idle_engine(shape: Shape, clock: Clock) -> Engine:
    most = shape.tokens * (PYTHON_STEPS + 2) + PYTHON_STEPS + 2
    blocks = shape.sequences * (-(-most // BLOCK_TOKENS) + 1)
    limits = ScheduleSection(
        max_num_seqs=shape.sequences,
        max_num_batched_tokens=shape.sequences * shape.tokens,
        long_prefill_token_threshold=shape.tokens,
        max_steps_per_call=1,
    )
    cache = CacheSection(enable_prefix_caching=False)
    groups = [KVGroup(BlockPool(blocks + 1))]
    scheduler = Scheduler(limits, cache, ORDERS.get(limits.scheduling_policy)(), groups, BLOCK_TOKENS, most)
    states = RowStates(shape.sequences, most, BLOCK_TOKENS)
    return Engine(scheduler, Runner(_Idle(), states, encode), clock, Counters(), BLOCK_TOKENS)
