"""Writes weights as safetensors, quantised ones as compressed-tensors has them (pack-quantized), in shards if large.

It knows no model and chooses nothing. Invariant: bytes are written as they come, so that memory holds a part of one
tensor, and what stands in a header is what follows it.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Protocol

import numpy as np

from pelton.checkpoint.compressed.packing import pack, words
from pelton.checkpoint.compressed.settings import METHOD, PACKED, PATTERN
from pelton.checkpoint.compressed.tensors import PACKED_WEIGHT, SCALE, SHAPE, WEIGHT, ZERO
from pelton.checkpoint.safetensors import INDEX, INTEGERS, LENGTH_BYTES, SINGLE
from pelton.program.encode import LAYOUTS
from pelton.program.formats import FORMATS, Bytes
from pelton.program.weights import TensorSource

ALIGN = 8
SHARD_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * (INTEGERS.get(self.dtype) or FORMATS[self.dtype].block_bytes)


class Unit(Protocol):
    """Tensors that are written together, one behind the other."""

    @property
    def parts(self) -> tuple[Part, ...]: ...
    def chunks(self) -> Iterator[memoryview]:
        """The bytes of all parts, in their order."""
        ...


@dataclass(frozen=True, slots=True)
class DenseUnit:
    """A tensor as it is."""

    source: TensorSource

    @property
    def parts(self) -> tuple[Part, ...]:
        return (Part(self.source.name, self.source.format, self.source.shape),)

    def chunks(self) -> Iterator[memoryview]:
        yield self.source.read()
        self.source.release()


@dataclass(frozen=True, slots=True)
class CodedUnit:
    """A weight [rows, cols] in a format of LAYOUTS; `portions` gives the bytes of its rows, uint8 [some, row bytes].

    Minima must be whole numbers of scales below 0, as zero points are.
    """

    name: str
    shape: tuple[int, ...]
    form: str
    portions: Callable[[], Iterator[Bytes]]

    @property
    def module(self) -> str:
        return self.name.removesuffix(f".{WEIGHT}")

    @property
    def bits(self) -> int:
        return 4 if LAYOUTS[self.form].most - LAYOUTS[self.form].least == 15 else 8

    @property
    def minimum(self) -> bool:
        return LAYOUTS[self.form].minimum

    @property
    def group(self) -> int:
        """Weights that share a scale, 0 for whole rows."""
        return FORMATS[self.form].group

    @property
    def parts(self) -> tuple[Part, ...]:
        rows, cols = self.shape
        groups = cols // self.group if self.group else 1
        zeros = [Part(f"{self.module}.{ZERO}", "I32", (words(rows, self.bits), groups))] if self.minimum else []
        return (
            Part(f"{self.module}.{PACKED_WEIGHT}", "I32", (rows, words(cols, self.bits))),
            Part(f"{self.module}.{SCALE}", "F16" if self.group else "F32", (rows, groups)),
            *zeros,
            Part(f"{self.module}.{SHAPE}", "I64", (2,)),
        )

    def chunks(self) -> Iterator[memoryview]:
        rows, cols = self.shape
        form, least = FORMATS[self.form], np.float32(LAYOUTS[self.form].least)
        assert form.codes is not None
        scales, zeros = [], []
        for portion in self.portions():
            some = len(portion)
            coded = form.codes(form.blocks(portion, some, cols))
            yield _bytes(pack((coded.codes.reshape(some, cols) - least).astype(np.uint8), self.bits))
            scale = coded.scale.reshape(some, -1)
            scales.append(scale)
            if coded.minimum is not None:
                minimum = coded.minimum.reshape(some, -1)
                points = np.divide(-minimum, scale, out=np.zeros_like(scale), where=scale != 0)
                zeros.append(np.rint(points).astype(np.uint8))
        yield _bytes(np.concatenate(scales).astype(np.float16 if self.group else np.float32))
        if zeros:
            yield _bytes(pack(np.concatenate(zeros).T, self.bits).T)
        yield _bytes(np.array([rows, cols], np.int64))


def _bytes(numbers: np.ndarray) -> memoryview:
    return np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data


def write_weights(
    folder: Path, units: Sequence[Unit], advance: Callable[[int], object], shard_bytes: int = SHARD_BYTES
) -> int:
    """model.safetensors, or shards of about `shard_bytes` and their index; returns the bytes of all tensors.

    `advance` is told of every chunk written. The files are on the disk when it returns.
    """
    shards: list[list[Unit]] = [[]]
    size = 0
    for unit in units:
        nbytes = sum(part.nbytes for part in unit.parts)
        if shards[-1] and size + nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(unit)
        size += nbytes
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    if len(shards) == 1:
        names = [SINGLE]
    place: dict[str, str] = {}
    for name, shard in zip(names, shards, strict=True):
        _write_file(folder / name, shard, advance)
        place |= {part.name: name for unit in shard for part in unit.parts}
    total = sum(part.nbytes for unit in units for part in unit.parts)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(place.items()))}
        write_json(folder / INDEX, index)
    return total


def _write_file(path: Path, units: Iterable[Unit], advance: Callable[[int], object]) -> None:
    units = list(units)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for part in (part for unit in units for part in unit.parts):
        header[part.name] = {"dtype": part.dtype, "shape": part.shape, "data_offsets": (at, at + part.nbytes)}
        at += part.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGN)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
        for unit in units:
            for chunk in unit.chunks():
                file.write(chunk)
                advance(len(chunk))
        assert file.tell() == LENGTH_BYTES + len(text) + at, path
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: object) -> None:
    """A settings file, on the disk when it returns."""
    with path.open("x", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def settings_entry(coded: Sequence[CodedUnit], dense: Iterable[str]) -> dict[str, object]:
    """quantization_config for these modules; `dense`: names of modules whose matrices stay as they are."""
    kinds: dict[tuple[int, int, bool], list[str]] = {}
    for unit in coded:
        kinds.setdefault((unit.bits, unit.group, unit.minimum), []).append(unit.module)
    left = tuple(dense)
    groups: dict[str, object] = {}
    for number, ((bits, size, minimum), modules) in enumerate(kinds.items()):
        others = [name for kind, names in kinds.items() if kind != (bits, size, minimum) for name in names]
        groups[f"group_{number}"] = {
            "targets": _targets(modules, (*others, *left)),
            "weights": {
                "num_bits": bits,
                "type": "int",
                "symmetric": not minimum,
                "strategy": "group" if size else "channel",
                "group_size": size or None,
                "dynamic": False,
            },
            "input_activations": None,
            "output_activations": None,
        }
    return {
        "quant_method": METHOD,
        "format": PACKED,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": _targets(left, [unit.module for unit in coded]),
    }


def _targets(modules: Iterable[str], others: Sequence[str]) -> list[str]:
    """Patterns for modules of all layers, where they fit none of the others; else names."""
    found: dict[str, None] = {}
    for module in modules:
        pattern = re.sub(r"(?<=\\\.)\d+(?=\\\.)", r"\\d+", re.escape(module)) + "$"
        alone = pattern == re.escape(module) + "$" or any(re.match(pattern, other) for other in others)
        found[module if alone else PATTERN + pattern] = None
    return list(found)
