"""Threads and cores: what affinity, quota and memory nodes say, from files that look like the system's."""

import os
from pathlib import Path

import pytest

from pelton.backends.cpu import machine
from pelton.core.config import MOST_THREADS
from pelton.core.errors import SettingError


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A system of eight allowed cores in one memory node, without a quota; its files are in the folder."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(machine, "_GROUPS", (tmp_path / "own", tmp_path / "cgroup"))
    monkeypatch.setattr(machine, "_NODES", tmp_path / "node")
    monkeypatch.delenv("PELTON_THREADS", raising=False)
    (tmp_path / "cgroup").mkdir()
    node(tmp_path, 0, "0-7")
    return tmp_path


def node(system: Path, number: int, cores: str) -> None:
    folder = system / "node" / f"node{number}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpulist").write_text(cores + "\n")


def quota(system: Path, text: str) -> None:
    (system / "cgroup" / "cpu.max").write_text(text)


@pytest.mark.parametrize(
    ("text", "threads", "said"),
    [
        ("", 8, "on 8 allowed cores, each but the calling one pinned to its own"),
        ("max 100000", 8, "on 8 allowed cores, each but the calling one pinned to its own"),
        ("250000 100000", 3, "on 8 allowed cores, a quota of 2.5, not pinned"),
        ("50000 100000", 1, "on 8 allowed cores, a quota of 0.5, not pinned"),
        ("1600000 100000", 8, "on 8 allowed cores, each but the calling one pinned to its own"),
    ],
)
def test_a_quota_pays_for_fewer_threads(system: Path, text: str, threads: int, said: str) -> None:
    if text:
        quota(system, text)
    found = machine.machine(0)
    assert (found.threads, found.placing) == (threads, said)
    assert machine.worker_cores(0) == (list(range(8)) if threads == 8 else [-1] * threads)
    assert not any("threads on" in note or "memory nodes" in note for note in found.notes)


def test_one_core_is_one(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert machine.machine(0).placing == "on 1 allowed core, not pinned"
    assert any("2 threads on 1 allowed core:" in note for note in machine.machine(2).notes)


def test_free_memory_is_what_the_groups_leave(system: Path) -> None:
    group = system / "cgroup" / "job"
    group.mkdir()
    (system / "own").write_text("0::/job\n")
    (group / "memory.max").write_text("5000\n")
    (group / "memory.current").write_text("3000\n")
    assert machine.free_memory() == 2000


def test_an_old_cgroup_has_a_quota_too(system: Path) -> None:
    (system / "cgroup" / "cpu").mkdir()
    (system / "cgroup" / "cpu" / "cpu.cfs_quota_us").write_text("150000\n")
    (system / "cgroup" / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert machine.machine(0).threads == 2


def test_too_many_threads_are_warned_about(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert any("9 threads on 8 allowed cores" in note for note in machine.machine(9).notes)
    quota(system, "200000 100000")
    assert any("8 threads on 2 allowed cores" in note for note in machine.machine(8).notes)
    monkeypatch.setenv("PELTON_THREADS", "3")
    assert any("3 threads on 2 allowed cores" in note for note in machine.machine(0).notes)
    monkeypatch.setenv("PELTON_THREADS", "many")
    with pytest.raises(SettingError, match="PELTON_THREADS='many'"):
        machine.machine(0)


@pytest.mark.parametrize(
    ("cores", "nodes", "found"),
    [
        (range(8), {0: "0-7"}, ["0-7"]),
        (range(8), {0: "0-3,8-11", 1: "4-7,12-15"}, ["0-3,8-11", "4-7,12-15"]),
        (range(4), {0: "0-3", 1: "4-7"}, ["0-3"]),
        ((5,), {0: "0-3", 1: "4-7"}, ["4-7"]),
        (range(8), {0: "", 1: "0-7"}, ["0-7"]),
        (range(8), {0: "what?"}, []),
    ],
)
def test_memory_nodes_of_the_allowed_cores(
    system: Path, monkeypatch: pytest.MonkeyPatch, cores: range, nodes: dict[int, str], found: list[str]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(cores))
    for number, text in nodes.items():
        node(system, number, text)
    assert machine.memory_nodes(sorted(cores)) == found
    notes = [note for note in machine.machine(0).notes if "memory nodes" in note]
    assert len(notes) == (len(found) > 1)
    if notes:
        assert "belong to 2 memory nodes" in notes[0] and "taskset --cpu-list 0-3,8-11" in notes[0]


def test_a_system_without_such_files_has_one_node_at_most(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_NODES", system / "nothing")
    assert machine.memory_nodes(list(range(8))) == [] and machine.machine(0).threads == 8


def test_a_number_of_threads_is_one_that_can_be(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("0", "-1", "1.5"):
        monkeypatch.setenv("PELTON_THREADS", text)
        with pytest.raises(SettingError, match=f"PELTON_THREADS='{text}'"):
            machine.worker_cores(0)
    assert len(machine.worker_cores(MOST_THREADS)) == MOST_THREADS
    with pytest.raises(SettingError, match=f"threads={MOST_THREADS + 1} is more than the {MOST_THREADS} supported"):
        machine.worker_cores(MOST_THREADS + 1)


def test_available_memory_is_in_bytes(system: Path) -> None:
    """Within a factor of the machine's pages, of which the system counts the free ones in KiB."""
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert pages / 500 < machine.free_memory() <= pages
