"""Files of slots: what is read is what was written; whatever else is in a file is told and not used."""

import os
from pathlib import Path

import pytest

from pelton.kv.tiers import slot_file
from pelton.kv.tiers.files import open_part
from pelton.kv.tiers.slot_file import DAMAGED, FOREIGN, SlotReader, SlotWriter

PRINT, OTHER = b"p" * 32, b"o" * 32
SIZES = (24, 8)
NAMESPACE = b"names\0pace"
KEYS = (b"\1\0\0\0" * 4, b"\2\0\0\0" * 4, b"\3\0\0\0")
PLACES = [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1)]
CONTENTS = [bytes([number + 1]) * SIZES[group] for number, (_, group) in enumerate(PLACES)]


def written(path: Path, fingerprint: bytes = PRINT) -> int:
    writer = SlotWriter(path)
    writer.open(fingerprint)
    writer.add(CONTENTS[:2])
    writer.add(CONTENTS[2:])
    return writer.finish(NAMESPACE, SIZES, KEYS, PLACES)


def refused(path: Path, fingerprint: bytes = PRINT, sizes: tuple[int, ...] = SIZES) -> str:
    with pytest.raises(ValueError) as caught:
        SlotReader(path, fingerprint, sizes)
    return str(caught.value)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    size = written(path)
    assert path.stat().st_size == size and path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["x.bin"]
    reader = SlotReader(path, PRINT, SIZES)
    assert (reader.size, reader.foot.namespace, reader.foot.keys) == (size, NAMESPACE, KEYS)
    assert [(entry, group) for entry, group, _ in reader.foot.contents] == PLACES
    assert reader.read(2) + reader.read(9) == CONTENTS and reader.read(1) == []
    reader.close()
    reader.close()


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"something else")
    open_before = path.open("rb")
    written(path)
    assert open_before.read() == b"something else" and SlotReader(path, PRINT, SIZES).read(9) == CONTENTS
    open_before.close()


def test_no_bit_may_differ(tmp_path: Path) -> None:
    """Of all bytes a bit each; in the fingerprint and the beginning it is told as what it looks like."""
    path = tmp_path / "x.bin"
    written(path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        told = refused(path)
        if place < len(slot_file.MAGIC):
            assert "no saved slot" in told
        else:
            assert told == (FOREIGN if place < len(slot_file.MAGIC) + 32 else DAMAGED), place


def test_no_byte_may_be_missing_or_too_much(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    written(path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refused(path)
    for longer in (whole + b"\0", b"\0" + whole, whole + whole):
        path.write_bytes(longer)
        refused(path)


def test_a_content_that_changes_after_it_was_checked_is_not_given(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    written(path)
    reader = SlotReader(path, PRINT, SIZES)
    place = path.read_bytes().index(CONTENTS[1])
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"\0")
    assert reader.read(1) == CONTENTS[:1]
    with pytest.raises(ValueError, match=DAMAGED):
        reader.read(1)
    reader.close()


def test_others_files_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    written(path, OTHER)
    assert refused(path) == FOREIGN == refused(path, OTHER, (24, 9)) == refused(path, OTHER, (24,))
    path.write_bytes(b"")
    assert refused(path) == DAMAGED
    path.write_text("a text that is no slot, and longer than the beginning of one" * 3)
    assert "no saved slot" in refused(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        SlotReader(path, PRINT, SIZES)
    os.mkfifo(path)
    assert refused(path) == "it is no file"
    path.unlink()
    path.mkdir()
    assert refused(path) == "it is no file"


@pytest.mark.parametrize("after", range(7))
def test_a_write_that_fails_leaves_what_was_there(after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Head, five contents, foot and end: each of them may be cut short."""
    path = tmp_path / "x.bin"
    path.write_bytes(b"before")
    write_all, left = slot_file.write_all, [after]

    def failing(file: int, data: bytes) -> None:
        if not left[0]:
            write_all(file, data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        left[0] -= 1
        write_all(file, data)

    monkeypatch.setattr(slot_file, "write_all", failing)
    writer = SlotWriter(path)
    with pytest.raises(OSError, match="No space left"):
        writer.open(PRINT)
        writer.add(CONTENTS)
        writer.finish(NAMESPACE, SIZES, KEYS, PLACES)
    writer.close()
    writer.close()
    assert os.listdir(tmp_path) == ["x.bin"] and path.read_bytes() == b"before"


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    gone, lives, own = (tmp_path / f".0a.{pid}.part" for pid in (1 << 22, os.getpid(), "x"))
    for path in (gone, own, tmp_path / "mine.part"):
        path.write_bytes(b"half")
    with open(lives, "wb", opener=open_part):
        written(tmp_path / "x.bin")
    assert sorted(os.listdir(tmp_path)) == sorted(["mine.part", "x.bin", lives.name, own.name])


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    writer = SlotWriter(tmp_path / "no" / "x.bin")
    with pytest.raises(FileNotFoundError):
        writer.open(PRINT)
    writer.close()
