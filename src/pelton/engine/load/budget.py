"""StepBudget: how many tokens a step takes at most, by a target for the gaps between tokens and the machine's speed.

By the Program's cost rules and the rates of a kept probe, if it was quiet, else by a few steps timed at the start (see
calibrate).
Invariant: a step has room for a token of each request.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

from pelton.backends.backend import Rates
from pelton.core.config import BLOCK_TOKENS, ScheduleSection
from pelton.program.costs import op_costs
from pelton.program.module import Module
from pelton.program.values import StepShape

LEAST, MOST = 64, 2048  # below, weights are read too often; above, steps get no more efficient
MOST_TIMED = 512  # where the step has to have its memory before anything is known of its speed
REACHED = 0.6  # of the rates in whole steps of prompts, as measured (bench/results/step.jsonl)
TIMED = BLOCK_TOKENS  # tokens of the longer one of the steps that are timed
ALONE = "one request at a time holds up nobody"
NO_TARGET = "no target for gaps between tokens (itl_target_ms 0)"


@dataclass(frozen=True, slots=True)
class StepBudget:
    """`why`: where the number is from, for the start's report. `open`: it is the largest step that may be chosen once
    steps were timed.
    """

    tokens: int
    why: str
    open: bool = False

    def of(self, schedule: ScheduleSection) -> ScheduleSection:
        """The section with this many tokens in a step."""
        return replace(schedule, max_num_batched_tokens=self.tokens)


def step_seconds(module: Module, tokens: int, rates: Rates) -> float:
    """About how long a step of so many tokens of one prompt takes: of each op its bytes or its products, whichever
    takes longer, at REACHED of the rates.
    """
    step = StepShape(((0, tokens),), 1)
    least = sum(
        max((item.cost.read + item.cost.written) / rates.read_bytes_per_s, item.cost.flops / rates.flops_per_s)
        for item in op_costs(module, step)
    )
    return least / REACHED


def choose_budget(module: Module, schedule: ScheduleSection, rates: Rates | None) -> StepBudget:
    """The largest step, in whole tiles of LEAST to MOST tokens, that takes no longer than schedule.itl_target_ms.

    Without a target, and where requests do not run together, what the section says: one holds up nobody.
    """
    given, rows, target = schedule.max_num_batched_tokens, schedule.max_num_seqs, schedule.itl_target_ms
    if not target:
        return StepBudget(given, "as set" if target is None else NO_TARGET)
    if rows == 1:
        return StepBudget(given, ALONE)
    if rates is None or rates.busy:
        return StepBudget(max(_least(rows), min(MOST_TIMED, _most(module))), "", open=True)

    def seconds(tokens: int) -> float:
        return step_seconds(module, tokens, rates)

    return _chosen(range(_least(rows), _most(module) + 1, BLOCK_TOKENS), target, seconds, rates.told)


def timed_budget(budget: StepBudget, schedule: ScheduleSection, one: float, many: float) -> StepBudget:
    """The same by the seconds of two steps, of one token and of TIMED; no larger than the budget that was open."""
    assert schedule.itl_target_ms
    slope = max(many - one, 1e-9) / (TIMED - 1)

    def seconds(tokens: int) -> float:
        return one + slope * (tokens - 1)

    sizes = range(_least(schedule.max_num_seqs), budget.tokens + 1, BLOCK_TOKENS)
    return _chosen(sizes, schedule.itl_target_ms, seconds, "timed at the start")


def _chosen(sizes: range, target: int, seconds: Callable[[int], float], told: str) -> StepBudget:
    """The largest of the sizes that keeps the target (ms); the least where none does, or where there is none."""
    place = bisect_right(sizes, target / 1000, key=seconds)
    tokens = sizes[max(0, place - 1)] if sizes else sizes.start
    aim = f"{target} ms aimed at" if place else f"the least there is, though {target} ms are aimed at"
    return StepBudget(tokens, f"about {round(seconds(tokens) * 1000)} ms, {aim} ({told})")


def _least(rows: int) -> int:
    return max(LEAST, -(-rows // BLOCK_TOKENS) * BLOCK_TOKENS)


def _most(module: Module) -> int:
    return min(MOST, module.context)
