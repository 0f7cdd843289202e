"""A disk that fails, files that are looked after, and the engine's own thread in steps: for state machines.

Nothing here depends on time. Invariant: what the thread was told is done before anybody is told what is done, or it is
not begun.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from errno import EIO, ENOSPC
from pathlib import Path
from threading import Event

from pelton.core.counters import Counters
from pelton.kv.tiers.chain import Labelled, Name
from pelton.kv.tiers.files import BlockFiles, Buffer
from pelton.kv.tiers.worker import DiskWorker, Done, Job, Work, line_up

WAIT_SECONDS = 50.0
FAULTS = ("full", "full", "short", "error", "cut", "flipped")
SPOILS = ("flip", "cut", "empty", "grow", "delete", "another's")


class FaultyDisk:
    """In place of the module `os` where blocks are written and read: the next `left` calls go wrong by `fault`.

    full: half is written, then an error. short: less than was asked, which is no error. error: nothing is read. cut: it
    looks as if the file ended. flipped: a bit of what was read is another. `errors` and `spoils`: how often a call
    failed, or gave what was not in the file.
    """

    def __init__(self, seen: Counter[str]) -> None:
        self.fault, self.left = "", 0
        self.errors = self.spoils = 0
        self._seen = seen
        self._uses = 0

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)  # type: ignore[no-any-return]

    def write(self, file: int, data: memoryview) -> int:
        if self._fails("full"):
            self.errors += 1
            os.write(file, data[: len(data) // 2])
            raise OSError(ENOSPC, "No space left on device")
        return os.write(file, data[: 1 + len(data) // 3] if self._fails("short") else data)

    def readv(self, file: int, buffers: Sequence[memoryview]) -> int:
        (into,) = buffers
        if self._fails("error"):
            self.errors += 1
            raise OSError(EIO, "Input/output error")
        if self._fails("cut"):
            self.spoils += 1
            return 0
        if self._fails("flipped"):
            self.spoils += 1
            got = os.readv(file, [into])
            into[got // 2] ^= 1
            return got
        return os.readv(file, [into[: 1 + len(into) // 3]] if self._fails("short") else [into])

    def utime(self, path: Path) -> None:
        """Uses are counted, as a clock is too coarse to tell which was later."""
        self._uses += 1
        os.utime(path, ns=(self._uses, self._uses))

    def _fails(self, fault: str) -> bool:
        fails = self.left > 0 and self.fault == fault
        self.left -= fails
        self._seen[f"disk: {fault}"] += fails
        return fails


@dataclass
class Ledger:
    """What was written to the files of one folder, by whomever. `files`: all that each file ever was; `writers`: of
    each file the last.
    """

    files: dict[str, set[bytes]] = field(default_factory=dict)
    writers: dict[str, object] = field(default_factory=dict)

    def intact(self, path: Path) -> bool:
        """Whether a file is as it was written once."""
        return path.exists() and path.read_bytes() in self.files.get(path.name, ())


class Watched(BlockFiles):
    """Every call is checked against the ledger, and what it counts against what went wrong: `wrong` says what is not as
    it must be, since an assertion would end in the thread's log.
    """

    def __init__(self, folder: Path, limit: int, disk: FaultyDisk, ledger: Ledger, seen: Counter[str]) -> None:
        self.wrong: list[str] = []
        self._disk = disk
        self._ledger = ledger
        self._seen = seen
        self._expected: Counter[str] = Counter()
        super().__init__(folder, bytes(32), limit, Counters())

    def write(self, block: Labelled, content: Buffer) -> bool:
        path, errors, over = self._path(block.name), self._disk.errors, self.off
        before = path.read_bytes() if path.exists() else None
        good = super().write(block, content)
        failed = self._disk.errors - errors
        self._expect(good != (failed > 0 or over), f"written {good} with {failed} errors, {over}")
        self._expected.update(written=good, failed=failed)
        self._seen["disk given up"] += over
        self._expect(not [*self.folder.glob("*.part")], "a part is left")
        if good:
            self._disk.utime(path)
            self._ledger.files.setdefault(path.name, set()).add(path.read_bytes())
            self._ledger.writers[path.name] = self
        else:
            self._expect(before == (path.read_bytes() if path.exists() else None), "a failed write changed a file")
        return good

    def read(self, block: Labelled, into: Buffer) -> bool:
        path, disk = self._path(block.name), self._disk
        there, intact = path.exists(), self._ledger.intact(path)
        errors, spoils = disk.errors, disk.spoils
        good = super().read(block, into)
        failed = disk.errors - errors
        self._expect(good == (intact and not failed and disk.spoils == spoils), f"read {good} of {intact=}, {failed=}")
        refused = there and not good and not failed
        self._expected.update(read=good, failed=failed, rejected=refused)
        self._expect(not refused or not path.exists(), "what is not as it was written is kept")
        self._expect(good or not self.has(block.name), "what could not be read is still known")
        if good:
            known = self._ledger.files[path.name]
            self._expect(any(data.endswith(bytes(into)) for data in known), "another content")
            self._seen["read what another wrote"] += self._ledger.writers[path.name] is not self
        self._seen["not there any more"] += not there
        self._seen["spoilt file refused"] += there and not intact and refused
        return good

    def check(self) -> None:
        """Asserts that all was well, and counted."""
        assert not self.wrong, self.wrong
        for name in ("written", "read", "rejected", "failed"):
            counted = self.counters.get(f"kv_disk_{name}")
            assert counted == self._expected[name], f"{counted} counted as {name}, and it was {self._expected[name]}"

    def _expect(self, right: bool, said: str) -> None:
        if not right:
            self.wrong.append(said)


def spoil(path: Path, kind: str, place: int, other: Path) -> None:
    """Makes a file another one. `place`: of the bit, from the start or, below 0, from the end."""
    data = path.read_bytes()
    if not data:
        kind = "grow"
    match kind:
        case "flip":
            place %= len(data)
            path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        case "cut":
            path.write_bytes(data[: place % len(data)])
        case "empty":
            path.write_bytes(b"")
        case "grow":
            path.write_bytes(data + b"\0")
        case "delete":
            path.unlink()
        case _:
            path.write_bytes(other.read_bytes())


class PacedWorker:
    """A Carrier that has the engine's own do what it was told as soon as it is asked what is done. The next `holds`
    times that it is asked it has done nothing.
    """

    def __init__(self, files: Watched, slot: Callable[[int, int], Buffer], seen: Counter[str]) -> None:
        self.files: BlockFiles = files
        self.holds = 0
        self._worker = DiskWorker(files, slot)
        self._told: list[Work | None] = []
        self._seen = seen

    def has(self, name: Name) -> bool:
        """See Carrier."""
        jobs = (job for job in self._told if isinstance(job, Job) and not job.read)
        return self._worker.has(name) or any(block.name == name for job in jobs for block in job.blocks)

    def start(self, job: Job) -> None:
        """See Carrier."""
        line_up(self._told, job)
        self._seen["reader before writers"] += self._told[-1] is not job

    def call(self, work: Callable[[], object]) -> None:
        """See Carrier."""
        self._told.append(work)

    def done(self, seconds: float = 0.0, awaited: Collection[Job] = ()) -> list[Done]:
        """See Carrier; nothing is waited for but the thread."""
        if self.holds:
            self.holds -= 1
            self._seen["held back"] += bool(self._told)
            return []
        return self._finish()

    def close(self) -> None:
        """See Carrier."""
        self._finish()
        self._worker.close()

    def kill(self) -> None:
        """What was not begun never is."""
        self._seen["killed with jobs to do"] += bool(self._told)
        self._told = []
        self._worker.close()

    def _finish(self) -> list[Done]:
        over = list[Done]()
        told, self._told = self._told, []
        for job in told:
            if isinstance(job, Job):
                self._worker.start(job)
                over += self._worker.done(WAIT_SECONDS)
            elif job is not None:
                ended = Event()
                self._worker.call(job)
                self._worker.call(ended.set)
                assert ended.wait(WAIT_SECONDS)
        return over
