"""What bit-exactness costs: python -m bench.native.exactness [--blocks 40]

One step's bf16 products of SmolLM2-135M by the shipped kernels, and by variants made for this that may add in any order
(several accumulators, two products at a time, K split between threads), in turns in one process. For 1 to 64 rows: how
much longer the exact one takes than the fastest variant, with a 95 % interval over the blocks. A JSON line is appended
to bench/results/exactness.jsonl. The variants are no part of Pelton.
"""

import math
import platform
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import record
from bench.native.compiled import AVX2, AVX512, HERE, NATIVE, Missing, Source, compile_program, compiler_name, kernels

from pelton.backends.cpu.machine import worker_cores

NAME = "exactness"
EXACT = "exact"
AIM = 0.05
LEAST_BLOCKS = 30
RUN_SECONDS = 1800
Z95 = 1.96
Times = dict[int, dict[str, list[float]]]


def cpu_flags() -> set[str]:
    """Instruction sets, as the system names them."""
    try:
        words = Path("/proc/cpuinfo").read_text().split()
    except OSError as error:
        raise Missing("this system does not tell its instruction sets") from error
    return set(words)


def sources(flags: set[str]) -> list[Source]:
    """The program for a CPU with these flags: the shipped kernels that it would use, and variants for it."""
    if platform.machine() not in ("x86_64", "AMD64") or "avx2" not in flags:
        raise Missing("there are variants for AVX2 and AVX-512 only")
    chosen = AVX512 if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags else AVX2
    own = [*chosen, *(["-mavx512bf16"] if "avx512_bf16" in flags and chosen is AVX512 else [])]
    found = [Source(NATIVE / "threads" / name) for name in ("fpu.cpp", "pool.cpp")] + kernels(*chosen)
    vnni = Source(NATIVE / "isa" / "int8.cpp", [*AVX512, "-mavx512vnni", "-DPELTON_ISA_AVX512_VNNI=1"])
    if {"amx_tile", "amx_bf16", "amx_int8", "avx512_vnni"} <= flags and chosen is AVX512:
        amx = ["-mamx-tile", "-mamx-bf16", "-mamx-int8", "-DPELTON_ISA_AMX=1", *AVX512]
        found += [Source(NATIVE / "isa" / "amx" / "kernels.cpp", amx), vnni]
        found += [Source(NATIVE / "pack" / "pack.cpp"), Source(NATIVE / "available.cpp", ["-DPELTON_HAS_AMX"])]
        found += kernels(*AVX2) + kernels("-DPELTON_ISA_PORTABLE=1")
        own.append("-DWITH_AMX")
    elif {"avx512_bf16", "avx512_vnni"} <= flags and chosen is AVX512:
        pairs = [*AVX512, "-mavx512bf16", "-DPELTON_ISA_AVX512_BF16=1"]
        found += [Source(NATIVE / "isa" / "bf16.cpp", pairs), vnni]
        own.append("-DWITH_BF16")
    return [*found, Source(HERE / "exactness.cpp", own)]


def measure(blocks: int, cores: Sequence[int]) -> Times:
    """Seconds of each block by rows and variant. Raises Missing."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, NAME)
        compile_program(sources(cpu_flags()), program)
        words = [str(program), str(blocks), *map(str, cores)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=RUN_SECONDS)
    if done.returncode:
        raise Missing(f"the program ended with {done.returncode}: {done.stderr[-300:]}")
    return parse(done.stdout)


def parse(said: str) -> Times:
    """What the program prints."""
    times: Times = {}
    for line in said.splitlines():
        rows, variant, *seconds = line.split("\t")
        times.setdefault(int(rows), {})[variant] = [float(one) for one in seconds]
    return times


def cost(exact: Sequence[float], free: Sequence[float]) -> tuple[float, float, float]:
    """(how much longer the exact one takes, low, high): mean of the logarithms of the blocks' ratios, 95 % interval."""
    logs = [math.log(a / b) for a, b in zip(exact, free, strict=True)]
    middle = statistics.fmean(logs)
    half = Z95 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return tuple(math.expm1(value) for value in (middle, middle - half, middle + half))  # type: ignore[return-value]


def figures_of(times: Times) -> dict[str, dict[str, Any]]:
    """For each number of rows: medians in ms, the fastest variant, and what exactness costs beside it."""
    found: dict[str, dict[str, Any]] = {}
    for rows, variants in times.items():
        medians = {name: statistics.median(seconds) for name, seconds in variants.items()}
        fastest = min((name for name in medians if name != EXACT), key=medians.__getitem__)
        middle, low, high = cost(variants[EXACT], variants[fastest])
        found[str(rows)] = {
            "ms": {name: round(1000 * value, 3) for name, value in medians.items()},
            "fastest_variant": fastest,
            "cost": round(middle, 4),
            "interval_95": [round(low, 4), round(high, 4)],
            "blocks": len(variants[EXACT]),
        }
    return found


def line(rows: str, row: Mapping[str, Any]) -> str:
    """For people."""
    low, high = row["interval_95"]
    taken = ", ".join(f"{name} {ms:.2f}" for name, ms in row["ms"].items())
    beside = f"{row['cost']:+.1%} [{low:+.1%}, {high:+.1%}] beside {row['fastest_variant']}"
    return f"{rows:>3} rows  exactness costs {beside}  (ms: {taken})"


def main() -> None:
    flags = record.parser(__doc__)
    flags.add_argument("--blocks", type=int, default=40, help="of each variant, in turns (default: 40)")
    given = flags.parse_args()
    if given.blocks < LEAST_BLOCKS and not given.dry:
        flags.error(f"argument --blocks: at least {LEAST_BLOCKS}, or --dry")
    before = record.machine()
    cores = worker_cores(0)
    try:
        times = measure(given.blocks, cores)
    except Missing as reason:
        raise SystemExit(f"exactness: {reason}") from None
    figures = figures_of(times)
    for rows, row in figures.items():
        print(line(rows, row))
    print(f"aim at most {AIM:+.0%}")
    if not given.dry:
        settings: dict[str, object] = {"blocks": given.blocks, "threads": len(cores), "compiler": compiler_name()}
        record.keep(NAME, settings, dict(figures), before)


if __name__ == "__main__":
    main()
