"""`pelton simulate`: how an engine would do on recorded traffic, and what a prefix cache could find in prompts.

It parses and prints; what runs in virtual time is measure/simulate. Invariant: the same words give the same output.
"""

import json
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import click
from click.core import ParameterSource
from tqdm import tqdm

from pelton.backends.cpu.machine import machine as this_machine
from pelton.cli.commands.bench.options import AT_LEAST_1, Positive, goals_of, stacked
from pelton.cli.commands.simulate.shown import course_lines, figure_lines, reuse_lines, reuse_record
from pelton.cli.commands.simulate.times import StepTimes
from pelton.cli.fetching import fetched_config
from pelton.cli.options import (
    Flags,
    choose_model,
    debug_option,
    engine_options,
    engine_settings,
    explain,
    parse_size,
    setting_option,
)
from pelton.cli.settings.serve_flags import template_text
from pelton.cli.terminal import emit, say, say_notes, shows_progress
from pelton.core.clock import FakeClock
from pelton.core.config import CacheSection, EngineConfig, resolve
from pelton.core.errors import SettingError
from pelton.engine.build import build_engine
from pelton.engine.front import build_front
from pelton.engine.needs import check_names
from pelton.engine.report import StartReport
from pelton.measure.simulate import TRACES
from pelton.measure.simulate.arrivals import Choice, Prepared
from pelton.measure.simulate.cache_sizes import reuse
from pelton.measure.simulate.outcome import moments, outcome
from pelton.measure.simulate.prompts import prompt_ids
from pelton.measure.simulate.simulation import Simulated, like_here, simulate
from pelton.measure.simulate.step_seconds import Rates
from pelton.measure.simulate.trace import Trace, source_of
from pelton.measure.simulate.virtual import VirtualBackend

BACKEND = "cpu"  # whose steps are timed
COPY_SHARE = 2  # a copied byte is read and written
CROWDED = 1.2  # times what is answered
TYPICAL_PROMPT = 1024  # tokens of a prompt whose computing says what a token costs
SWAP = ("swap_space_bytes", "preemption_mode")  # settings of a server, which one user does not need
SWAP_OPTIONS = stacked(*(setting_option(field) for field in fields(CacheSection) if field.name in SWAP))
# What is said of a trace, and nothing of prompts.
OF_TRACES = (
    "trace_format requests scale speed request_rate burstiness goodput seed save_detailed "
    "swap_space_bytes preemption_mode enable_prefix_caching prefix_cache_tokens scheduling_policy "
    "long_prefill_token_threshold max_steps_per_call planning_depth"
).split()


def _bytes(text: str) -> float:
    """As 3.5e10 or 20G."""
    try:
        return float(text)
    except ValueError:
        return float(parse_size(text))


def _rate(
    parse: Callable[[str], float], what: str
) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """What reads a rate above 0; its error says `what` is wanted."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
        try:
            number = None if value is None else parse(value)
        except (ValueError, click.BadParameter):
            number = math.nan
        if number is not None and not 0 < number < math.inf:
            raise click.BadParameter(f"{value!r} is no number of {what}.", ctx, param)
        return number

    return read


READ_RATE = _rate(_bytes, "bytes a second; write it like 20G")
MATRIX_RATE = _rate(float, "FLOPs a second; write it like 5e11")


@click.command("simulate")
@click.argument("traces", nargs=-1, metavar="[TRACE]")
@click.option("--model", "-m", help="The model, as for other commands; its weights are not loaded.")
@click.option("--prompts", type=click.Path(path_type=Path), metavar="FILE.jsonl", help="Prompts, in place of a trace.")
@click.option("--trace-format", type=click.Choice(list(TRACES)), help="What kind of file it is [by its first line].")
@click.option("--num-prompts", "--requests", "requests", type=AT_LEAST_1, help="The first ones of the trace [all].")
@click.option("--scale", type=Positive(), help="Multiplies all lengths [1, or what makes the longest one fit].")
@click.option("--speed", type=Positive(), default=1.0, help="How many times as fast the requests come [1].")
@click.option(
    "--request-rate", type=Positive(), help="Requests a second instead [the trace's; without times: at once]."
)
@click.option(
    "--burstiness", type=Positive(), default=1.0, help="Of moments that are drawn: 1 is a Poisson process [1]."
)
@click.option(
    "--goodput", multiple=True, metavar="NAME:MS", help="A goal, such as ttft:500; may be given several times."
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Of what is drawn: moments, and lengths of clients."
)
@click.option("--calibrate", is_flag=True, help="Measure steps of this model here first, and keep what they took.")
@click.option("--read-rate", callback=READ_RATE, metavar="SIZE", help="Bytes read a second by the machine to simulate.")
@click.option(
    "--matrix-rate", callback=MATRIX_RATE, metavar="NUMBER", help="FLOPs a second of its products, such as 5e11."
)
@click.option("--json", "as_json", is_flag=True, help="Everything as one JSON object on one line.")
@click.option(
    "--save-detailed",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep each request's times as JSON lines.",
)
@click.option("--disable-tqdm", is_flag=True, help="Without a progress bar.")
@SWAP_OPTIONS
@engine_options
@debug_option
def simulate_command(traces: tuple[str, ...], model: str | None, **flags: object) -> None:
    """Replay TRACE on the engine's own scheduler and blocks, in virtual time and without weights.

    A step takes what the model's cost rules say of it, at this machine's rates. Told are latencies, goodput, what the
    prefix cache finds, preemptions, and the use of memory over time.

    With --prompts FILE.jsonl: how much of these prompts a prefix cache of each size would find.
    """
    if len(traces) > 1:
        raise click.UsageError(f"One TRACE is replayed, and {traces[1]!r} is too many. A model is named by --model.")
    trace = traces[0] if traces else None
    if (trace is None) == (flags["prompts"] is None):
        raise click.UsageError("Name a TRACE, or prompts by --prompts FILE.jsonl; one of the two.")
    if trace is None:
        _expect_no_trace(click.get_current_context())
    reference = choose_model(None, model)
    goals = goals_of([str(word) for word in flags["goodput"]])  # type: ignore[attr-defined]
    given = _given(flags)
    config = _config(reference, flags)
    times = StepTimes(config, given, bool(flags["calibrate"]), not flags["disable_tqdm"])
    file = flags["save_detailed"]
    if isinstance(file, Path) and not file.absolute().parent.is_dir():
        raise click.UsageError(f"--save-detailed {file}: there is no folder {file.parent}.")
    if trace is None:
        _prompts(config, reference, times, flags)
        return
    done = _simulated(config, _trace(trace, flags), times, flags)
    table = {**_head(trace, reference, config, times, done), **_figures(done, goals)}
    say_notes(dict.fromkeys((*done.report.notes, *times.notes, *_crowded(table))))
    if flags["verbose"]:
        say("\n".join(done.report.lines()))
    course = moments(done.replayed.course, done.replayed.seconds)
    if flags["as_json"]:
        emit(json.dumps({**table, "course": [moment.record() for moment in course]}) + "\n")
    else:
        emit("\n".join([*_head_lines(table), "", *figure_lines(table), "", *course_lines(course)]) + "\n")
    if isinstance(file, Path):
        _keep(file, done)


def _expect_no_trace(ctx: click.Context) -> None:
    """A usage error for flags that say something of a trace, where there is none."""
    for param in ctx.command.params:
        if param.name in OF_TRACES and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{param.opts[0]} is about a trace, and --prompts takes the place of one. Leave one of them out."
            )


def _config(reference: str, flags: Flags) -> EngineConfig:
    """The settings with the model's path in place of its name."""
    if flags["backend"] not in (None, BACKEND):
        raise click.UsageError(f"--backend {flags['backend']} is not simulated; {BACKEND} is.")
    settings = {**engine_settings(flags), **{name: flags[name] for name in SWAP if flags[name] is not None}}
    for name in ("kv_disk_bytes", "kv_disk_folder"):
        if settings.get(name):
            flag = "--" + name.replace("_", "-")
            raise click.UsageError(f"{flag}: what is kept on the disk is not simulated; leave it out.")
    if (file := settings.get("chat_template")) is not None:
        settings["chat_template"] = template_text(str(file), f"--chat-template {file}")
    try:
        config = resolve(reference, settings)
        check_names(config)
    except SettingError as error:
        raise click.UsageError(explain(error)) from error
    return fetched_config(config)


def _given(flags: Flags) -> Rates | None:
    """The rates that flags give; a usage error where one of the two is missing."""
    read, products = flags["read_rate"], flags["matrix_rate"]
    if read is None and products is None:
        return None
    if not isinstance(read, float) or not isinstance(products, float):
        raise click.UsageError("--read-rate and --matrix-rate go together.")
    if flags["calibrate"]:
        raise click.UsageError("--calibrate measures this machine, and --read-rate is another's: leave one out.")
    return Rates(read, products, read / COPY_SHARE, "given")


def _trace(name: str, flags: Flags) -> Trace:
    """The trace; SettingError for a file that no reader knows."""
    count, seed = flags["requests"], flags["seed"]
    assert isinstance(seed, int)
    source = source_of(Path(name), count=count if isinstance(count, int) else None, seed=seed)
    chosen = flags["trace_format"]
    if chosen is not None:
        return TRACES.get(str(chosen))().read(source)
    for kind in TRACES:
        reader = TRACES.get(kind)()
        if reader.claims(source.lines[0][1]):
            return reader.read(source)
    raise SettingError(
        f"{source.called} is no trace that is known: its first line is {source.lines[0][1][:60]!r}.",
        f"Known are {', '.join(TRACES)}; docs/simulate.md has their forms.",
    )


def _simulated(config: EngineConfig, trace: Trace, times: StepTimes, flags: Flags) -> Simulated:
    rate, scale, count = flags["request_rate"], flags["scale"], flags["requests"]
    choice = Choice(
        count=count if isinstance(count, int) else None,
        scale=scale if isinstance(scale, float) else None,
        speed=float(str(flags["speed"])),
        rate=rate if isinstance(rate, float) else None,
        burstiness=float(str(flags["burstiness"])),
        seed=int(str(flags["seed"])),
    )
    if rate is not None and choice.speed != 1.0:
        raise click.UsageError("--speed and --request-rate both say how fast requests come. Give one of them.")
    with tqdm(unit="req", desc="simulating", leave=False, disable=not _progress(flags)) as bar:

        def started(prepared: Prepared) -> Callable[[int], None]:
            bar.reset(total=len(prepared.arrivals))
            return lambda ended: bar.update(ended)

        return simulate(config, trace, choice, this_machine(config.backend.threads), times, started, times.rates_of)


def _progress(flags: Flags) -> bool:
    return shows_progress() and not flags["disable_tqdm"]


def _head(name: str, reference: str, config: EngineConfig, times: StepTimes, done: Simulated) -> dict[str, object]:
    """What was simulated: all that decides the figures."""
    report = done.report
    return {
        "trace": Path(name).name,
        "model_id": reference,
        "num_prompts": len(done.prepared.arrivals),
        "scale": done.prepared.scale,
        "cut_requests": done.prepared.cut,
        "offered_request_rate": done.prepared.offered,
        "arrivals_seconds": done.prepared.seconds,
        "max_model_len": report.max_model_len,
        "max_num_seqs": report.max_num_seqs,
        "max_num_batched_tokens": report.max_num_batched_tokens,
        "scheduling_policy": config.schedule.scheduling_policy,
        "enable_prefix_caching": config.cache.enable_prefix_caching,
        "kv_blocks": report.kv_blocks - 1,
        "kv_bytes": report.kv_bytes,
        "dtype": report.dtype,
        "step_times": times.origin,
        "step_times_date": times.date,
        "step_times_busy": times.busy,
    }


def _figures(done: Simulated, goals: dict[str, float]) -> dict[str, object]:
    table = outcome(done.replayed, done.stats, goals)
    seconds = float(str(table["duration"]))
    return {
        **table,
        "goodput_goals_ms": goals,
        "busy_share": float(str(table["backend_seconds"])) / seconds,
        "prefix_hit_rate_unlimited": None if done.reuse is None else done.reuse.rate(),
        "prefix_blocks_enough": None if done.reuse is None else done.reuse.enough,
    }


def _crowded(table: dict[str, object]) -> list[str]:
    """A note where requests came faster than they could be answered: then latencies say how long that went on."""
    offered, served = table["offered_request_rate"], float(str(table["request_throughput"]))
    if not isinstance(offered, float) or offered <= CROWDED * served:
        return []
    return [
        f"requests came at {offered:.3g} a second and were answered at {served:.3g}: while they come, the queue grows"
    ]


def _head_lines(table: dict[str, object]) -> list[str]:
    scale = float(str(table["scale"]))
    offered = table["offered_request_rate"]
    came = "all at once" if offered is None else f"{float(str(offered)):.3g} a second"
    lengths = "lengths as they are" if scale == 1 else f"all lengths times {scale:.4g}"
    cut = f", {table['cut_requests']} cut to fit" if table["cut_requests"] else ""
    date = f" {table['step_times_date']}" if table["step_times_date"] else ""
    date += " on a busy machine" if table["step_times_busy"] else ""
    return [
        f"{table['trace']}: {table['num_prompts']} requests, {came}; {lengths}{cut}",
        f"{table['model_id']}, {table['dtype']}: {table['max_num_seqs']} requests at once, "
        f"{table['max_num_batched_tokens']} tokens a step, {table['kv_blocks']} KV blocks, "
        f"{table['scheduling_policy']}; step times {table['step_times']}{date}",
    ]


def _prompts(config: EngineConfig, reference: str, times: StepTimes, flags: Flags) -> None:
    """The table of cache sizes for the user's own prompts."""
    file = flags["prompts"]
    assert isinstance(file, Path)
    backend = VirtualBackend(
        like_here(config, this_machine(config.backend.threads)), times.rates_of, times, FakeClock()
    )
    parts = build_engine(config, FakeClock(), backend)
    try:
        executable = backend.executable
        assert executable is not None
        with tqdm(unit="prompt", desc="reading", leave=False, disable=not _progress(flags)) as bar:
            prompts = prompt_ids(file, build_front(config), parts.limits, bar.update)
        budget = parts.report.max_num_batched_tokens
        per_token = executable.times.prompt(TYPICAL_PROMPT, budget) / TYPICAL_PROMPT
    finally:
        parts.close()
    found = reuse(prompts, parts.report.block_size, parts=config.cache.partial_prefix_blocks)
    rows = reuse_record(found, parts.report.kv_block_bytes, per_token)
    say_notes(dict.fromkeys(times.notes))
    head = {
        "prompts": found.prompts,
        "tokens": found.tokens,
        "different_blocks": found.blocks,
        "block_bytes": parts.report.kv_block_bytes,
        "seconds_per_token": per_token,
        "step_times": times.origin,
    }
    if flags["as_json"]:
        emit(json.dumps({"model_id": reference, **head, "sizes": rows}) + "\n")
        return
    emit("\n".join([*_reuse_head(reference, head, parts.report), "", *reuse_lines(rows)]) + "\n")


def _reuse_head(reference: str, head: dict[str, object], report: StartReport) -> list[str]:
    whole = float(str(head["seconds_per_token"])) * float(str(head["tokens"]))
    return [
        f"{head['prompts']} prompts of {head['tokens']} tokens together, in this order, for {reference}",
        f"computing all of them takes {whole:.2f} s; the cache of these settings has {report.kv_blocks - 1} blocks of "
        f"{report.block_size} tokens",
    ]


def _keep(file: Path, done: Simulated) -> None:
    """A line for each request."""
    with file.open("w", encoding="utf-8") as out:
        for arrival, timing in zip(done.prepared.arrivals, done.replayed.timings, strict=True):
            line = {
                "request": arrival.number,
                "client": arrival.client,
                "start_time": timing.sent,
                "input_len": timing.input_tokens,
                "output_len": timing.output_tokens,
                "cached_tokens": timing.cached_tokens,
                "ttft": timing.ttft if timing.pieces else None,
                "latency": timing.e2el if timing.pieces else None,
                "itls": timing.itl,
                "error": timing.error,
            }
            out.write(json.dumps(line) + "\n")
    say(f"kept in {file}", dim=True)
