"""The engine's end of the socket: whole messages in order, and no waiting for a slow reader."""

import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from pelton.core.counters import EngineStats
from pelton.core.events import TokensGenerated
from pelton.engine.process.line import Line
from pelton.engine.process.messages import Abort, Frames, Shutdown, Step, Stop, decode_outbound, encode


@pytest.fixture
def ends() -> Iterator[tuple[Line, socket.socket]]:
    ours, theirs = socket.socketpair()
    line = Line(ours.detach())
    yield line, theirs
    theirs.close()
    line.close()


def make_step(number: int, tokens: int = 1) -> Step:
    return Step((TokensGenerated("7", (number,) * tokens),), EngineStats(), 0.0, 0.0, number)


def test_messages_arrive_whole_and_in_order(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    assert line.receive(wait=False) == []
    both = encode(Stop(("a",))) + encode(Abort(("b" * 300,)))
    other.sendall(both[:20])
    assert line.receive(wait=True) == [Stop(("a",))]
    other.sendall(both[20:] + encode(Shutdown()))
    assert line.receive(wait=True) == [Abort(("b" * 300,)), Shutdown()]


def test_a_reader_that_does_not_read_keeps_nobody_waiting(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    for number in range(200):
        line.send(make_step(number, 5000))  # far more than any socket takes
    other.sendall(encode(Shutdown()))
    assert line.receive(wait=True) == [Shutdown()]
    frames, found = Frames(), []
    other.setblocking(False)
    while len(found) < 200:
        line.receive(wait=False)
        found += [decode_outbound(body) for body in frames.feed(other.recv(1 << 20))]
    assert [step.taken for step in found if isinstance(step, Step)] == list(range(200))


def test_waiting_sends_what_is_left(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    line.send(make_step(0, 1 << 20))
    waiter = threading.Thread(target=lambda: other.sendall(encode(Shutdown())) if read_all() else None)

    def read_all() -> bool:
        frames = Frames()
        return any(frames.feed(other.recv(1 << 16)) for _ in range(1 << 20))

    waiter.start()
    messages: list[object] = []
    while not messages:
        messages = list(line.receive(wait=True))
    waiter.join()
    assert messages == [Shutdown()]


def test_finish_waits_for_the_last_message(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    line.send(make_step(0, 1 << 20))
    found: list[bytes] = []

    def read() -> None:
        frames = Frames()
        while not found:
            found.extend(frames.feed(other.recv(1 << 16)))

    reader = threading.Thread(target=read)
    reader.start()
    line.finish(10.0)
    reader.join()
    assert decode_outbound(found[0]) == make_step(0, 1 << 20)


def test_finish_gives_up_on_who_does_not_read(ends: tuple[Line, socket.socket]) -> None:
    line, _ = ends
    line.send(make_step(0, 1 << 20))
    line.finish(0.05)


def test_a_parent_that_is_gone_is_told_while_receiving_only(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    other.close()
    line.send(make_step(0))
    for wait in (True, False):
        with pytest.raises(EOFError):
            line.receive(wait=wait)


def test_a_signal_ends_waiting(ends: tuple[Line, socket.socket]) -> None:
    line, _ = ends
    former = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        assert line.receive(wait=True) == []
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, former)


def test_waiting_ends_by_time_or_by_another_thread(ends: tuple[Line, socket.socket]) -> None:
    line, other = ends
    assert line.receive(wait=True, seconds=0.01) == []
    line.wake()
    assert line.receive(wait=True) == []
    threading.Timer(0.05, line.wake).start()
    assert line.receive(wait=True) == []
    for _ in range(100_000):  # more than anybody reads
        line.wake()
    assert line.receive(wait=True) == []
    other.sendall(encode(Shutdown()))
    received = line.receive(wait=True, seconds=30)
    while not received:
        received = line.receive(wait=True, seconds=30)
    assert received == [Shutdown()]
