"""What the kernels cost, counted instead of timed: python -m bench.native.counts [MODEL] [--check]

Instructions of the AVX2 kernels under callgrind (Debian: valgrind), products of the matrix unit (AMX, in plain C++),
and bytes and FLOPs of a model's steps by the engine's own tallies. The same on every machine with the same compiler, so
a change is seen whatever the noise. A line is appended to bench/results/counts.jsonl; --check compares with the last
one of this compiler instead, and fails where a count is off by more than a tenth.
"""

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from bench import record
from bench.native.compiled import (
    AMX_EMULATED,
    AVX2,
    HERE,
    NATIVE,
    PORTABLE,
    Missing,
    Source,
    compile_program,
    compiler_name,
    kernels,
    need_x86,
)

from pelton.backends import BACKENDS
from pelton.backends.backend import SAMPLING, CompileOptions, Executable, StepInputs
from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.models import build_module
from pelton.program.passes import run_passes

NAME = "counts"
TOLERANCE = 0.1
CALLGRIND_SECONDS = 1800
BLOCK = 32
INSTRUCTIONS, TILES, TALLIES = "instructions_avx2", "tile_products_amx", "tallies"
TIMES = "_ns"  # how counters of time end: they are no counts
RECORD = "python -m bench.native.counts"
Counts = dict[str, int]


def instructions() -> Counts:
    """Of each case, with the AVX2 kernels. Raises Missing where there is no valgrind."""
    need_x86()
    try:
        subprocess.run(["valgrind", "--version"], check=True, capture_output=True)
    except OSError as error:
        raise Missing("valgrind is not installed (Debian: valgrind)") from error
    with tempfile.TemporaryDirectory() as folder:
        program, out = Path(folder, "counts"), Path(folder, "out")
        sources = [Source(HERE / "counts.cpp"), Source(NATIVE / "threads" / "fpu.cpp"), *kernels(*AVX2)]
        compile_program(sources, program)
        tool = ["valgrind", "--tool=callgrind", "--combine-dumps=yes", f"--callgrind-out-file={out}"]
        done = subprocess.run([*tool, str(program)], capture_output=True, text=True, timeout=CALLGRIND_SECONDS)
        if done.returncode:
            raise Missing(f"callgrind fails: {done.stderr[-500:]}")
        return parse_callgrind(out.read_text())


def parse_callgrind(text: str) -> Counts:
    """Totals of the parts of a file that a program dumped, by the name it gave them."""
    found: Counts = {}
    name = ""
    for line in text.splitlines():
        if match := re.match(r"desc: Trigger: Client Request: (.*)", line):
            name = match[1]
        elif match := re.match(r"(?:totals|summary): (\d+)", line):
            if name:
                found[name] = int(match[1])
                name = ""
    return found


def tile_products() -> Counts:
    """Instructions of the matrix unit that multiply, of each case; cases without any are left out."""
    need_x86()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "tiles")
        plain = [Source(HERE / "counts.cpp"), Source(NATIVE / "threads" / "fpu.cpp")]
        amx = Source(NATIVE / "isa" / "amx" / "kernels.cpp", AMX_EMULATED)
        compile_program([*plain, amx, *kernels(*PORTABLE)], program, "-DCOUNT_TILES")
        said = subprocess.run([str(program)], capture_output=True, text=True, check=True, timeout=CALLGRIND_SECONDS)
    counted = (line.rsplit("\t", 1) for line in said.stdout.splitlines())
    return {name: int(count) for name, count in counted if int(count)}


def step(tokens: int, sequences: int, start: int) -> StepInputs:
    """`sequences` of `tokens` tokens each from index `start` on, a logit row for each; their blocks are apart."""
    blocks = -(-(start + tokens) // BLOCK)
    sampling = np.zeros(sequences, SAMPLING)
    sampling["top_p"], sampling["logprobs"] = 1.0, -1
    return StepInputs(
        tokens=np.arange(1, tokens * sequences + 1, dtype=np.int32),
        positions=np.tile(np.arange(start, start + tokens, dtype=np.int32), sequences),
        starts=np.full(sequences, start, np.int32),
        counts=np.full(sequences, tokens, np.int32),
        tables=np.arange(1, sequences * blocks + 1, dtype=np.int32),
        table_offsets=np.arange(0, (sequences + 1) * blocks, blocks, dtype=np.int32),
        logit_rows=np.arange(tokens - 1, tokens * sequences, tokens, dtype=np.int32),
        sampling=sampling,
    )


STEPS = {
    "prefill 64": step(64, 1, 0),
    "decode 1 at 512": step(1, 1, 512),
    "decode 8 at 512": step(1, 8, 512),
    "decode 32 at 128": step(1, 32, 128),
}


def open_executable(model: str) -> Executable:
    """On the CPU, with room for STEPS."""
    module = run_passes(build_module(open_checkpoint(model)))
    executable = BACKENDS.get("cpu")().compile(module, CompileOptions(max_tokens=64, max_rows=32))
    executable.allocate((200,) * len(module.states))
    return executable


def tallies(model: str) -> Counts:
    """Bytes and FLOPs of each of STEPS, by kind of op, as the engine counts them: what differs between two of them."""
    executable = open_executable(model)
    found: Counts = {}
    for name, inputs in STEPS.items():
        before = executable.counters()
        executable.run(inputs)
        for counter, total in executable.counters().items():
            difference = total - before.get(counter, 0)
            if difference and not counter.endswith(TIMES):
                found[f"{name}: {counter}"] = difference
    executable.close()
    return found


def differences(kept: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """A line for each count that is off by more than TOLERANCE, is gone, or is new."""
    told = []
    for name in sorted(kept.keys() | now.keys()):
        before, after = kept.get(name), now.get(name)
        if before is None or after is None:
            told.append(f"{name}: {'was not recorded' if before is None else 'is gone'}")
        elif abs(after - before) > TOLERANCE * before:
            told.append(f"{name}: {before:,} recorded, {after:,} now ({after / before - 1:+.0%})")
    return told


def recorded(compiler: str, file: Path | None = None) -> dict[str, Any] | None:
    """The figures of the last line of that compiler; None where there is none."""
    file = file or record.RESULTS / f"{NAME}.jsonl"
    if not file.exists():
        return None
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    kept = [line["figures"] for line in lines if line["settings"]["compiler"] == compiler]
    return dict(kept[-1]) if kept else None


def complaint(kind: str, kept: Mapping[str, int], now: Mapping[str, int]) -> str | None:
    """What to say where counts of a kind have changed, and what to do; None where they have not."""
    told = differences(kept, now)
    if not told:
        return None
    listed = "\n  ".join(told)
    return f"{kind}, against what was recorded:\n  {listed}\nIf that is meant, record it anew: {RECORD}"


def main() -> None:
    flags = record.parser(__doc__)
    flags.add_argument("--check", action="store_true", help="compare with what was recorded, keep nothing")
    given: argparse.Namespace = flags.parse_args()
    before = record.machine()
    figures: dict[str, object] = {}
    counters = {INSTRUCTIONS: instructions, TILES: tile_products, TALLIES: lambda: tallies(given.model)}
    for kind, count in counters.items():
        try:
            figures[kind] = counted = count()
        except Missing as reason:
            print(f"{kind}: skipped: {reason}")
            continue
        print("\n".join(f"{kind}  {name:<40} {number:>16,}" for name, number in counted.items()))
    compiler = compiler_name()
    if given.check:
        kept = recorded(compiler)
        if kept is None:
            raise SystemExit(f"counts: none are recorded of {compiler}")
        told = [complaint(kind, kept[kind], now) for kind, now in figures.items() if kind in kept]  # type: ignore[arg-type]
        if any(told):
            raise SystemExit("counts: " + "\n".join(one for one in told if one))
    elif not given.dry:
        record.keep(NAME, {"model": given.model, "compiler": compiler}, figures, before)


if __name__ == "__main__":
    main()
