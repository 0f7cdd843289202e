"""`pelton bench latency` and `pelton bench throughput`: a model in this process, without a server."""

from pathlib import Path

import click
from tqdm import tqdm

from pelton.cli.commands.bench.options import (
    AT_LEAST_0,
    AT_LEAST_1,
    OUTPUT_OPTION,
    WORKLOAD_OPTIONS,
    workload_options,
)
from pelton.cli.commands.bench.options import samples_of as workload_samples
from pelton.cli.commands.bench.results import machine, write_json
from pelton.cli.loading import load
from pelton.cli.options import Flags, choose_model, debug_option, engine_options, model_options
from pelton.core.clock import SystemClock
from pelton.engine.llm import LLM
from pelton.measure.bench.figures import MILLION
from pelton.measure.bench.offline import latency, throughput
from pelton.measure.bench.words import random_tokens
from pelton.measure.bench.workload import Sample, TokenIds

INPUT_LEN, OUTPUT_LEN = 32, 128
THROUGHPUT_SEQS = 32


def _encoder(llm: LLM):  # type: ignore[no-untyped-def]
    tokenizer = llm.get_tokenizer()

    def encode(text: str) -> TokenIds:
        return tuple(tokenizer.encode(text))

    return encode


@click.command("latency")
@model_options
@click.option("--input-len", type=AT_LEAST_1, default=INPUT_LEN, show_default=True, help="Tokens of a prompt.")
@click.option("--output-len", type=AT_LEAST_1, default=OUTPUT_LEN, show_default=True, help="Tokens of an answer.")
@click.option("--batch-size", type=AT_LEAST_1, default=8, show_default=True, help="Prompts handed over together.")
@click.option("--n", type=AT_LEAST_1, default=1, show_default=True, help="Answers to each prompt.")
@click.option("--num-iters", type=AT_LEAST_1, default=10, show_default=True)
@click.option("--num-iters-warmup", type=AT_LEAST_0, default=2, show_default=True)
@click.option("--disable-tqdm", is_flag=True, help="Without a progress bar.")
@OUTPUT_OPTION
@engine_options
@debug_option
def latency_command(model: str | None, model_flag: str | None, **flags: object) -> None:
    """Measure how long one batch of prompts takes, from handing it over to its last token."""
    reference = choose_model(model, model_flag)
    batch, n = int(str(flags["batch_size"])), int(str(flags["n"]))
    before = machine()
    with load(reference, {**flags, "max_num_seqs": flags["max_num_seqs"] or batch * n}) as llm:
        options = workload_options(flags, _encoder(llm), batch)
        length, output = int(str(flags["input_len"])), int(str(flags["output_len"]))
        samples = [Sample(output, prompt=random_tokens(options, length)) for _ in range(batch)]
        warmups, iterations = int(str(flags["num_iters_warmup"])), int(str(flags["num_iters"]))
        with tqdm(total=warmups + iterations, unit="iter", disable=bool(flags["disable_tqdm"])) as bar:
            table = latency(llm, samples, n, warmups, iterations, SystemClock(), bar.update)
    click.echo(f"Avg latency: {table['avg_latency']} seconds")
    percentiles = table["percentiles"]
    assert isinstance(percentiles, dict)
    for at, seconds in percentiles.items():
        click.echo(f"{at}% percentile latency: {seconds} seconds")
    _keep(flags, {**table, "model_id": reference, "client": before})


@click.command("throughput")
@model_options
@WORKLOAD_OPTIONS
@click.option("--n", type=AT_LEAST_1, default=1, show_default=True, help="Answers to each prompt.")
@click.option("--price-per-hour", type=float, help="What the machine costs; gives the cost per million tokens.")
@OUTPUT_OPTION
@engine_options
@debug_option
def throughput_command(model: str | None, model_flag: str | None, **flags: object) -> None:
    """Measure how many tokens per second a model computes when all requests are there at once."""
    reference = choose_model(model, model_flag)
    before = machine()
    with load(reference, {**flags, "max_num_seqs": flags["max_num_seqs"] or THROUGHPUT_SEQS}) as llm:
        samples = workload_samples(flags, _encoder(llm), int(str(flags["num_prompts"])))
        table = throughput(llm, samples, int(str(flags["n"])), SystemClock(), progress=not flags["disable_tqdm"])
    click.echo(
        f"Throughput: {table['requests_per_second']:.2f} requests/s, {table['tokens_per_second']:.2f} total tokens/s, "
        f"{table['output_tokens_per_second']:.2f} output tokens/s"
    )
    click.echo(f"Total num prompt tokens:  {table['total_input_tokens']}")
    click.echo(f"Total num output tokens:  {table['total_output_tokens']}")
    price = flags["price_per_hour"]
    if isinstance(price, float):
        table["cost_per_million_output_tokens"] = price / 3600 / float(str(table["output_tokens_per_second"])) * MILLION
        click.echo(f"Cost per million output tokens: {table['cost_per_million_output_tokens']:.4f}")
    _keep(flags, {**table, "model_id": reference, "client": before})


def _keep(flags: Flags, table: dict[str, object]) -> None:
    file = flags["output_json"]
    if isinstance(file, Path):
        write_json(file, table)
