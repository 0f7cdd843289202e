"""An engine process that dies while it loads the model, as long as a file "die" is in the model's folder."""

import os
import signal
import sys
from pathlib import Path

from pelton.engine.process import loop
from pelton.engine.process.messages import Start

_serve = loop._serve


def _die(start: Start, *others: object) -> int:
    model = Path(loop.config_of(start.config).model.model)
    if (model / "die").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return _serve(start, *others)  # type: ignore[arg-type]


if __name__ == "__main__":
    loop._serve = _die
    sys.exit(loop.main(sys.argv[1:]))
