"""Aside: both run at the same time, and nothing of it is left when the call is over, however it ends."""

import gc
import signal
import threading
from types import FrameType

import pytest

from pelton.runner.aside import Aside

LONG = 30.0  # seconds; none of them is waited for where all is well


def test_both_run_at_once_the_work_in_the_callers_thread() -> None:
    aside, began, planned = Aside(), threading.Event(), threading.Event()
    threads = list[int]()

    def work() -> str:
        threads.append(threading.get_ident())
        began.set()
        assert planned.wait(LONG)
        return "result"

    def meanwhile() -> None:
        assert began.wait(LONG)
        threads.append(threading.get_ident())
        planned.set()

    assert aside.call(work, meanwhile) == "result"
    mine, other = threads
    assert mine == threading.get_ident() != other
    aside.close()
    aside.close()


@pytest.mark.parametrize("broken", ["work", "meanwhile", "both"])
def test_an_error_comes_when_both_are_over(broken: str) -> None:
    aside, over = Aside(), list[str]()

    def one(name: str, awaited: threading.Event, own: threading.Event) -> None:
        own.set()
        assert awaited.wait(LONG)
        over.append(name)
        if broken in (name, "both"):
            raise ValueError(name)

    first, second = threading.Event(), threading.Event()
    with pytest.raises(ValueError, match="meanwhile" if broken == "meanwhile" else "work"):
        aside.call(lambda: one("work", second, first), lambda: one("meanwhile", first, second))
    assert sorted(over) == ["meanwhile", "work"]
    assert aside.call(lambda: 3, lambda: None) == 3, "it goes on"
    aside.close()


def test_an_interrupt_waits_for_what_runs_aside() -> None:
    """As it would wait for a call into the backend."""
    aside, interrupted, over = Aside(), threading.Event(), threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    def meanwhile() -> None:
        assert interrupted.wait(LONG)
        assert not over.wait(0.1)
        over.set()

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            aside.call(lambda: signal.setitimer(signal.ITIMER_REAL, 0.05), meanwhile)
        assert over.is_set()
    finally:
        signal.signal(signal.SIGALRM, before)
        aside.close()


def test_the_thread_ends_with_its_owner() -> None:
    before = threading.active_count()
    aside = Aside()
    assert threading.active_count() == before, "it begins with the first call"
    aside.call(lambda: None, lambda: None)
    (thread,) = aside._thread._threads
    del aside
    gc.collect()
    thread.join(LONG)
    assert not thread.is_alive()
