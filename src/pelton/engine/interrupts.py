"""HeldInterrupt: Ctrl-C during a step waits until it is over, so that an interrupt never leaves half a step behind."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

Handler = Callable[[int, FrameType | None], object]


class HeldInterrupt:
    """A block of code that SIGINT cannot cut. Outside the main thread, which alone gets signals, it does nothing."""

    def __init__(self) -> None:
        self._held = False
        self._former: Handler | None = None

    def __enter__(self) -> "HeldInterrupt":
        if threading.current_thread() is threading.main_thread():
            former = signal.getsignal(signal.SIGINT)
            if callable(former):
                self._former = former
                signal.signal(signal.SIGINT, self._hold)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)
            if self._held:
                self._former(signal.SIGINT, None)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._held = True
