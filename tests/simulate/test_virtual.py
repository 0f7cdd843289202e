"""The virtual executable: the clock moves by what steps and work on blocks take, and the outputs say so."""

from dataclasses import replace

import numpy as np
import pytest
from tests.program.test_coordinates import module
from tests.simulate.fixed import FixedSeconds

from pelton.backends.backend import COPY, LOAD, SAVE, SCRUB, StepInputs
from pelton.core.clock import FakeClock
from pelton.engine.load.calibrate import _step
from pelton.measure.simulate.virtual import VirtualExecutable


class Counted(FixedSeconds):
    def copying(self, count: int) -> float:
        return 0.25 * count


def step(*ops: tuple[int, int, int, int], repeat: int = 1) -> StepInputs:
    return replace(_step(1, 1, 250), block_ops=np.array(ops, np.int32).reshape(-1, 4), repeat=repeat)


@pytest.mark.parametrize(
    ("kinds", "moving", "copying"),
    [((), 0, 0), ((COPY, SCRUB), 0, 2), ((SAVE,), 1, 0), ((SAVE, SAVE, COPY, LOAD), 3, 1)],
)
def test_moves_are_told_apart_from_copies(kinds: tuple[int, ...], moving: int, copying: int) -> None:
    clock, times = FakeClock(), Counted(lambda contexts, rows: 1.0, around=0.5)
    executable = VirtualExecutable(module(), times, clock, exact=False)  # type: ignore[arg-type]
    (block,) = executable.block_bytes
    outputs = executable.run(step(*((kind, 0, 1, 2) for kind in kinds), repeat=3))
    assert outputs.moving == moving * block / 4 and outputs.steps == 3
    assert outputs.seconds == (moving + copying) * block / 4 + 3.0
    assert clock.now() == outputs.seconds + 0.5 == executable.busy
