"""`pelton bench sweep`: first and next tokens against the size of steps and the number of requests at once."""

import json
from collections.abc import Sequence
from pathlib import Path

import click
from tqdm import tqdm

from pelton.cli.bars import bar
from pelton.cli.commands.bench.options import AT_LEAST_1, OUTPUT_OPTION, check_output
from pelton.cli.commands.bench.results import machine
from pelton.cli.fetching import fetch_section, fetched
from pelton.cli.options import (
    Flags,
    choose_model,
    debug_option,
    engine_options,
    engine_settings,
    explain,
    model_options,
)
from pelton.cli.terminal import Status, say, say_notes, table_lines
from pelton.core.clock import SystemClock
from pelton.core.config import MOST_SEQS, MOST_TOKENS, EngineConfig, resolve
from pelton.core.errors import SettingError
from pelton.engine.build import build_engine
from pelton.measure.bench.driven.sweep import Cell, Table, Traffic, on_front, run_cell

CHUNKS, AT_ONCE = (64, 128, 256, 512, 1024), (1, 8, 32)
HEADER = ("step", "at once", "TTFT p50", "p99", "ITL p50", "p99", "tok/s out", "preempted", "front")
SWEPT = {"max_num_batched_tokens": "--chunk-sizes", "max_num_seqs": "--concurrency", "itl_target_ms": "--chunk-sizes"}
FRONT = "*"
BAR_WIDTH = 4  # columns of one size of steps


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers from 1 to `most` with commas between, each told once, the smallest first. `default`: an example."""

    name = "numbers"

    def __init__(self, most: int, default: tuple[int, ...]) -> None:
        self._most = most
        self._like = ",".join(map(str, default))

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        for word in str(value).split(","):
            # A number of so many digits is none that could be meant.
            if not word.strip().isdecimal() or len(word) > 20 or not 0 < int(word) <= self._most:
                asked = f"a list of whole numbers from 1 to {self._most}, such as {self._like}"
                self.fail(f"{word.strip()!r} cannot be in it; it is {asked}.", param, ctx)
        return tuple(sorted({int(word) for word in str(value).split(",")}))


@click.command("sweep")
@model_options
@click.option(
    "--chunk-sizes", type=Numbers(MOST_TOKENS, CHUNKS), default=CHUNKS, help="Tokens of a step [64,128,256,512,1024]."
)
@click.option(
    "--concurrency", type=Numbers(MOST_SEQS, AT_ONCE), default=AT_ONCE, help="Requests under way at once [1,8,32]."
)
@click.option("--input-len", type=AT_LEAST_1, default=512, show_default=True, help="Tokens of a prompt.")
@click.option("--output-len", type=AT_LEAST_1, default=64, show_default=True, help="Tokens of an answer.")
@click.option("--num-prompts", type=AT_LEAST_1, help="Requests of a cell [twice as many as are under way, 8 at least].")
@click.option("--workload-seed", type=int, default=0, show_default=True, help="Of the random prompts.")
@click.option("--disable-tqdm", is_flag=True, help="Without a progress bar.")
@OUTPUT_OPTION
@engine_options
@debug_option
def sweep_command(model: str | None, model_flag: str | None, **flags: object) -> None:
    """Measure waits for first and next tokens against the size of steps and the number of requests at once.

    The engine runs in this process, without a server. Of as many requests at once, a star marks the sizes of steps
    that no other beats in both: 99th percentiles of the time to the first token and between tokens.
    """
    reference = choose_model(model, model_flag)
    check_output(flags["output_json"])
    chunks, at_once = _numbers(flags["chunk_sizes"]), _numbers(flags["concurrency"])
    cells = [Cell(chunk, count) for count in at_once for chunk in chunks if chunk >= count]
    if not cells:
        raise click.UsageError(
            f"--chunk-sizes {max(chunks)} has no room for --concurrency {min(at_once)}: each request needs a token of "
            "a step."
        )
    small = sorted({chunk for chunk in chunks if chunk < max(at_once)})
    if small:
        say_notes([f"steps of {', '.join(map(str, small))} tokens are left out where more requests are under way"])
    before = machine()
    config = _config(str(fetched(reference, fetch_section(flags))), flags, chunks, at_once)
    with Status("loading the model ...") as status:
        parts = build_engine(config)
    try:
        say_notes(dict.fromkeys((*status.warnings, *parts.notes)))
        for line in parts.report.lines() if flags["verbose"] else ():
            say(line, dim=True)
        length, output = int(str(flags["input_len"])), int(str(flags["output_len"]))
        if length + output > parts.limits.max_len:
            raise click.UsageError(
                f"--input-len {length} and --output-len {output} are more than the model's {parts.limits.max_len}."
            )
        seed, vocab, clock = int(str(flags["workload_seed"])), parts.limits.vocab, SystemClock()
        # What is touched for the first time is slow, and no part of any cell.
        run_cell(parts.engine, Cell(max(chunks), 1), Traffic(1, length, min(output, 4), vocab, seed + 1), clock)
        rows = []
        for cell in tqdm(cells, unit="cell", disable=bool(flags["disable_tqdm"])):
            count = int(str(flags["num_prompts"] or max(8, 2 * cell.concurrency)))
            rows.append(run_cell(parts.engine, cell, Traffic(count, length, output, vocab, seed), clock))
    finally:
        parts.close()
    fronts = on_front(rows)
    click.echo("\n".join((*_lines(rows, fronts), "", *_drawn(rows))))
    _keep(flags, [{**row, "pareto": front} for row, front in zip(rows, fronts, strict=True)], reference, before)


def _config(path: str, flags: Flags, chunks: Sequence[int], at_once: Sequence[int]) -> EngineConfig:
    """An engine with room for the largest cell; a usage error for flags whose values are swept, or cannot work."""
    for name, flag in SWEPT.items():
        if flags.get(name) is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} is what is swept here. Give it as {flag}.")
    settings = {name: value for name, value in engine_settings(flags).items() if name != "revision"}
    try:
        return resolve(path, {**settings, "max_num_batched_tokens": max(chunks), "max_num_seqs": max(at_once)})
    except SettingError as error:
        raise click.UsageError(explain(error)) from error


def _numbers(value: object) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return value


def _lines(rows: Sequence[Table], fronts: Sequence[bool]) -> list[str]:
    """The table; times in milliseconds."""
    shown: list[tuple[str, ...]] = [HEADER]
    for row, front in zip(rows, fronts, strict=True):
        times = (row[f"p{at}_{name}_ms"] for name in ("ttft", "itl") for at in (50, 99))
        counts = (str(row["max_num_batched_tokens"]), str(row["max_concurrency"]))
        rate, preempted = f"{float(str(row['output_throughput'])):.0f}", str(row["preemptions"])
        shown.append((*counts, *map(_ms, times), rate, preempted, FRONT if front else ""))
    return table_lines(shown, left=0)


def _drawn(rows: Sequence[Table]) -> list[str]:
    """For each number at once two bars, from nothing to their largest value, with a block for each size of steps."""
    sizes = dict.fromkeys(str(row["max_num_batched_tokens"]) for row in rows)
    shown = [("at once", "TTFT p99", "", "ITL p99", "")]
    for count in dict.fromkeys(row["max_concurrency"] for row in rows):
        cells = [str(count)]
        for name in ("p99_ttft_ms", "p99_itl_ms"):
            # Smaller steps than are under way have no row: they stand on the left.
            values = [float(str(row[name] or 0.0)) for row in rows if row["max_concurrency"] == count]
            values = [0.0] * (len(sizes) - len(values)) + values
            drawn = bar([value for value in values for _ in range(BAR_WIDTH)])
            cells += [f"|{drawn}|", f"0 to {_ms(max(values))}"]
        shown.append((cells[0], cells[1], cells[2], cells[3], cells[4]))
    return [*table_lines(shown, left=5), f"in each bar steps of {', '.join(sizes)} tokens, times in ms"]


def _ms(value: object) -> str:
    return "-" if value is None else f"{float(str(value)):.1f}"


def _keep(flags: Flags, rows: Sequence[Table], model: str, before: dict[str, object]) -> None:
    """A JSON line for each cell."""
    file = flags["output_json"]
    if not isinstance(file, Path):
        return
    asked = {name: flags[name] for name in ("input_len", "output_len", "workload_seed")}
    lines = [json.dumps({**row, **asked, "model_id": model, "client": before}, allow_nan=False) for row in rows]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    click.echo(f"kept in {file}", err=True)
