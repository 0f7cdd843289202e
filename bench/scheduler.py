"""What planning a step costs: python -m bench.scheduler [--running 256] [--waiting 1000] [--runs 5]

No model: the scheduler plans and commits steps in which every request decodes, alone and with a full queue behind it,
whose first one begins whenever a request ends. Also with a planning depth of 2: what is left to do between two steps,
and what is done while one runs. One JSON line is appended to bench/results/scheduler.jsonl: microseconds a step.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator

from bench import record

from pelton.core.config import BLOCK_TOKENS, CacheSection, ScheduleSection
from pelton.kv.group import KVGroup
from pelton.kv.pool import BlockPool
from pelton.schedule import ORDERS
from pelton.schedule.scheduler import Scheduler
from pelton.schedule.tracked import NewRequest

NAME = "scheduler"
PROMPT, ANSWER = 256, 512
WARMUPS, STEPS = 20, 200
EVERY = 8  # steps in which one request ends and another begins, with a queue
MICRO = 1e6


def scheduler_of(order: str, running: int, waiting: int, depth: int = 1) -> tuple[Scheduler, Iterator[NewRequest]]:
    """All that run decode; so many others wait. Further requests as they are needed."""
    length = PROMPT + ANSWER + WARMUPS + STEPS
    limits = ScheduleSection(
        max_num_seqs=running,
        max_num_batched_tokens=2048,
        max_steps_per_call=1,
        itl_target_ms=100,
        planning_depth=depth,
    )
    blocks = running * -(-length // BLOCK_TOKENS) + 1
    scheduler = Scheduler(
        limits, CacheSection(), ORDERS.get(order)(), (KVGroup(BlockPool(blocks)),), BLOCK_TOKENS, length
    )
    made = (
        NewRequest(f"r{number}", PROMPT - number % 7, ANSWER, 0, float(number), owner=f"owner {number % 5}")
        for number in range(1 << 20)
    )
    for _ in range(running):
        scheduler.add(next(made))
    while scheduler.num_waiting or any(request.remaining > 1 for request in scheduler._places.running):
        step(scheduler)
    for _ in range(waiting):
        scheduler.add(next(made))
    return scheduler, made


def step(scheduler: Scheduler, over: int | None = None) -> tuple[float, float]:
    """Seconds to plan and to commit, and those in which the next step was planned ahead; the request in the row `over`
    ends.
    """
    began = time.perf_counter()
    plan = scheduler.plan(began)
    planned = time.perf_counter() - began
    assert plan is not None
    began = time.perf_counter()
    if scheduler.ahead is not None:
        scheduler.ahead.make(plan, scheduler.limits)
    ahead = time.perf_counter() - began
    drawn = {row.row: 1 for row in plan.rows if row.sample}
    began = time.perf_counter()
    scheduler.commit(plan, drawn, () if over is None else (over,))
    return planned + time.perf_counter() - began, ahead


def measured(order: str, running: int, waiting: int, depth: int) -> tuple[float, float]:
    """Median microseconds of a step: between steps, and while one runs."""
    scheduler, made = scheduler_of(order, running, waiting, depth)
    taken, ahead = list[float](), list[float]()
    for number in range(WARMUPS + STEPS):
        ends = bool(waiting) and number % EVERY == 0
        if ends:
            scheduler.add(next(made))
        between, meanwhile = step(scheduler, number % running if ends else None)
        if number >= WARMUPS:
            taken.append(between)
            ahead.append(meanwhile)
    # Steps in which one begins are few: the mean has them, the median would not.
    middle = statistics.mean if waiting else statistics.median
    return MICRO * middle(taken), MICRO * middle(ahead)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--running", type=int, default=256, help="requests that decode (default: 256)")
    flags.add_argument("--waiting", type=int, default=1000, help="requests behind them (default: 1000)")
    flags.add_argument("--runs", type=int, default=5, help="repetitions (default: 5)")
    flags.add_argument("--dry", action="store_true", help="print only, keep nothing in bench/results")
    given = flags.parse_args()
    before = record.machine()
    cases = [("fcfs", 0, 1), ("fcfs", 0, 2), *((name, given.waiting, 1) for name in ORDERS), ("fcfs", given.waiting, 2)]
    taken = defaultdict[str, list[float]](list)
    for _ in range(given.runs):
        for name, waiting, depth in cases:
            between, meanwhile = measured(name, given.running, waiting, depth)
            case = f"{name}, {waiting} waiting"
            taken[case if depth == 1 else f"{case}, depth 2"].append(between)
            if depth > 1:
                taken[f"{case}, while a step runs"].append(meanwhile)
    figures: dict[str, object] = {name: record.summary(values, 1) for name, values in taken.items()}
    for name, values in taken.items():
        print(f"{given.running} running, {name:40} {statistics.median(values):7.1f} us a step")
    if not given.dry:
        settings: dict[str, object] = {"running": given.running, "waiting": given.waiting, "steps": STEPS}
        record.keep(NAME, settings, figures, before)


if __name__ == "__main__":
    main()
