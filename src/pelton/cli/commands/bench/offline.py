"""`pelton bench latency` and `pelton bench throughput`: a model in this process, without a server."""

from pathlib import Path

import click
from tqdm import tqdm

from pelton.cli.commands.bench.options import (
    AT_LEAST_0,
    AT_LEAST_1,
    OUTPUT_OPTION,
    WORKLOAD_OPTIONS,
    Positive,
    check_output,
    check_workload,
    workload_options,
)
from pelton.cli.commands.bench.options import samples_of as workload_samples
from pelton.cli.commands.bench.probing import PROBE_OPTION, machine_probe, say_run, say_share
from pelton.cli.commands.bench.results import machine, write_json
from pelton.cli.loading import load
from pelton.cli.options import Flags, choose_model, debug_option, engine_options, model_options
from pelton.cli.terminal import say_notes
from pelton.core.clock import SystemClock
from pelton.core.errors import RequestError
from pelton.engine.llm import LLM, work_done
from pelton.measure.bench.figures import MILLION
from pelton.measure.bench.host import host_line
from pelton.measure.bench.limits import decode_part, machine_part, run_part
from pelton.measure.bench.offline import Answers, Iterations, latency, throughput
from pelton.measure.bench.reuse import reuse_note
from pelton.measure.bench.words import random_tokens
from pelton.measure.bench.workload import Sample, TokenIds

INPUT_LEN, OUTPUT_LEN = 32, 128
DETOKENIZE_OPTION = click.option("--disable-detokenize", is_flag=True, help="Make no text of the answers.")
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
@click.option("--num-iters", type=AT_LEAST_1, default=10, show_default=True, help="How often it is measured.")
@click.option(
    "--num-iters-warmup", type=AT_LEAST_0, default=2, show_default=True, help="How often before, without counting."
)
@click.option("--disable-tqdm", is_flag=True, help="Without a progress bar.")
@DETOKENIZE_OPTION
@PROBE_OPTION
@OUTPUT_OPTION
@engine_options
@debug_option
def latency_command(model: str | None, model_flag: str | None, **flags: object) -> None:
    """Measure how long one batch of prompts takes, from handing it over to its last token."""
    reference = choose_model(model, model_flag)
    check_output(flags["output_json"])
    batch, n = int(str(flags["batch_size"])), int(str(flags["n"]))
    before = machine()
    with load(reference, {**flags, "max_num_seqs": _given(flags["max_num_seqs"], batch * n)}) as llm:
        options = workload_options(flags, _encoder(llm), batch)
        length, output = int(str(flags["input_len"])), int(str(flags["output_len"]))
        most = llm.report.max_model_len
        if length + output > most:
            raise click.UsageError(f"--input-len {length} and --output-len {output} are more than the model's {most}.")
        samples = [Sample(output, prompt=random_tokens(options, length)) for _ in range(batch)]
        figures = machine_probe(flags, _threads(flags), before["load_before"])
        warmups, iterations = int(str(flags["num_iters_warmup"])), int(str(flags["num_iters"]))
        with tqdm(total=warmups + iterations, unit="iter", disable=bool(flags["disable_tqdm"])) as bar:
            often = Iterations(iterations, warmups)
            table = latency(llm, samples, _answers(flags), often, SystemClock(), bar.update)
        table["probe"] = None
        if figures is not None:
            decode = decode_part(llm, random_tokens(options, length), SystemClock())
            table["probe"] = {**machine_part(figures), "decode": decode}
    click.echo(f"Avg latency: {table['avg_latency']} seconds")
    click.echo(f"Std latency: {table['std_latency']} seconds")
    percentiles = table["percentiles"]
    assert isinstance(percentiles, dict)
    for at, seconds in percentiles.items():
        click.echo(f"{at}% percentile latency: {seconds} seconds")
    _say_host(table["host"])
    if isinstance(table["probe"], dict):
        say_share(table["probe"]["decode"])
    _keep(flags, {**table, "model_id": reference, "client": before})


@click.command("throughput")
@model_options
@WORKLOAD_OPTIONS
@click.option("--n", type=AT_LEAST_1, default=1, show_default=True, help="Answers to each prompt.")
@click.option("--price-per-hour", type=Positive(zero=True), help="What the machine costs; gives costs of tokens.")
@DETOKENIZE_OPTION
@PROBE_OPTION
@OUTPUT_OPTION
@engine_options
@debug_option
def throughput_command(model: str | None, model_flag: str | None, **flags: object) -> None:
    """Measure how many tokens per second a model computes when all requests are there at once.

    Of conversations (agent, chat) all first turns are there at once, then all second ones, and so on.
    """
    reference = choose_model(model, model_flag)
    check_output(flags["output_json"])
    check_workload(flags)
    before = machine()
    with load(reference, {**flags, "max_num_seqs": _given(flags["max_num_seqs"], THROUGHPUT_SEQS)}) as llm:
        samples = workload_samples(flags, _encoder(llm), int(str(flags["num_prompts"])))
        figures = machine_probe(flags, _threads(flags), before["load_before"])
        work = work_done(llm)
        try:
            table = throughput(llm, samples, _answers(flags), SystemClock(), progress=not flags["disable_tqdm"])
        except RequestError as error:
            raise RequestError(f"--workload {flags['workload']}: {error.cause}", error.remedy) from error
        table["probe"] = None
        if figures is not None:
            table["probe"] = run_part(figures, work, work_done(llm), float(str(table["elapsed_time"])))
    click.echo(
        f"Throughput: {table['requests_per_second']:.2f} requests/s, {table['tokens_per_second']:.2f} total tokens/s, "
        f"{table['output_tokens_per_second']:.2f} output tokens/s"
    )
    _say_host(table["host"])
    click.echo(f"Total num prompt tokens:  {table['total_input_tokens']}")
    click.echo(f"Total num output tokens:  {table['total_output_tokens']}")
    say_run(table["probe"])
    note = reuse_note(samples, int(str(table["total_cached_tokens"])), int(str(table["total_input_tokens"])))
    say_notes([note] if note else [])
    price = flags["price_per_hour"]
    if isinstance(price, float) and table["total_output_tokens"]:
        table["cost_per_million_output_tokens"] = price / 3600 / float(str(table["output_tokens_per_second"])) * MILLION
        click.echo(f"Cost per million output tokens: {table['cost_per_million_output_tokens']:.4f}")
    _keep(flags, {**table, "model_id": reference, "client": before})


def _threads(flags: Flags) -> int:
    return int(str(flags["threads"] or 0))


def _given(value: object, otherwise: int) -> object:
    return otherwise if value is None else value


def _answers(flags: Flags) -> Answers:
    return Answers(int(str(flags["n"])), not flags["disable_detokenize"])


def _keep(flags: Flags, table: dict[str, object]) -> None:
    file = flags["output_json"]
    if isinstance(file, Path):
        write_json(file, table)


def _say_host(figures: object) -> None:
    assert isinstance(figures, dict)
    click.echo(host_line(figures))
