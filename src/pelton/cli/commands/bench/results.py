"""What becomes of figures: a table on stdout, a JSON file on request. It computes none."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

import pelton
from pelton.backends.cpu.machine import allowed_cores, choose_isa
from pelton.cli.commands.bench.options import percentiles_of, shown_of
from pelton.cli.options import Flags
from pelton.measure.bench.figures import METRICS, Timing

Table = Mapping[str, object]
WIDTH = 58
COUNTS = (
    ("completed", "Successful requests"),
    ("failed", "Failed requests"),
    ("max_concurrency", "Maximum request concurrency"),
    ("max_concurrent_requests", "Most requests at once"),
    ("duration", "Benchmark duration (s)"),
    ("total_input_tokens", "Total input tokens"),
    ("total_cached_tokens", "Total cached input tokens"),
    ("total_output_tokens", "Total generated tokens"),
    ("request_throughput", "Request throughput (req/s)"),
    ("request_goodput", "Request goodput (req/s)"),
    ("slo_attainment", "SLO attainment (share)"),
    ("output_throughput", "Output token throughput (tok/s)"),
    ("max_output_tokens_per_s", "Most output tokens in a second"),
    ("good_output_throughput", "Output tokens within the goals (tok/s)"),
    ("total_token_throughput", "Total token throughput (tok/s)"),
    ("cost_per_million_total_tokens", "Cost per million tokens"),
    ("cost_per_million_output_tokens", "Cost per million output tokens"),
    ("cost_per_million_good_output_tokens", "Cost per million output tokens in goals"),
)


SHORT = {"client_queue_time": "Client Queue Time", "e2el_including_client_queue": "E2EL incl. Queue"}


def machine() -> dict[str, object]:
    """Where the client ran, and with what; names no host."""
    return {
        "pelton": pelton.__version__,
        "python": platform.python_version(),
        "cores": len(allowed_cores()),
        "isa": choose_isa()[0],
        "load_before": round(os.getloadavg()[0], 2),
    }


def print_serving(table: Table, flags: Flags) -> None:
    """The table of a server's figures, as vLLM prints it."""
    click.echo(f"{' Serving Benchmark Result ':=^{WIDTH}}")
    for key, words in COUNTS:
        if table.get(key) is not None:
            _line(words, table[key])
    shown = shown_of(flags)
    for name, words in METRICS.items():
        if name not in shown:
            continue
        click.echo(f"{' ' + words + ' ':-^{WIDTH}}")
        short = SHORT.get(name, name.upper())
        for kind, key in (("Mean", f"mean_{name}_ms"), ("Median", f"median_{name}_ms")):
            _line(f"{kind} {short} (ms)", table[key])
        for at in percentiles_of(flags):
            _line(f"P{at:g} {short} (ms)", table[f"p{at:g}_{name}_ms"])
    click.echo("=" * WIDTH)


def _line(words: str, value: object) -> None:
    text = "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
    click.echo(f"{words + ':':<42}{text:>{WIDTH - 42}}")


def each(timings: Sequence[Timing]) -> dict[str, object]:
    """The two of each request's figures that every result has: seconds from sending to the end, and before sending."""
    return {
        "latencies": [timing.e2el if timing.pieces else None for timing in timings],
        "queue_times": [timing.queued for timing in timings],
    }


def detailed(timings: Sequence[Timing]) -> dict[str, object]:
    """The rest of each request's own figures, by vLLM's keys. A time that a failed request does not have is None."""
    return {
        "input_lens": [timing.input_tokens for timing in timings],
        "output_lens": [timing.output_tokens for timing in timings],
        "ttfts": [timing.ttft if timing.pieces else None for timing in timings],
        "itls": [timing.itl for timing in timings],
        "generated_texts": [timing.text for timing in timings],
        "errors": [timing.error or "" for timing in timings],
        "start_times": [timing.sent for timing in timings],
    }


def result_folder(flags: Flags) -> Path | None:
    """The folder that a result is to be kept in, made if need be; None if none is to be kept."""
    if not (flags["save_result"] or flags["append_result"] or flags["save_detailed"]):
        return None
    folder = flags["result_dir"]
    assert isinstance(folder, Path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"--result-dir {folder} cannot be made: {error.strerror}.") from error
    return folder


def keep_serving(table: Table, flags: Flags, timings: Sequence[Timing], metadata: Mapping[str, str]) -> None:
    """The result as a file, where --save-result or --append-result ask for it."""
    folder = result_folder(flags)
    if folder is None:
        return
    whole = {**table, **metadata, **each(timings)}
    if flags["save_detailed"]:
        whole |= detailed(timings)
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = str(flags["result_filename"] or f"pelton-{str(table['model_id']).rpartition('/')[2]}-{now}.json")
    write_json(folder / name, whole, append=bool(flags["append_result"]))


def write_json(file: Path, table: Table, *, append: bool = False) -> None:
    """One JSON value; with `append` one more line."""
    with file.open("a" if append else "w", encoding="utf-8") as out:
        out.write(json.dumps(table, allow_nan=False) + "\n")
    click.echo(f"kept in {file}", err=True)
