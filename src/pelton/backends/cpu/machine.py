"""What this process may use: cores (affinity mask and cgroup quotas), memory, instruction sets.

Reads, changes nothing.
"""

import math
import os
from pathlib import Path

from pelton.backends.backend import Machine
from pelton.backends.cpu import _native
from pelton.backends.cpu.cgroup import OWN, TREE, cpu_quota, free_bytes
from pelton.core.config import MOST_THREADS
from pelton.core.environment import variable
from pelton.core.errors import SettingError

_GROUPS = (OWN, TREE)  # of control groups, as cpu_quota and free_bytes take them
_NODES = Path("/sys/devices/system/node")


def allowed_cores() -> list[int]:
    """Cores of the affinity mask."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def allowed_threads() -> int:
    """How many threads can run at once: one for each allowed core, at most as many as the cgroups' quotas pay for."""
    cores, quota = len(allowed_cores()), cpu_quota(*_GROUPS)
    return min(cores, max(1, math.ceil(quota))) if quota else cores


def worker_cores(threads: int) -> list[int]:
    """The core of each worker, -1 where a worker is not pinned. `threads` 0: PELTON_THREADS, or allowed_threads()."""
    if not threads:
        given = variable("PELTON_THREADS")
        if given and not (given.isdecimal() and len(given) < 10 and int(given) > 0):
            raise SettingError(f"PELTON_THREADS={given!r} is not a number of threads.", "Use 1 or more, or unset it.")
        threads = int(given or 0) or allowed_threads()
    if threads > MOST_THREADS:
        raise SettingError(f"threads={threads} is more than the {MOST_THREADS} supported.", f"Use {allowed_threads()}.")
    cores = allowed_cores()
    # Fewer workers than cores (a quota, or a setting): the kernel finds idle ones, and not all containers of a
    # host sit on its first cores. More: pinning would make them queue on the same cores.
    return cores if threads == len(cores) else [-1] * threads


def choose_isa() -> tuple[str, tuple[str, ...]]:
    """(instruction set, notes): the best one, or the one PELTON_ISA forces; notes say what was passed over and why."""
    available, refused = _native.instruction_sets(), _native.refused_instruction_sets()
    # What a CPU does not have is no news; what it has and cannot be used is.
    passed_over = tuple(f"{name} is not used: {reason}" for name, reason, wanting in refused if wanting)
    forced = variable("PELTON_ISA")
    if not forced:
        return available[0], passed_over
    if forced not in available:
        reasons = {name: reason for name, reason, _ in refused}
        other = "is no instruction set of this kind of processor"
        told = f"cannot run here: {reasons[forced]}" if forced in reasons else other
        raise SettingError(f"PELTON_ISA={forced!r} {told}.", f"Use one of: {', '.join(available)}.")
    if forced == available[0]:
        return forced, passed_over
    return forced, (f"PELTON_ISA forces {forced}; the best available is {available[0]}", *passed_over)


def free_memory() -> int:
    """Bytes this process can still take: the machine's available memory or the cgroups' rest, whichever is less."""
    available, rest = _meminfo_available(), free_bytes(*_GROUPS)
    return available if rest is None else min(available, rest)


def machine(threads: int) -> Machine:
    """The machine as this backend sees it."""
    isa, notes = choose_isa()
    workers = len(worker_cores(threads))
    allowed = allowed_threads()
    if workers > allowed:
        notes = (*notes, f"{workers} threads on {_cores(allowed)}: they will get in each other's way")
    nodes = memory_nodes(allowed_cores())
    if len(nodes) > 1 and workers > 1:
        notes = (
            *notes,
            f"the allowed cores belong to {len(nodes)} memory nodes, over which the weights are spread as they are "
            f"loaded; an engine for each node reads faster (taskset --cpu-list {min(nodes)})",
        )
    return Machine("cpu", isa, workers, free_memory(), notes, placing(workers))


def placing(workers: int) -> str:
    """How so many workers share the cores, for people."""
    cores, quota = len(allowed_cores()), cpu_quota(*_GROUPS)
    paid = f", a quota of {quota:g}" if quota and quota < cores else ""
    # Who asks for a step works on it wherever it runs (native/threads/pool.h); of one worker that is all.
    pinned = "each but the calling one pinned to its own" if 1 < workers == cores else "not pinned"
    return f"on {_cores(cores)}{paid}, {pinned}"


def _cores(count: int) -> str:
    return f"{count} allowed core{'' if count == 1 else 's'}"


def memory_nodes(cores: list[int]) -> list[str]:
    """Lists of the cores of each memory node, as the system writes them, of those nodes that have one of these."""
    own, found = set(cores), []
    for file in sorted(_NODES.glob("node[0-9]*/cpulist")):
        try:
            text = file.read_text().strip()
            if own & _core_list(text):
                found.append(text)
        except (OSError, ValueError):
            continue
    return found


def _core_list(text: str) -> set[int]:
    """The numbers in a list such as 0-3,8,10-11; ValueError where it is none."""
    cores: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def _meminfo_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
