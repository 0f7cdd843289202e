"""`pelton bench startup`: fresh processes, from their beginning to the first token."""

from pathlib import Path

import click
from tqdm import tqdm

from pelton.cli.commands.bench.options import AT_LEAST_0, AT_LEAST_1, OUTPUT_OPTION, check_output
from pelton.cli.commands.bench.probing import PROBE_OPTION, machine_probe
from pelton.cli.commands.bench.results import machine, write_json
from pelton.cli.fetching import fetch_section, fetched
from pelton.cli.options import choose_model, debug_option, fetch_options, model_options
from pelton.core.clock import SystemClock
from pelton.core.words.sizes import size_text
from pelton.measure.bench.limits import start_part
from pelton.measure.bench.startup import Starts, startup


@click.command("startup")
@model_options
@click.option("--num-iters-cold", type=AT_LEAST_0, default=3, show_default=True, help="Starts with an empty cache.")
@click.option(
    "--num-iters-warmup",
    type=AT_LEAST_0,
    default=1,
    show_default=True,
    help="Starts that fill the cache and do not count.",
)
@click.option(
    "--num-iters-warm", type=AT_LEAST_1, default=3, show_default=True, help="Starts with a cache that is there."
)
@click.option("--disable-tqdm", is_flag=True, help="Without a progress bar.")
@PROBE_OPTION
@OUTPUT_OPTION
@fetch_options
@debug_option
def startup_command(model: str | None, model_flag: str | None, **flags: object) -> None:
    """Measure the time from the start of a process to its first token, and its peak memory.

    Cold starts have no cache of derived files (such as a tokenizer made from a .gguf file). The weights are in the
    system's cache of files in both cases.
    """
    reference = choose_model(model, model_flag)
    check_output(flags["output_json"])
    path = fetched(reference, fetch_section(flags))
    cold, warm, warmups = (int(str(flags[f"num_iters_{kind}"])) for kind in ("cold", "warm", "warmup"))
    starts = Starts(cold, warm, warmups)
    before = machine()
    figures = machine_probe(flags, load_before=before["load_before"])
    with tqdm(total=starts.all, unit="start", disable=bool(flags["disable_tqdm"])) as bar:
        table = startup(str(path), starts, SystemClock(), bar.update)
    for kind in ("cold", "warm"):
        if table[f"avg_{kind}_startup_time"] is not None:
            times = ", ".join(f"{seconds:.2f}" for seconds in table[f"{kind}_startup_times"])  # type: ignore[attr-defined]
            click.echo(f"Avg {kind} startup time: {table[f'avg_{kind}_startup_time']:.3f} seconds ({times})")
    click.echo(f"Peak resident memory: {size_text(int(str(table['peak_resident_bytes'])))}")
    table["probe"] = None if figures is None else start_part(figures)
    file = flags["output_json"]
    if isinstance(file, Path):
        write_json(file, {**table, "model_id": reference, "client": before})
