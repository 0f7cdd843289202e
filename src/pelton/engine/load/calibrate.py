"""Calibration: two sizes of steps timed on an executable at its start, where nothing else is known of the machine.

It takes about as long as computing a hundred tokens. Invariant: the cache is as good as untouched: what stands in the
blocks written here is overwritten before anybody reads it.
"""

import numpy as np

from pelton.backends.backend import SAMPLING, Executable, StepInputs
from pelton.core.clock import Clock
from pelton.core.params import SamplingParams
from pelton.engine.load.budget import TIMED
from pelton.kv.pool import NULL_BLOCK
from pelton.sampling.encode import encode

REPEATS = 2  # of which the faster one counts: the first finds memory untouched


def timed_steps(executable: Executable, vocab: int, clock: Clock) -> tuple[float, float]:
    """Seconds of a step of one token and of one of TIMED. Each group must have a block beside the null block."""
    one, many = (
        min(_seconds(executable, _step(len(executable.block_bytes), count, vocab), clock) for _ in range(REPEATS))
        for count in (1, TIMED)
    )
    return one, many


def _seconds(executable: Executable, step: StepInputs, clock: Clock) -> float:
    began = clock.now()
    executable.run(step)
    return clock.now() - began


def _step(groups: int, count: int, vocab: int) -> StepInputs:
    """A prompt of so many tokens, at most one block, in the first block of each group."""
    tokens = np.random.default_rng(0).integers(0, vocab, count).astype(np.int32)
    return StepInputs(
        tokens=tokens,
        positions=np.arange(count, dtype=np.int32),
        starts=np.zeros(1, np.int32),
        counts=np.full(1, count, np.int32),
        tables=np.full((groups, 1), NULL_BLOCK + 1, np.int32),
        table_offsets=np.array([0, 1], np.int32),
        logit_rows=np.array([count - 1], np.int32),
        sampling=np.array([encode(SamplingParams(seed=0), 0)], SAMPLING),
    )
