"""Flags of the bench commands: what is asked, and where results go. It measures nothing."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

import click

from pelton.cli.options import Flags
from pelton.measure.bench import WORKLOADS
from pelton.measure.bench.figures import parse_goals
from pelton.measure.bench.workload import Sample, TokenIds, WorkloadOptions

F = TypeVar("F", bound=Callable[..., object])
AT_LEAST_1, AT_LEAST_0 = click.IntRange(min=1), click.IntRange(min=0)


def stacked(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, shown in this order."""

    def add(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return add


WORKLOAD_OPTIONS = stacked(
    click.option(
        "--dataset-name",
        "--workload",
        "workload",
        type=click.Choice(list(WORKLOADS)),
        default="random",
        show_default=True,
        help="What is asked; chat, ide, rag, agent and batch are built from --data.",
    ),
    click.option(
        "--data",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        envvar="PELTON_TEST_DATA",
        help="Folder of the public data sets that workloads are built from.",
    ),
    click.option(
        "--dataset-path",
        type=click.Path(path_type=Path),
        help="File of the custom workload: JSON lines, or FILE#NAME for one list of a JSON table.",
    ),
    click.option("--num-prompts", type=AT_LEAST_1, default=100, show_default=True, help="How many requests."),
    click.option("--input-len", "--random-input-len", "input_len", type=AT_LEAST_1, help="Tokens of a prompt."),
    click.option("--output-len", "--random-output-len", "output_len", type=AT_LEAST_1, help="Tokens of an answer."),
    click.option(
        "--prefix-len",
        "--random-prefix-len",
        "prefix_len",
        type=AT_LEAST_0,
        default=0,
        help="Tokens that all prompts have in common.",
    ),
    click.option("--workload-seed", type=int, default=0, show_default=True, help="Of the choice of prompts, moments."),
    click.option("--disable-tqdm", is_flag=True, help="Without a progress bar."),
)

RESULT_OPTIONS = stacked(
    click.option(
        "--percentile-metrics", default="ttft,tpot,itl,e2el", show_default=True, help="What percentiles are shown of."
    ),
    click.option("--metric-percentiles", default="99", show_default=True, help="Which ones, such as 50,90,99."),
    click.option("--goodput", multiple=True, metavar="NAME:MS", help="A goal; further ones may follow as words."),
    click.option("--price-per-hour", type=float, help="What the machine costs; gives the cost per million tokens."),
    click.option("--save-result", is_flag=True, help="Keep the result as a JSON file."),
    click.option("--save-detailed", is_flag=True, help="With each request's times and text."),
    click.option("--append-result", is_flag=True, help="As a further line of the file."),
    click.option("--result-dir", type=click.Path(path_type=Path), default=Path(), help="Where [here]."),
    click.option("--result-filename", help="Under which name [made from date and model]."),
    click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Joined to the result; several times."),
    click.option("--label", help="Names the run in the result."),
)
OUTPUT_OPTION = click.option(
    "--output-json", type=click.Path(dir_okay=False, path_type=Path), help="Keep the result in this file."
)


def samples_of(flags: Flags, encode: Callable[[str], TokenIds] | None, count: int) -> list[Sample]:
    """The samples that the flags of WORKLOAD_OPTIONS ask for."""
    return WORKLOADS.get(str(flags["workload"]))().samples(workload_options(flags, encode, count))


def workload_options(flags: Flags, encode: Callable[[str], TokenIds] | None, count: int) -> WorkloadOptions:
    """The same flags as a workload takes them; those a command does not have are at rest."""

    def number(name: str) -> int | None:
        value = flags.get(name)
        return value if isinstance(value, int) else None

    def path(name: str) -> Path | None:
        value = flags.get(name)
        return value if isinstance(value, Path) else None

    return WorkloadOptions(
        count=count,
        data=path("data"),
        path=path("dataset_path"),
        input_len=number("input_len"),
        output_len=number("output_len"),
        prefix_len=number("prefix_len") or 0,
        encode=encode,
        random=Random(number("workload_seed") or 0),
    )


def goals_of(words: object) -> dict[str, float]:
    """The goals; a usage error for a word that is none."""
    assert isinstance(words, list)
    try:
        return parse_goals([part for word in words for part in str(word).split()])
    except ValueError as error:
        raise click.UsageError(f"--goodput: {error}") from error


def percentiles_of(flags: Flags) -> list[float]:
    """The numbers of --metric-percentiles; a usage error for what is none."""
    try:
        found = [float(word) for word in str(flags["metric_percentiles"]).split(",")]
    except ValueError as error:
        raise click.UsageError("--metric-percentiles must be numbers such as 50,90,99.") from error
    if not all(0 <= one <= 100 for one in found):
        raise click.UsageError("--metric-percentiles must lie between 0 and 100.")
    return found
