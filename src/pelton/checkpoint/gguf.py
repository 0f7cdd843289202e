"""Reads GGUF files (versions 2 and 3, little endian): header into records, tensors by place. Translates nothing.

A model that was split into several files is read as one; gguf_split.py says which files those are.

Invariant: no length from the file is used before it was held against the file's size, so a corrupt or hostile file
costs a CheckpointError that names the byte, never memory, time or a crash.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from pelton.checkpoint.gguf_split import Split, check_part, check_tensors, part_paths, read_split
from pelton.checkpoint.mapped import MappedFile, MappedTensor, quoted
from pelton.core.errors import CheckpointError
from pelton.program.formats import FORMATS, GGUF_TYPES, OF_GGUF

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20

BOOL, STRING, ARRAY = 7, 8, 9
# Kind of a metadata value -> its letter in struct.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", BOOL: "B", 10: "Q", 11: "q", 12: "d"}
STRUCTS = {kind: struct.Struct("<" + letter) for kind, letter in NUMBERS.items()}
U32, U64 = STRUCTS[4], STRUCTS[10]
MIN_VALUE_BYTES = U64.size + U32.size + 1  # key length, kind, the smallest value
MIN_TENSOR_BYTES = 2 * U64.size + 3 * U32.size  # name length, dims, kind, offset

SUPPORTED = f"Use a file whose tensors are of these types: {', '.join(OF_GGUF)}."

FOREIGN = {
    b"version https://git-lfs": "a Git LFS pointer, not the model itself",
    b"PK\x03\x04": "a ZIP archive (a PyTorch checkpoint or a wheel?)",
    b"<": "a web page or XML",
    b"{": "JSON text",
    b"ggjt": "a model in the old GGJT layout",
}


@dataclass(frozen=True, slots=True)
class ArrayPlace:
    """Where an array of the metadata stands: `count` elements of `kind` in bytes [start, stop)."""

    kind: int
    count: int
    start: int
    stop: int


class GgufMetadata(Mapping[str, object]):
    """All metadata of a GGUF. Arrays (vocabulary, scores, merges) are decoded when first asked for, into tuples."""

    def __init__(self, file: MappedFile, values: Mapping[str, object]) -> None:
        self._file = file
        self._values = dict(values)

    def __getitem__(self, key: str) -> object:
        value = self._values[key]
        if isinstance(value, ArrayPlace):
            value = self._values[key] = decode_array(self._file, key, value)
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def count(self, key: str) -> int:
        """Number of elements of the array `key`, without decoding it; 0 when absent or no array."""
        value = self._values.get(key, ())
        return value.count if isinstance(value, ArrayPlace) else len(value) if isinstance(value, tuple) else 0

    def element(self, key: str, index: int) -> object:
        """One element of the array `key`; of a long array only what stands before it is walked over."""
        value = self._values[key]
        if isinstance(value, ArrayPlace) and value.kind == STRING and 0 <= index < value.count:
            start = skip_strings(self._file, quoted(key), index, value.start)
            return decode_array(self._file, key, ArrayPlace(STRING, 1, start, value.stop))[0]
        whole = self[key]
        return whole[index] if isinstance(whole, tuple) else whole

    def indices(self, key: str, texts: Iterable[str]) -> dict[str, int]:
        """Where each of `texts` first stands in the array of strings `key`, which is not decoded; absent: left out."""
        value = self._values.get(key, ())
        if not isinstance(value, ArrayPlace) or value.kind != STRING:
            return {text: value.index(text) for text in texts if text in value} if isinstance(value, tuple) else {}
        raw = self._file.data[value.start : value.stop]
        wanted = {raw.find(U64.pack(len(text.encode())) + text.encode()): text for text in texts}
        wanted.pop(-1, None)
        found: dict[str, int] = {}
        at = 0
        for index in range(value.count):
            if len(found) == len(wanted):
                break
            if at in wanted:
                found[wanted[at]] = index
            at += U64.size + U64.unpack_from(raw, at)[0]
        return found


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the tensor table. `shape` is row-major (the file's dims reversed); `stop` None: size unknown."""

    name: str
    shape: tuple[int, ...]
    type: str
    file: MappedFile
    start: int
    stop: int | None


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF's header. Tensors of types that Pelton cannot use are listed too; `mapped_tensors` refuses them.

    `file` has the metadata; `files`: it and, of a split model, the other parts in order. `split`: of the file alone.
    """

    file: MappedFile
    version: int
    metadata: GgufMetadata
    tensors: Mapping[str, GgufTensor]
    files: tuple[MappedFile, ...]
    split: Split | None = None

    def close(self) -> None:
        """Ends the mapping of all files."""
        for file in self.files:
            file.close()

    def mapped_tensors(self) -> dict[str, MappedTensor]:
        """All tensors by their GGUF names; raises CheckpointError naming the first one of an unsupported type."""
        mapped = {}
        for name, tensor in self.tensors.items():
            if tensor.stop is None:
                what = f"{tensor.type} is not supported yet (tensor {quoted(name)})"
                raise CheckpointError(f"{tensor.file.path}: {what}.", SUPPORTED)
            mapped[name] = MappedTensor(name, tensor.shape, tensor.type, tensor.file, tensor.start, tensor.stop)
        return mapped


class _Cursor:
    """A place in the file that moves forward; reading past the end raises CheckpointError."""

    def __init__(self, file: MappedFile, at: int = 0) -> None:
        self.file = file
        self.at = at

    def number(self, layout: struct.Struct, what: str) -> int | float:
        at = self.at
        if layout.size > self.file.size - at:
            raise self.file.error(f"the file ends inside {what}", at)
        self.at = at + layout.size
        value: int | float = layout.unpack_from(self.file.data, at)[0]
        return value

    def integer(self, layout: struct.Struct, what: str) -> int:
        return int(self.number(layout, what))

    def string(self, what: str) -> str:
        at = self.at
        length = self.integer(U64, what)
        if length > self.file.size - self.at:
            raise self.file.error(f"{what} claims {length} bytes, more than the file has left,", at)
        self.at += length
        try:
            return self.file.data[self.at - length : self.at].decode()
        except UnicodeDecodeError as error:
            raise self.file.error(f"{what} is not valid UTF-8", at + U64.size + error.start) from None


def read_gguf(path: Path) -> GgufFile:
    """Reads the header, of any part of a split model those of all, and keeps the files mapped.

    Raises CheckpointError naming what is wrong, and at which byte, or which part does not belong to the others.
    """
    given = _read_part(path)
    if given.split is None:
        return given
    parts: list[GgufFile] = []
    try:
        for part in part_paths(path, given.split):
            parts.append(given if part == path else _read_part(part))
            check_part(part, parts[-1].split, given.split)
        return _joined(parts)
    except BaseException:
        for open_part in (given, *parts):
            open_part.close()
        raise


def _joined(parts: Sequence[GgufFile]) -> GgufFile:
    first, tensors = parts[0], dict[str, GgufTensor]()
    for part in parts:
        for name, tensor in part.tensors.items():
            if name in tensors:
                other = tensors[name].file.path.name
                raise part.file.error(f"tensor {quoted(name)} stands in this part and in {other}")
            tensors[name] = tensor
    assert first.split is not None
    check_tensors(first.file.path, len(tensors), first.split)
    return replace(first, tensors=tensors, files=tuple(part.file for part in parts))


def _read_part(path: Path) -> GgufFile:
    file = MappedFile(path)
    try:
        return _read_header(file)
    except BaseException:
        file.close()
        raise


def _read_header(file: MappedFile) -> GgufFile:
    cursor = _Cursor(file)
    version = _read_version(cursor)
    num_tensors = cursor.integer(U64, "the number of tensors")
    num_values = cursor.integer(U64, "the number of metadata values")
    left = file.size - cursor.at
    if num_values * MIN_VALUE_BYTES + num_tensors * MIN_TENSOR_BYTES > left:
        claims = f"{num_tensors} tensors and {num_values} metadata values"
        raise file.error(f"the header claims {claims}, more than the file can hold,", 8)
    values = _read_metadata(cursor, num_values)
    split = read_split(file.path, values)
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise file.error(f"general.alignment is {quoted(alignment)}, not a power of two up to {MAX_ALIGNMENT}")
    tensors = _read_tensor_table(cursor, num_tensors, alignment)
    _check_overlaps(file, tensors)
    return GgufFile(file, version, GgufMetadata(file, values), tensors, (file,), split)


def _read_version(cursor: _Cursor) -> int:
    file = cursor.file
    start = file.data[: len(MAGIC)]
    if start != MAGIC:
        known = (what for mark, what in FOREIGN.items() if file.data[: len(mark)] == mark)
        what = next(known, f"it starts with {start!r}")
        raise CheckpointError(f"{file.path}: not a GGUF file: {what}.", "Give the path of a .gguf file.")
    cursor.at = len(MAGIC)
    version = cursor.integer(U32, "the version")
    if version not in VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
            raise CheckpointError(f"{file.path}: a big-endian GGUF.", "Only little-endian files are supported.")
        raise file.error(f"GGUF version {version} is not supported (known: 2, 3)", len(MAGIC))
    return version


# Metadata -----------------------------------------------------------------------------------------------------------


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, object]:
    values: dict[str, object] = {}
    for index in range(count):
        at = cursor.at
        key = cursor.string(f"the key of metadata value {index}")
        if key in values:
            raise cursor.file.error(f"metadata key {quoted(key)} occurs twice", at)
        values[key] = _read_value(cursor, quoted(key))
    return values


def _read_value(cursor: _Cursor, key: str) -> object:
    at = cursor.at
    kind = cursor.integer(U32, f"the type of {key}")
    if kind == STRING:
        return cursor.string(key)
    if kind == ARRAY:
        return _skip_array(cursor, key)
    if kind not in STRUCTS:
        raise cursor.file.error(f"metadata value {key} has unknown type {kind}", at)
    value = cursor.number(STRUCTS[kind], key)
    if kind == BOOL:
        if value not in (0, 1):
            raise cursor.file.error(f"metadata value {key} is a truth value but holds {value}", cursor.at - 1)
        return bool(value)
    return value


def _skip_array(cursor: _Cursor, key: str) -> ArrayPlace:
    file, at = cursor.file, cursor.at
    kind = cursor.integer(U32, f"the element type of {key}")
    if kind == ARRAY:
        raise file.error(f"metadata value {key} is an array of arrays, which is not supported,", at)
    if kind != STRING and kind not in STRUCTS:
        raise file.error(f"metadata value {key} is an array of unknown type {kind}", at)
    count = cursor.integer(U64, f"the length of {key}")
    start = cursor.at
    size = U64.size if kind == STRING else STRUCTS[kind].size
    if count * size > file.size - start:
        raise file.error(f"array {key} claims {count} elements, more than the file can hold,", at + U32.size)
    stop = skip_strings(file, key, count, start) if kind == STRING else start + count * size
    cursor.at = stop
    return ArrayPlace(kind, count, start, stop)


def skip_strings(file: MappedFile, key: str, count: int, at: int) -> int:
    """Byte after `count` strings that start at byte `at`."""
    unpack, data, size = U64.unpack_from, file.data, U64.size
    last = at
    try:
        for _ in range(count):
            last = at
            at += size + unpack(data, at)[0]
    except (struct.error, OverflowError):
        raise file.error(f"the file ends inside array {key}", last) from None
    if at > file.size:
        raise file.error(f"the file ends inside array {key}", last)
    return at


def decode_array(file: MappedFile, key: str, place: ArrayPlace) -> tuple[object, ...]:
    """The elements of an array whose extent is already checked; invalid UTF-8 raises CheckpointError."""
    data = file.data
    if place.kind != STRING:
        numbers = struct.unpack_from(f"<{place.count}{NUMBERS[place.kind]}", data, place.start)
        return tuple(map(bool, numbers)) if place.kind == BOOL else numbers
    unpack, size, at = U64.unpack_from, U64.size, place.start
    elements = []
    try:
        for _ in range(place.count):
            start = at + size
            at = start + unpack(data, at)[0]
            elements.append(data[start:at].decode())
    except UnicodeDecodeError as error:
        what = f"element {len(elements)} of {quoted(key)} is not valid UTF-8"
        raise file.error(what, start + error.start) from None
    return tuple(elements)


# Tensors ------------------------------------------------------------------------------------------------------------


def _read_tensor_table(cursor: _Cursor, count: int, alignment: int) -> dict[str, GgufTensor]:
    """Entries hold offsets from the end of the table, so places are known only once all are read."""
    file = cursor.file
    entries: dict[str, tuple[int, tuple[int, ...], int, int]] = {}
    for index in range(count):
        at = cursor.at
        name = cursor.string(f"the name of tensor {index}")
        if name in entries:
            raise file.error(f"tensor {quoted(name)} occurs twice", at)
        shape = _read_shape(cursor, quoted(name))
        kind = cursor.integer(U32, f"the type of tensor {quoted(name)}")
        offset = cursor.integer(U64, f"the offset of tensor {quoted(name)}")
        if offset % alignment:
            what = f"tensor {quoted(name)} has offset {offset}, not a multiple of {alignment},"
            raise file.error(what, cursor.at - U64.size)
        entries[name] = (at, shape, kind, offset)
    base = cursor.at + -cursor.at % alignment
    return {name: _place_tensor(file, name, entry, base) for name, entry in entries.items()}


def _read_shape(cursor: _Cursor, name: str) -> tuple[int, ...]:
    at = cursor.at
    num_dims = cursor.integer(U32, f"the shape of tensor {name}")
    if not 1 <= num_dims <= MAX_DIMS:
        raise cursor.file.error(f"tensor {name} has {num_dims} dimensions, not 1 to {MAX_DIMS},", at)
    shape = tuple(reversed([cursor.integer(U64, f"the shape of tensor {name}") for _ in range(num_dims)]))
    if 0 in shape:
        raise cursor.file.error(f"tensor {name} has an empty shape {shape}", at)
    return shape


def _place_tensor(file: MappedFile, name: str, entry: tuple[int, tuple[int, ...], int, int], base: int) -> GgufTensor:
    at, shape, kind, offset = entry
    if kind not in GGUF_TYPES:
        raise CheckpointError(f"{file.path}: tensor {quoted(name)} has unknown type {kind} at byte {at}.", SUPPORTED)
    type_name, start = GGUF_TYPES[kind], base + offset
    stop = None
    if type_name in FORMATS:
        known = FORMATS[type_name]
        if shape[-1] % known.block:
            raise file.error(f"tensor {quoted(name)} has rows of {shape[-1]}, not a multiple of {known.block},", at)
        stop = start + prod(shape[:-1]) * known.row_bytes(shape[-1])
    if (start + 1 if stop is None else stop) > file.size:
        end = f"bytes {start} to {stop}" if stop else f"bytes from {start}"
        raise file.error(f"tensor {quoted(name)} needs {end}, but the file has {file.size}; its entry stands", at)
    return GgufTensor(name, shape, type_name, file, start, stop)


def _check_overlaps(file: MappedFile, tensors: Mapping[str, GgufTensor]) -> None:
    ordered = sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.stop or tensor.start + 1))
    for before, after in zip(ordered, ordered[1:], strict=False):
        if after.start < (before.stop or before.start + 1):
            raise file.error(f"tensors {quoted(before.name)} and {quoted(after.name)} overlap", after.start)
