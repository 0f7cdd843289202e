"""Damaged, hostile and foreign GGUF files: each is refused with a CheckpointError that names the file and the place."""

import struct
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.gguf_files import (
    ARRAY,
    BOOL,
    F32,
    INT32,
    IQ2_XXS,
    STRING,
    UINT32,
    Tensor,
    Value,
    array,
    gguf_bytes,
    model_bytes,
    model_tensors,
    model_values,
    typed_tensors,
)

from pelton.checkpoint.checkpoint import Checkpoint, open_checkpoint
from pelton.checkpoint.gguf import read_gguf
from pelton.core.errors import CheckpointError
from pelton.program.formats import FORMATS, GGUF_TYPES, OF_GGUF

ARCH: Value = ("general.architecture", STRING, "llama")
ROW = bytes(32)  # eight fp32 numbers


def use_all(checkpoint: Checkpoint) -> None:
    """Touches what a loader touches: all metadata, arrays included, and every byte of every tensor."""
    try:
        assert checkpoint.gguf_metadata is None or len(dict(checkpoint.gguf_metadata)) == len(checkpoint.gguf_metadata)
        for tensor in checkpoint.tensors.values():
            assert len(bytes(tensor.read())) > 0
            tensor.release()
    finally:
        checkpoint.close()


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert str(path) in caught.value.cause
    assert caught.value.remedy
    return caught.value.cause


def tensor_file(*tensors: Tensor) -> bytes:
    return gguf_bytes([ARCH], tensors)


# The slow cases take every byte, the fast ones a sample.
STRIDES = [pytest.param(1, marks=pytest.mark.slow), 13]


@pytest.mark.parametrize("stride", STRIDES)
def test_every_truncation_is_refused(tmp_path: Path, stride: int) -> None:
    whole = model_bytes()
    path = tmp_path / "m.gguf"
    path.write_bytes(whole)
    use_all(open_checkpoint(path))
    for length in {*range(0, len(whole), stride), len(whole) - 1}:
        refusal(path, whole[:length])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"GG", "not a GGUF file: it starts with b'GG'"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer"),
        (b"PK\x03\x04" + bytes(60), "a ZIP archive"),
        (b"GGUF", "the file ends inside the version at byte 4"),
        (gguf_bytes([], version=1), "GGUF version 1 is not supported (known: 2, 3) at byte 4"),
        (gguf_bytes([], version=4), "GGUF version 4"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "a big-endian GGUF"),
        (gguf_bytes([ARCH], counts=(2**63, 1)), "the header claims 9223372036854775808 tensors"),
        (gguf_bytes([ARCH], counts=(0, 2**64 - 1)), "18446744073709551615 metadata values, more than"),
        (gguf_bytes([ARCH, ARCH]), "metadata key 'general.architecture' occurs twice at byte 69"),
        (gguf_bytes([(b"\xff\xfe", UINT32, 1)]), "the key of metadata value 0 is not valid UTF-8 at byte 32"),  # type: ignore[list-item]
        (gguf_bytes([("a", STRING, b"ab\xff")]), "'a' is not valid UTF-8 at byte 47"),
        (gguf_bytes([("a", 13, b"12345678")]), "metadata value 'a' has unknown type 13 at byte 33"),
        (gguf_bytes([("a", BOOL, 2)]), "metadata value 'a' is a truth value but holds 2 at byte 37"),
        (gguf_bytes([("a", UINT32, b"")]), "claims"),
        (gguf_bytes([("a", ARRAY, array(ARRAY, [b""]))]), "an array of arrays, which is not supported"),
        (gguf_bytes([("a", ARRAY, array(77, [bytes(9)]))]), "an array of unknown type 77"),
        (gguf_bytes([("a", ARRAY, array(INT32, [1], 2**62))]), "array 'a' claims 4611686018427387904 elements"),
        (gguf_bytes([("a", ARRAY, array(STRING, ["x"], 2**60))]), "array 'a' claims 1152921504606846976 elements"),
        (gguf_bytes([("a", ARRAY, array(STRING, ["x"] * 8, 9))]), "the file ends inside array 'a'"),
        (gguf_bytes([("a", STRING, struct.pack("<Q", 2**64 - 1))]), "'a'"),
        (gguf_bytes([("general.alignment", UINT32, 0)]), "general.alignment is 0, not a power of two"),
        (gguf_bytes([("general.alignment", UINT32, 48)]), "general.alignment is 48"),
        (gguf_bytes([("general.alignment", UINT32, 2**31)]), "general.alignment is 2147483648"),
        (gguf_bytes([("general.alignment", STRING, "32")]), "general.alignment is '32'"),
    ],
)  # fmt: skip
def test_bad_headers(tmp_path: Path, content: bytes, words: str) -> None:
    if words == "claims":  # a value cut off where padding follows reads the padding: give it none
        content = content[:37]
        words = "the file ends inside 'a' at byte 37"
    assert words in refusal(tmp_path / "m.gguf", content)


def test_string_lengths_are_held_against_the_file(tmp_path: Path) -> None:
    for length in (2**64 - 1, 2**63, 10**6):
        content = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", length) + bytes(64)
        assert f"claims {length} bytes, more than the file has left, at byte 24" in refusal(
            tmp_path / "m.gguf", content
        )
        value = struct.pack("<IQQ", STRING, 1, length)
        lying = gguf_bytes([("a", ARRAY, value), ("b", STRING, "x" * 40)])
        assert "the file ends inside array 'a' at byte 49" in refusal(tmp_path / "m.gguf", lying)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([Tensor("a", (8,), F32, ROW), Tensor("a", (8,), F32, ROW)], "tensor 'a' occurs twice"),
        ([Tensor("a", (8,), F32, ROW), Tensor("b", (8,), F32, b"", 0)], "tensors 'a' and 'b' overlap"),
        ([Tensor("a", (16,), F32, ROW * 2), Tensor("b", (8,), F32, b"", 32)], "tensors 'a' and 'b' overlap"),
        ([Tensor("a", (8,), F32, ROW, 64)], "tensor 'a' needs bytes"),
        ([Tensor("a", (8,), F32, ROW, 2**64 - 32)], "tensor 'a' needs bytes"),
        ([Tensor("a", (9,), F32, ROW)], "tensor 'a' needs bytes"),
        ([Tensor("a", (2**63, 2**63), F32, ROW)], "tensor 'a' needs bytes"),
        ([Tensor("a", (8,), F32, ROW, 4)], "tensor 'a' has offset 4, not a multiple of 32"),
        ([Tensor("a", (8,), 99, ROW)], "tensor 'a' has unknown type 99"),
        ([Tensor("a", (), F32, ROW)], "tensor 'a' has 0 dimensions"),
        ([Tensor("a", (1, 1, 1, 1, 8), F32, ROW)], "tensor 'a' has 5 dimensions"),
        ([Tensor("a", (8, 0), F32, ROW)], "tensor 'a' has an empty shape (0, 8)"),
        ([Tensor("a", (40,), 8, ROW * 2)], "tensor 'a' has rows of 40, not a multiple of 32"),
        ([Tensor(b"\xc3(", (8,), F32, ROW)], "the name of tensor 0 is not valid UTF-8"),
    ],
)
def test_bad_tensor_tables(tmp_path: Path, tensors: list[Tensor], words: str) -> None:
    cause = refusal(tmp_path / "m.gguf", tensor_file(*tensors))
    assert words in cause
    assert "at byte" in cause


def test_unsupported_types_are_listed_but_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    content = tensor_file(Tensor("a", (8,), F32, ROW), Tensor("blk.0.attn_q.weight", (256,), IQ2_XXS, bytes(66)))
    assert "IQ2_XXS is not supported yet (tensor 'blk.0.attn_q.weight')" in refusal(path, content)
    assert {tensor.type for tensor in read_gguf(path).tensors.values()} == {"F32", "IQ2_XXS"}
    outside = tensor_file(Tensor("a", (256,), IQ2_XXS, bytes(66), 4096))
    assert "tensor 'a' needs bytes from" in refusal(path, outside)


@pytest.mark.parametrize("number", sorted(n for n, name in GGUF_TYPES.items() if name not in FORMATS) + [99, 2**32 - 1])
def test_a_type_is_refused_by_its_name_and_others_are_named(tmp_path: Path, number: int) -> None:
    (tmp_path / "m.gguf").write_bytes(tensor_file(Tensor("a", (256,), number, bytes(2048))))
    with pytest.raises(CheckpointError, match=rf"\b{GGUF_TYPES.get(number, f'unknown type {number}')}\b") as caught:
        open_checkpoint(tmp_path / "m.gguf")
    assert all(name in caught.value.remedy for name in OF_GGUF)


def test_bad_text_in_a_vocabulary_is_found_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes([ARCH, ("v", ARRAY, array(STRING, ["ok", b"a\xff"]))]))
    checkpoint = open_checkpoint(path)
    assert checkpoint.gguf_metadata is not None
    assert "v" in checkpoint.gguf_metadata
    with pytest.raises(CheckpointError, match=r"element 1 of 'v' is not valid UTF-8 at byte \d+") as caught:
        checkpoint.gguf_metadata["v"]
    at = int(caught.value.cause.rstrip(".").rsplit(" ", 1)[1])
    assert path.read_bytes()[at] == 0xFF


@pytest.mark.parametrize(
    "value", [("tokenizer.ggml.eos_token_id", STRING, "x"), ("tokenizer.ggml.eos_token_id", INT32, -1)]
)
def test_token_ids_that_are_none(tmp_path: Path, value: Value) -> None:
    assert "tokenizer.ggml.eos_token_id is" in refusal(tmp_path / "m.gguf", gguf_bytes([ARCH, value]))


def test_names_of_a_hostile_file_are_cut_and_escaped(tmp_path: Path) -> None:
    cause = refusal(tmp_path / "m.gguf", tensor_file(Tensor("\x1b[2J" + "x" * 5000, (8,), 99, ROW)))
    assert len(cause) < 400 and "\x1b" not in cause


# Any damage ---------------------------------------------------------------------------------------------------------

TENSORS = [*model_tensors(), *typed_tensors(rows=1)]
WHOLE = gguf_bytes(model_values(), TENSORS)
HEADER_END = len(gguf_bytes(model_values(), [Tensor(t.name, t.dims, t.type, b"", 0) for t in TENSORS]))
COUNTS_AT = (8, 16)


def outcome(path: Path, content: bytes) -> str:
    """ "refused" or "opened"; any other error than CheckpointError is the test's failure."""
    path.write_bytes(content)
    try:
        use_all(open_checkpoint(path))
    except CheckpointError:
        return "refused"
    return "opened"


def test_random_damage_gives_checkpoint_errors_only(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    path = tmp_path / "m.gguf"
    place = st.integers(0, HEADER_END - 1)
    flips = st.lists(st.tuples(place, st.integers(0, 255)), max_size=4)

    @given(flips=flips, cut=st.none() | st.integers(0, len(WHOLE)), moved=st.none() | st.tuples(place, place))
    def attempt(flips: list[tuple[int, int]], cut: int | None, moved: tuple[int, int] | None) -> None:
        content = bytearray(WHOLE)
        for at, value in flips:
            content[at] = value
        if moved is not None:
            content[moved[0] : moved[0] + 8] = content[moved[1] : moved[1] + 8]
        counts[outcome(path, bytes(content[:cut]))] += 1

    attempt()
    print(dict(counts))
    assert counts["refused"] > 0
    assert counts["opened"] > 0


@pytest.mark.parametrize("stride", STRIDES)
def test_every_byte_of_the_header_set_to_extremes(tmp_path: Path, stride: int) -> None:
    """Bytes of the header in turn become 0x00, 0x7F, 0xFF; the eight bytes from there become 0xFF."""
    counts: Counter[str] = Counter()
    path = tmp_path / "m.gguf"
    for at in range(0, HEADER_END, stride):
        for patch in (b"\0", b"\x7f", b"\xff"):
            content = WHOLE[:at] + patch + WHOLE[at + 1 :]
            counts[outcome(path, content)] += 1
        counts[outcome(path, WHOLE[:at] + b"\xff" * 8 + WHOLE[at + 8 :])] += 1
    print(dict(counts))
    assert counts["refused"] > HEADER_END // stride
    assert counts["opened"] > 0


@given(content=st.binary(max_size=300))
def test_random_bytes_after_the_magic(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "random.gguf"
    for head in (b"", b"GGUF", b"GGUF" + struct.pack("<IQQ", 3, 1, 2)):
        outcome(path, head + content)


def test_count_fields_of_64_bits(tmp_path: Path) -> None:
    for at in COUNTS_AT:
        for value in (2**64 - 1, 2**63, 2**40, 1000):
            patched = WHOLE[:at] + struct.pack("<Q", value) + WHOLE[at + 8 :]
            assert "more than the file can hold" in refusal(tmp_path / "m.gguf", patched)
