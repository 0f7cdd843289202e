"""`pelton probe`: figures are kept, shown with their date, and measured again only where that is asked for."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.backends.probed import canned, changed, without_disk
from tests.cli.running import invoke

from pelton.backends.cpu.probe import cached
from pelton.backends.cpu.probe.figures import MachineProbe
from pelton.backends.cpu.probe.identity import identify
from pelton.backends.cpu.probe.measure import QUICK, Effort
from pelton.cli.commands import probe as command
from pelton.measure.bench.limits import run_part, serve_part, start_part

pytest.importorskip("pelton.backends.cpu._native")


@pytest.fixture(autouse=True)
def efforts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Effort]:
    """What was measured, in order; nothing really is."""
    asked: list[Effort] = []

    def measure(effort: Effort, progress: object, *, threads: int = 0) -> MachineProbe:
        assert callable(progress)
        progress(0, 2, "reading")
        progress(2, 2, "done")
        asked.append(effort)
        return canned(identify(threads), quick=effort.quick)

    monkeypatch.setenv("PELTON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(command, "measure", measure)
    return asked


def test_it_measures_once_and_shows_what_is_kept(efforts: list[Effort]) -> None:
    first = invoke("probe", "--quick")
    assert first.exit_code == 0 and "kept in" in first.stderr
    second = invoke("probe", "--quick")
    assert second.stdout == first.stdout and "were measured 2026-01-31 12:00 UTC; --force" in second.stderr
    assert efforts == [QUICK]
    assert invoke("probe", "--quick", "--force").exit_code == 0 and len(efforts) == 2


def test_quick_figures_do_not_stand_for_full_ones(efforts: list[Effort]) -> None:
    invoke("probe", "--quick")
    assert "there are quick figures" in invoke("probe").stderr
    assert [effort.quick for effort in efforts] == [True, False]
    for words in (["probe"], ["probe", "--quick"]):  # and full ones do for quick ones
        assert "--force measures again" in invoke(*words).stderr
    assert len(efforts) == 2


def test_figures_of_a_busy_machine_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = identify().cores
    for load, busy in ((0.5 * cores, False), (0.5 * cores + 0.1, True)):
        cached.save(replace(canned(identify()), load_before=load))
        kept = cached.load(identify())
        assert kept is not None and kept.busy is busy
        shown = invoke("probe")
        assert ("note: the machine was busy before" in shown.stderr) is busy
        assert ("When nothing else runs: pelton probe --force" in shown.stderr) is busy
        (line,) = [line for line in shown.stdout.splitlines() if line.startswith("measured")]
        assert line.endswith(", busy") is busy
        (line,) = [line for line in invoke("collect-env").stdout.splitlines() if line.startswith("probe ")]
        assert line.endswith(" (probed on a busy machine)") is busy


def test_other_threads_have_figures_of_their_own(efforts: list[Effort]) -> None:
    invoke("probe", "--threads", "1")
    invoke("probe", "--threads", "3")
    invoke("probe", "--threads", "1")
    assert len(efforts) == 2


def test_json_is_the_kept_file() -> None:
    shown = invoke("probe", "--json")
    table = json.loads(shown.stdout)
    assert shown.stdout.encode() == cached.probe_file(identify()).read_bytes()
    assert table["format"] == cached.FORMAT
    assert table["probe"].keys() == set(MachineProbe.__slots__)
    assert table["probe"]["reads"][0].keys() == {"threads", "working_set_bytes", "handing", "bytes_per_s"}
    assert table["probe"]["expansions"][0].keys() == {"isa", "format", "threads", "weight_bytes_per_s", "weights_per_s"}


def test_the_table_says_what_figures_limit() -> None:
    shown = invoke("probe").stdout
    titles = ("reading, GB/s: ", "copying, GB/s: ", "products by rows", "unpacking weights", "arithmetic", "disk of")
    for title in titles:
        (line,) = [line for line in shown.splitlines() if line.startswith(title)]
        assert len(line.partition(": ")[2]) > 10
    assert "97 MB of them: at most 3" in shown and "tokens/s" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert any(row[:3] == ["256.0", "MiB", "8.0"] for row in rows), shown


def test_a_cache_that_cannot_be_written_only_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, efforts: list[Effort]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        done = invoke("probe", "--quick")
        assert done.exit_code == 0 and "nothing is kept" in done.stderr and "reading, GB/s" in done.stdout
    assert len(efforts) == 2


def test_a_damaged_file_is_measured_again(efforts: list[Effort]) -> None:
    invoke("probe")
    cached.probe_file(identify()).write_bytes(b"{")
    assert invoke("probe").exit_code == 0 and len(efforts) == 2
    assert cached.load(identify()) is not None


def test_whatever_is_changed_in_a_file_what_is_taken_can_be_shown() -> None:
    """Every place of it, with values of every kind: it counts as none, or all that is made of it works."""
    whole = canned()
    path = cached.save(whole)
    assert path is not None
    places = ["reads.5", "copies.0", "products.2", "expansions.1", "peaks.0", "disk", "identity"]
    table = json.loads(cached.encode(whole))["probe"]
    taken = 0
    for place in places:
        inner = table
        for name in place.split("."):
            inner = inner[int(name) if name.isdigit() else name]
        names = [*inner, *(f"{k}.{n}" for k, v in inner.items() if isinstance(v, dict) for n in v)]
        for name in ("", *names):
            for value in (None, 0, -1, 1e308, 1, "x", [], {}, True):
                path.write_bytes(changed(f"{place}.{name}".rstrip("."), value))
                if (kept := cached.load(whole.identity)) is not None:
                    taken += 1
                    assert command.lines(kept) and cached.encode(kept) and start_part(kept)
                    assert serve_part(kept, 10_000, 1.0) and run_part(kept, {}, {"steps": 1}, 1.0)
    assert taken > 10


def test_without_a_disk_the_table_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "measure", lambda *given, **more: without_disk(canned(identify())))
    assert "too little room in the cache folder" in invoke("probe").stdout


@pytest.mark.parametrize(("name", "value"), [("PELTON_ISA", "none"), ("PELTON_THREADS", "many")])
def test_settings_that_cannot_be_are_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    done = invoke("probe")
    assert done.exit_code == 1 and f"{name}='{value}'" in done.stderr and "Traceback" not in done.stderr


def test_a_report_has_the_main_line() -> None:
    assert "pelton probe does it" in invoke("collect-env").stdout
    cached.save(canned(identify()))
    (line,) = [line for line in invoke("collect-env").stdout.splitlines() if line.startswith("probe ")]
    assert "reading 256.0 MiB at 20.0 GB/s" in line and "640 GFLOP/s" in line and "2026-01-31 12:00 UTC" in line
