"""An engine process whose steps take their time, so that a test can count them while they run."""

import sys
import time

from pelton.core.events import Event
from pelton.engine.engine import Engine
from pelton.engine.process import loop

SECONDS = 0.03
_step = Engine.step


def _slow_step(self: Engine) -> list[Event]:
    time.sleep(SECONDS)
    return _step(self)


if __name__ == "__main__":
    Engine.step = _slow_step  # type: ignore[method-assign]
    sys.exit(loop.main(sys.argv[1:]))
