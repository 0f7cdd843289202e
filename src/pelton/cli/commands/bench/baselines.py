"""`pelton bench baselines`: what continuous batching, pages and the cache are worth on this machine, beside how it was
done without them.
"""

from pathlib import Path

import click
from tqdm import tqdm

from pelton.cli.commands.bench.options import AT_LEAST_1, OUTPUT_OPTION, check_output
from pelton.cli.commands.bench.results import machine, write_json
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
from pelton.cli.terminal import Status, say_notes, table_lines
from pelton.core.clock import SystemClock
from pelton.core.config import BLOCK_TOKENS, EngineConfig, resolve
from pelton.core.errors import SettingError
from pelton.engine.build import EngineParts, build_engine
from pelton.measure.bench.driven.baselines import (
    Way,
    continuous,
    mixed_lengths,
    requests_of,
    reserved,
    static,
    uncached,
)

ROWS, LONGEST, FEW = 16, 2048, 4
HEADER = ("", "tok/s out", "of it", "at once", "waste of KV memory")
NOTE = "all ways drew the same tokens"


@click.command("baselines")
@model_options
@click.option("--num-prompts", type=AT_LEAST_1, default=64, show_default=True, help="How many requests.")
@click.option("--workload-seed", type=int, default=0, show_default=True, help="Of lengths and prompts.")
@click.option("--disable-tqdm", is_flag=True, help="Without a progress bar.")
@OUTPUT_OPTION
@engine_options
@debug_option
def baselines_command(model: str | None, model_flag: str | None, **flags: object) -> None:
    """Measure what continuous batching, paged memory and the cache of keys and values are worth here.

    Requests of mixed lengths on one engine with memory for about as many as run at once: as Pelton serves them; in
    batches that end together; with memory for the longest possible request reserved for each; and, a few of them,
    without any cache. The last column is the share of the memory held for requests in which no token stands.
    """
    reference = choose_model(model, model_flag)
    check_output(flags["output_json"])
    before, seed = machine(), int(str(flags["workload_seed"]))
    config = _config(str(fetched(reference, fetch_section(flags))), flags, seed)
    with Status("loading the model ...") as status:
        parts = build_engine(config)
    try:
        say_notes(dict.fromkeys((*status.warnings, *parts.notes)))
        found = _ways(parts, int(str(flags["num_prompts"])), seed, quiet=bool(flags["disable_tqdm"]))
    finally:
        parts.close()
    click.echo("\n".join(table_lines(_rows(found))))
    click.echo(NOTE)
    if isinstance(flags["output_json"], Path):
        table = {name: dict(way.figures()) for name, way in found.items()}
        write_json(flags["output_json"], {"ways": table, "model_id": reference, "client": before})


def _config(path: str, flags: Flags, seed: int) -> EngineConfig:
    """Memory for as many requests of mean length as run at once, unless the flags say otherwise."""
    settings = {name: value for name, value in engine_settings(flags).items() if name != "revision"}
    rows = int(str(settings.setdefault("max_num_seqs", ROWS)))
    settings.setdefault("max_model_len", LONGEST)
    if not {"num_blocks", "kv_cache_memory_bytes"} & settings.keys():
        lengths = mixed_lengths(1000, seed, LONGEST)
        mean = sum(one.prompt + one.answer for one in lengths) / len(lengths)
        longest = settings["max_model_len"]
        least = -(-longest // BLOCK_TOKENS) if isinstance(longest, int) else LONGEST // BLOCK_TOKENS
        settings["num_blocks"] = max(least, round(rows * mean / BLOCK_TOKENS))
    try:
        return resolve(path, settings)
    except SettingError as error:
        raise click.UsageError(explain(error)) from error


def _ways(parts: EngineParts, count: int, seed: int, *, quiet: bool) -> dict[str, Way]:
    """Each way by its name; AssertionError where one drew other tokens."""
    engine, clock = parts.engine, SystemClock()
    longest, places = parts.limits.max_len, parts.report.kv_tokens
    requests = requests_of(mixed_lengths(count, seed, longest), parts.limits.vocab, seed)
    few = requests[:FEW]
    continuous(engine, few, clock)  # what is touched for the first time is slow, and no part of any way
    plays = {
        "as Pelton does it": lambda: continuous(engine, requests, clock),
        "static batches": lambda: static(engine, requests, clock),
        f"{longest} tokens reserved for each": lambda: reserved(engine, requests, clock, places, longest),
        f"the first {len(few)}, as Pelton does it": lambda: continuous(engine, few, clock),
        f"the first {len(few)}, without a cache": lambda: uncached(engine, few, clock),
    }
    found = {name: play() for name, play in tqdm(plays.items(), unit="way", disable=quiet)}
    whole = next(iter(found.values())).tokens
    for name, way in found.items():
        assert all(tokens == whole[request_id] for request_id, tokens in way.tokens.items()), f"{name}: other tokens"
    return found


def _rows(found: dict[str, Way]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [HEADER]
    first = 0.0
    for name, way in found.items():
        figures = way.figures()
        rate = figures["output_tokens_per_second"]
        if name.endswith("as Pelton does it"):
            first = rate
        waste = f"{figures['kv_waste_percent']:.1f} %" if way.held else "-"
        rows.append((name, f"{rate:.1f}", f"{rate / first:.2f}", f"{figures['mean_running']:.1f}", waste))
    return rows
