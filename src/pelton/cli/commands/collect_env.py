"""`pelton collect-env`: versions and the machine, to paste into a report. It imports no optional package to ask for it.

Invariant: it names no host and no user, and something missing is a line, not an error.
"""

import os
import platform
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

import pelton
from pelton.cli.options import debug_option
from pelton.cli.terminal import emit, table_lines
from pelton.core.environment import KNOWN, cache_folder, variable
from pelton.core.errors import PeltonError
from pelton.core.words.sizes import size_text

PACKAGES = ("numpy", "ml_dtypes", "tokenizers", "huggingface_hub", "jinja2", "msgspec", "click", "tqdm")
SERVING = ("uvicorn", "uvloop", "httptools", "starlette", "aiohttp", "prometheus_client", "pyyaml")
OPTIONAL = ("torch", "transformers")
MISSING = "not installed"


@click.command("collect-env")
@debug_option
def collect_env() -> None:
    """Show versions, the machine and the cache: what a report about a problem needs."""
    rows = [*_software(), *_machine(), *_cache()]
    emit("\n".join(table_lines(rows, left=2)) + "\n")


def _software() -> Iterator[tuple[str, str]]:
    yield "pelton", pelton.__version__
    yield "python", f"{platform.python_implementation()} {platform.python_version()}"
    yield "system", platform.platform()
    for name in (*PACKAGES, *SERVING, *OPTIONAL):
        yield name, _version(name)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return MISSING


def _machine() -> Iterator[tuple[str, str]]:
    yield "CPU", _field(Path("/proc/cpuinfo"), "model name") or platform.processor() or "unknown"
    try:
        cpu = import_module("pelton.backends.cpu.machine")
        native = import_module("pelton.backends.cpu._native")
    except ImportError as error:
        yield "kernels", f"missing ({error}): install pelton again, the compiler's output says why"
        return
    try:
        chosen, notes = cpu.choose_isa()
        threads = str(len(cpu.worker_cores(0)))
    except PeltonError as error:
        chosen, notes, threads = str(error), (), "?"
    yield "kernels", chosen
    yield "available", ", ".join(native.instruction_sets())
    for name, reason, _ in native.refused_instruction_sets():
        yield "refused", f"{name}: {reason}"
    for note in notes:
        yield "note", note
    yield "cores", f"{len(cpu.allowed_cores())} allowed of {os.cpu_count()}, {threads} threads by default"
    yield "memory", f"{_total_memory()}, {size_text(cpu.free_memory())} free for this process"
    yield from _probed()


def _probed() -> Iterator[tuple[str, str]]:
    """The main lines of the machine's kept figures."""
    probe = import_module("pelton.backends.cpu.probe.cached")
    limits = import_module("pelton.backends.cpu.probe.limits")
    try:
        kept = probe.load(import_module("pelton.backends.cpu.probe.identity").identify())
    except PeltonError:
        kept = None
    if kept is None:
        yield "probe", "not measured: pelton probe does it"
        return
    most = limits.largest(kept)
    reading = f"reading {size_text(most.working_set_bytes)} at {most.bytes_per_s.median / 1e9:.1f} GB/s"
    products = f"products at most {limits.matrix_rate(kept) / 1e9:.0f} GFLOP/s"
    yield "probe", f"{reading}, {products} ({kept.identity.threads} threads, {kept.date}){kept.mark}"


def _total_memory() -> str:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return size_text(total)


def _field(path: Path, name: str) -> str:
    try:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    except OSError:
        pass
    return ""


def _cache() -> Iterator[tuple[str, str]]:
    folder = cache_folder()
    yield "cache", f"{folder}, {size_text(_folder_size(folder))}" if folder.is_dir() else f"{folder}, not there yet"
    for name in KNOWN:
        value = variable(name)
        if value:
            yield name, value
    yield "encoding", f"{sys.stdout.encoding}, file names {sys.getfilesystemencoding()}"


def _folder_size(folder: Path) -> int:
    """Bytes of all files below; what vanishes meanwhile does not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total
