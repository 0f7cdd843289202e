"""Models split into several GGUF files: any part opens all; what is missing, doubled or foreign is told by name."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.checkpoint.gguf_files import (
    INT32,
    STRING,
    UINT32,
    Tensor,
    Value,
    gguf_bytes,
    model_bytes,
    model_tensors,
    model_values,
    part_name,
    split_values,
    typed_tensors,
    write_parts,
)

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.checkpoint.gguf import read_gguf
from pelton.core.errors import CheckpointError

TENSORS = [*model_tensors(), *typed_tensors()]


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert caught.value.remedy
    return caught.value.cause


@pytest.mark.parametrize("count", [2, 3, 7])
def test_any_part_opens_all(tmp_path: Path, count: int) -> None:
    paths = write_parts(tmp_path, TENSORS, count)
    (tmp_path / "whole.gguf").write_bytes(gguf_bytes(model_values(), TENSORS))
    whole = open_checkpoint(tmp_path / "whole.gguf")
    prints = set()
    for path in paths:
        checkpoint = open_checkpoint(path)
        assert checkpoint.path == paths[0]
        assert [file.path for file in checkpoint.files] == paths
        assert checkpoint.config == whole.config
        assert checkpoint.chat_template == "{{ messages }}"
        assert set(checkpoint.tensors) == set(whole.tensors)
        for name, tensor in checkpoint.tensors.items():
            assert (tensor.shape, tensor.format) == (whole.tensors[name].shape, whole.tensors[name].format)
            assert bytes(tensor.read()) == bytes(whole.tensors[name].read())
        prints.add(checkpoint.fingerprint())
        checkpoint.close()
    assert len(prints) == 1
    assert prints != {whole.fingerprint()}


def test_the_packages_own_split(tmp_path: Path) -> None:
    """Parts as its writer makes them, opened by the last one."""
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama", split_max_tensors=2)
    matrices = {f"blk.0.{i}": np.random.default_rng(i).standard_normal((3, 32)).astype(np.float32) for i in range(5)}
    for name, matrix in matrices.items():
        raw = gguf.quants.quantize(matrix, gguf.GGMLQuantizationType.Q5_1)
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.Q5_1)
    writer.write_header_to_file(tmp_path / "x.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_gguf(tmp_path / part_name(2, 3, "x"))
    assert found.metadata["general.architecture"] == "llama"
    assert list(found.tensors) == list(matrices)
    for name, tensor in found.mapped_tensors().items():
        quantised = gguf.quants.quantize(matrices[name], gguf.GGMLQuantizationType.Q5_1)
        assert bytes(tensor.read()) == quantised.tobytes()
    found.close()


def test_a_first_part_without_tensors(tmp_path: Path) -> None:
    first, second = tmp_path / part_name(0, 2), tmp_path / part_name(1, 2)
    first.write_bytes(gguf_bytes([*model_values(), *split_values(0, 2, len(TENSORS))]))
    second.write_bytes(gguf_bytes(split_values(1, 2, len(TENSORS)), TENSORS))
    assert len(open_checkpoint(second).tensors) == len(TENSORS)


def test_a_split_into_one_is_a_whole_file(tmp_path: Path) -> None:
    for name in (part_name(0, 1), "m.gguf"):
        (tmp_path / name).write_bytes(gguf_bytes([*model_values(), *split_values(0, 1, 3)], model_tensors()))
        assert len(open_checkpoint(tmp_path / name).files) == 1
    (tmp_path / part_name(0, 1)).write_bytes(model_bytes())
    assert len(open_checkpoint(tmp_path / part_name(0, 1)).files) == 1


def test_missing_parts_are_named(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, TENSORS, 9)
    paths[4].unlink()
    cause = refusal(paths[0])
    assert cause.endswith("is part 1 of 9; missing beside it: m-00005-of-00009.gguf.")
    for path in paths[1:8]:
        path.unlink(missing_ok=True)
    cause = refusal(paths[8])
    assert "is part 9 of 9" in cause
    assert "m-00002-of-00009.gguf" not in refusal(paths[0]).split("missing")[0]
    assert cause.endswith("m-00006-of-00009.gguf and 2 more.")


def test_a_part_that_is_there_twice(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, TENSORS, 3)
    paths[2].write_bytes(paths[1].read_bytes())
    assert refusal(paths[0]) == f"{paths[2]}: by its metadata this file is part 2 of 3."
    assert refusal(paths[2]) == f"{paths[2]}: by its metadata this file is part 2 of 3."


def test_parts_of_other_models(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, TENSORS, 3)
    other = write_parts(tmp_path, TENSORS[:-1], 3, "other")
    paths[1].write_bytes(other[1].read_bytes())
    cause = refusal(paths[0])
    assert cause.startswith(f"{paths[1]}: belongs to another model: it is part 2 of 3 with {len(TENSORS) - 1} tensors")
    paths[1].write_bytes(model_bytes())
    assert refusal(paths[0]).startswith(f"{paths[1]}: is named as one of several parts")


def test_parts_with_the_same_numbers_but_other_tensors(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, TENSORS, 2)
    values = split_values(1, 2, len(TENSORS))
    paths[1].write_bytes(gguf_bytes(values, TENSORS[:1]))
    assert f"tensor {TENSORS[0].name!r} stands in this part and in {paths[0].name}" in refusal(paths[0])
    assert str(paths[1]) in refusal(paths[0])
    paths[1].write_bytes(gguf_bytes(values, TENSORS[1:3:2]))
    assert "one of them belongs to another model" in refusal(paths[0])


def test_an_unsupported_type_names_its_part(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, [*TENSORS[:3], Tensor("odd", (256,), 16, bytes(66))], 2)
    assert refusal(paths[0]) == f"{paths[1]}: IQ2_XXS is not supported yet (tensor 'odd')."


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("m.gguf", split_values(0, 2, 1), "is part 1 of 2, and its name does not tell those of the others"),
        (part_name(0, 3), [], "is named as one of several parts, but its metadata name none"),
        (part_name(0, 3), split_values(0, 2, 1), "by its metadata this file is part 1 of 2"),
        (part_name(0, 2), split_values(5, 2, 1), "split.no is 5, but split.count is 2"),
        (part_name(0, 2), [("split.count", STRING, "2")], "split.count is '2', not a number"),
        (part_name(0, 2), [("split.count", INT32, -2)], "split.count is -2, not a number"),
        (part_name(0, 2), split_values(0, 2, -1), "split.tensors.count is -1, not a number"),
        ("m-00001-of-99999.gguf", split_values(0, 99999 % 65536, 1), "by its metadata this file is part 1 of 34463"),
        ("m-00001-of-65535.gguf", split_values(0, 65535, 1), "m-00006-of-65535.gguf and 65529 more"),
        ("m.gguf", [("split.count", UINT32, 2**32 - 1)], "is part 1 of 4294967295, and its name"),
    ],
)  # fmt: skip
def test_metadata_that_make_no_sense(tmp_path: Path, name: str, values: list[Value], words: str) -> None:
    path = tmp_path / name
    path.write_bytes(gguf_bytes([*model_values(), *values], model_tensors()))
    cause = refusal(path)
    assert words in cause
    assert str(path) in cause


def test_a_damaged_part_names_itself(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, TENSORS, 3)
    whole = paths[2].read_bytes()
    paths[2].write_bytes(whole[:-1])
    assert str(paths[2]) in refusal(paths[0])
    paths[2].write_bytes(whole[:8] + struct.pack("<Q", 2**63) + whole[16:])
    assert f"{paths[2]}: the header claims {2**63} tensors" in refusal(paths[1])
    paths[2].write_bytes(b"")
    assert refusal(paths[0]) == f"{paths[2]}: the file is empty."
