"""Which machine and build this is, for figures that hold for no other. It measures nothing.

Invariant: an identity names no host and no user; what tells hosts apart is a hash that cannot be read back.
"""

import hashlib
import os
import platform
from pathlib import Path

from pelton.backends.cpu import _native
from pelton.backends.cpu.machine import allowed_cores, choose_isa, worker_cores
from pelton.backends.cpu.probe.figures import Identity

_CPUINFO = Path("/proc/cpuinfo")
_MACHINE_ID = Path("/etc/machine-id")
_PURPOSE = b"pelton-probe"
_ARM_FIELDS = ("CPU implementer", "CPU part")


def identify(threads: int = 0) -> Identity:
    """Of this process: cores and threads are those it may use. SettingError as worker_cores and choose_isa raise."""
    return Identity(
        cpu=cpu_model(),
        cores=len(allowed_cores()),
        threads=len(worker_cores(threads)),
        isa=choose_isa()[0],
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        host=_host(),
        kernels=_kernels(),
    )


def cpu_model() -> str:
    """The processor's name; where there is none, its numbers."""
    fields: dict[str, str] = {}
    try:
        for line in _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    numbers = " ".join(fields[name] for name in _ARM_FIELDS if name in fields)
    return fields.get("model name") or (f"ARM {numbers}" if numbers else platform.processor()) or "unknown"


def _host() -> str:
    """Tells machines apart that share a home folder and a model of processor; "" where the system has no number."""
    try:
        number = _MACHINE_ID.read_bytes().strip()
    except OSError:
        return ""
    return hashlib.blake2b(number, digest_size=6, person=_PURPOSE).hexdigest() if number else ""


def _kernels() -> str:
    """Another build has other kernels, and other rates."""
    path = _native.__file__
    assert path is not None
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=6).hexdigest()
