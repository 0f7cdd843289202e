"""A quantised model as a folder of its own: weights in compressed-tensors, settings and tokenizer beside them.

Knows no model family. Invariant: the folder appears whole or not at all; what is left of a broken run has another name.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from pelton.checkpoint.compressed.write import (
    CodedUnit,
    DenseUnit,
    Unit,
    settings_entry,
    write_json,
    write_weights,
)
from pelton.checkpoint.json_files import read_object
from pelton.core.errors import SettingError
from pelton.program.weights import TensorSource
from pelton.quant.rounding import RoundedSource, Rounding

CONFIG = "config.json"
# Of a model's folder: everything small that is no weights and no code.
_COPIED = re.compile(r"[^.].*\.(json|jinja|txt|model|tiktoken|md)|(LICENSE|NOTICE|USE_POLICY).*", re.IGNORECASE)
_LEFT = re.compile(r".*\.index\.json|config\.json", re.IGNORECASE)
MOST_COPIED = 100_000_000


class Opened(Protocol):
    """What of a checkpoint is written: its folder and its tensors, as they are in its files."""

    @property
    def path(self) -> Path: ...
    @property
    def tensors(self) -> Mapping[str, TensorSource]: ...


def units(opened: Opened, wanted: Mapping[str, Rounding]) -> list[Unit]:
    """All tensors in their order, those of `wanted` (by name) quantised."""
    return [
        CodedUnit(name, source.shape, wanted[name].format, RoundedSource(source, wanted[name]).portions)
        if name in wanted
        else DenseUnit(source)
        for name, source in opened.tensors.items()
    ]


def check_out(source: Path, out: Path, *, force: bool) -> None:
    """SettingError where the folder `out` cannot come to be."""
    if out.exists() or out.is_symlink():
        if out.resolve() == source.resolve():
            raise SettingError(f"{out} is the model itself.", "Name another folder.")
        if not force:
            raise SettingError(f"{out} exists.", "Name another folder, or replace it with --force.")
        if not out.is_dir() or out.is_symlink() or (any(out.iterdir()) and not (out / CONFIG).is_file()):
            raise SettingError(f"{out} is no model's folder, so it is not replaced.", "Name another one.")
    if not out.absolute().parent.is_dir():
        raise SettingError(f"{out.absolute().parent} is no folder.", "Make it first, or name another one.")


def write_package(
    opened: Opened, written: list[Unit], out: Path, advance: Callable[[int], object], *, force: bool = False
) -> int:
    """Writes the folder `out`; returns the bytes of its tensors. `advance` is told of the bytes written.

    Everything is written under a temporary name beside it, which is removed if something fails.
    """
    check_out(opened.path, out, force=force)
    coded = [unit for unit in written if isinstance(unit, CodedUnit)]
    dense = [
        unit.source.name.removesuffix(".weight")
        for unit in written
        if isinstance(unit, DenseUnit) and len(unit.source.shape) == 2 and unit.source.name.endswith(".weight")
    ]
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", suffix=".part", dir=out.absolute().parent))
    try:
        size = write_weights(folder, written, advance)
        for path in sorted(opened.path.iterdir()):
            if path.is_file() and _COPIED.fullmatch(path.name) and not _LEFT.fullmatch(path.name):
                if path.stat().st_size <= MOST_COPIED:
                    shutil.copyfile(path, folder / path.name)
        config = read_object(opened.path / CONFIG)
        write_json(folder / CONFIG, {**config, "quantization_config": settings_entry(coded, dense)})
        folder.chmod(0o755)
        _put(folder, out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return size


def _put(folder: Path, out: Path) -> None:
    """Gives the whole folder its name, in place of one that is there."""
    old = None
    if out.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{out.name}-", suffix=".old", dir=out.absolute().parent))
        os.replace(out, old)
    try:
        os.replace(folder, out)
    except OSError:
        if old is not None:
            os.replace(old, out)
        raise
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
    descriptor = os.open(out.absolute().parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
