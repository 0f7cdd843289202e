"""A backend that computes nothing: it takes a step's time by its cost and moves a clock by it. Tokens are all zero.

It has no weights and no KV memory, so that any model of which the headers are there can be simulated. Invariant: a call
takes on the clock what StepSeconds says of its steps, and nothing else moves the clock while the engine works.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pelton.backends.backend import (
    LOAD,
    SAVE,
    BlockOps,
    CompileOptions,
    Float32,
    Machine,
    Rates,
    StepInputs,
    StepOutputs,
    WorkingMemory,
)
from pelton.core.clock import FakeClock
from pelton.core.config import BLOCK_TOKENS
from pelton.measure.simulate.step_seconds import StepSeconds
from pelton.program.module import Module
from pelton.program.op import Op

NOTHING = "a virtual block holds nothing that could be read"
TimesOf = Callable[[Module, bool], StepSeconds]  # of a model, in fp32 or not
RatesOf = Callable[[int, int, bool], Rates | None]  # as Backend.rates


class VirtualExecutable:
    """See backends.backend.Executable. `due`: when the clock reaches it, a call of several steps begins no further one,
    as one would whom a message woke. `busy`: seconds of steps so far.
    """

    def __init__(self, module: Module, times: StepSeconds, clock: FakeClock, *, exact: bool) -> None:
        element = 4 if exact else 2
        states = module.states.values()
        self.times = times
        self.due = math.inf
        self.busy = 0.0
        self._bytes = tuple(state.layers * state.spec.token_bytes(element) * BLOCK_TOKENS for state in states)
        self._weights = module.weight_bytes
        self._clock = clock
        self._steps = 0

    @property
    def block_bytes(self) -> tuple[int, ...]:
        return self._bytes

    @property
    def memory(self) -> WorkingMemory:
        """The weights as they are in the file; what a step needs beside them is not known without compiling."""
        return WorkingMemory(self._weights, 0)

    def allocate(self, blocks: tuple[int, ...]) -> None:
        """Nothing: no block is ever touched."""

    def labels(self) -> tuple[str, ...]:
        return ()

    def run(self, inputs: StepInputs) -> StepOutputs:
        """Token 0 for each logit row of each step."""
        starts, counts = inputs.starts.tolist(), inputs.counts.tolist()
        rows, began = len(inputs.logit_rows), self._clock.now()
        copying, moving = self._block_work(inputs)
        self._clock.advance(self.times.around(len(starts)) + copying + moving)
        done, seconds = 0, copying + moving
        while done < inputs.repeat and (not done or self._clock.now() < self.due):
            taken = self.times.step([(start + done, count) for start, count in zip(starts, counts, strict=True)], rows)
            self._clock.advance(taken)
            seconds += taken
            done += 1
        self._steps += done
        self.busy += self._clock.now() - began
        return _tokens(rows * done, done, seconds, moving)

    def _block_work(self, inputs: StepInputs) -> tuple[float, float]:
        """Seconds of the step's work on blocks: of copies and scrubs among them, of moves to host slots and back."""
        sizes = {True: 0, False: 0}
        for kind, group, _, _ in () if inputs.block_ops is None else inputs.block_ops.tolist():
            sizes[kind in (SAVE, LOAD)] += self._bytes[group]
        return self.times.copying(sizes[False]), self.times.copying(sizes[True])

    def blocks(self) -> BlockOps:
        return VirtualBlocks()

    def counters(self) -> dict[str, int]:
        return {"steps": self._steps}

    def close(self) -> None:
        """Nothing."""


def _tokens(rows: int, steps: int, seconds: float, moving: float) -> StepOutputs:
    zeros, none = np.zeros(rows, np.int32), np.zeros((rows, 0), np.int32)
    scores: Float32 = np.zeros(rows, np.float32)
    return StepOutputs(
        zeros, scores, zeros, zeros, none, none.astype(np.float32), steps=steps, seconds=seconds, moving=moving
    )


class VirtualBlocks:
    """Blocks without bytes: what moves or clears them is done at once, and nothing can be read from them."""

    def copy(self, group: int, source: int, target: int) -> None:
        """Nothing."""

    def scrub(self, group: int, block: int) -> None:
        """Nothing."""

    def reserve(self, slots: tuple[int, ...]) -> None:
        """Nothing: memory beside the blocks is never touched either."""

    def slot(self, group: int, slot: int) -> NDArray[np.uint8]:
        raise NotImplementedError(NOTHING)

    def content(self, group: int, block: int) -> NDArray[np.uint8]:
        raise NotImplementedError(NOTHING)

    def write(self, group: int, block: int, data: bytes) -> None:
        """Nothing."""

    def export_canonical(self, group: int, block: int, tokens: int) -> Float32:
        raise NotImplementedError(NOTHING)

    def import_canonical(self, group: int, block: int, data: Float32) -> None:
        """Nothing."""


class VirtualBackend:
    """Compiles to one VirtualExecutable, which is `executable` from then on; `like`: the machine it pretends to be,
    `rates_of` what is kept of that one.
    """

    def __init__(self, like: Machine, rates_of: RatesOf, times_of: TimesOf, clock: FakeClock) -> None:
        self.executable: VirtualExecutable | None = None
        self._like = like
        self._rates_of = rates_of
        self._times_of = times_of
        self._clock = clock

    def refuses(self, op: Op) -> str | None:
        """None: every op has a cost."""
        return None

    def compile(self, module: Module, options: CompileOptions) -> VirtualExecutable:
        times = self._times_of(module, options.exact)
        self.executable = VirtualExecutable(module, times, self._clock, exact=options.exact)
        return self.executable

    def machine(self, threads: int = 0) -> Machine:
        return self._like

    def rates(self, threads: int, working_set: int, *, rounded: bool = False) -> Rates | None:
        return self._rates_of(threads, working_set, rounded)
