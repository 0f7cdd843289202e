"""Mapped files: views without copies, released pages come back, closing is safe while a view is held."""

import hashlib
import os
import time
from pathlib import Path

import numpy as np
import pytest

from pelton.checkpoint.checksum import file_digest, joint_digest, known_digest, read_digest
from pelton.checkpoint.mapped import PAGE, MappedFile, MappedTensor, quoted
from pelton.core.errors import CheckpointError

CONTENT = np.random.default_rng(5).bytes(8 * PAGE + 123)


def mapped(tmp_path: Path) -> MappedFile:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    return MappedFile(path)


def resident_pages(file: MappedFile) -> int:
    """Pages of the mapping that this process holds, from /proc/self/smaps."""
    wanted, kilobytes = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.endswith(str(file.path)):
            wanted = True
        elif wanted and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024 // PAGE
    return kilobytes


@pytest.mark.parametrize(("start", "stop"), [(0, len(CONTENT)), (5, 6), (PAGE, 2 * PAGE), (PAGE - 1, PAGE + 1), (7, 7)])
def test_views_and_release(tmp_path: Path, start: int, stop: int) -> None:
    file = mapped(tmp_path)
    tensor = MappedTensor("t", (stop - start,), "F32", file, start, stop)
    assert bytes(tensor.read()) == CONTENT[start:stop]
    tensor.release()
    assert bytes(tensor.read()) == CONTENT[start:stop]
    assert tensor.read().readonly
    file.close()


def test_release_gives_pages_back(tmp_path: Path) -> None:
    file = mapped(tmp_path)
    bytes(file.view(0, len(CONTENT)))
    before = resident_pages(file)
    file.release(PAGE // 2, len(CONTENT))
    after = resident_pages(file)
    assert before == 9
    assert after == 2, "the borders' pages stay: others may use them"


def test_views_are_not_copies(tmp_path: Path) -> None:
    file = mapped(tmp_path)
    one, other = (np.frombuffer(file.view(10, 50), np.uint8) for _ in range(2))
    assert one.ctypes.data == other.ctypes.data


def test_closing_while_a_view_is_held(tmp_path: Path) -> None:
    file = mapped(tmp_path)
    view = file.view(3, 3 * PAGE)
    file.close()
    file.close()
    assert bytes(view) == CONTENT[3 : 3 * PAGE]
    with pytest.raises(ValueError, match="closed"):
        file.view(0, 1)


def test_files_that_cannot_be_mapped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for name, words in (("none", "does not exist"), ("pipe", "no regular file"), ("empty", "empty"), (".", "regular")):
        with pytest.raises(CheckpointError, match=words):
            MappedFile(tmp_path / name)


def test_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    expected = hashlib.sha256(CONTENT).hexdigest()
    read: list[int] = []
    assert file_digest(path, advance=read.append) == expected
    assert sum(read) == len(CONTENT)
    assert file_digest(path, advance=read.append) == expected
    assert sum(read) == len(CONTENT), "remembered, not read again"
    path.write_bytes(CONTENT + b"x")
    assert file_digest(path) == read_digest(path) == hashlib.sha256(CONTENT + b"x").hexdigest()
    assert joint_digest([path]) != file_digest(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        file_digest(tmp_path / "none")


def test_a_file_replaced_by_one_as_large_and_as_old_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path / "cache"))
    file = mapped(tmp_path)
    expected, stat = file_digest(file.path), file.path.stat()
    assert file.digest(read=False) == expected
    other = tmp_path / "other"
    other.write_bytes(CONTENT[::-1])
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    os.replace(other, file.path)
    assert file.path.stat().st_mtime_ns == stat.st_mtime_ns
    assert known_digest(file.path) is None and file_digest(file.path) == hashlib.sha256(CONTENT[::-1]).hexdigest()
    again, stat = MappedFile(file.path), file.path.stat()
    time.sleep(0.02)  # the system's clock for files is that coarse
    file.path.write_bytes(CONTENT)  # in place: the same inode
    os.utime(file.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert again.digest(read=True) is None, "what is mapped may be a mixture"
    assert file_digest(file.path) == expected


def test_what_changes_while_it_is_read_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "file"
    path.write_bytes(CONTENT)

    def replace(count: int) -> None:
        (tmp_path / "other").write_bytes(CONTENT[::-1])
        os.replace(tmp_path / "other", path)

    file_digest(path, advance=replace)
    assert known_digest(path) is None


def test_a_damaged_memory_of_digests_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    expected = file_digest(path)
    (memory,) = (tmp_path / "cache" / "digests").iterdir()
    memory.write_text("half")
    assert file_digest(path) == expected


def test_quoted_names() -> None:
    assert quoted("a\x1b") == "'a\\x1b'"
    assert len(quoted("x" * 1000)) <= 80
