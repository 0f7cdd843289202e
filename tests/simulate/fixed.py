"""Step times for tests: as told, whatever a step has in it. And the machine that is pretended."""

from collections.abc import Callable, Sequence
from pathlib import Path

from pelton.backends.backend import Machine
from pelton.core.config import EngineConfig, resolve
from pelton.program.module import Module

MACHINE = Machine("cpu", "portable", 2, 0)
Contexts = Sequence[tuple[int, int]]


class FixedSeconds:
    """In place of StepSeconds. `steps` are those that were asked for."""

    def __init__(self, seconds: Callable[[Contexts, int], float], around: float = 0.0) -> None:
        self.steps: list[tuple[tuple[tuple[int, int], ...], int]] = []
        self._seconds = seconds
        self._around = around

    def __call__(self, module: Module, exact: bool) -> "FixedSeconds":
        return self

    def step(self, contexts: Contexts, rows: int) -> float:
        self.steps.append((tuple(contexts), rows))
        return self._seconds(contexts, rows)

    def around(self, sequences: int) -> float:
        return self._around

    def copying(self, count: int) -> float:
        return 0.0


def settings(model: Path, **changes: object) -> EngineConfig:
    """Few requests, small steps, tokens that count alike."""
    chosen: dict[str, object] = {
        "max_num_seqs": 2,
        "max_num_batched_tokens": 64,
        "num_blocks": 64,
        "context_cost": 0.0,
        "max_steps_per_call": 1,
        "max_model_len": 512,
    }
    return resolve(model, {**chosen, **changes})
