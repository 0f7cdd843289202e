"""`pelton verify`: whether a model's answers stay the same to the bit, however the engine arrives at them."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from pelton.cli.fetching import fetched_config, shown_name
from pelton.cli.options import (
    ENGINE_HELP,
    FETCH_FLAGS,
    Choosing,
    Flags,
    choose_model,
    debug_option,
    explain,
    fetch_options,
    max_tokens_option,
    model_options,
    parse_length,
    wants_debug,
    written_size,
)
from pelton.cli.terminal import Failed, Status, decode_text, emit, say, say_notes, shows_progress
from pelton.core.config import ACTIVATIONS, DTYPES, LINEAR_FORMS, EngineConfig, resolve
from pelton.core.errors import CapacityError, CheckpointError, PeltonError, RequestError, SettingError
from pelton.engine.needs import check_names
from pelton.measure.verify.kept import Kept, facts_of
from pelton.measure.verify.report import Report
from pelton.measure.verify.start import Ready, start
from pelton.measure.verify.verify import Extent, dimensions, verify

MAX_TOKENS = 24
SCHEDULES = 50
FAILED = 1
SETTINGS = (
    "dtype",
    "backend",
    "threads",
    "tokenizer",
    "hf_overrides",
    "quantization",
    "linear_form",
    "activations",
    "max_model_len",
    "kv_codec",
    "kv_cache_memory_bytes",
    *FETCH_FLAGS,
)


def _finite(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no number of minutes.", ctx, param)
    return value


@click.command("verify")
@model_options
@click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE.jsonl",
    help='More prompts, one a line: {"prompt": ...}, {"messages": [...]} or {"prompt_token_ids": [...]}.',
)
@click.option(
    "--schedules",
    type=click.IntRange(min=1),
    help=f"How many schedules are run [{SCHEDULES}; with --minutes: as many as fit].",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    callback=_finite,
    help="Begin no schedule after so many minutes.",
)
@click.option(
    "--only",
    type=click.IntRange(min=0),
    metavar="K",
    help="Run schedule K alone, as a report named it; without --schedules and --minutes.",
)
@click.option(
    "--resume",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Keep what was found in FILE as it goes, and go on from there where it exists.",
)
@max_tokens_option(MAX_TOKENS, "Tokens of each answer.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Draws the schedules.")
@click.option("--dtype", type=click.Choice(DTYPES), help=ENGINE_HELP["dtype"])
@click.option("--backend", cls=Choosing, help=ENGINE_HELP["backend"])
@click.option("--threads", type=int, help=ENGINE_HELP["threads"])
@click.option("--tokenizer", help=ENGINE_HELP["tokenizer"])
@click.option("--hf-overrides", metavar="JSON", help=ENGINE_HELP["hf_overrides"])
@click.option("--quantization", cls=Choosing, help=ENGINE_HELP["quantization"])
@click.option("--linear-form", type=click.Choice(LINEAR_FORMS), help=ENGINE_HELP["linear_form"])
@click.option("--activations", type=click.Choice(ACTIVATIONS), help=ENGINE_HELP["activations"])
@click.option("--max-model-len", type=parse_length, metavar="INTEGER", help=ENGINE_HELP["max_model_len"])
@click.option("--kv-codec", cls=Choosing, help=ENGINE_HELP["kv_codec"])
@click.option(
    "--kv-cache-memory-bytes", type=written_size, metavar="SIZE", help="Memory for keys and values [what it takes]."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything that was found as one JSON object.")
@fetch_options
@debug_option
def verify_model(model: str | None, model_flag: str | None, as_json: bool, **flags: object) -> None:
    """Check that MODEL answers the same to the last bit in any company.

    Prompts are answered alone, in one piece and without a cache; then again among neighbours, in pieces of any size,
    with prefixes found in the cache or still being computed, preempted at random steps, and forked into several
    answers. Tokens, log-probabilities and reasons to finish are compared bit by bit. The exit code is 1 if one differs,
    or if something that was to be tried did not happen, and 2 where nothing could be compared.
    """
    with _undecided():
        report = _verified(choose_model(model, model_flag), flags, as_json)
    if not report.passed:
        raise click.exceptions.Exit(FAILED)


class Undecided(Failed):
    """Nothing could be compared."""

    exit_code = 2


@contextmanager
def _undecided() -> Iterator[None]:
    """What kept the answers from being compared must not look like answers that differ."""
    try:
        yield
    except PeltonError as error:
        if wants_debug(click.get_current_context()):
            raise
        raise Undecided(explain(error)) from error
    except Failed as error:
        raise Undecided(error.message) from error


def _verified(reference: str, flags: Flags, as_json: bool) -> Report:
    """The report, which is printed."""
    _check_folder(flags["resume"])
    extent, config = _extent(flags), _config(reference, flags)
    ready = _ready(config, flags)
    seed = _whole(flags["seed"])
    try:
        kept = _kept(flags, reference, seed, ready)
        if not shows_progress():
            say(f"verifying with the {ready.report.isa} kernels; the report comes at the end ...", dim=True)
        report = verify(ready.rig, ready.cases, extent, seed=seed, progress=shows_progress(), kept=kept)
    finally:
        ready.close()
    if as_json:
        facts = {
            "model": reference,
            "dtype": ready.report.dtype,
            "backend": ready.report.backend,
            "isa": ready.report.isa,
        }
        emit(json.dumps({**facts, **report.record()}, ensure_ascii=False) + "\n")
    else:
        emit("\n".join(report.lines()) + "\n")
    return report


def _config(reference: str, flags: Flags) -> EngineConfig:
    settings = {name: flags[name] for name in SETTINGS if flags.get(name) is not None}
    try:
        config = resolve(reference, settings)
        check_names(config)
        return config
    except SettingError as error:
        raise click.UsageError(explain(error)) from error


def _ready(config: EngineConfig, flags: Flags) -> Ready:
    fetched = fetched_config(config)
    file, lines = flags["prompts"], None
    if file is not None:
        lines = decode_text(Path(str(file)).read_bytes(), f"--prompts {file}").split("\n")
    with _naming(flags), Status(f"loading {shown_name(config.model.model, Path(fetched.model.model))} ...") as status:
        ready = start(fetched, max_tokens=_whole(flags["max_tokens"]), lines=lines, source=f"--prompts {file}")
    say_notes(status.warnings)
    return ready


def _check_folder(file: object) -> None:
    """Said before the model is loaded."""
    if file is not None and not Path(str(file)).absolute().parent.is_dir():
        raise click.UsageError(f"--resume {file}: there is no folder {Path(str(file)).parent}.")


def _kept(flags: Flags, model: str, seed: int, ready: Ready) -> Kept | None:
    """What `--resume` names."""
    file = flags["resume"]
    if file is None:
        return None
    facts = facts_of(
        model, ready.report.dtype, ready.report.backend, seed, ready.cases, dimensions(), ready.fingerprint()
    )
    return Kept(Path(str(file)), f"--resume {file}", facts, ready.rig.clock)


@contextmanager
def _naming(flags: Flags) -> Iterator[None]:
    """Errors about what a flag asks for say which one."""
    tokenizer, length = flags["tokenizer"], flags["max_tokens"]
    try:
        yield
    except CheckpointError as error:
        if tokenizer is None or str(tokenizer) not in error.cause:
            raise
        raise CheckpointError(f"--tokenizer {tokenizer}: {error.cause}", error.remedy) from error
    except CapacityError as error:
        if flags["kv_cache_memory_bytes"] is not None or flags["max_model_len"] is not None:
            raise
        cause = f"--max-tokens {length} needs more memory than there is."
        raise CapacityError(cause, "Set a smaller one, or --kv-cache-memory-bytes.") from error
    except RequestError as error:
        if error.param != "max_tokens":
            raise
        raise RequestError(
            error.cause.replace(f"max_tokens={length}", f"--max-tokens {length}"), error.remedy
        ) from error


def _extent(flags: Flags) -> Extent:
    schedules, minutes, only = flags["schedules"], flags["minutes"], flags["only"]
    for name, value in (("--schedules", schedules), ("--minutes", minutes), ("--resume", flags["resume"])):
        if only is not None and value is not None:
            raise click.UsageError(f"--only {only} runs that schedule alone. Leave {name} {_told(value)} out.")
    if schedules is None and minutes is None:
        schedules = SCHEDULES
    return Extent(schedules, minutes, only)  # type: ignore[arg-type]


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value


def _told(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)
