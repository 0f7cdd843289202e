"""The machine's probe: what it measures, that it lets go of everything, and that its figures hold for one machine."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.backends.probed import MIB, canned, changed, without_disk

from pelton.backends.cpu.probe import cached, disk, measure
from pelton.backends.cpu.probe import identity as identity_module
from pelton.backends.cpu.probe.figures import FLOAT, INT8, PARTS, PIECES, MachineProbe, Spread
from pelton.backends.cpu.probe.identity import cpu_model, identify
from pelton.backends.cpu.probe.measure import Effort
from pelton.backends.cpu.probe.sound import sound
from pelton.core.cache import kept_file
from pelton.core.clock import FakeClock, SystemClock
from pelton.core.errors import BackendError, CapacityError, SettingError

_native = pytest.importorskip("pelton.backends.cpu._native")
TINY = Effort(True, (2 * MIB,), (1, 3), 0.002, 0.002, MIB)
THREADS = 2


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> MachineProbe:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PELTON_CACHE", str(tmp_path_factory.mktemp("cache")))
        return measure.measure(TINY, threads=THREADS)


def tasks() -> int:
    return len(os.listdir("/proc/self/task"))


# ---------------------------------------------------------------------------------------------------
# native


def test_rates_are_rates() -> None:
    native = _native.Probe([-1, -1])
    assert native.threads == 2
    for pieces in (False, True):
        assert 0 < native.read_once(3 * MIB + 100, pieces) < 10
        rates = native.read(MIB, pieces, 0.01)
        assert 3 <= len(rates) <= 15 and min(rates) > 0
    assert min(native.copy(MIB, 0.005)) > 0
    for name in _native.peak_names():
        assert min(native.peak(name, 0.005)) > 1e8


@pytest.mark.parametrize("isa", _native.instruction_sets())
def test_every_packed_format_is_multiplied(isa: str) -> None:
    native = _native.Probe([-1])
    formats = _native.packed_formats()
    assert {"bf16", "q8", "q4m"} <= formats.keys() and min(formats.values()) > 0
    for name in formats:
        assert min(native.products(isa, name, 1, 0.001)) > 0
    if _native.has_int8_products(isa):
        assert min(native.products(isa, "q8", 2, 0.001, True)) > 0
        with pytest.raises(ValueError, match="rows of 8 bits"):
            native.products(isa, "bf16", 1, 0.001, True)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda native: native.read(0, False, 1.0),
        lambda native: native.read(MIB, False, 0.0),
        lambda native: native.read(MIB, False, 1e9),
        lambda native: native.copy(MIB, -1.0),
        lambda native: native.products("none", "q8", 1, 0.01),
        lambda native: native.products("portable", "none", 1, 0.01),
        lambda native: native.products("portable", "q8", 0, 0.01),
        lambda native: native.peak("none", 0.01),
    ],
)
def test_what_cannot_be_is_refused(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError):
        wrong(_native.Probe([-1]))


def test_one_measurement_at_a_time() -> None:
    native = _native.Probe([-1])
    busy = threading.Thread(target=native.peak, args=(_native.peak_names()[0], 0.5)) if _native.peak_names() else None
    if busy is None:
        pytest.skip("no arithmetic is measured on this processor")
    busy.start()
    try:
        with pytest.raises(RuntimeError, match="another thread is measuring"):
            while busy.is_alive():
                native.read_once(MIB, False)
    finally:
        busy.join()
    assert native.read_once(MIB, False) > 0


# ---------------------------------------------------------------------------------------------------
# a whole measurement


def test_everything_is_measured(probe: MachineProbe) -> None:
    assert probe.quick and probe.identity == identify(THREADS) and probe.date.endswith(" UTC")
    assert {(rate.threads, rate.handing) for rate in probe.reads} == {(1, PARTS), (2, PARTS), (2, PIECES)}
    assert max(rate.working_set_bytes for rate in probe.reads) == 2 * MIB
    assert [rate.rows for rate in probe.products if rate.inputs == FLOAT] == [1, 3]
    whole = [rate.rows for rate in probe.products if rate.inputs == INT8]
    assert whole == ([1, 3] if _native.has_int8_products(probe.identity.isa) else [])
    formats = set(_native.packed_formats())
    for threads in (1, 2):
        assert {rate.format for rate in probe.expansions if rate.threads == threads} == formats
        assert {rate.name for rate in probe.peaks if rate.threads == threads} == set(_native.peak_names())
    spreads = [rate.bytes_per_s for rate in (*probe.reads, *probe.copies)]
    spreads += [rate.flops_per_s for rate in probe.products]
    spreads += [rate.weight_bytes_per_s for rate in probe.expansions]
    spreads += [rate.operations_per_s for rate in probe.peaks]
    assert all(0 < one.lowest <= one.median <= one.highest and one.samples >= 3 for one in spreads)
    for rate in probe.expansions:
        per_weight = _native.packed_formats()[rate.format] / 512
        assert rate.weights_per_s == pytest.approx(rate.weight_bytes_per_s.median / per_weight)
    assert probe.disk.file_bytes >= MIB and probe.disk.write_bytes_per_s and probe.disk.read_bytes_per_s


def test_no_thread_is_left_and_progress_is_told() -> None:
    before, told = tasks(), []
    measure.measure(TINY, lambda *step: told.append(step), threads=THREADS)
    assert tasks() == before
    totals = {total for _, total, _ in told}
    assert [done for done, _, _ in told] == list(range(totals.pop() + 1)) and not totals
    assert all(what for _, _, what in told)


def test_an_interrupted_measurement_leaves_nothing(own_cache: Path) -> None:
    before = tasks()

    def stop(done: int, total: int, what: str) -> None:
        if what == "disk":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure.measure(TINY, stop, threads=THREADS)
    assert tasks() == before and not list(own_cache.glob("**/*"))


def test_one_thread_and_other_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PELTON_ISA", "portable")
    found = measure.measure(TINY, threads=1)
    assert {rate.isa for rate in found.products} == {rate.isa for rate in found.expansions} == {"portable"}
    assert {(rate.threads, rate.handing) for rate in found.reads} == {(1, PARTS)}
    monkeypatch.setenv("PELTON_ISA", "none")
    with pytest.raises(SettingError, match="PELTON_ISA"):
        measure.measure(TINY)


def test_what_cannot_be_had_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Poor:
        def __init__(self, cores: list[int]) -> None:
            if len(cores) > 1:
                raise RuntimeError("no more threads")

        def read(self, size: int, pieces: bool, seconds: float) -> list[float]:
            raise MemoryError

    monkeypatch.setattr(measure._native, "Probe", Poor)
    with pytest.raises(CapacityError, match="No memory for a working set of 2 MiB"):
        measure.measure(TINY, threads=1)
    monkeypatch.setattr(Poor, "read", lambda *given: [1.0])
    with pytest.raises(BackendError, match="2 threads cannot be had: no more threads"):
        measure.measure(TINY, threads=2)


def test_a_working_set_fits_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "free_memory", lambda: 0)
    found = measure.measure(TINY, threads=1)
    assert {rate.working_set_bytes for rate in found.reads} == {MIB // 2}


# ---------------------------------------------------------------------------------------------------
# disk


def test_the_disk_keeps_nothing(own_cache: Path) -> None:
    rate = disk.disk_rate(own_cache, MIB, SystemClock())
    assert rate.file_bytes >= MIB and rate.read_bytes_per_s and not list(own_cache.iterdir())


def test_a_folder_that_cannot_be_used_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    rate = disk.disk_rate(tmp_path / "file" / "cache", MIB, SystemClock())
    assert rate.read_bytes_per_s is None and "cannot be written" in rate.note
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": MIB}))
    assert "too little room" in disk.disk_rate(tmp_path, MIB, FakeClock()).note


def test_a_slow_disk_gets_a_smaller_file(tmp_path: Path) -> None:
    class Slow(FakeClock):
        def now(self) -> float:
            self.advance(0.4)
            return super().now()

    rate = disk.disk_rate(tmp_path, 1 << 30, Slow())
    assert 0 < rate.file_bytes < 64 * MIB and rate.write_bytes_per_s


# ---------------------------------------------------------------------------------------------------
# the kept figures


def test_what_is_kept_comes_back(own_cache: Path) -> None:
    mine = canned(identify())
    assert cached.load(mine.identity) is None
    assert cached.save(mine) == cached.probe_file(mine.identity)
    assert cached.load(mine.identity) == mine
    assert [path.suffix for path in own_cache.glob("probe/*")] == [".json"]


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b"[]", b'{"format": 1}', None])
def test_a_damaged_file_counts_as_none(damage: bytes | None) -> None:
    mine = canned(identify())
    path = cached.save(mine)
    assert path is not None
    path.write_bytes(path.read_bytes()[:-40] if damage is None else damage)
    assert cached.load(mine.identity) is None
    cached.save(mine)
    assert cached.load(mine.identity) == mine


@pytest.mark.parametrize(
    "other",
    [{"cpu": "x"}, {"cores": 9}, {"threads": 9}, {"isa": "x"}, {"memory_gib": 0.1}, {"host": "x"}, {"kernels": "x"}],
)
def test_another_machine_has_other_figures(other: dict[str, object]) -> None:
    mine = identify()
    away = replace(mine, **other)  # type: ignore[arg-type]
    cached.save(canned(mine))
    assert cached.load(away) is None
    cached.probe_file(away).write_bytes(cached.encode(canned(mine)))  # put there by hand
    assert cached.load(away) is None and cached.load(mine) is not None


def test_a_file_of_another_form_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = canned(identify())
    path = cached.save(mine)
    assert path is not None
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2', 1))
    assert cached.load(mine.identity) is None


SENSELESS = [
    *((name, []) for name in ("reads", "copies", "products")),
    ("reads.0.threads", 0),
    ("reads.0.working_set_bytes", 0),
    ("reads.0.working_set_bytes", -1),
    ("reads.0.handing", "x"),
    ("reads.0.bytes_per_s.median", 0),
    ("reads.0.bytes_per_s.lowest", -1.0),
    ("reads.0.bytes_per_s.highest", 1.0),
    ("reads.0.bytes_per_s.samples", 0),
    ("copies.0.bytes_per_s.median", 0.0),
    ("copies.0.working_set_bytes", -1),
    ("products.0.flops_per_s.median", -1e9),
    ("products.0.rows", 0),
    ("products.0.inputs", "x"),
    ("expansions.0", None),
    ("expansions.0.format", "x"),
    ("expansions.0.threads", 3),
    ("expansions.0.weights_per_s", 0),
    ("expansions.0.weight_bytes_per_s.median", 0),
    ("peaks.0.operations_per_s.median", 0),
    ("disk.read_bytes_per_s", 0),
    ("disk.write_bytes_per_s", -1),
    ("disk.file_bytes", -1),
    ("seconds", -1),
    ("load_before", -0.5),
]


@pytest.mark.parametrize(("place", "value"), SENSELESS)
def test_a_file_that_makes_no_sense_counts_as_none(place: str, value: object) -> None:
    mine = canned()
    path = cached.save(mine)
    assert path is not None and cached.load(mine.identity) == mine
    path.write_bytes(changed(place, value))
    assert cached.load(mine.identity) is None


def test_what_is_looked_up_by_threads_and_instruction_set_is_there() -> None:
    """Those of one thread, of all threads, and of the kernels in use."""
    whole = canned()
    for gone in (1, whole.identity.threads):
        assert not sound(replace(whole, reads=tuple(rate for rate in whole.reads if rate.threads != gone)))
    assert not sound(replace(whole, products=tuple(replace(rate, isa="portable") for rate in whole.products)))
    assert not sound(replace(whole, products=tuple(replace(rate, inputs=INT8) for rate in whole.products)))
    for number in (float("nan"), float("inf"), -float("inf")):
        assert not sound(replace(whole, seconds=number))
        assert not sound(replace(whole, disk=replace(whole.disk, read_bytes_per_s=number)))
        reads = (replace(whole.reads[0], bytes_per_s=replace(whole.reads[0].bytes_per_s, median=number)),)
        assert not sound(replace(whole, reads=(*whole.reads, *reads)))
    assert sound(without_disk(whole)) and sound(replace(whole, peaks=(), expansions=()))


def test_a_write_that_fails_leaves_the_old_file(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = canned(identify()), canned(identify(), quick=True)
    cached.save(old)

    def full(source: str, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept_file.os, "replace", full)
    assert cached.save(new) is None
    assert cached.load(old.identity) == old and len(list(own_cache.glob("probe/*"))) == 1


def test_an_identity_names_nobody() -> None:
    mine = identify()
    assert mine == identify() and mine.cpu == cpu_model() and mine.cores >= 1 and len(mine.kernels) == 12
    assert os.uname().nodename not in repr(mine) or len(os.uname().nodename) < 3
    for path in ("/etc/machine-id", "/etc/hostname"):
        if Path(path).is_file() and (text := Path(path).read_text().strip()):
            assert text not in repr(mine)


def test_a_spread_is_of_its_values() -> None:
    assert Spread.of([3.0, 1.0, 2.0], 10.0) == Spread(20.0, 10.0, 30.0, 3)


def test_rates_are_of_their_amounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A K-block of one panel has 512 weights, each two FLOPs with each row."""

    class Even:
        def __init__(self, cores: list[int]) -> None:
            self.cores = cores

        def __getattr__(self, name: str) -> object:
            return lambda *given: [1000.0] * 3

    monkeypatch.setattr(measure._native, "Probe", Even)
    found = measure.measure(TINY, threads=1)
    assert {rate.flops_per_s.median for rate in found.products if rate.rows == 1} == {1000 * 512 * 2}
    assert {rate.flops_per_s.median for rate in found.products if rate.rows == 3} == {1000 * 512 * 2 * 3}
    formats = _native.packed_formats()
    assert {rate.format: rate.weight_bytes_per_s.median for rate in found.expansions} == {
        name: 1000.0 * size for name, size in formats.items()
    }


def test_another_build_is_another_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = identify().kernels
    other = tmp_path / "other.so"
    other.write_bytes(b"other code")
    monkeypatch.setattr(identity_module._native, "__file__", str(other))
    assert identify().kernels != mine


def test_a_disk_has_what_was_written_and_memory_has_it_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the speed of memory would be told."""
    did: list[str] = []
    for name in ("write", "fsync", "posix_fadvise", "readv"):
        real = getattr(os, name)
        monkeypatch.setattr(disk.os, name, lambda *given, n=name, f=real: (did.append(n), f(*given))[1])
    clock = FakeClock()
    monkeypatch.setattr(disk.os, "fsync", lambda file: (did.append("fsync"), clock.advance(1.0)))
    rate = disk.disk_rate(tmp_path, MIB, clock)
    assert did.index("fsync") < did.index("posix_fadvise") < did.index("readv")
    assert rate.write_bytes_per_s == pytest.approx(rate.file_bytes / 1.0), "what the disk takes to have it counts"


def test_files_of_other_machines_have_other_names() -> None:
    mine = identify()
    others = [replace(mine, **{name: 7}) for name in ("cpu", "cores", "threads", "isa", "memory_gib", "kernels")]  # type: ignore[arg-type]
    assert len({cached.probe_file(one) for one in (mine, *others)}) == 7


def test_rates_agree_with_each_other() -> None:
    """Two ways to measure one thing, and no product is faster than the instruction that it is made of. Of several tries
    the best, since whatever disturbs a try makes it slower.
    """
    native = _native.Probe([-1])
    size = 8 * MIB
    once = [size / native.read_once(size, True) for _ in range(100)]
    again = [rate for _ in range(5) for rate in native.read(size, True, 0.03)]
    assert 1 / 1.5 < max(once) / max(again) < 1.5
    copied = max(rate for _ in range(5) for rate in native.copy(2 * size, 0.03))
    assert copied < 0.75 * max(again), "each byte is read and written"
    isa = identify().isa.split("_")[0]
    if f"{isa} fp32 fma" in _native.peak_names():
        tries = range(5)
        products = max(rate for _ in tries for rate in native.products(isa, "f32", 64, 0.02)) * 512 * 2 * 64
        peak = max(rate for _ in tries for rate in native.peak(f"{isa} fp32 fma", 0.02))
        assert 0.3 * peak < products < 1.2 * peak
