"""Limits of control groups, from trees of files that look like the system's."""

from pathlib import Path

import pytest

from pelton.backends.cpu.cgroup import cpu_quota, free_bytes

NONE_V1 = 9223372036854771712  # what version 1 says where there is no limit


def write(folder: Path, **files: object) -> None:
    """Files by name, with _ for the first dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(f"{text}\n")


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    """(the process's own groups, the tree), as the functions take them."""
    (tmp_path / "tree").mkdir()
    return tmp_path / "own", tmp_path / "tree"


def test_without_files_there_is_no_limit(roots: tuple[Path, Path]) -> None:
    assert cpu_quota(*roots) is None and free_bytes(*roots) is None
    assert cpu_quota(roots[0], roots[1] / "none") is None
    roots[0].write_text("no line of a group\n0::\n:::\n")
    write(roots[1], cpu_max="what", memory_max="max")
    assert cpu_quota(*roots) is None and free_bytes(*roots) is None


@pytest.mark.parametrize(
    ("root", "slice_", "own", "quota"),
    [
        ("max 100000", "max 100000", "150000 100000", 1.5),
        ("max 100000", "150000 100000", "max 100000", 1.5),
        ("200000 100000", "400000 100000", "300000 100000", 2.0),
        ("max 100000", "max 100000", "max 100000", None),
    ],
)
def test_the_least_of_all_groups_above_counts(
    roots: tuple[Path, Path], root: str, slice_: str, own: str, quota: float | None
) -> None:
    roots[0].write_text("0::/user.slice/run-1.scope\n")
    write(roots[1], cpu_max=root)
    write(roots[1] / "user.slice", cpu_max=slice_)
    write(roots[1] / "user.slice" / "run-1.scope", cpu_max=own)
    write(roots[1] / "system.slice", cpu_max="10000 100000")  # of others
    assert cpu_quota(*roots) == quota


def test_memory_of_a_group_above_counts_with_what_all_of_it_takes(roots: tuple[Path, Path]) -> None:
    roots[0].write_text("0::/a/b\n")
    write(roots[1] / "a", memory_max=1000, memory_current=700, memory_stat="anon 1\ninactive_file 50")
    write(roots[1] / "a" / "b", memory_max=600, memory_current=100, memory_stat="inactive_file 0")
    assert free_bytes(*roots) == 350
    write(roots[1] / "a", memory_max="max")
    assert free_bytes(*roots) == 500
    write(roots[1] / "a" / "b", memory_current=900)
    assert free_bytes(*roots) == 0


def test_version_1_has_a_tree_for_each_controller(roots: tuple[Path, Path]) -> None:
    roots[0].write_text("9:name=systemd:/x\n5:memory:/job/1\n3:cpu,cpuacct:/batch\n0::/x\n")
    write(roots[1] / "cpu,cpuacct", cpu_cfs_quota_us=-1, cpu_cfs_period_us=100000)
    write(roots[1] / "cpu,cpuacct" / "batch", cpu_cfs_quota_us=250000, cpu_cfs_period_us=100000)
    write(roots[1] / "memory", memory_limit_in_bytes=NONE_V1, memory_usage_in_bytes=10**9)
    write(roots[1] / "memory" / "job", memory_limit_in_bytes=5000, memory_usage_in_bytes=4000)
    write(roots[1] / "memory" / "job" / "1", memory_limit_in_bytes=NONE_V1, memory_usage_in_bytes=1)
    assert cpu_quota(*roots) == 2.5 and free_bytes(*roots) == 1000
    roots[0].write_text("5:memory:/none\n")
    assert free_bytes(*roots) is None
    roots[0].write_text("5:memory:/job/1\n")
    (roots[1] / "memory" / "job" / "memory.stat").write_text("inactive_file 5\ntotal_inactive_file 300\n")
    assert free_bytes(*roots) == 1300


def test_both_versions_at_once(roots: tuple[Path, Path]) -> None:
    roots[0].write_text("2:cpu:/a\n0::/b\n")
    write(roots[1] / "cpu" / "a", cpu_cfs_quota_us=300000, cpu_cfs_period_us=100000)
    write(roots[1] / "unified" / "b", cpu_max="200000 100000")
    assert cpu_quota(*roots) == 2.0
    write(roots[1] / "unified" / "b", cpu_max="max 100000")
    assert cpu_quota(*roots) == 3.0


@pytest.mark.parametrize("path", ["/docker/abc", "/docker/abc/job", "/../other"])
def test_a_container_sees_the_tree_from_its_own_group(roots: tuple[Path, Path], path: str) -> None:
    roots[0].write_text(f"0::{path}\n4:memory:{path}\n")
    write(roots[1], cpu_max="400000 100000")
    write(roots[1] / "job", cpu_max="100000 100000")
    write(roots[1] / "memory", memory_limit_in_bytes=3000, memory_usage_in_bytes=1000)
    assert cpu_quota(*roots) == (1.0 if path.endswith("job") else 4.0)
    assert free_bytes(*roots) == 2000
