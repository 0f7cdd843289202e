"""Packed weights on disk: a second start gives the bits of the first; what is wrong with a file does no harm."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.backends.mini import Piece, bits, inputs, mini_module, random_tokens
from tests.program.sources import ArraySource

from pelton.backends.backend import CompileOptions
from pelton.backends.cpu import _native, packed
from pelton.backends.cpu.backend import CpuBackend
from pelton.backends.cpu.executable import CpuExecutable
from pelton.backends.cpu.packed import GivenUp, Keeper, PackedCache, PackedFile, Wanted, name_of
from pelton.checkpoint.checksum import read_digest
from pelton.checkpoint.mapped import MappedFile, MappedTensor
from pelton.models.tensors import TensorRows
from pelton.program.module import Module
from pelton.program.weights import identity_of

LIMIT = 1 << 30


@dataclass(frozen=True)
class Known(ArraySource):
    """A source that knows what it is, by its name and `version`; `known` False: only once it was read."""

    version: str = "1"
    known: bool = True

    def identity(self, *, read: bool, advance: Callable[[int], object] | None = None) -> str | None:
        return f"{self.name} {self.version}" if self.known or read else None


class Slow(Known):
    """Takes ten seconds of reading to know what it is."""

    def identity(self, *, read: bool, advance: Callable[[int], object] | None = None) -> str | None:
        for _ in range(1000 if read else 0):
            time.sleep(0.01)
            if advance is not None:
                advance(1)
        return None


def known_module(*, version: str = "1", known: bool = True, kind: type[Known] = Known) -> Module:
    module = mini_module("Q4_1")
    storages = {}
    for name, storage in module.storages.items():
        source = storage.source
        assert isinstance(source, ArraySource)
        told = kind(source.name, source.shape, source.format, source.data, version, known)
        storages[name] = replace(storage, source=told)
    return replace(module, storages=storages)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of packed files; small models are kept too."""
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path))
    monkeypatch.setattr(packed, "LEAST_BYTES", 1)
    yield tmp_path / "packed"


def compiled(module: Module, limit: int = LIMIT, *, exact: bool = False) -> CpuExecutable:
    options = CompileOptions(max_tokens=64, max_rows=8, threads=2, exact=exact, packed_cache_bytes=limit)
    return CpuBackend().compile(module, options)


def answer(executable: CpuExecutable) -> list[object]:
    """Bits of one step; the executable is closed."""
    executable.allocate((32,))
    out = executable.run(inputs([Piece(random_tokens(20), 0, range(1, 4))]))
    executable.close()
    return [bits(out, row) for row in range(len(out.tokens))]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def never_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on it is an error to read a matrix of a source."""

    def read(self: ArraySource) -> memoryview:
        assert len(self.shape) == 1, f"{self.name} is read although it is kept packed"
        return memoryview(self.data)

    monkeypatch.setattr(ArraySource, "read", read)


@pytest.mark.parametrize("exact", [False, True])
def test_a_second_start_maps_what_the_first_packed(folder: Path, monkeypatch: pytest.MonkeyPatch, exact: bool) -> None:
    without = answer(compiled(known_module(), 0, exact=exact))
    assert files(folder) == []
    first = compiled(known_module(), exact=exact)
    held = first.memory.weights
    assert answer(first) == without
    (name,) = files(folder)
    assert name.endswith(".packed")
    never_packs(monkeypatch)
    second = compiled(known_module(), exact=exact)
    assert second.memory.weights == held
    assert answer(second) == without
    assert files(folder) == [name]


def test_an_identity_that_is_found_by_reading_is_enough_to_keep(folder: Path) -> None:
    compiled(known_module(known=False)).close()
    (name,) = files(folder)
    compiled(known_module()).close()
    assert files(folder) == [name]


def test_without_an_identity_nothing_is_kept(folder: Path) -> None:
    compiled(mini_module()).close()
    assert files(folder) == []


def test_what_decides_the_bytes_decides_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    base = Wanted("a", "q8", 4, 32)
    others = [
        [Wanted("b", "q8", 4, 32)],
        [Wanted("a", "q4", 4, 32)],
        [Wanted("a", "q8", 5, 32)],
        [Wanted("a", "q8", 4, 64)],
        [Wanted("a", "q8", 4, 32, (0, 1, 2, 3))],
        [Wanted("a", "q8", 4, 32, (0, 1, 3, 2))],
        [base, base],
        [],
    ]
    names = [name_of(one) for one in ([base], *others)]
    assert len(set(names)) == len(names)
    assert name_of([base]) == names[0]
    monkeypatch.setattr(_native, "PACK_LAYOUT", "another build's")
    assert name_of([base]) != names[0]


def cut(data: bytes) -> bytes:
    return data[:-1]


def lengthened(data: bytes) -> bytes:
    return data + b"\0"


def foreign(data: bytes) -> bytes:
    return b"GGUF" + data[4:]


def flipped_header(data: bytes) -> bytes:
    at = data.index(b"[[") + 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def endless_header(data: bytes) -> bytes:
    end = data.index(b"\n", packed.CHECKED_FROM)
    return data[:end] + b"99999999999" + data[end:]


def empty(_: bytes) -> bytes:
    return b""


def earlier(data: bytes) -> bytes:
    return data.replace(b"weights 2\n", b"weights 1\n", 1)


def other_digest(data: bytes) -> bytes:
    at = len(packed.MAGIC)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def flipped_weight(data: bytes) -> bytes:
    at = len(data) // 3
    return data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :]


def page_of_zeros(data: bytes) -> bytes:
    at = 2 * packed.PAGE
    return data[:at] + bytes(packed.PAGE) + data[at + packed.PAGE :]


HEADERS = [cut, lengthened, foreign, flipped_header, endless_header, empty, earlier, other_digest]


@pytest.mark.parametrize("damage", [*HEADERS, flipped_weight, page_of_zeros])
def test_a_damaged_file_is_made_again(
    folder: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    without = answer(compiled(known_module()))
    (name,) = files(folder)
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(damage(whole))
    assert answer(compiled(known_module())) == without
    assert "packed again" in caplog.text
    assert (folder / name).read_bytes() == whole


def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files whose digest is found by reading them, from here on."""
    seen: list[Path] = []

    def read(path: Path, *, start: int = 0, advance: Callable[[int], object] | None = None) -> str:
        seen.append(path)
        return read_digest(path, start=start, advance=advance)

    monkeypatch.setattr("pelton.checkpoint.checksum.read_digest", read)
    return seen


def test_each_state_of_a_file_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = reads(monkeypatch)
    compiled(known_module()).close()
    compiled(known_module()).close()
    assert seen == [], "we wrote it"
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes())
    for _ in range(3):
        compiled(known_module()).close()
    assert seen == [path]


def test_damage_between_two_uses_is_found_though_size_and_times_are_the_same(folder: Path) -> None:
    without = answer(compiled(known_module()))
    (path,) = folder.iterdir()
    whole, entry = path.read_bytes(), path.stat()
    time.sleep(0.02)  # the system's clock for files is that coarse
    with path.open("r+b") as file:
        file.seek(len(whole) // 2)
        file.write(bytes([whole[len(whole) // 2] ^ 1]))
    os.utime(path, ns=(entry.st_atime_ns, entry.st_mtime_ns))
    assert answer(compiled(known_module())) == without
    assert path.read_bytes() == whole


def test_checking_can_be_interrupted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    cache, wanted = PackedCache(LIMIT, folder), [Wanted("a", "q8", 1, 1)]
    assert cache.write(wanted, [memoryview(bytes(5 << 20))], lambda: False)
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes())
    main = threading.get_ident()
    with monkeypatch.context() as patch:

        class Interrupted:
            def update(self, _: bytes) -> None:
                signal.pthread_kill(main, signal.SIGINT)

        patch.setattr("pelton.checkpoint.checksum.hashlib.sha256", lambda *_: Interrupted())
        patch.setattr("pelton.checkpoint.checksum._memory", lambda *_: folder / "none")
        patch.setattr(packed, "name_of", lambda _: path.name.removesuffix(".packed"))
        with pytest.raises(KeyboardInterrupt):
            cache.open(wanted)
    assert files(folder) == [path.name]
    seen = reads(monkeypatch)
    file = cache.open(wanted)
    assert file is not None and seen == [path], "nothing was remembered"
    file.close()


def test_a_file_that_is_replaced_while_it_is_checked_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    cache, wanted = PackedCache(LIMIT, folder), [Wanted("a", "q8", 1, 1)]
    assert cache.write(wanted, [memoryview(b"a")], lambda: False)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(flipped_weight(whole))

    def read(found: Path, *, start: int = 0, advance: Callable[[int], object] | None = None) -> str:
        (folder / "fresh").write_bytes(whole)
        (folder / "fresh").replace(found)
        return read_digest(found, start=start)

    with monkeypatch.context() as patch:
        patch.setattr("pelton.checkpoint.checksum.read_digest", read)
        assert cache.open(wanted) is None, "what is open is not what was checked"
    assert path.read_bytes() == whole
    file = cache.open(wanted)
    assert file is not None
    file.close()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def socket_file(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def device(path: Path) -> None:
    path.symlink_to("/dev/null")


def directory(path: Path) -> None:
    path.mkdir()
    (path / "precious").touch()


@pytest.mark.parametrize("make", [fifo, socket_file, device, directory])
def test_what_is_no_file_under_its_name_does_no_harm(
    folder: Path, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without = answer(compiled(known_module()))
    (path,) = folder.iterdir()
    path.unlink()
    monkeypatch.chdir(folder)  # names of sockets are short
    make(Path(path.name))
    watchdog = threading.Timer(5, lambda: path.open("wb").close())  # who waits for a writer gets one
    watchdog.start()
    try:
        assert answer(compiled(known_module())) == without
        assert watchdog.is_alive()
    finally:
        watchdog.cancel()
    if make is directory:
        assert [one.name for one in path.iterdir()] == ["precious"] and files(folder) == [path.name]
    else:
        assert path.is_file() and not path.is_symlink()
    assert ("it is no regular file" in caplog.text) is (make in (fifo, device))


def test_a_file_of_other_matrices_is_not_used(folder: Path) -> None:
    wanted = [Wanted("a", "q8", 16, 32)]
    cache = PackedCache(LIMIT, folder)
    folder.mkdir()
    assert cache.write(wanted, [memoryview(bytes(544))], lambda: False)
    only = folder / (name_of(wanted) + ".packed")
    both = folder / (name_of(wanted * 2) + ".packed")
    only.rename(both)
    assert cache.open(wanted * 2) is None
    assert files(folder) == []


def test_parts_come_back_as_they_were_each_at_a_page(folder: Path) -> None:
    parts = [os.urandom(size) for size in (1, 4096, 4097, 100_000)]
    folder.mkdir()
    wanted = [Wanted(str(i), "q8", 1, 1) for i in range(len(parts))]
    cache = PackedCache(LIMIT, folder)
    assert cache.write(wanted, [memoryview(part) for part in parts], lambda: False)
    file = cache.open(wanted)
    assert file is not None
    data = file.path.read_bytes()
    assert [data[entry.offset : entry.offset + entry.size] for entry in file.entries] == parts
    assert all(entry.offset % 4096 == 0 for entry in file.entries)
    file.close()


def test_the_longest_unused_goes_first(folder: Path) -> None:
    folder.mkdir()
    cache = PackedCache(3 * 8192, folder)

    def keep(name: str) -> None:
        assert cache.write([Wanted(name, "q8", 1, 1)], [memoryview(bytes(4000))], lambda: False)
        time.sleep(0.01)

    for name in "abc":
        keep(name)
    used = cache.open([Wanted("a", "q8", 1, 1)])
    assert used is not None
    used.close()
    time.sleep(0.01)
    keep("d")
    kept = {name for name in "abcd" if (folder / (name_of([Wanted(name, "q8", 1, 1)]) + ".packed")).exists()}
    assert kept == {"a", "c", "d"}


def test_what_has_no_room_is_not_kept(folder: Path) -> None:
    compiled(known_module(), 1000).close()
    assert files(folder) == []
    assert not PackedCache(LIMIT, folder).has_room(1 << 62)


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path: Path, folder: Path) -> None:
    folder.write_text("no folder")
    assert answer(compiled(known_module())) == answer(compiled(known_module(), 0))


def test_writing_that_is_stopped_leaves_nothing(folder: Path) -> None:
    folder.mkdir()
    asked = iter([False, True])
    parts = [memoryview(bytes(packed.PIECE + 1))]
    assert not PackedCache(LIMIT, folder).write([Wanted("a", "q8", 1, 1)], parts, lambda: next(asked))
    assert files(folder) == []


def test_closing_gives_up_what_takes_too_long() -> None:
    seen = []

    def write(stopped: Callable[[], bool]) -> None:
        while not stopped():
            time.sleep(0.001)
        seen.append("stopped")

    Keeper(write).close(patience=0.01)
    assert seen == ["stopped"]


def test_closing_ends_the_reading_of_a_model_too(folder: Path) -> None:
    executable = compiled(known_module(known=False, kind=Slow))
    keeper = executable._keeper
    assert keeper is not None
    start = time.monotonic()
    keeper.close(patience=0.01)
    assert time.monotonic() - start < 5
    executable.close()
    assert files(folder) == []


def test_nothing_of_others_is_deleted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    name = name_of([Wanted("dead", "q8", 1, 1)])
    others = ["notes.txt", "mine.packed", "x.packed.99999999.1", f"{name}.packed.bak", f"{name}.packed.1.2.3"]
    for other in others:
        (folder / other).write_bytes(bytes(30_000))
    (folder / f"{name}.packed.99999999.1").write_bytes(b"half")
    cache, wanted = PackedCache(8192, folder), [Wanted("a", "q8", 1, 1)]
    assert cache.write(wanted, [memoryview(b"a")], lambda: False)
    assert files(folder) == sorted([*others, name_of(wanted) + ".packed"])


def test_a_file_that_vanishes_meanwhile_does_no_harm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    gone = folder / (name_of([Wanted("gone", "q8", 1, 1)]) + ".packed")
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda self: [*listed(self), gone])
    assert PackedCache(LIMIT, folder).write([Wanted("a", "q8", 1, 1)], [memoryview(b"a")], lambda: False)


def test_what_is_being_written_and_padding_count(folder: Path) -> None:
    folder.mkdir()
    old, new = ([Wanted(name, "q8", 1, 1)] for name in "ab")
    parts = [memoryview(b"a"), memoryview(b"b")]
    assert packed.file_bytes(parts) == 3 * packed.PAGE
    assert PackedCache(LIMIT, folder).write(old, parts[:1], lambda: False)
    writing = folder / f"{name_of(new)}.packed.{os.getpid()}.1"
    writing.write_bytes(bytes(packed.PAGE))
    small, room = PackedCache(4 * packed.PAGE - 1, folder), PackedCache(4 * packed.PAGE, folder)
    assert not small.write(new, parts, lambda: False), "what is being written leaves no room"
    assert len(files(folder)) == 2, "and then nothing is deleted for it"
    assert room.write(new, parts, lambda: False)
    assert files(folder) == sorted([name_of(new) + ".packed", writing.name])
    assert (folder / f"{name_of(new)}.packed").stat().st_size == 3 * packed.PAGE


KILLED = """
import sys, os
from pathlib import Path
from pelton.backends.cpu.packed import PackedCache, Wanted
cache = PackedCache(1 << 30, Path(sys.argv[1]))
def stopped():
    print("writing", flush=True)
    sys.stdin.readline()
    return False
cache.write([Wanted("a", "q8", 1, 1)], [memoryview(bytes(1 << 20))], stopped)
"""


def test_a_kill_in_the_middle_leaves_nothing_that_counts(folder: Path) -> None:
    folder.mkdir()
    command = [sys.executable, "-c", KILLED, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
        process.kill()
    (left,) = files(folder)
    assert not left.endswith(".packed")
    cache, wanted = PackedCache(LIMIT, folder), [Wanted("a", "q8", 1, 1)]
    assert cache.open(wanted) is None
    assert cache.write(wanted, [memoryview(b"a")], lambda: False)
    assert files(folder) == [name_of(wanted) + ".packed"]
    with pytest.raises(ValueError, match="no file of packed weights"):
        PackedFile(Path(__file__))


def test_the_identity_of_mapped_tensors_is_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path / "cache"))
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(bytes(range(200)))
    second.write_bytes(bytes(range(200)))
    tensors = [MappedTensor("x", (4, 4), "F32", MappedFile(path), 64, 128) for path in (first, second)]
    assert [identity_of(tensor, read=False) for tensor in tensors] == [None, None]
    one, other = (identity_of(tensor, read=True) for tensor in tensors)
    assert one is not None and one == other == identity_of(tensors[0], read=False)
    elsewhere = identity_of(replace(tensors[0], start=60, stop=124), read=False)
    part, turned = (identity_of(TensorRows("y", tensors[0], rows), read=False) for rows in (range(2), (1, 0)))
    assert len({one, elsewhere, part, turned}) == 4

    def give_up(count: int) -> None:
        raise GivenUp

    third = tmp_path / "c"
    third.write_bytes(bytes(200))
    fresh = MappedTensor("x", (4, 4), "F32", MappedFile(third), 64, 128)
    with pytest.raises(GivenUp):
        identity_of(TensorRows("y", fresh, range(2)), read=True, advance=give_up)
    assert identity_of(fresh, read=False) is None
    time.sleep(0.01)
    first.write_bytes(bytes(200))  # what is mapped is not what its path says any more
    assert identity_of(tensors[0], read=True) is None


def test_a_file_that_has_more_matrices_is_not_used(folder: Path) -> None:
    wanted, part = [Wanted("a", "q8", 16, 32)], memoryview(bytes(544))
    cache = PackedCache(LIMIT, folder)
    folder.mkdir()
    assert cache.write(wanted * 2, [part, part], lambda: False)
    (folder / (name_of(wanted * 2) + ".packed")).rename(folder / (name_of(wanted) + ".packed"))
    assert cache.open(wanted) is None and files(folder) == []


def test_a_tenth_of_what_is_free_is_the_most(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    cache = PackedCache(LIMIT, folder)
    assert cache.has_room(100) and not cache.has_room(101)


def test_a_file_is_on_the_disk_before_it_has_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    synced: list[list[str]] = []
    fsync = os.fsync
    monkeypatch.setattr(packed.os, "fsync", lambda file: (synced.append(files(folder)), fsync(file)))
    assert PackedCache(LIMIT, folder).write([Wanted("a", "q8", 1, 1)], [memoryview(b"a")], lambda: False)
    assert len(synced) == 1 and not any(name.endswith(".packed") for name in synced[0])


def test_what_cannot_be_read_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's perhaps: no warning, and it stays."""
    folder.mkdir()
    wanted = [Wanted("a", "q8", 1, 1)]
    assert PackedCache(LIMIT, folder).write(wanted, [memoryview(b"a")], lambda: False)
    before = files(folder)

    def refused(self: PackedFile, path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(PackedFile, "__init__", refused)
    assert PackedCache(LIMIT, folder).open(wanted) is None and files(folder) == before


ENDED = """
import sys, time
from pelton.backends.cpu.packed import Keeper
def write(stopped):
    time.sleep(0.3)
    print("whole", flush=True)
Keeper(write)
"""


def test_a_program_that_ends_without_closing_lets_it_finish() -> None:
    done = subprocess.run([sys.executable, "-c", ENDED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "whole\n"


def test_a_matrix_of_another_size_is_not_mapped(folder: Path) -> None:
    """Nor one of a file that cannot be mapped."""
    folder.mkdir()
    (folder / "x").write_bytes(bytes(4096))
    native = _native.Executable("portable", [-1], 8, 4, 32, False)
    with (folder / "x").open("rb") as file:
        assert native.add_packed("q8", 16, 32, file.fileno(), 0, 544) == 0
        for size in (543, 545, 1088):
            with pytest.raises(ValueError, match="packed bytes and shape differ"):
                native.add_packed("q8", 16, 32, file.fileno(), 0, size)
    with pytest.raises(MemoryError):
        native.add_packed("q8", 16, 32, 12345, 0, 544)
