"""Flags of the bench commands: what is asked, and where results go. It measures nothing."""

import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

import click

from pelton.cli.options import Flags
from pelton.core.environment import variable
from pelton.core.errors import SettingError
from pelton.measure.bench import WORKLOADS
from pelton.measure.bench.figures import METRICS, parse_goals
from pelton.measure.bench.workload import Sample, TokenIds, WorkloadOptions

F = TypeVar("F", bound=Callable[..., object])
AT_LEAST_1, AT_LEAST_0 = click.IntRange(min=1), click.IntRange(min=0)
DATA = "PELTON_BENCH_DATA"
INPUT_HELP = "Tokens of a prompt [random: 1024; prefix_repetition: 64 behind the prefix; the others have their own]."
OUTPUT_HELP = (
    "Tokens of an answer [random, batch: 128; prefix_repetition, rag: 64; agent: 48; ide: 24; chat: as real ones were; "
    "custom: the file's output_len, else 128]."
)


class Positive(click.FloatRange):
    """A number above 0 (from 0 on with `zero`); inf only where that means something, nan nowhere."""

    def __init__(self, *, zero: bool = False, infinite: bool = False) -> None:
        super().__init__(min=0, min_open=not zero)
        self._infinite = infinite

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))  # type: ignore[arg-type]
        if math.isnan(number) or (math.isinf(number) and not self._infinite):
            self.fail(f"{value} is no number that it can be.", param, ctx)
        return number


class WorkloadName(click.Choice[str]):
    """A workload; the error says what there is, and where one's own data goes."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.choices:
            known = ", ".join(self.choices)
            self.fail(
                f"there is no {value!r}. There are: {known}. Your own prompts: custom with --dataset-path FILE.",
                param,
                ctx,
            )
        return value


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
        type=WorkloadName(list(WORKLOADS)),
        default="random",
        show_default=True,
        help="What is asked; chat, ide, rag, agent and batch are built from --data.",
    ),
    click.option(
        "--data",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help=f"Folder of the public data sets that workloads are built from [the variable {DATA}].",
    ),
    click.option(
        "--dataset-path",
        type=click.Path(path_type=Path),
        help="File of the custom workload: JSON lines, or FILE#NAME for one list of a JSON table.",
    ),
    click.option("--num-prompts", type=AT_LEAST_1, default=100, show_default=True, help="How many requests."),
    click.option("--input-len", "--random-input-len", "input_len", type=AT_LEAST_1, help=INPUT_HELP),
    click.option("--output-len", "--random-output-len", "output_len", type=AT_LEAST_1, help=OUTPUT_HELP),
    click.option(
        "--prefix-len",
        "--random-prefix-len",
        "prefix_len",
        type=AT_LEAST_0,
        default=0,
        help="Tokens that all prompts have in common [random: 0; prefix_repetition: 1024, eight of them].",
    ),
    click.option(
        "--seed",
        "--workload-seed",
        "workload_seed",
        type=int,
        default=0,
        show_default=True,
        help="Of the choice of prompts and moments.",
    ),
    click.option("--disable-tqdm", is_flag=True, help="Without a progress bar."),
)

RESULT_OPTIONS = stacked(
    click.option(
        "--percentile-metrics",
        default="ttft,tpot,itl,e2el",
        show_default=True,
        help=f"What is shown, of {','.join(METRICS)}; the file has all.",
    ),
    click.option("--metric-percentiles", default="99", show_default=True, help="Which ones, such as 50,90,99."),
    click.option("--goodput", multiple=True, metavar="NAME:MS", help="A goal; further ones may follow as words."),
    click.option("--price-per-hour", type=Positive(zero=True), help="What the machine costs; gives costs of tokens."),
    click.option("--save-result", is_flag=True, help="Keep the result as a JSON file."),
    click.option("--save-detailed", is_flag=True, help="With each request's times and text."),
    click.option("--append-result", is_flag=True, help="As a further line of the file."),
    click.option(
        "--result-dir", type=click.Path(file_okay=False, path_type=Path), default=Path(), help="Where [here]."
    ),
    click.option("--result-filename", help="Under which name [made from date and model]."),
    click.option(
        "--metadata", multiple=True, metavar="KEY=VALUE", help="Joined to the result; further ones may follow."
    ),
    click.option("--label", help="Names the run in the result."),
)
OUTPUT_OPTION = click.option(
    "--output-json", type=click.Path(dir_okay=False, path_type=Path), help="Keep the result in this file."
)


def samples_of(flags: Flags, encode: Callable[[str], TokenIds] | None, count: int) -> list[Sample]:
    """The samples that the flags of WORKLOAD_OPTIONS ask for."""
    return WORKLOADS.get(str(flags["workload"]))().samples(workload_options(flags, encode, count))


def check_workload(flags: Flags) -> Sample:
    """One of the workload's samples, of a wrong length perhaps; a usage error where its files are not there.

    To be called before anything that takes time is done.
    """
    if flags.get("dataset_path") is not None and flags["workload"] != "custom":
        raise click.UsageError(
            f"--dataset-path {flags['dataset_path']} is the file of --workload custom, and --workload is "
            f"{flags['workload']}."
        )
    try:
        return samples_of(flags, lambda text: tuple(text.encode()), 1)[0]
    except SettingError as error:
        raise click.UsageError(str(error)) from error


def check_output(file: object) -> None:
    """A usage error where --output-json names a file in a folder that is not there."""
    if isinstance(file, Path) and not file.absolute().parent.is_dir():
        raise click.UsageError(f"--output-json {file}: there is no folder {file.parent}.")


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
        data=path("data") or _data_folder(),
        path=path("dataset_path"),
        input_len=number("input_len"),
        output_len=number("output_len"),
        prefix_len=number("prefix_len") or 0,
        encode=encode,
        random=Random(number("workload_seed") or 0),
    )


def _data_folder() -> Path | None:
    folder = variable(DATA)
    if folder and not Path(folder).is_dir():
        raise SettingError(f"{DATA}={folder!r} is no folder.", "Name the folder of data sets by --data.")
    return Path(folder) if folder else None


def goals_of(words: list[str]) -> dict[str, float]:
    """The goals; a usage error for a word that is none."""
    try:
        return parse_goals([part for word in words for part in word.split()])
    except ValueError as error:
        raise click.UsageError(f"--goodput: {error}") from error


def pairs_of(flag: str, words: list[str]) -> dict[str, str]:
    """Words KEY=VALUE as a table; a usage error for one that is none."""
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"{flag} {word!r} is no KEY=VALUE.")
        found[key.strip()] = value.strip()
    return found


def percentiles_of(flags: Flags) -> list[float]:
    """The numbers of --metric-percentiles; a usage error for what is none."""
    given = str(flags["metric_percentiles"])
    try:
        found = [float(word) for word in given.split(",")]
    except ValueError as error:
        raise click.UsageError(f"--metric-percentiles {given!r} must be numbers such as 50,90,99.") from error
    if not all(0 <= one <= 100 for one in found):
        raise click.UsageError(f"--metric-percentiles {given!r} must lie between 0 and 100.")
    return found


def shown_of(flags: Flags) -> list[str]:
    """The names of --percentile-metrics; a usage error for one that there is not."""
    names = [name.strip() for name in str(flags["percentile_metrics"]).split(",")]
    for name in names:
        if name not in METRICS:
            raise click.UsageError(f"--percentile-metrics {name!r} is none of {', '.join(METRICS)}.")
    return names
