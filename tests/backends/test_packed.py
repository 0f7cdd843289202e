"""Packed weights on disk: a second start gives the bits of the first; what is wrong with a file does no harm."""

import os
import subprocess
import sys
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
from pelton.backends.cpu.packed import Keeper, PackedCache, PackedFile, Wanted, name_of
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

    def identity(self, *, read: bool) -> str | None:
        return f"{self.name} {self.version}" if self.known or read else None


def known_module(*, version: str = "1", known: bool = True) -> Module:
    module = mini_module("Q4_1")
    storages = {}
    for name, storage in module.storages.items():
        source = storage.source
        assert isinstance(source, ArraySource)
        told = Known(source.name, source.shape, source.format, source.data, version, known)
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
    at = data.index(b"entries") + 12
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def endless_header(data: bytes) -> bytes:
    end = data.index(b"\n", len(packed.MAGIC))
    return data[:end] + b"99999999999" + data[end:]


def empty(_: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [cut, lengthened, foreign, flipped_header, endless_header, empty])
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
    time.sleep(0.01)
    first.write_bytes(bytes(200))  # what is mapped is not what its path says any more
    assert identity_of(tensors[0], read=True) is None
