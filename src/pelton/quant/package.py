"""A quantised model as a folder of its own: weights in compressed-tensors, settings and tokenizer beside them.

Knows no model family. Invariant: the folder appears whole or not at all; what is left of a killed run has another name,
and goes with the next run that writes the same folder.
"""

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
_PART = ".part"
_TAKES_NO_MORE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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

    Everything is written under a temporary name beside it, which is removed if something fails. What runs that were
    killed have left of the same folder is removed first. OSError, which names `out` where the disk takes no more.
    """
    check_out(opened.path, out, force=force)
    coded = [unit for unit in written if isinstance(unit, CodedUnit)]
    dense = [
        unit.source.name.removesuffix(".weight")
        for unit in written
        if isinstance(unit, DenseUnit) and len(unit.source.shape) == 2 and unit.source.name.endswith(".weight")
    ]
    _clear_left(out)
    with _naming(out), _held_folder(out) as folder:
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


@contextmanager
def _naming(out: Path) -> Iterator[None]:
    """Errors of writing have no file's name of themselves, or that of the file copied from."""
    try:
        yield
    except OSError as error:
        if error.filename is None or error.errno in _TAKES_NO_MORE:
            raise OSError(error.errno, error.strerror, str(out)) from error
        raise


@contextmanager
def _held_folder(out: Path) -> Iterator[Path]:
    """A new folder beside `out`, locked for as long as this process writes it: see _clear_left."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", suffix=_PART, dir=out.absolute().parent))
        lock = _locked(folder)
        if lock is not None:
            break
        # Another run took it for one that was left, before it was locked.
    try:
        yield folder
    finally:
        os.close(lock)


def _clear_left(out: Path) -> None:
    """Removes temporary folders of `out` that nobody holds any more, as their writers were killed."""
    name = re.compile(re.escape(f".{out.name}-") + "[a-z0-9_]{8}" + re.escape(_PART))
    with suppress(OSError):  # a folder that may not be listed, only written to
        for folder in sorted(out.absolute().parent.iterdir()):
            if name.fullmatch(folder.name):
                with suppress(OSError):  # no folder, or another user's
                    if (lock := _locked(folder, sure=True)) is not None:
                        shutil.rmtree(folder, ignore_errors=True)
                        os.close(lock)


def _locked(folder: Path, *, sure: bool = False) -> int | None:
    """A descriptor that holds the folder's lock until it is closed; None where another has it, or it is gone.

    `sure`: None too where the file system has no locks; else a descriptor without one.
    """
    with suppress(FileNotFoundError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            usable = True
        except BlockingIOError:
            usable = False
        except OSError:
            usable = not sure
        with suppress(FileNotFoundError):
            if usable and os.path.samestat(folder.stat(), os.fstat(lock)):
                return lock
        os.close(lock)
    return None


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
