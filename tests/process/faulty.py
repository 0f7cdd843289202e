"""Engine processes for tests: `python -m tests.process.faulty` with faults that a prompt's first token asks for.

The faults are here and not in the product: Engine.step is replaced before the loop's main runs.
"""

import os
import signal
import sys
import time

from pelton.core.request import Request
from pelton.engine.engine import Engine
from pelton.engine.process import loop

HANG, CRASH, BREAK, BAD_ADD, LONG = 1, 2, 3, 4, 5  # no test's text begins so
LONG_UNIT = 0.1  # seconds that a step of LONG takes, times the prompt's second token
_add_request = Engine.add_request
_step = Engine.step
_wanted: list[tuple[int, ...]] = []


def _noting_add(self: Engine, request: Request) -> None:
    first = request.prompt_token_ids[0]
    if first == BAD_ADD:
        raise KeyError("a bug in taking requests in")
    _add_request(self, request)
    if first in (HANG, CRASH, BREAK, LONG):
        _wanted.append(request.prompt_token_ids[:2])


def _faulty_run(self: Engine) -> list[object]:
    on_plan = self.on_plan

    def fault(plan: object) -> None:
        assert on_plan is not None
        on_plan(plan)
        wanted, *more = _wanted.pop() if _wanted else (0,)
        if wanted == HANG:
            time.sleep(1000)
        if wanted == LONG:
            time.sleep(LONG_UNIT * more[0])
        if wanted == CRASH:
            os.kill(os.getpid(), signal.SIGSEGV)
        if wanted == BREAK:
            raise ZeroDivisionError("a bug in a step")

    self.on_plan = fault
    try:
        return _step(self)
    finally:
        self.on_plan = on_plan


if __name__ == "__main__":
    Engine.add_request = _noting_add  # type: ignore[method-assign]
    Engine.step = _faulty_run  # type: ignore[method-assign, assignment]
    sys.exit(loop.main(sys.argv[1:]))
