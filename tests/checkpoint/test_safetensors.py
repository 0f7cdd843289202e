"""Safetensors written by the safetensors package, in one file and in shards; damaged and hostile ones."""

import json
import re
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save

from pelton.checkpoint.mapped import MappedFile
from pelton.checkpoint.safetensors import read_safetensors, read_weights
from pelton.core.errors import CheckpointError
from pelton.program.formats import FORMATS

INDEX = "model.safetensors.index.json"
NUMPY = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


def write(path: Path, tensors: dict[str, NDArray[Any]]) -> None:
    path.write_bytes(save(tensors, {"format": "pt"}))


def raw_file(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_safetensors(MappedFile(path))
    assert str(path) in caught.value.cause
    return caught.value.cause


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_tensors_are_bit_exact(tmp_path: Path, dtype: str) -> None:
    values = np.random.default_rng(1).standard_normal((5, 7)).astype(NUMPY[dtype])
    values[0, 0], values[0, 1], values[0, 2] = np.inf, -0.0, np.nan
    odd = np.arange(3).astype(NUMPY[dtype])
    write(tmp_path / "model.safetensors", {"w": values, "v": odd})
    files, tensors = read_weights(tmp_path)
    assert len(files) == 1 and set(tensors) == {"w", "v"}
    tensor = tensors["w"]
    assert (tensor.name, tensor.format, tensor.shape, tensors["v"].shape) == ("w", dtype, (5, 7), (3,))
    assert bytes(tensor.read()) == values.tobytes()
    decoded = FORMATS[tensor.format].decode(tensor.read(), 5, 7)
    assert decoded.tobytes() == values.astype(np.float32).tobytes()


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"one": np.array(3, np.float32), "none": np.zeros((0, 4), np.float32)})
    _, tensors = read_weights(tmp_path)
    assert (tensors["one"].shape, tensors["none"].shape) == ((), (0, 4))
    assert (len(tensors["one"].read()), len(tensors["none"].read())) == (4, 0)


@pytest.mark.parametrize(("dtype", "kind"), [("I64", np.int64), ("F64", np.float64), ("BOOL", np.bool_)])
def test_other_dtypes_are_refused_by_name(tmp_path: Path, dtype: str, kind: type) -> None:
    write(tmp_path / "model.safetensors", {"some.weight": np.zeros(4, kind)})
    with pytest.raises(CheckpointError, match=f"'some.weight' has dtype '{dtype}'"):
        read_weights(tmp_path)


def shards(folder: Path, weight_map: dict[str, str]) -> None:
    for number, name in enumerate(("a", "b"), 1):
        write(folder / f"model-{number}.safetensors", {name: np.full((2, 2), number, np.float32)})
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_shards(tmp_path: Path) -> None:
    shards(tmp_path, {"a": "model-1.safetensors", "b": "model-2.safetensors"})
    files, tensors = read_weights(tmp_path)
    assert sorted(file.path.name for file in files) == ["model-1.safetensors", "model-2.safetensors"]
    for number, name in enumerate(("a", "b"), 1):
        assert (np.frombuffer(tensors[name].read(), np.float32) == number).all()


def test_missing_shard_is_named(tmp_path: Path) -> None:
    shards(tmp_path, {"a": "model-1.safetensors", "b": "model-2.safetensors"})
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of 2 weight files missing: 'model-2\.safetensors'"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({"weight_map": {"a": "model-2.safetensors"}}, "'a' is not in it"),
        ({"weight_map": {"a": "../model-1.safetensors"}}, "not a bare file name"),
        ({"weight_map": {"a": "/etc/hostname"}}, "not a bare file name"),
        ({"weight_map": {"a": 3}}, "weight_map"),
        ({"weight_map": {"a": "\x1b[31m\ud800"}}, r"1 of 1 weight files missing: '\x1b[31m\ud800'"),
        ({"weight_map": {"a": "nul\0"}}, r"1 of 1 weight files missing: 'nul\x00'"),
        ({"weight_map": {"a": ""}}, "1 of 1 weight files missing: ''"),
        ({"weight_map": {"a": ".."}}, "1 of 1 weight files missing: '..'"),
        ({"weights": {}}, "weight_map"),
        ([], "holds no JSON object"),
    ],
)
def test_bad_indexes(tmp_path: Path, index: object, words: str) -> None:
    shards(tmp_path, {})
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=re.escape(words)):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["pytorch_model.bin"], r"pytorch_model\.bin, which is a Python pickle"),
        (["model.pt"], r"model\.pt, which is a Python pickle"),
        (["m.gguf"], "holds GGUF files"),
        ([], r"neither model\.safetensors nor"),
    ],
)
def test_folders_without_safetensors(tmp_path: Path, files: list[str], words: str) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(CheckpointError, match=words):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"1234567", "less than the header's length takes"),
        (struct.pack("<Q", 2**63) + bytes(50), "the header claims 9223372036854775808 bytes of a file of 58"),
        (struct.pack("<Q", 51) + bytes(50), "the header claims 51 bytes"),
        (raw_file(b"[]", b""), "the header is not as it should be"),
        (raw_file(b'{"a":', b""), "the header is not as it should be"),
        (raw_file(b'{"\xff": 1}', b""), "the header is not as it should be"),
        (raw_file(b'{"a":' + b"[" * 100_000, b""), "the header is not as it should be"),
        (raw_file({"a": 3}, b""), "the entry of tensor 'a' is not as it should be"),
        (raw_file({"a": {"dtype": "F32", "shape": [1]}}, bytes(4)), "`data_offsets`"),
        (raw_file({"a": entry("F32", [1], 0, 4) | {"shape": ["1"]}}, bytes(4)), "shape"),
        (raw_file({"a": entry("F32", [1], 0, 4) | {"shape": [1.5]}}, bytes(4)), "shape"),
        (raw_file({"a": entry("F32", [1], 0, 4) | {"data_offsets": [0]}}, bytes(4)), "data_offsets"),
        (raw_file({"a": entry("F32", [2], 0, 8)}, bytes(4)), "has offsets 0 to 8, but the data has 4 bytes"),
        (raw_file({"a": entry("F32", [1], 4, 0)}, bytes(4)), "has offsets 4 to 0"),
        (raw_file({"a": entry("F32", [1], -4, 0)}, bytes(4)), "has offsets -4 to 0"),
        (raw_file({"a": entry("F32", [2], 0, 4)}, bytes(4)), "takes 8 bytes, not 4"),
        (raw_file({"a": entry("F32", [-1], 0, 4)}, bytes(4)), "impossible shape"),
        (raw_file({"a": entry("F32", [1] * 9, 0, 4)}, bytes(4)), "impossible shape"),
        (raw_file({"a": entry("F32", [2**62, 2**62], 0, 4)}, bytes(4)), "not 4"),
        (raw_file({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)}, bytes(8)), "'b' overlaps"),
        (raw_file({"a": entry("F32", [1], 4, 8)}, bytes(8)), "'a' leaves a gap of 4 bytes"),
        (raw_file({"a": entry("F32", [1], 0, 4)}, bytes(9)), "5 bytes belong to no tensor"),
    ],
)
def test_damaged_files(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in refusal(tmp_path / "model.safetensors", content)


def test_random_damage_gives_checkpoint_errors_only(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write(path, {"w": np.zeros((3, 4), ml_dtypes.bfloat16), "v": np.ones(5, np.float32)})
    whole = path.read_bytes()
    counts: Counter[str] = Counter()
    header = 8 + int.from_bytes(whole[:8], "little")
    flips = st.lists(st.tuples(st.integers(0, header - 1), st.integers(0, 255)), max_size=3)

    def attempt(content: bytes) -> None:
        path.write_bytes(content)
        try:
            for tensor in read_safetensors(MappedFile(path)).values():
                assert len(bytes(tensor.read())) == tensor.stop - tensor.start
            counts["opened"] += 1
        except CheckpointError:
            counts["refused"] += 1

    @given(flips=flips, cut=st.none() | st.integers(0, len(whole)))
    def flipped(flips: list[tuple[int, int]], cut: int | None) -> None:
        content = bytearray(whole)
        for at, value in flips:
            content[at] = value
        attempt(bytes(content[:cut]))

    flipped()
    for length in range(len(whole)):
        before = counts["opened"]
        attempt(whole[:length])
        assert counts["opened"] == before, f"the first {length} bytes were taken for a whole file"
    print(dict(counts))
    assert counts["refused"] > 0
    assert counts["opened"] > 0
