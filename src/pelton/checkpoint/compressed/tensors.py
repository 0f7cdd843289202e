"""Tensors of a compressed-tensors checkpoint as weights: a module's codes and scales become rows in a format of ours.

Composed when read, exactly: (code - zero point) * scale of the file is what the row's bytes stand for, or the
checkpoint is refused. Invariant: each tensor of a quantised module is used, checked, or refused by its name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pelton.checkpoint.compressed.packing import unpack, words
from pelton.checkpoint.compressed.settings import INTEGERS, REMEDY, Group, Settings
from pelton.checkpoint.mapped import MappedTensor, quoted
from pelton.core.errors import CheckpointError
from pelton.program.encode import encode
from pelton.program.formats import FORMATS, Bytes, Floats
from pelton.program.weights import TensorSource, identity_of

WEIGHT, PACKED_WEIGHT, SCALE, ZERO, SHAPE = (
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_zero_point",
    "weight_shape",
)
# Of activations, which are not quantised here.
ACTIVATIONS = ("input_scale", "input_zero_point", "output_scale", "output_zero_point")
PORTION = 1 << 18
# Elements that share a scale -> formats of 8 and 4 bits, of 4 with a minimum, and of codes from -15 to 15.
_SYMMETRIC = {8: {32: "Q8_0", 64: "INT8_64", 128: "INT8_128"}, 4: {32: "Q4_0", 64: "INT4_64", 128: "INT4_128"}}
_MINIMUM = {32: "Q4_1", 64: "INT4M_64", 128: "INT4M_128"}
_WIDE = {32: "Q5_0"}
_ROW = "INT8"


@dataclass(frozen=True, slots=True)
class CompressedSource:
    """One module's weight; see program.weights.TensorSource. `every`: elements of a scale in `format`, 0 for a row."""

    name: str
    shape: tuple[int, ...]
    format: str
    group: Group
    every: int
    codes: MappedTensor
    scale: MappedTensor
    zero: MappedTensor | None = None

    def read(self) -> memoryview:
        """The rows, in memory of their own; CheckpointError for scales that no format here holds exactly."""
        rows, cols = self.shape
        found = np.empty((rows, FORMATS[self.format].row_bytes(cols)), np.uint8)
        scale, zeros = scales(self.scale, self.shape, self.group), zero_points(self.zero, self.shape, self.group)
        some = max(PORTION // cols, 1)
        raw = np.frombuffer(self.codes.read(), np.uint8).reshape(rows, -1)
        for start in range(0, rows, some):
            part = slice(start, start + some)
            found[part] = self._rows(raw[part], scale[part], None if zeros is None else zeros[part])
        del raw
        self.release()
        return found.reshape(-1).data

    def _rows(self, raw: Bytes, scale: Floats, zeros: Bytes | None) -> Bytes:
        cols, half = self.shape[1], 1 << self.group.bits - 1
        if self.group.form == INTEGERS:
            codes = raw.view(np.int8).astype(np.int16)
        else:
            codes = unpack(raw.view("<i4"), self.group.bits, cols).astype(np.int16)
            codes -= np.int16(half if zeros is None else 0)
        minimum = None
        if self.format in _MINIMUM.values():
            assert zeros is not None
            minimum = self._repeated(-(scale * zeros))
        elif zeros is not None:
            codes = (codes.reshape(*zeros.shape, -1) - zeros[..., None].astype(np.int16)).reshape(codes.shape)
        try:
            return encode(self.format, codes, self._repeated(scale), minimum)
        except ValueError as error:
            raise CheckpointError(
                f"{self.scale.file.path}: tensor {quoted(self.scale.name)}: {error}.", REMEDY
            ) from None

    def _repeated(self, numbers: Floats) -> Floats:
        """[rows, groups of the file] as [rows, groups of the format]."""
        times = self.group.size // self.every if self.every else 1
        return np.repeat(numbers, times, axis=1)

    def release(self) -> None:
        for part in (self.codes, self.scale, self.zero):
            if part is not None:
                part.release()

    def identity(self, *, read: bool, advance: Callable[[int], object] | None = None) -> str | None:
        """See program.weights.Identified."""
        sources = [part for part in (self.codes, self.scale, self.zero) if part is not None]
        parts = [identity_of(part, read=read, advance=advance) for part in sources]
        return None if None in parts else " ".join(map(str, (*parts, self.group, self.every)))


def scales(tensor: MappedTensor, shape: tuple[int, ...], group: Group) -> Floats:
    """fp32 [rows, groups along a row], one value for all where the file has one."""
    rows, cols = shape
    groups = cols // group.size if group.size else 1
    numbers = FORMATS[tensor.format].decode(tensor.read(), 1, int(np.prod(tensor.shape))).reshape(-1)
    return np.broadcast_to(numbers if group.tensor else numbers.reshape(rows, groups), (rows, groups))


def zero_points(tensor: MappedTensor | None, shape: tuple[int, ...], group: Group) -> Bytes | None:
    """uint8 [rows, groups along a row], counted as codes are stored; packed along the rows."""
    if tensor is None:
        return None
    rows, cols = shape
    groups = cols // group.size if group.size else 1
    packed = np.frombuffer(tensor.read(), "<i4").reshape(words(rows, group.bits), groups)
    return np.ascontiguousarray(unpack(np.ascontiguousarray(packed.T), group.bits, rows).T)


def composed(
    tensors: Mapping[str, MappedTensor], settings: Settings
) -> tuple[dict[str, TensorSource], tuple[str, ...]]:
    """All weights by their names without compression, and what the user should know; CheckpointError for others."""
    modules: dict[str, dict[str, MappedTensor]] = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        modules.setdefault(module, {})[part] = tensor
    found: dict[str, TensorSource] = {}
    wishes: set[str] = set()
    for module, parts in modules.items():
        if PACKED_WEIGHT not in parts and SCALE not in parts:
            found |= {f"{module}.{part}".lstrip("."): tensor for part, tensor in parts.items()}
            continue
        group = _group_of(module, parts, settings)
        wishes.add(group.activations)
        found |= {f"{module}.{part}": tensor for part, tensor in parts.items() if part == "bias"}
        found[f"{module}.{WEIGHT}"] = _source(module, parts, group)
    for tensor in tensors.values():
        if tensor.format not in FORMATS and found.get(tensor.name) is tensor:
            raise _refusal(tensor, f"has {tensor.format} numbers and no scales beside it")
    return found, tuple(_note(wish) for wish in sorted(wishes - {""}))


def _note(wish: str) -> str:
    return (
        f"The checkpoint was made for activations of {wish}, too. They are not quantised here, so that answers differ "
        "from those of engines that do, by less rounding."
    )


def _group_of(module: str, parts: Mapping[str, MappedTensor], settings: Settings) -> Group:
    any_part = next(iter(parts.values()))
    if settings.ignores(module):
        raise _refusal(any_part, "is quantised, though quantization_config ignores its module")
    group = settings.group_of(module)
    if group is None:
        raise _refusal(any_part, "is quantised, but no target of quantization_config names its module")
    known = {WEIGHT if group.form == INTEGERS else PACKED_WEIGHT, SCALE, ZERO, SHAPE, "bias"}
    for part, tensor in parts.items():
        if part not in known and not (group.activations and part in ACTIVATIONS):
            raise _refusal(tensor, f"belongs to a module of {group.form} weights and is not understood")
    return group


def _source(module: str, parts: Mapping[str, MappedTensor], group: Group) -> CompressedSource:
    codes = parts.get(WEIGHT if group.form == INTEGERS else PACKED_WEIGHT)
    scale, zero = parts.get(SCALE), parts.get(ZERO)
    if codes is None or scale is None:
        raise _refusal(next(iter(parts.values())), "stands alone: the codes or the scales of its module are missing")
    rows, cols = _shape(codes, parts, group)
    wide = cols if group.form == INTEGERS else words(cols, group.bits)
    _expect(codes, (rows, wide), ("I8",) if group.form == INTEGERS else ("I32",))
    if group.size and cols % group.size:
        raise _refusal(codes, f"has {cols} columns, which groups of {group.size} do not divide")
    groups = cols // group.size if group.size else 1
    one = ((1,), (1, 1), ()) if group.tensor else ((rows, groups), *([(rows,)] if groups == 1 else []))
    if scale.shape not in one or scale.format not in FORMATS:
        raise _refusal(scale, f"has shape {scale.shape} in {scale.format}, not {one[0]} in F16, BF16 or F32")
    if group.symmetric:
        if zero is not None and np.frombuffer(zero.read(), np.uint8).any():
            raise _refusal(zero, "has zero points, though quantization_config says symmetric")
        zero = None
    elif zero is None:
        raise _refusal(scale, "has no zero points beside it, though quantization_config says not symmetric")
    else:
        _expect(zero, (words(rows, group.bits), groups), ("I32",))
    form, every = _format(group, (rows, cols), scale, zero)
    return CompressedSource(f"{module}.{WEIGHT}", (rows, cols), form, group, every, codes, scale, zero)


def _format(group: Group, shape: tuple[int, int], scale: MappedTensor, zero: MappedTensor | None) -> tuple[str, int]:
    """The smallest format that holds the module's weights exactly, and how many of them share a scale in it.

    4-bit codes with zero points: with a minimum where all minima are half-precision numbers; else 5-bit codes less
    zero point. Whole rows: 8-bit codes, whose format has a scale in fp32.
    """
    if not group.size:
        return _ROW, 0
    table = _SYMMETRIC[group.bits]
    if zero is not None:
        zeros = zero_points(zero, shape, group)
        assert zeros is not None
        minima = scales(scale, shape, group) * zeros
        with np.errstate(over="ignore"):
            table = _MINIMUM if np.array_equal(minima.astype(np.float16), minima) else _WIDE
        scale.release()
        zero.release()
    every = max(size for size in table if group.size % size == 0)
    return table[every], every


def _shape(codes: MappedTensor, parts: Mapping[str, MappedTensor], group: Group) -> tuple[int, int]:
    tensor = parts.get(SHAPE)
    if tensor is None:
        if group.form != INTEGERS or len(codes.shape) != 2:
            raise _refusal(codes, "has no weight_shape beside it")
        return codes.shape[0], codes.shape[1]
    _expect(tensor, (2,), ("I64", "I32"))
    rows, cols = np.frombuffer(tensor.read(), "<i8" if tensor.format == "I64" else "<i4").tolist()
    if rows <= 0 or cols <= 0:
        raise _refusal(tensor, f"says {rows} x {cols}")
    return rows, cols


def _expect(tensor: MappedTensor, shape: tuple[int, ...], kinds: tuple[str, ...]) -> None:
    if tensor.shape != shape or tensor.format not in kinds:
        raise _refusal(tensor, f"has shape {tensor.shape} in {tensor.format}, not {shape} in {' or '.join(kinds)}")


def _refusal(tensor: MappedTensor, what: str) -> CheckpointError:
    return CheckpointError(f"{tensor.file.path}: tensor {quoted(tensor.name)} {what}.", REMEDY)
