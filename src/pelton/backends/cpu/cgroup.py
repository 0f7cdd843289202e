"""What the control groups of this process grant: processor time and memory, in version 2, version 1 or both.

Reads, changes nothing. A limit of any group on the way from the root to the process's own holds, so the least counts.
Invariant: a system without such files has no limits; nothing is raised.
"""

from collections.abc import Iterator
from pathlib import Path

OWN = Path("/proc/self/cgroup")  # which groups this process is in
TREE = Path("/sys/fs/cgroup")  # where their files are
NO_LIMIT = 1 << 60  # bytes; version 1 writes a number of that size where there is none
UNIFIED = "unified"  # folder of version 2 beside version 1
_NEW, _CPU, _MEMORY = "", "cpu", "memory"  # controllers, as `own` names them; none: version 2


def cpu_quota(own: Path = OWN, tree: Path = TREE) -> float | None:
    """Cores' worth of time, None without a limit."""
    quotas = [_quota(folder) for folder in _folders(own, tree, _NEW)]
    quotas += [_old_quota(folder) for folder in _folders(own, tree, _CPU)]
    return min((quota for quota in quotas if quota is not None), default=None)


def free_bytes(own: Path = OWN, tree: Path = TREE) -> int | None:
    """Bytes of memory that these groups can still take, None without a limit. Files in memory do not count as taken."""
    rests = [_rest(folder, "memory.max", "memory.current", "inactive_file") for folder in _folders(own, tree, _NEW)]
    rests += [
        _rest(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        for folder in _folders(own, tree, _MEMORY)
    ]
    return min((rest for rest in rests if rest is not None), default=None)


def _folders(own: Path, tree: Path, controller: str) -> Iterator[Path]:
    """The root of the controller's tree and every group below it down to the process's own."""
    names, parts = _place(own, controller)
    for name in names:
        root = tree / name
        if not root.is_dir():
            continue
        yield root
        # In a container the tree may begin at a group in the middle of the path.
        for first in range(len(parts)):
            if root.joinpath(*parts[first:]).is_dir():
                yield from (root.joinpath(*parts[first:stop]) for stop in range(first + 1, len(parts) + 1))
                break
        return


def _place(own: Path, controller: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(folders the controller's tree may be in, the first that is there holds; parts of the process's path in it)."""
    names = (UNIFIED, "") if controller == _NEW else (controller,)
    try:
        lines = own.read_text(errors="surrogateescape").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controller in controllers.split(",") and path.startswith("/"):
            parts = tuple(filter(None, path.split("/")))
            joined = () if controller == _NEW else (controllers,)
            return (*joined, *names), () if ".." in parts else parts
    return names, ()


def _quota(folder: Path) -> float | None:
    try:
        limit, period = (folder / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _old_quota(folder: Path) -> float | None:
    limit, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return limit / period if limit and period and limit > 0 else None


def _rest(folder: Path, limit: str, used: str, cached: str) -> int | None:
    """Bytes below the limit; files in memory are given back on demand."""
    most = _number(folder / limit)
    if most is None or most >= NO_LIMIT:
        return None
    return max(0, most - (_number(folder / used) or 0) + _line_of(folder / "memory.stat", cached))


def _line_of(path: Path, name: str) -> int:
    try:
        for line in path.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0


def _number(path: Path) -> int | None:
    """None where the file is not there or says "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
