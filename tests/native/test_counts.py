"""bench/native: what kernels cost in instructions, tile products and bytes has not changed by more than a tenth.

Instructions depend on the compiler: where nothing is recorded of this one, that part is skipped.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pelton.backends.cpu._native")
from bench.native import counts, exactness
from bench.native.compiled import Missing, compiler_name

DUMPED = """
desc: Trigger: Client Request: matmul bf16 rows 1
events: Ir
totals: 1234

desc: Trigger: Client Request: gated 576
totals: 99

desc: Trigger: Program termination
totals: 777
"""


def test_parts_of_a_callgrind_file() -> None:
    assert counts.parse_callgrind(DUMPED) == {"matmul bf16 rows 1": 1234, "gated 576": 99}


def test_what_is_off_is_named_with_what_to_do() -> None:
    kept = {"same": 100, "near": 100, "more": 100, "less": 100, "gone": 1}
    now = {"same": 100, "near": 109, "more": 112, "less": 80, "new": 1}
    told = counts.complaint("instructions", kept, now)
    assert told is not None and "same" not in told and "near" not in told
    assert "more: 100 recorded, 112 now (+12%)" in told and "less: 100 recorded, 80 now (-20%)" in told
    assert "gone: is gone" in told and "new: was not recorded" in told
    assert told.endswith("record it anew: python -m bench.native.counts")
    assert counts.complaint("instructions", kept, kept) is None


def test_the_last_line_of_a_compiler(tmp_path: Path) -> None:
    file = tmp_path / "counts.jsonl"
    assert counts.recorded("g++ 1", file) is None
    lines = [f'{{"settings": {{"compiler": "g++ {n}"}}, "figures": {{"n": {m}}}}}' for n, m in ((1, 1), (1, 2), (2, 3))]
    file.write_text("\n".join(lines))
    assert counts.recorded("g++ 1", file) == {"n": 2} and counts.recorded("g++ 3", file) is None


def test_what_exactness_costs() -> None:
    times = exactness.parse("1\texact\t1.05\t1.05\t1.06\n1\tfma\t1.0\t1.0\t1.0\n1\tslow\t9\t9\t9\n")
    row = exactness.figures_of(times)["1"]
    low, high = row["interval_95"]  # type: ignore[misc]
    assert row["fastest_variant"] == "fma" and row["blocks"] == 3
    assert 0.045 < low < row["cost"] < high < 0.062  # type: ignore[operator]
    assert "exactness costs +5.3%" in exactness.line("1", row)


def test_variants_fit_the_cpu() -> None:
    full = {"avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl"}
    assert "-mavx512bf16" in exactness.sources(full | {"avx512_bf16"})[-1].flags
    assert "-DPELTON_ISA_AVX2=1" in exactness.sources({"avx2"})[-1].flags
    with pytest.raises(Missing, match="AVX2"):
        exactness.sources({"neon"})


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "count"), [(counts.INSTRUCTIONS, counts.instructions), (counts.TILES, counts.tile_products)]
)
def test_kernels_cost_what_is_recorded(kind: str, count: Callable[[], counts.Counts]) -> None:
    try:
        compiler = compiler_name()
        kept = counts.recorded(compiler)
        if kept is None or kind not in kept:
            pytest.skip(f"nothing is recorded of {compiler}; {counts.RECORD} records it")
        now = count()
    except Missing as reason:
        pytest.skip(str(reason))
    told = counts.complaint(kind, kept[kind], now)
    assert told is None, told


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_steps_read_and_compute_what_is_recorded(smollm2: Path) -> None:
    """Tallies do not depend on the compiler: any line will do."""
    try:
        kept = counts.recorded(compiler_name())
    except Missing as reason:
        pytest.skip(str(reason))
    if kept is None:
        pytest.skip(f"nothing is recorded; {counts.RECORD} records it")
    told = counts.complaint(counts.TALLIES, kept[counts.TALLIES], counts.tallies(str(smollm2)))
    assert told is None, told
