"""Reads safetensors files and their shards: headers into mapped tensors. Copies no tensor bytes, knows no model.

Invariant: the tensors of a file tile its data exactly; gaps, overlaps and offsets outside the file are refused.
"""

from collections.abc import Iterable
from math import prod
from pathlib import Path

import msgspec

from pelton.checkpoint.json_files import read_json
from pelton.checkpoint.mapped import MappedFile, MappedTensor, quoted
from pelton.core.errors import CheckpointError
from pelton.program.formats import FORMATS

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_DIMS = 8
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
DTYPES = ("F32", "F16", "BF16")
INTEGERS = {
    "I8": 1,
    "U8": 1,
    "I32": 4,
    "I64": 8,
}  # bytes of each; what codes and shapes of quantised modules are stored as

Weights = tuple[tuple[MappedFile, ...], dict[str, MappedTensor]]


class _Entry(msgspec.Struct):
    """A tensor in the header; `data_offsets` count from the end of the header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    """model.safetensors.index.json: which shard holds which tensor."""

    weight_map: dict[str, str]


def read_safetensors(file: MappedFile, *, integers: bool = False) -> dict[str, MappedTensor]:
    """All tensors of one file, those of INTEGERS too if asked for, whose format is no weight format.

    Raises CheckpointError naming the tensor and what is wrong with it.
    """
    if file.size < LENGTH_BYTES:
        raise file.error(f"the file has {file.size} bytes, less than the header's length takes,", 0)
    length = int.from_bytes(file.data[:LENGTH_BYTES], "little")
    if length > min(MAX_HEADER_BYTES, file.size - LENGTH_BYTES):
        what = f"not a safetensors file, or damaged: the header claims {length} bytes of a file of {file.size}"
        raise file.error(what, 0)
    base = LENGTH_BYTES + length
    entries = _read_header(file, file.data[LENGTH_BYTES:base])
    tensors = {name: _place(file, name, entry, base, integers) for name, entry in entries.items()}
    _check_tiling(file, base, tensors.values())
    return tensors


def _read_header(file: MappedFile, header: bytes) -> dict[str, _Entry]:
    # Decoded through the schema, so that junk in a hostile header never becomes objects.
    name = ""
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {}
        for name, text in raw.items():
            entries[name] = msgspec.json.decode(text, type=_Entry)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        where = f"the entry of tensor {quoted(name)}" if name else "the header"
        raise file.error(f"not a safetensors file, or damaged: {where} is not as it should be ({error})") from None
    return entries


def _place(file: MappedFile, name: str, entry: _Entry, base: int, integers: bool) -> MappedTensor:
    if entry.dtype not in DTYPES and not (integers and entry.dtype in INTEGERS):
        raise CheckpointError(
            f"{file.path}: tensor {quoted(name)} has dtype {quoted(entry.dtype)}, which is not supported yet.",
            f"Use a checkpoint in {', '.join(DTYPES)}.",
        )
    start, stop = entry.data_offsets
    available = file.size - base
    if not 0 <= start <= stop <= available:
        what = f"tensor {quoted(name)} has offsets {start} to {stop}, but the data has {available} bytes from"
        raise file.error(what, base)
    if len(entry.shape) > MAX_DIMS or any(n < 0 for n in entry.shape):
        raise file.error(f"tensor {quoted(name)} has the impossible shape {quoted(entry.shape)}")
    size = prod(entry.shape) * (INTEGERS.get(entry.dtype) or FORMATS[entry.dtype].block_bytes)
    if size != stop - start:
        what = f"tensor {quoted(name)} {quoted(entry.shape)} in {entry.dtype} takes {size} bytes, not {stop - start},"
        raise file.error(what, base + start)
    return MappedTensor(name, tuple(entry.shape), entry.dtype, file, base + start, base + stop)


def _check_tiling(file: MappedFile, base: int, tensors: Iterable[MappedTensor]) -> None:
    at = base
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.stop)):
        if tensor.start != at:
            wrong = "overlaps the one before it" if tensor.start < at else f"leaves a gap of {tensor.start - at} bytes"
            raise file.error(f"tensor {quoted(tensor.name)} {wrong}", at)
        at = tensor.stop
    if at != file.size:
        raise file.error(f"{file.size - at} bytes belong to no tensor", at)


def read_weights(folder: Path, *, integers: bool = False) -> Weights:
    """All weight files of a model folder, mapped, and their tensors; single file or shards listed by the index.

    `integers`: see read_safetensors.
    """
    if (folder / SINGLE).exists():
        return _read_shards(folder, {SINGLE: None}, integers)
    if not (folder / INDEX).exists():
        raise _no_weights(folder)
    index = read_json(folder / INDEX, _Index)
    shards: dict[str, list[str] | None] = {}
    for name, shard in index.weight_map.items():
        if Path(shard).name != shard:
            cause = f"{folder / INDEX}: {quoted(shard)} is not a bare file name."
            raise CheckpointError(cause, "Fetch the model again.")
        names = shards.setdefault(shard, [])
        assert names is not None
        names.append(name)
    return _read_shards(folder, shards, integers)


def _read_shards(folder: Path, shards: dict[str, list[str] | None], integers: bool) -> Weights:
    """`shards`: file -> the tensors wanted from it (None: all)."""
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise CheckpointError(
            f"{folder}: {len(missing)} of {len(shards)} weight files missing: {', '.join(map(quoted, missing[:5]))}.",
            "Fetch the model again.",
        )
    files: list[MappedFile] = []
    tensors: dict[str, MappedTensor] = {}
    try:
        for shard, names in shards.items():
            file = MappedFile(folder / shard)
            files.append(file)
            found = read_safetensors(file, integers=integers)
            for name in found if names is None else names:
                if name not in found:
                    raise file.error(f"tensor {quoted(name)} is not in it, though {INDEX} says so")
                tensors[name] = found[name]
    except BaseException:
        for file in files:
            file.close()
        raise
    return tuple(files), tensors


def _no_weights(folder: Path) -> CheckpointError:
    names = sorted(path.name for path in folder.iterdir())
    if pickles := [name for name in names if name.endswith(PICKLES)]:
        return CheckpointError(
            f"{folder}: its weights are in {pickles[0]}, which is a Python pickle: reading one can run any code.",
            "Use a checkpoint in safetensors, or convert this one with the tool that made it.",
        )
    if ggufs := [name for name in names if name.endswith(".gguf")]:
        return CheckpointError(f"{folder}: holds GGUF files.", f"Give the file itself: {folder / ggufs[0]}")
    cause = f"{folder}: neither {SINGLE} nor {INDEX} is there."
    return CheckpointError(cause, "Give a folder with safetensors weights.")
