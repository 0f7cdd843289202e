"""`pelton bench serve`: sends requests to a server and measures its answers."""

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import click
from tqdm import tqdm

from pelton.cli.commands.bench.options import (
    AT_LEAST_0,
    AT_LEAST_1,
    RESULT_OPTIONS,
    WORKLOAD_OPTIONS,
    goals_of,
    percentiles_of,
    samples_of,
    stacked,
)
from pelton.cli.commands.bench.results import keep_serving, machine, print_serving
from pelton.cli.options import Flags, debug_option
from pelton.cli.terminal import say
from pelton.core.clock import Clock, SystemClock
from pelton.core.errors import BackendError
from pelton.measure.bench.client import Client, Target
from pelton.measure.bench.figures import Timing, result
from pelton.measure.bench.load import Load, run_load
from pelton.measure.bench.workload import Sample, TokenIds

NUMBERS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Run:
    """What a run gave, before figures are made of it."""

    timings: Sequence[Timing]
    seconds: float
    target: Target


@click.command("serve")
@click.argument("goals", nargs=-1, metavar="")
@click.option("--base-url", help="The server, such as http://127.0.0.1:8000; instead of --host and --port.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, default=8000, show_default=True)
@click.option("--endpoint", help="Path asked instead of /v1/completions and /v1/chat/completions.")
@click.option("--model", "-m", help="Name of the model [the first one the server lists].")
@click.option("--api-key", help="Sent as a bearer token.")
@WORKLOAD_OPTIONS
@click.option("--request-rate", type=float, default=math.inf, help="Requests per second [all at once].")
@click.option("--burstiness", type=float, default=1.0, show_default=True, help="1: Poisson; smaller: burstier.")
@click.option("--max-concurrency", type=AT_LEAST_1, help="Most requests under way at once.")
@click.option("--num-warmups", type=AT_LEAST_0, default=1, show_default=True, help="Requests before it counts.")
@click.option(
    "--ready-check-timeout-sec", "ready", type=float, default=60.0, show_default=True, help="Longest wait for a server."
)
@click.option("--ignore-eos/--no-ignore-eos", default=True, help="Answers of full length, so that runs compare [on].")
@click.option("--extra-body", help="JSON table joined to every request.")
@click.option("--top-k", type=int)
@stacked(*(click.option(f"--{name.replace('_', '-')}", name, type=float) for name in NUMBERS))
@RESULT_OPTIONS
@debug_option
def serve_command(goals: tuple[str, ...], **flags: object) -> None:
    """Send requests to a server and measure its answers.

    --goodput takes goals in ms, such as --goodput ttft:500 itl:50: of ttft, tpot, itl (99th percentile of a request's
    own gaps) and e2el. Then the share of requests that keep all of them is told, and how many per second did.
    """
    given = flags["goodput"]
    assert isinstance(given, tuple)
    if goals and not given:
        raise click.UsageError(f"{goals[0]!r} is not expected here. Goals follow --goodput.")
    wanted = goals_of([*given, *goals])
    percentiles = percentiles_of(flags)
    rate, burstiness = flags["request_rate"], flags["burstiness"]
    if not (isinstance(rate, float) and rate > 0 and isinstance(burstiness, float) and burstiness > 0):
        raise click.UsageError("--request-rate and --burstiness must be above 0.")
    price = flags["price_per_hour"]
    extra = body_of(flags)
    before = machine()
    run = asyncio.run(_run(flags, extra, SystemClock()))
    table: dict[str, object] = {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai",
        "backend": "openai",
        "label": flags["label"],
        "model_id": run.target.model,
        "workload": flags["workload"],
        "num_prompts": flags["num_prompts"],
        "request_rate": "inf" if math.isinf(rate) else rate,
        "burstiness": burstiness,
        "max_concurrency": flags["max_concurrency"],
        "client": before,
        "goodput_goals_ms": wanted,
        **result(run.timings, run.seconds, percentiles, wanted, price if isinstance(price, float) else None),
    }
    print_serving(table, flags)
    keep_serving(table, flags, run.timings)
    failed = [timing.error for timing in run.timings if timing.error]
    if failed:
        raise BackendError(f"{len(failed)} of {len(run.timings)} requests failed. The first: {failed[0]}")


def body_of(flags: Flags) -> dict[str, object]:
    """What every request's body has beyond the workload's own."""
    body: dict[str, object] = {"temperature": 0.0}
    body |= {name: flags[name] for name in (*NUMBERS, "top_k") if flags[name] is not None}
    if flags["ignore_eos"]:
        body["ignore_eos"] = True
    if flags["extra_body"]:
        try:
            given = json.loads(str(flags["extra_body"]))
        except ValueError as error:
            raise click.UsageError(f"--extra-body is no JSON: {error}.") from error
        if not isinstance(given, dict):
            raise click.UsageError("--extra-body must be a JSON table.")
        body |= given
    return body


async def _run(flags: Flags, extra: dict[str, object], clock: Clock) -> Run:
    base = str(flags["base_url"] or f"http://{flags['host']}:{flags['port']}").rstrip("/").removesuffix("/v1")
    key, endpoint = flags["api_key"], flags["endpoint"]
    asked = Target(base, str(flags["model"] or ""), str(key) if key else None, str(endpoint) if endpoint else None)
    listed = await wait_for_model(asked, float(str(flags["ready"])), clock)
    target = Target(base, asked.model or listed[0], asked.api_key, asked.endpoint, extra)
    async with Client(target, clock) as client:
        count = int(str(flags["num_prompts"]))
        samples = await _samples(client, flags, count + int(str(flags["num_warmups"])))
        for sample in samples[count:]:  # others than those that count, so that no prefix is known by then
            warm = await client.ask(sample)
            if warm.error:
                raise BackendError(f"The request before the run failed: {warm.error}")
        del samples[count:]
        concurrency = flags["max_concurrency"]
        load = Load(
            rate=float(str(flags["request_rate"])),
            burstiness=float(str(flags["burstiness"])),
            concurrency=concurrency if isinstance(concurrency, int) else None,
            seed=int(str(flags["workload_seed"])),
        )
        with tqdm(total=len(samples), unit="req", disable=bool(flags["disable_tqdm"])) as bar:
            timings, seconds = await run_load(client, samples, load, clock, bar.update)
    return Run(timings, seconds, target)


async def wait_for_model(target: Target, seconds: float, clock: Clock) -> list[str]:
    """Names the server lists, as soon as it lists any; BackendError after `seconds`."""
    until = clock.now() + seconds
    told = False
    while True:
        problem = BackendError(f"{target.base_url} has no model ready after {seconds:g} s.")
        try:
            async with Client(target, clock, timeout=10.0) as client:
                listed = await client.models()
            if listed:
                return listed
        except BackendError as error:
            problem = error
        if clock.now() >= until:
            raise problem
        if not told:
            say(f"waiting for {target.base_url} ...", dim=True)
            told = True
        await asyncio.sleep(POLL_SECONDS)


async def _samples(client: Client, flags: Flags, count: int) -> list[Sample]:
    """The workload's samples; where lengths must be exact, the server tokenises."""
    loop = asyncio.get_running_loop()

    def encode(text: str) -> TokenIds:
        return asyncio.run_coroutine_threadsafe(client.tokens(text), loop).result()

    return await asyncio.to_thread(samples_of, flags, encode, count)
