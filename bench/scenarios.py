"""The usual scenarios against a served model: one stream, long prompts, 8 and 32 at once, a common prefix.

python -m bench.scenarios [MODEL] --prompts FILE [--runs N] [--only a,c8] [--client FILE]

FILE is a JSON table of lists of prompts: p128, p256, p512, p2048, p7000 (that many tokens each) and share0, share1, ...
(32 prompts that begin with the same 1,500 tokens). With --client the same requests are sent by another load generator
too, in turns with ours (ours, theirs, ours, ...), and the ratio of both is told. Ours is what `pelton bench serve`
measures with (its client, its figures), called here in one process for all scenarios. The other one must take --url,
--model, --prompts, --set, --n, --conc, --max-tokens and --out, and append a JSON line with wall_s, out_tok_s, ttft_ms,
itl_ms.
"""

import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import record

from pelton.backends.cpu.probe.figures import MachineProbe
from pelton.core.clock import SystemClock
from pelton.measure.bench.client import Client, Target
from pelton.measure.bench.figures import result
from pelton.measure.bench.limits import machine_part, serve_part
from pelton.measure.bench.load import Load, run_load
from pelton.measure.bench.workload import Sample

NAME = "m"
LEAST_TOKENS = 8  # of an answer whose steps can be told apart from the prompt
START_SECONDS, STOP_SECONDS = 120.0, 30.0
PELTON = "import sys; sys.argv[0] = 'pelton'; from pelton.cli.main import main; main()"


@dataclass(frozen=True)
class Scenario:
    """`requests` prompts of a set, `concurrency` at a time, answers of `tokens`. `fresh`: a new set for each run."""

    prompts: str
    requests: int
    concurrency: int
    tokens: int
    fresh: bool = False


SCENARIOS = {
    "a": Scenario("p128", 2, 1, 256),
    "b512": Scenario("p512", 3, 1, 2),
    "b2048": Scenario("p2048", 3, 1, 2),
    "b7000": Scenario("p7000", 2, 1, 2),
    "c8": Scenario("p256", 32, 8, 128),
    "c32": Scenario("p256", 32, 32, 128),
    "d": Scenario("share", 32, 32, 32, fresh=True),
}


@contextmanager
def server(model: str, flags: list[str]) -> Iterator[tuple[str, float]]:
    """(URL, seconds from start to the first answer) of a server that ends with the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    words = [sys.executable, "-c", PELTON, "serve", model, "--port", str(port), "--served-model-name", NAME, *flags]
    start = time.perf_counter()
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        asyncio.run(first_answer(url, child, start))
        yield url, time.perf_counter() - start
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)


async def first_answer(url: str, child: "subprocess.Popen[bytes]", start: float) -> None:
    sample = Sample(1, prompt="The capital of France is")
    async with Client(Target(url, NAME, extra={"temperature": 0}), SystemClock()) as client:
        while True:
            timing = await client.ask(sample)
            if timing.ok:
                return
            if child.poll() is not None or time.perf_counter() - start > START_SECONDS:
                raise SystemExit(f"scenarios: the server does not answer: {timing.error}")
            await asyncio.sleep(0.02)


async def ours(url: str, prompts: list[str], scenario: Scenario) -> dict[str, float]:
    samples = [Sample(scenario.tokens, prompt=prompt) for prompt in prompts]
    extra: dict[str, object] = {"temperature": 0, "ignore_eos": True}
    clock = SystemClock()
    async with Client(Target(url, NAME, extra=extra), clock) as client:
        timings, seconds = await run_load(client, samples, Load(concurrency=scenario.concurrency), clock, lambda: None)
    table = result(timings, seconds, (50, 99))
    if table["failed"]:
        raise SystemExit(f"scenarios: {[timing.error for timing in timings if timing.error][0]}")
    decode = [1 / timing.tpot for timing in timings if timing.tpot]
    return {
        "wall_s": seconds,
        "out_tok_s": float(str(table["output_throughput"])),
        "total_tok_s": float(str(table["total_token_throughput"])),
        "ttft_p50_ms": float(str(table["p50_ttft_ms"])),
        "ttft_p99_ms": float(str(table["p99_ttft_ms"])),
        "itl_p50_ms": float(str(table["p50_itl_ms"])),
        "itl_p99_ms": float(str(table["p99_itl_ms"])),
        "decode_tok_s": statistics.median(decode or [0.0]),  # 0: all pieces came at once
        "cached_tokens": float(str(table["total_cached_tokens"])),
    }


def theirs(client: Path, url: str, prompts: list[str], scenario: Scenario) -> dict[str, float]:
    """The same prompts by the other load generator."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder, "prompts.json"), Path(folder, "out.jsonl")
        file.write_text(json.dumps({"set": prompts}))
        words = [sys.executable, str(client), "--url", url, "--model", NAME, "--prompts", str(file), "--set", "set"]
        words += ["--n", str(len(prompts)), "--conc", str(scenario.concurrency), "--max-tokens", str(scenario.tokens)]
        subprocess.run([*words, "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
        line = json.loads(out.read_text())
    return {
        "wall_s": line["wall_s"],
        "out_tok_s": line["out_tok_s"],
        "ttft_p50_ms": line["ttft_ms"][0],
        "itl_p50_ms": line["itl_ms"][0],
    }


def cut(sets: dict[str, list[str]], scenario: Scenario, run: int) -> list[str]:
    """The run's prompts: others than the run before, as far as the sets go, so that no prefix helps by chance."""
    if scenario.fresh:
        return sets[f"{scenario.prompts}{run % sum(name.startswith(scenario.prompts) for name in sets)}"][
            : scenario.requests
        ]
    listed = sets[scenario.prompts]
    if len(listed) < scenario.requests:
        have = f"--prompts has {len(listed)} of {scenario.prompts}, and {scenario.requests} are asked in a run"
        raise SystemExit(f"scenarios: {have}. The same prompt twice in a run would come from the cache.")
    first = run * scenario.requests
    return [listed[(first + place) % len(listed)] for place in range(scenario.requests)]


def reset(url: str) -> None:
    """Forgets prefixes of earlier runs."""
    urllib.request.urlopen(urllib.request.Request(f"{url}/reset_prefix_cache", method="POST"), timeout=10).close()


def measure(url: str, sets: dict[str, list[str]], name: str, runs: int, client: Path | None) -> dict[str, object]:
    scenario = SCENARIOS[name]
    mine: list[dict[str, float]] = []
    other: list[dict[str, float]] = []
    asyncio.run(ours(url, cut(sets, scenario, runs)[: scenario.concurrency], scenario))  # pages touched, code warm
    for run in range(runs):
        prompts = cut(sets, scenario, run)
        reset(url)
        mine.append(asyncio.run(ours(url, prompts, scenario)))
        if client is not None:
            reset(url)
            other.append(theirs(client, url, prompts, scenario))
    figures: dict[str, object] = {key: record.summary([run[key] for run in mine], 2) for key in mine[0]}
    if other:
        ratios = {key: [a[key] / b[key] for a, b in zip(mine, other, strict=True) if b[key]] for key in other[0]}
        figures["other_client"] = {key: record.summary([run[key] for run in other], 2) for key in other[0]}
        figures["ratio_to_other_client"] = {key: record.summary(values) for key, values in ratios.items() if values}
    return figures


def line(name: str, figures: Mapping[str, Any]) -> str:
    """A scenario's figures for people: median [min-max] of the runs; behind it the other client's, and ours to its."""

    def shown(kept: Mapping[str, Any], key: str, digits: int = 1) -> str:
        one = kept[key]
        return f"{one['median']:,.{digits}f} [{one['min']:,.{digits}f}-{one['max']:,.{digits}f}]"

    said = (
        f"{name:<6} out {shown(figures, 'out_tok_s')} tok/s, TTFT {shown(figures, 'ttft_p50_ms')} ms, "
        f"ITL p50 {shown(figures, 'itl_p50_ms')} p99 {shown(figures, 'itl_p99_ms')} ms"
    )
    other, ratio = figures.get("other_client"), figures.get("ratio_to_other_client")
    if not other or not ratio:
        return said
    names = {"out_tok_s": "out", "ttft_p50_ms": "TTFT", "itl_p50_ms": "ITL p50"}
    ratios = ", ".join(f"{word} {shown(ratio, key, 3)}" for key, word in names.items() if key in ratio)
    return (
        f"{said}\n{'':<6} other client: out {shown(other, 'out_tok_s')} tok/s, TTFT {shown(other, 'ttft_p50_ms')} ms, "
        f"ITL p50 {shown(other, 'itl_p50_ms')} ms; ours to theirs: {ratios}"
    )


async def weight_bytes(url: str) -> int | None:
    async with Client(Target(url, NAME), SystemClock()) as client:
        return await client.weight_bytes()


def limits(machine: MachineProbe, weights: int | None, figures: Mapping[str, Any]) -> dict[str, object]:
    """The machine's limits; for each scenario with real answers, which part of a step reading the weights once is."""
    shares = {}
    for name, scenario in SCENARIOS.items():
        rate = figures[name]["decode_tok_s"]["median"] if name in figures else 0.0
        if rate and weights and scenario.tokens > LEAST_TOKENS:
            shares[name] = serve_part(machine, weights, 1000 / rate)["share_of_read_limit"]
    return {**machine_part(machine), "weight_bytes": weights, "share_of_read_limit": shares}


def main() -> None:
    flags = record.parser(__doc__)
    flags.add_argument("--prompts", type=Path, required=True, help="JSON table of lists of prompts")
    flags.add_argument("--only", default=",".join(SCENARIOS), help=f"some of {','.join(SCENARIOS)} (default: all)")
    flags.add_argument("--client", type=Path, help="another load generator, for comparison")
    flags.add_argument("--serve-flags", default="", help="further flags of pelton serve")
    given = flags.parse_args()
    unknown = [name for name in given.only.split(",") if name not in SCENARIOS]
    if unknown:
        flags.error(f"argument --only: {unknown[0]!r} is none of {','.join(SCENARIOS)}")
    sets = json.loads(given.prompts.read_text())
    before = record.machine()
    machine = record.probe(given)
    figures: dict[str, Any] = {}
    with server(given.model, given.serve_flags.split()) as (url, seconds):
        print(f"start to first answer {seconds:.2f} s")
        figures["start_s"] = round(seconds, 3)
        for name in given.only.split(","):
            figures[name] = measure(url, sets, name, given.runs, given.client)
            print(line(name, figures[name]), flush=True)
        probed = None if machine is None else limits(machine, asyncio.run(weight_bytes(url)), figures)
    if not given.dry:
        settings = {"model": given.model, "runs": given.runs, "serve_flags": given.serve_flags}
        record.keep("scenarios", settings, figures, before, probed)


if __name__ == "__main__":
    main()
