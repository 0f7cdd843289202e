"""Start to first token, and peak memory, of a fresh `pelton complete` with the model in the cache.

python bench/startup.py [MODEL] [--runs N]

Start to first token is wall time from starting the process to the first byte of its answer. Peak memory is the
process's largest resident set, mapped files included, as the kernel counts it. Both are printed beside their aim.
"""

import os
import subprocess
import sys
import time

import record

from pelton.checkpoint.fetch.pull import pull
from pelton.measure.bench.limits import start_part

MB = 1_000_000
AIM_SECONDS = 1.5
AIM_EXTRA_MB = 250
PROMPT = "The capital of France is"
COMMAND = "import sys; sys.argv[0] = 'pelton'; from pelton.cli.main import main; main()"


def run_once(model: str, tokens: int) -> tuple[float, float, float]:
    """(seconds to the first byte, seconds to the end, peak MB) of one process."""
    words = [sys.executable, "-c", COMMAND, "complete", "--model", model, PROMPT]
    words += ["--temperature", "0", "--ignore-eos", "--max-tokens", str(tokens)]
    start = time.perf_counter()
    child = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert child.stdout is not None
    first = child.stdout.read(1)
    first_seconds = time.perf_counter() - start
    child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode or not first:
        raise SystemExit(f"startup: pelton complete ended with {child.returncode}")
    return first_seconds, time.perf_counter() - start, usage.ru_maxrss * 1024 / MB


def main() -> None:
    flags = record.parser(__doc__)
    flags.add_argument("--tokens", type=int, default=64, help="length of the answer (default: 64)")
    given = flags.parse_args()
    path = pull(given.model)
    size = path.stat().st_size / MB if path.is_file() else sum(f.stat().st_size for f in path.glob("*")) / MB
    before = record.machine()
    machine = record.probe(given)
    run_once(str(path), 1)  # the file is in the system's cache and derived files are made after this
    runs = [run_once(str(path), given.tokens) for _ in range(given.runs)]
    first = record.summary([run[0] for run in runs])
    peak = record.summary([run[2] for run in runs], 1)
    print(
        f"start to first token  {first['median']:.2f} s  [{first['min']:.2f}-{first['max']:.2f}]  aim {AIM_SECONDS} s"
    )
    limit = size + AIM_EXTRA_MB
    extra = peak["max"] - size
    print(f"peak memory           {peak['max']:.0f} MB = file {size:.0f} MB + {extra:.0f} MB  aim {limit:.0f} MB")
    if not given.dry:
        settings: dict[str, object] = {"model": given.model, "tokens": given.tokens}
        figures: dict[str, object] = {"first_token_s": first, "peak_mb": peak, "file_mb": round(size, 1)}
        record.keep("startup", settings, figures, before, None if machine is None else start_part(machine))


if __name__ == "__main__":
    main()
