"""Files of blocks: what was written comes back or nothing does; every way to spoil one; the size; other processes."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pelton.core.counters import Counters
from pelton.kv.node import Node, chained
from pelton.kv.tiers.chain import Labelled, Name
from pelton.kv.tiers.chain import Path as Spelled
from pelton.kv.tiers.files import MOST_FAILURES, BlockFiles, Buffer, open_part, part_of
from pelton.kv.tiers.worker import DiskWorker, Job

FINGERPRINT, OTHER = bytes(range(32)), bytes(range(1, 33))
CONTENT = bytes(n * 7 % 256 for n in range(1000))


def block(number: int, group: int = 0) -> Labelled:
    parent = Node(b"", 1, None).digest
    key = number.to_bytes(4, "little") * 32
    return Labelled(Name(chained(parent, key), group), parent, key)


def opened(folder: Path, limit: int = 1 << 20, fingerprint: bytes = FINGERPRINT) -> BlockFiles:
    return BlockFiles(folder, fingerprint, limit, Counters())


def content(files: BlockFiles, wanted: Labelled, size: int = len(CONTENT)) -> bytes | None:
    into = bytearray(size)
    return bytes(into) if files.read(wanted, memoryview(into)) else None


def only_file(folder: Path) -> Path:
    (path,) = folder.rglob("*.kv")
    return path


def test_a_block_comes_back_in_another_process_too(tmp_path: Path) -> None:
    files = opened(tmp_path)
    assert not files.has(block(1).name) and files.write(block(1), memoryview(CONTENT)) and files.has(block(1).name)
    assert content(files, block(1)) == CONTENT
    later = opened(tmp_path)
    assert later.has(block(1).name) and later.count == 1 and content(later, block(1)) == CONTENT
    assert later.bytes == only_file(tmp_path).stat().st_size
    assert content(later, block(2)) is None and content(later, block(1, group=1)) is None


def flipped(offset: int) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[offset] ^= 4
        path.write_bytes(data)

    return spoil


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def grown(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


@pytest.mark.parametrize("spoil", [*map(flipped, range(0, 170, 5)), flipped(-1), flipped(-500), cut, emptied, grown])
def test_a_file_that_is_not_as_it_was_written_is_deleted(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    files = opened(tmp_path)
    files.write(block(1), memoryview(CONTENT))
    spoil(only_file(tmp_path))
    assert content(files, block(1)) is None and not files.has(block(1).name)
    assert not list(tmp_path.rglob("*.kv")) and files.counters.get("kv_disk_rejected") == 1
    assert files.write(block(1), memoryview(CONTENT)) and content(files, block(1)) == CONTENT


def test_another_block_under_its_name_is_not_taken(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.write(block(1), memoryview(CONTENT))
    path = only_file(tmp_path)
    files.write(block(2), memoryview(CONTENT))
    (other,) = set(tmp_path.rglob("*.kv")) - {path}
    other.replace(path)
    assert content(files, block(1)) is None and files.counters.get("kv_disk_rejected") == 1


def test_another_model_s_files_are_neither_taken_nor_touched(tmp_path: Path) -> None:
    theirs = opened(tmp_path, fingerprint=OTHER)
    theirs.write(block(1), memoryview(CONTENT))
    files = opened(tmp_path)
    assert not files.has(block(1).name) and content(files, block(1)) is None
    files.folder.mkdir()
    only_file(tmp_path).rename(files.folder / only_file(tmp_path).name)
    assert content(files, block(1)) is None and files.counters.get("kv_disk_rejected") == 1
    theirs.write(block(2), memoryview(CONTENT))
    files.clear()
    assert theirs.count and content(theirs, block(2)) == CONTENT


def test_the_size_is_kept_and_the_oldest_use_goes_first(tmp_path: Path) -> None:
    files = opened(tmp_path, limit=6000)
    for number in range(4):
        assert files.write(block(number), memoryview(CONTENT))
        os.utime(files.folder / f"{block(number).name.file}.kv", (number, number))
    assert content(files, block(0)) == CONTENT, "used again"
    for number in range(4, 6):
        assert files.write(block(number), memoryview(CONTENT))
    left = [number for number in range(6) if files.has(block(number).name)]
    assert 0 in left and 1 not in left and 5 in left
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.kv")) <= 6000
    assert files.counters.get("kv_disk_deleted") == 6 - len(left)
    assert not files.write(block(9), memoryview(bytes(9000))), "larger than all that is allowed"


def test_what_a_dead_process_left_half_written_is_swept_away(tmp_path: Path) -> None:
    files = opened(tmp_path)
    files.write(block(1), memoryview(CONTENT))
    path = files.folder / f"{block(2).name.file}.kv"
    dead, listed, alive = path.with_name(f"{path.name}.0a.{2**22 + 1}.part"), part_of(path), part_of(path)
    with open(alive, "wb", opener=open_part):
        for one in (dead, listed):  # a number may be another process's by now, or that of one that nobody has reaped
            one.write_bytes(b"half")
        opened(tmp_path)
        assert list(files.folder.glob("*.part")) == [alive] and content(files, block(1)) == CONTENT
    opened(tmp_path)
    assert not alive.exists()


def test_where_files_have_no_locks_a_process_that_is_listed_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(file: int, kind: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("pelton.kv.tiers.files.fcntl.flock", none)
    files = opened(tmp_path)
    assert files.write(block(1), memoryview(CONTENT)) and content(files, block(1)) == CONTENT
    path = files.folder / f"{block(2).name.file}.kv"
    dead, alive = path.with_name(f"{path.name}.0a.{2**22 + 1}.part"), part_of(path)
    for one in (dead, alive):
        one.write_bytes(b"half")
    opened(tmp_path)
    assert list(files.folder.glob("*.part")) == [alive]


def test_a_disk_that_fails_is_told_once_and_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    files = opened(tmp_path / "taken")
    for number in range(MOST_FAILURES + 3):
        assert not files.write(block(number), memoryview(CONTENT))
    assert files.counters.get("kv_disk_failed") == MOST_FAILURES
    assert len(caplog.records) == 2 and content(files, block(1)) is None and files.off


def test_files_that_cannot_be_read_now_and_then_end_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What counts is whether writes fail: a server may live long on files that it reads."""
    files = opened(tmp_path)
    for number in range(2 * MOST_FAILURES):
        good, bad = block(2 * number), block(2 * number + 1)
        assert files.write(good, memoryview(CONTENT))
        files.write(bad, memoryview(CONTENT))
        path = files.folder / f"{bad.name.file}.kv"
        path.unlink()
        path.mkdir()
        assert content(files, good) == CONTENT and content(files, bad) is None and not files.off
    assert files.counters.get("kv_disk_failed") == 2 * MOST_FAILURES == len(caplog.records)
    assert content(files, block(1)) is None and content(files, block(3)) is None
    assert len(caplog.records) == 2 * MOST_FAILURES, "one after the other they are told once"


@pytest.mark.parametrize("fails", ["short", "error"])
def test_failed_and_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """The system may write less than it was asked to, and fail on the rest."""
    files, write = opened(tmp_path), os.write

    def some(file: int, data: memoryview) -> int:
        if fails == "error" and len(data) < 500:
            raise OSError(28, "No space left on device")
        return write(file, data[:300])

    monkeypatch.setattr("pelton.kv.tiers.files.os.write", some)
    assert files.write(block(1), memoryview(CONTENT)) == (fails == "short")
    monkeypatch.undo()
    assert content(files, block(1)) == (CONTENT if fails == "short" else None)
    assert len(list(tmp_path.rglob("*.part"))) == 0


def test_a_worker_reads_what_was_told_to_be_written_before(tmp_path: Path) -> None:
    slots = {(0, slot): bytearray(CONTENT if slot == 0 else bytes(1000)) for slot in range(3)}
    worker = DiskWorker(opened(tmp_path), lambda group, slot: memoryview(slots[group, slot]))
    written, read = Job(False, (block(1),), (0,)), Job(True, (block(1), block(2)), (1, 2))
    worker.start(written)
    assert worker.has(block(1).name) and not worker.has(block(2).name)
    worker.start(read)
    done = worker.done(5)
    while len(done) < 2:
        done += worker.done(5)
    assert [(one.job, one.good) for one in done] == [(written, (True,)), (read, (True, False))]
    assert all(one.seconds > 0 for one in done)
    assert slots[0, 1] == CONTENT and not worker.done()
    worker.close()
    worker.close()


class Held(BlockFiles):
    """Writes wait until they may go on; `done` has what was done, in order."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, FINGERPRINT, 1 << 20, Counters())
        self.go_on, self.done = threading.Event(), list[str]()

    def write(self, block: Labelled, content: Buffer) -> bool:
        assert self.go_on.wait(20)
        self.done.append(f"write {block.key[0]}")
        return super().write(block, content)

    def read(self, block: Labelled, content: Buffer) -> bool:
        self.done.append(f"read {block.key[0]}")
        return super().read(block, content)


def test_readers_pass_what_writes_other_blocks(tmp_path: Path) -> None:
    """But neither what writes theirs, nor what is done with all files, nor other readers."""
    slots = {(0, slot): bytearray(CONTENT) for slot in range(9)}
    files = Held(tmp_path)
    worker = DiskWorker(files, lambda group, slot: memoryview(slots[group, slot]))
    for number in (1, 2, 3):
        worker.start(Job(False, (block(number),), (number,)))
    reads = [Job(True, (block(2),), (4,)), Job(True, (block(9),), (5,)), Job(True, (block(8),), (6,))]
    worker.start(reads[0])
    worker.start(reads[1])
    worker.call(lambda: files.done.append("call"))
    worker.start(Job(False, (block(7),), (7,)))
    worker.start(reads[2])
    assert worker.done() == []
    files.go_on.set()
    found = {one.job: one.good for one in worker.done(20, reads[2:])}
    worker.close()
    assert found[reads[2]] == (False,) and found[reads[0]] == (True,)
    assert files.done == ["write 1", "write 2", "read 2", "read 9", "write 3", "call", "read 8", "write 7"]


def test_who_waits_for_one_job_is_not_told_before(tmp_path: Path) -> None:
    slots = {(0, slot): bytearray(CONTENT) for slot in range(4)}
    worker = DiskWorker(opened(tmp_path), lambda group, slot: memoryview(slots[group, slot]))
    jobs = [Job(False, (block(number),), (number,)) for number in (1, 2, 3)]
    for job in jobs:
        worker.start(job)
    assert [one.job for one in worker.done(20, jobs[2:])] == jobs
    assert worker.done(0.01, jobs) == [], "it comes no more: not for ever"
    worker.close()


def test_what_breaks_on_the_files_ends_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker = DiskWorker(opened(tmp_path), lambda group, slot: memoryview(bytearray(CONTENT)))
    worker.call(lambda: 1 // 0)
    worker.start(Job(False, (block(1),), (0,)))
    assert [one.good for one in worker.done(20)] == [(True,)] and "broke" in caplog.text
    worker.close()


def test_a_worker_goes_on_after_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def slot(group: int, number: int) -> memoryview:
        if number:
            raise IndexError(number)
        return memoryview(bytearray(CONTENT))

    worker = DiskWorker(opened(tmp_path), slot)
    worker.start(Job(False, (block(1), block(2)), (7, 0)))
    assert [one.good for one in worker.done(5)] == [(False, True)] and "was lost" in caplog.text
    worker.close()


def test_names_stand_for_paths() -> None:
    class Keys:
        namespace = b"salt"

        def key(self, number: int) -> bytes:
            return b"abc"[number : number + 1]

        def part(self, number: int) -> bytes:
            return b""

    root = Node(b"salt", 1, None)
    first = root.add(b"a")
    second = first.add(b"b")
    names = Spelled(root, Keys())
    assert names.name(3, 1) == Name(second.digest, 3) and names.name(0, 0) == Name(first.digest, 0)
    assert names.labelled(0, 0) == Labelled(Name(first.digest, 0), root.digest, b"a")
    assert names.labelled(0, 2).parent == second.digest and names.labelled(0, 2).key == b"c"
    assert Spelled(Node(b"", 1, None), Keys()).name(0, 0) != names.name(0, 0)
