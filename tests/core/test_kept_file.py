"""Files of the cache folder: whole or not there, and never an error."""

from pathlib import Path

import msgspec
import pytest

from pelton.core.cache import kept_file
from pelton.core.cache.kept_file import load_json, save, write_whole


class Point(msgspec.Struct, frozen=True):
    x: int
    y: float = 0.5


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "point.json"
    assert load_json(path, Point) is None
    assert save(path, msgspec.json.encode(Point(3))) == path and load_json(path, Point) == Point(3, 0.5)
    assert [one.name for one in path.parent.iterdir()] == ["point.json"]


@pytest.mark.parametrize("text", [b"", b"{", b"[1, 2]", b'{"x": "3"}', b'{"y": 1.0}', b"\xff\xfe", b'{"x": 3} x'])
def test_what_is_no_such_value_counts_as_none(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "point.json"
    path.write_bytes(text)
    assert load_json(path, Point) is None


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "point.json"
    write_whole(path, b'{"x": 1}')

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept_file.os, "fsync", full)
    assert save(path, b'{"x": 2}') is None
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b'{"x": 2}')
    assert load_json(path, Point) == Point(1) and list(tmp_path.iterdir()) == [path]
    assert save(path / "inside", b"1") is None, "a file is no folder"
