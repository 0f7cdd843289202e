"""The Hub's cache folder, in the layout that its own library and others use, so that what they fetched is found.

models--org--name/ holds blobs/ by content, snapshots/COMMIT/ with links to them by file name, and refs/REVISION with a
commit. Invariant: a blob is whole; what is being fetched stands beside it as .part.
"""

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pelton.checkpoint.checksum import CHUNK, read_digest

COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
PART = ".part"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository at a commit. `etag`: its content's name: SHA-256 of large files, git's hash of others."""

    name: str
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class HubCache:
    """The folder of one repository below `base`, the folder of all."""

    base: Path
    repo: str

    @property
    def folder(self) -> Path:
        return self.base / self._entry

    @property
    def _entry(self) -> str:
        return f"models--{self.repo.replace('/', '--')}"

    def commit(self, revision: str) -> str | None:
        """The commit that a revision was when it was last fetched; a commit is itself."""
        if COMMIT.fullmatch(revision):
            return revision
        try:
            text = (self.folder / "refs" / revision).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
        return text if COMMIT.fullmatch(text) else None

    def snapshot(self, commit: str) -> Path:
        """The folder of a commit's files."""
        return self.folder / "snapshots" / commit

    def names(self, commit: str) -> list[str]:
        """The files that are there of a commit."""
        top = self.snapshot(commit)
        return sorted(path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file())

    def has(self, commit: str, file: HubFile) -> bool:
        """Whether a file is there, of the right size."""
        try:
            return (self.snapshot(commit) / file.name).stat().st_size == file.size
        except OSError:
            return False

    def blob(self, etag: str) -> Path:
        """Where a content lies or will lie."""
        return self.folder / "blobs" / etag

    def link(self, commit: str, file: HubFile) -> Path:
        """Puts a blob's name into a commit's folder; a copy of the blob where the disk has no links."""
        place, blob = self.snapshot(commit) / file.name, self.blob(file.etag)
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = place.with_name(f".{place.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        try:
            fresh.symlink_to(os.path.relpath(blob, place.parent))
        except OSError:
            blob.replace(place)
        else:
            fresh.replace(place)
        return place

    def remember(self, revision: str, commit: str) -> None:
        """Keeps what a branch or tag is now, for those who ask without a network."""
        if not COMMIT.fullmatch(revision):
            place = self.folder / "refs" / revision
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(commit)

    @contextmanager
    def lock(self, etag: str) -> Iterator[None]:
        """One process at a time fetches a content; the lock is that of the Hub's library."""
        place = self.base / ".locks" / self._entry / f"{etag}.lock"
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def content_name(path: Path, kind: str) -> str:
    """What the content of a file would be named, in the form that `kind` has: an etag of a HubFile."""
    if SHA256.fullmatch(kind):
        return read_digest(path)
    state = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            state.update(chunk)
    return state.hexdigest()
