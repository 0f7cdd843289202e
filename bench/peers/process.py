"""Programs that are measured: started, stopped for a while and let on again, and ended. It measures nothing itself.

Invariant: when a `Programs` block is left, whatever the reason, nothing that it started is left either.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

END_SECONDS = 20.0  # between asking a program to end and ending it
STOP_SECONDS = 2.0  # until a stopped program has stopped
RUNS = "RSDI"  # states of processes: running, or waiting for something
LIVES = RUNS + "tT"  # or stopped
LINE = 200  # characters of each line of a program's last words
PIECE = 1 << 16  # bytes read at once
SETTLE_SECONDS = 0.1  # after letting it on: its threads spin, look at clocks, and so on


class ProgramError(Exception):
    """A program ended, or did not do what it was asked for; the words are for people."""


class Program:
    """One program and all that it starts, as far as they stay in its session."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], log: Path, *, talks: bool = False) -> None:
        """`talks`: over standard input and output; else both are closed. Errors go to `log`."""
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as said:
            self.child = subprocess.Popen(
                list(words),
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else said,
                stderr=said,
                env=dict(environment),
                start_new_session=True,
            )
        self._peak_kib: dict[int, int] = {}
        self._unread = b""

    @property
    def input(self) -> IO[bytes]:
        assert self.child.stdin is not None
        return self.child.stdin

    @property
    def output(self) -> IO[bytes]:
        assert self.child.stdout is not None
        return self.child.stdout

    @property
    def ended(self) -> bool:
        return self.child.poll() is not None

    def pause(self) -> None:
        """Stops it where it is: what idles with spinning threads would slow whoever is measured."""
        self.peak_rss_mib()
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + STOP_SECONDS
        while session_members(self.child.pid, RUNS) and time.monotonic() < deadline:
            time.sleep(0.001)  # a signal is heard only when its turn has come

    def resume(self) -> None:
        """Lets it on."""
        self._signal(signal.SIGCONT)
        time.sleep(SETTLE_SECONDS)

    def end(self) -> None:
        """Asks it to end, then ends it. May be called again."""
        self.peak_rss_mib()
        # Stopped programs hear nothing else than these two.
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        try:
            self.child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        deadline = time.monotonic() + END_SECONDS
        while self._signal(signal.SIGKILL) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                pipe.close()

    def peak_rss_mib(self) -> float:
        """Largest resident set of each of its processes, files mapped included, summed up: so far."""
        for pid in session_members(self.child.pid):
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            for line in status.splitlines():
                if line.startswith("VmHWM:"):
                    self._peak_kib[pid] = max(self._peak_kib.get(pid, 0), int(line.split()[1]))
        return sum(self._peak_kib.values()) / 1024

    def line(self, mark: bytes, seconds: float) -> bytes | None:
        """The next line of its output that begins so, without its end; None after so many seconds, or at its end."""
        deadline = time.monotonic() + seconds
        while True:
            while b"\n" in self._unread:
                line, self._unread = self._unread.split(b"\n", 1)
                if line.startswith(mark):
                    return line
            ready, _, _ = select.select([self.output], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self.output.fileno(), PIECE) if ready else b""
            if not piece:
                return None
            self._unread += piece

    def last_words(self, lines: int = 3) -> str:
        """The end of what it wrote to its log."""
        try:
            said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            return ""
        return " / ".join(line.strip()[:LINE] for line in said[-lines:])

    def _signal(self, number: signal.Signals) -> bool:
        """Whether there was anybody to signal."""
        members = session_members(self.child.pid)
        for pid in members:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        return bool(members)


def session_members(session: int, states: str = LIVES) -> list[int]:
    """Processes of a session in one of these states, of which zombies have none."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_text(errors="replace")
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        if int(fields[3]) == session and fields[0] in states:
            found.append(int(entry.name))
    return found


class Programs:
    """Everything one run starts; to be used in a `with`. A SIGTERM in it ends the run as Ctrl-C does."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._all: list[Program] = []
        self._before: object = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGTERM, _interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        for program in self._all[::-1]:
            program.end()
        signal.signal(signal.SIGTERM, self._before)  # type: ignore[arg-type]

    def start(self, name: str, words: Sequence[str], environment: Mapping[str, str], *, talks: bool = False) -> Program:
        """`name`: of its log."""
        program = Program(words, environment, self._logs / f"{name}.log", talks=talks)
        self._all.append(program)
        return program

    def end(self, program: Program) -> None:
        """Ends one of them now."""
        program.end()
        if program in self._all:
            self._all.remove(program)

    def run(self, name: str, words: Sequence[str], environment: Mapping[str, str], seconds: float) -> str:
        """What a program that ends by itself writes to standard output; ProgramError where it fails or takes longer."""
        program = self.start(name, words, environment, talks=True)
        try:
            program.input.close()
            said = _read_to_the_end(program, seconds)
            if program.child.wait() != 0:
                raise ProgramError(f"{name} ended with {program.child.returncode}: {program.last_words()}")
            return said
        finally:
            self.end(program)


def _read_to_the_end(program: Program, seconds: float) -> str:
    program.child.stdin = None  # it is closed
    try:
        said, _ = program.child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise ProgramError(f"it took longer than {seconds:.0f} s") from None
    return str(said, "utf-8", "replace")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
