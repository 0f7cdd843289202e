"""Sanitizers: kernels, packing and the step read and write only what is theirs, and threads hand work over in order.

The programs are tests/native/cpp/sanitize; they check no numbers. The first tests here make sure that a fault is seen.
"""

from pathlib import Path

import pytest
from tests.native.sanitized import (
    ADDRESS,
    NATIVE,
    PROGRAMS,
    THREAD,
    Builder,
    Unit,
    builder,
    kernel_units,
    portable_units,
    run,
    step_units,
)

OVERRUN = """
#include "sanitize/exact.h"
int main(int words, char**) { exact::Array<float> array(17); return array.data()[16 + words] > 1e30f; }
"""
SHIFT = "int main(int words, char**) { return (1 << (31 + words)) & 1; }\n"
RACE = """
#include <thread>
int shared = 0;
int main() {
    std::thread other([] { for (int i = 0; i < 1000; ++i) ++shared; });
    for (int i = 0; i < 1000; ++i) ++shared;
    other.join();
    return shared == 1;
}
"""


@pytest.fixture(scope="module")
def address() -> Builder:
    return builder(ADDRESS)


@pytest.fixture(scope="module")
def thread() -> Builder:
    return builder(THREAD)


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        (OVERRUN, "address", "heap-buffer-overflow"),
        (SHIFT, "address", "shift exponent 32"),
        (RACE, "thread", "data race"),
    ],
)
def test_a_fault_is_seen(fault: str, kind: str, says: str, tmp_path: Path) -> None:
    source = tmp_path / "fault.cpp"
    source.write_text(fault)
    made = builder(ADDRESS if kind == "address" else THREAD)
    done = run(made.program(f"fault-{kind}", [Unit(source)]))
    assert done.returncode != 0 and says in done.stderr


def test_packing(address: Builder) -> None:
    units = [PROGRAMS / "packing.cpp", NATIVE / "pack" / "pack.cpp", NATIVE / "threads" / "fpu.cpp"]
    done = run(address.program("packing", [Unit(path) for path in units]))
    assert done.returncode == 0, done.stderr[-4000:]
    assert "q4m from Q4_1" in done.stdout


def test_the_pool_has_no_race(thread: Builder) -> None:
    units = [PROGRAMS / "pool.cpp", *sorted((NATIVE / "threads").glob("*.cpp"))]
    done = run(thread.program("pool", [Unit(path) for path in units]))
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


def test_pieces_of_attention_come_largest_first(address: Builder) -> None:
    units = [PROGRAMS / "plan.cpp", NATIVE / "step" / "attend_plan.cpp"]
    done = run(address.program("plan", [Unit(path) for path in units]))
    assert (done.returncode, done.stdout) == (0, "plan\n"), done.stdout + done.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "rounds"), [("thread", 12), ("address", 30)])
def test_the_step(kind: str, rounds: int) -> None:
    made = builder(ADDRESS if kind == "address" else THREAD)
    units = [Unit(PROGRAMS / "step.cpp"), *step_units(), *portable_units()]
    done = run(made.program(f"step-{kind}", units), str(rounds))
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "numbers" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_kernels_of_every_isa(address: Builder) -> None:
    done = run(address.program("kernels", [Unit(PROGRAMS / "kernels.cpp"), *kernel_units()]))
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "portable" in done.stdout.split()
