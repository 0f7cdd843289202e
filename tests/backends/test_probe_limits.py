"""What is made of probed figures: rates between sizes, and how near a step is to its limits."""

from dataclasses import replace

import pytest
from tests.backends.probed import GIGA, MIB, canned, spread

from pelton.backends.cpu.probe import share
from pelton.backends.cpu.probe.figures import INT8
from pelton.backends.cpu.probe.limits import expansion_rate, largest, matrix_rate, read_rate
from pelton.backends.cpu.probe.share import BANDWIDTH, EXPANSION, Turns, share_of_limit
from pelton.core.clock import FakeClock

PROBE = canned()
FORMATS = {"q8": 1000, "q4m": 500}


@pytest.mark.parametrize(
    ("size", "rate"), [(1, 100.0), (MIB, 100.0), (8 * MIB, 70.0), (64 * MIB, 40.0), (128 * MIB, 30.0), (1 << 40, 20.0)]
)
def test_a_rate_lies_between_those_around_it(size: int, rate: float) -> None:
    assert read_rate(PROBE, size) == pytest.approx(rate * GIGA)
    assert read_rate(PROBE, size, threads=1) == pytest.approx(rate * GIGA / 2)
    assert read_rate(PROBE, size, threads=3) == pytest.approx(rate * GIGA / 2)  # that of the next smaller number


def test_rates_are_found_by_name() -> None:
    assert expansion_rate(PROBE, "q8") == 48 * GIGA and expansion_rate(PROBE, "q8", 1) == 12 * GIGA
    assert expansion_rate(PROBE, "none") is None and expansion_rate(PROBE, "q8", 3) is None
    assert matrix_rate(PROBE) == 640 * GIGA
    assert largest(PROBE).working_set_bytes == 256 * MIB and largest(PROBE).bytes_per_s.median == 20 * GIGA


class Machine:
    """Stands in for the native probe: a read takes 2 ms, q8 goes at 1 M blocks a second, others at a tenth."""

    reads = 0

    def __init__(self, cores: list[int]) -> None:
        self.cores = cores

    def read_once(self, size: int, pieces: bool) -> float:
        assert pieces
        Machine.reads += 1
        return 0.002

    def products(self, isa: str, name: str, rows: int, seconds: float) -> list[float]:
        assert rows == 1
        return [1e6 if name == "q8" else 1e5] * 3


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> type[Machine]:
    Machine.reads = 0
    monkeypatch.setattr(share._native, "Probe", Machine)
    monkeypatch.setattr(share._native, "packed_formats", lambda: FORMATS)
    return Machine


def test_a_share_is_of_alternations(machine: type[Machine]) -> None:
    clock, calls = FakeClock(), []

    def step() -> None:
        calls.append(machine.reads)
        clock.advance(0.012)

    found = share_of_limit(step, 40 * MIB, Turns(9, 3), clock=clock, threads=1)
    assert found.step_s.median == pytest.approx(0.004) and found.read_s.median == pytest.approx(0.002)
    assert found.read_share.median == pytest.approx(0.5) == found.limit_share.median
    assert found.alternations == 9 == found.read_share.samples and found.expansion_s is None
    assert found.tighter == BANDWIDTH and found.read_bytes_per_s == pytest.approx(40 * MIB / 0.002)
    assert calls == [1 + 4 * turn for turn in range(9)]  # one that does not count and three that do, after each call


@pytest.mark.parametrize(
    ("weights", "tighter", "limit"),
    [
        ({"q8": 1_000_000}, BANDWIDTH, 0.5),
        ({"q4m": 150_000}, EXPANSION, 0.75),
        ({"q8": 1_000_000, "q4m": 75_000}, EXPANSION, 0.625),
    ],
)
def test_the_tighter_limit_counts(machine: type[Machine], weights: dict[str, int], tighter: str, limit: float) -> None:
    clock = FakeClock()
    found = share_of_limit(lambda: clock.advance(0.004), MIB, weights=weights, clock=clock, threads=1)
    assert found.tighter == tighter
    assert found.read_share.median == pytest.approx(0.5) and found.limit_share.median == pytest.approx(limit)


@pytest.mark.parametrize(("turns", "size"), [(Turns(8), 1), (Turns(9, 0), 1), (Turns(), 0)])
def test_too_few_alternations_are_refused(turns: Turns, size: int) -> None:
    with pytest.raises(ValueError, match="9 alternations at least"):
        share_of_limit(lambda: None, size, turns)


def test_the_real_probe_alternates() -> None:
    pytest.importorskip("pelton.backends.cpu._native")
    called: list[int] = []
    found = share_of_limit(lambda: called.append(1), 3 * MIB, weights={"q8": 1000}, threads=2)
    assert len(called) == 9 and found.read_s.lowest > 0 and found.expansion_s and found.expansion_s.lowest > 0


def test_the_better_way_of_handing_out_counts_whatever_their_order() -> None:
    turned = replace(PROBE, reads=PROBE.reads[::-1])
    for probe in (PROBE, turned):
        assert read_rate(probe, 64 * MIB) == 40 * GIGA and largest(probe).bytes_per_s.median == 20 * GIGA


def test_other_kernels_rows_and_threads_do_not_count() -> None:
    faster = replace(PROBE.products[0], flops_per_s=spread(1e15))
    other, bytes_ = replace(faster, isa="avx512"), replace(faster, inputs=INT8)
    assert matrix_rate(replace(PROBE, products=(*PROBE.products, other, bytes_))) == 640 * GIGA
    one = replace(PROBE.reads[0], threads=1, working_set_bytes=1 << 40, bytes_per_s=spread(1e15))
    assert largest(replace(PROBE, reads=(*PROBE.reads, one))).working_set_bytes == 256 * MIB
