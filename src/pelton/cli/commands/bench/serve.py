"""`pelton bench serve`: sends requests to a server and measures its answers."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from urllib.parse import urlsplit

import click
from tqdm import tqdm

from pelton.checkpoint.tokenizer_files import open_tokenizer_files
from pelton.cli.commands.bench.options import (
    AT_LEAST_0,
    AT_LEAST_1,
    RESULT_OPTIONS,
    WORKLOAD_OPTIONS,
    Positive,
    check_workload,
    goals_of,
    pairs_of,
    percentiles_of,
    samples_of,
    shown_of,
    stacked,
)
from pelton.cli.commands.bench.probing import PROBE_OPTION, is_local, machine_probe, say_served
from pelton.cli.commands.bench.results import keep_serving, machine, print_serving, result_folder
from pelton.cli.fetching import fetched
from pelton.cli.options import Flags, debug_option
from pelton.cli.terminal import say, say_notes
from pelton.core.clock import Clock, SystemClock
from pelton.core.config import FetchSection
from pelton.core.errors import BackendError, PeltonError, SettingError
from pelton.core.words.tables import table_of
from pelton.measure.bench.client import UNIX, Client, Target
from pelton.measure.bench.figures import Timing, result
from pelton.measure.bench.limits import serve_part
from pelton.measure.bench.load import Load, run_load
from pelton.measure.bench.reuse import reuse_note
from pelton.measure.bench.warmup import warmups
from pelton.measure.bench.workload import Sample, TokenIds
from pelton.tokenize.tokenizer import build_tokenizer

NUMBERS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
OWN = "{} of every request [the server's own]."
POLL_SECONDS = 0.25
CHAT_BACKEND = "openai-chat"
HELLO = ({"role": "user", "content": "Hello"},)
BACKENDS = ("openai", "vllm", CHAT_BACKEND)
FRESH = "Empty it before a run; random prompts are others with another --seed."
Encode = Callable[[str], TokenIds]


@dataclass(frozen=True, slots=True)
class Run:
    """What a run gave, before figures are made of it. `weight_bytes`: of the model, None for a server of others."""

    timings: Sequence[Timing]
    seconds: float
    target: Target
    reset: bool
    weight_bytes: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What the flags say of the server and of every request. `encode`: the tokenizer that is here, if any.

    `probe`: a short request of the workload's kind, for a model that the server does not list.
    """

    server: str
    headers: Mapping[str, str]
    body: dict[str, object]
    encode: Encode | None
    probe: Sample


@click.command("serve")
@click.argument("words", nargs=-1, metavar="")
@click.option(
    "--base-url", help="The server, such as http://127.0.0.1:8000 or unix:FILE; instead of --host and --port."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where the server is.")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Where the server listens."
)
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default=BACKENDS[0],
    show_default=True,
    help="openai and vllm: completions, and chat for conversations; openai-chat: text prompts as messages, too.",
)
@click.option("--endpoint", help="Path asked instead of /v1/completions and /v1/chat/completions.")
@click.option("--model", "-m", help="Name of the model [the first one the server lists].")
@click.option("--served-model-name", help="The name that requests have, if it is another one than --model.")
@click.option("--tokenizer", help="Model whose tokenizer counts the prompts' tokens [the server's /tokenize].")
@click.option("--api-key", help="Sent as a bearer token.")
@click.option("--header", multiple=True, metavar="KEY=VALUE", help="Sent with every request; several times.")
@WORKLOAD_OPTIONS
@click.option(
    "--request-rate", type=Positive(infinite=True), default=math.inf, help="Requests per second [inf, all at once]."
)
@click.option("--burstiness", type=Positive(), default=1.0, show_default=True, help="1: Poisson; smaller: burstier.")
@click.option("--max-concurrency", type=AT_LEAST_1, help="Most requests under way at once [no limit].")
@click.option(
    "--num-warmups",
    type=AT_LEAST_0,
    default=1,
    show_default=True,
    help="Requests before it counts; none of those that count.",
)
@click.option(
    "--reset-prefix-cache/--no-reset-prefix-cache",
    default=True,
    show_default=True,
    help="Empty the server's prefix cache before the run, if the server has POST /reset_prefix_cache.",
)
@click.option(
    "--ready-check-timeout-sec",
    "ready",
    type=Positive(zero=True),
    default=60.0,
    show_default=True,
    help="Longest wait for a server.",
)
@click.option("--ignore-eos/--no-ignore-eos", default=True, help="Answers of full length, so that runs compare [on].")
@click.option("--extra-body", help="JSON table joined to every request.")
@stacked(
    click.option("--temperature", type=float, help="Of every request [0: so that runs compare]."),
    click.option("--top-k", type=int, help=OWN.format("top_k")),
    *(
        click.option(f"--{name.replace('_', '-')}", name, type=float, help=OWN.format(name))
        for name in NUMBERS
        if name != "temperature"
    ),
)
@PROBE_OPTION
@RESULT_OPTIONS
@debug_option
def serve_command(words: tuple[str, ...], **flags: object) -> None:
    """Send requests to a server and measure its answers.

    --goodput takes goals in ms, such as --goodput ttft:500 itl:50: of ttft, tpot, itl (99th percentile of a request's
    own gaps) and e2el. Then the share of requests that keep all of them is told, and how many per second did.

    Turns of a conversation (agent, chat) are asked one after the other, each with the answers that really came.
    """
    goals, metadata = words_of(words, flags)
    percentiles, _, _ = percentiles_of(flags), shown_of(flags), result_folder(flags)
    one = check_workload(flags)
    if flags["backend"] == CHAT_BACKEND and isinstance(one.prompt, tuple):
        raise click.UsageError(
            f"--backend {CHAT_BACKEND} takes no token ids, and --workload {flags['workload']} is some."
        )
    probe = Sample(1, messages=HELLO) if one.messages else Sample(1, prompt="Hello")
    plan = Plan(server_of(flags), pairs_of("--header", _texts(flags["header"])), body_of(flags), encoder(flags), probe)
    rate, price = float(str(flags["request_rate"])), flags["price_per_hour"]
    before = machine()
    run = asyncio.run(_run(flags, plan, SystemClock()))
    model = flags["model"] or run.target.model
    table: dict[str, object] = {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": flags["backend"],
        "backend": flags["backend"],
        "label": flags["label"],
        "model_id": model,
        "tokenizer_id": flags["tokenizer"] or model,
        "workload": flags["workload"],
        "num_prompts": flags["num_prompts"],
        "request_rate": "inf" if math.isinf(rate) else rate,
        "burstiness": flags["burstiness"],
        "prefix_cache_reset": run.reset,
        "max_concurrency": flags["max_concurrency"],
        "client": before,
        "goodput_goals_ms": goals,
        **result(run.timings, run.seconds, percentiles, goals, price if isinstance(price, float) else None),
    }
    print_serving(table, flags)
    table["probe"] = _limits(flags, run, table)
    keep_serving(table, flags, run.timings, metadata)
    failed = [timing.error for timing in run.timings if timing.error]
    if failed:
        raise BackendError(f"{len(failed)} of {len(run.timings)} requests failed. The first: {failed[0]}")


def _limits(flags: Flags, run: Run, table: Mapping[str, object]) -> dict[str, object] | None:
    """What the result says of the machine's limits: nothing where the server is another's, or elsewhere.

    What must be measured is measured behind the run, when the server rests.
    """
    if run.weight_bytes and is_local(run.target.base_url):
        client = table["client"]
        load = client.get("load_before") if isinstance(client, dict) else None
        figures = machine_probe(flags, load_before=load)
        part = None if figures is None else serve_part(figures, run.weight_bytes, table["median_tpot_ms"])
        say_served(part)
        return part
    if flags["probe"]:
        say("this machine's limits are left out: the server is another engine's, or another machine's", dim=True)
    return None


def words_of(words: Sequence[str], flags: Flags) -> tuple[dict[str, float], dict[str, str]]:
    """(goals, metadata): of --goodput and --metadata and the words behind them; a usage error for others."""
    goals, metadata = _texts(flags["goodput"]), _texts(flags["metadata"])
    for word in words:
        if metadata and "=" in word:
            metadata.append(word)
        elif goals and "=" not in word:
            goals.append(word)
        else:
            raise click.UsageError(f"{word!r} is not expected here. Goals follow --goodput, KEY=VALUE --metadata.")
    return goals_of(goals), pairs_of("--metadata", metadata)


def server_of(flags: Flags) -> str:
    """The server's URL without /v1, or unix:FILE; a usage error where --base-url or --endpoint is none."""
    endpoint = flags["endpoint"]
    if endpoint is not None and not str(endpoint).startswith("/"):
        raise click.UsageError(f"--endpoint {endpoint!r} is no path. Begin it with /, as in /v1/completions.")
    if flags["base_url"] is None:
        return f"http://{flags['host']}:{flags['port']}"
    url = str(flags["base_url"])
    if url.startswith(UNIX):
        if not url.removeprefix(UNIX).strip("/"):
            raise click.UsageError(f"--base-url {url!r} names no socket. Write it like unix:/path/of/the/socket.")
        return url
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise click.UsageError(f"--base-url {url!r} is no URL. Write it like http://127.0.0.1:8000 or unix:FILE.")
    return url.rstrip("/").removesuffix("/v1")


def encoder(flags: Flags) -> Encode | None:
    """Token ids by the tokenizer of --tokenizer; None without it."""
    if flags["tokenizer"] is None:
        return None
    try:
        files = open_tokenizer_files(fetched(str(flags["tokenizer"]), FetchSection(), weights=False))
        with closing(files):
            tokenizer = build_tokenizer(files)
    except PeltonError as error:
        raise click.UsageError(f"--tokenizer {flags['tokenizer']}: {error}") from error
    return lambda text: tuple(tokenizer.encode(text))


def body_of(flags: Flags) -> dict[str, object]:
    """What every request's body has beyond the workload's own."""
    body: dict[str, object] = {"temperature": 0.0}
    body |= {name: flags[name] for name in (*NUMBERS, "top_k") if flags[name] is not None}
    if flags["ignore_eos"]:
        body["ignore_eos"] = True
    if flags["extra_body"]:
        try:
            body |= table_of("--extra-body", str(flags["extra_body"]), "Write it like '{\"top_k\": 20}'.")
        except SettingError as error:
            raise click.UsageError(str(error)) from error
    return body


async def _run(flags: Flags, plan: Plan, clock: Clock) -> Run:
    key, endpoint = flags["api_key"], flags["endpoint"]
    asked = Target(
        plan.server,
        str(flags["served_model_name"] or flags["model"] or ""),
        api_key=str(key) if key else None,
        endpoint=str(endpoint) if endpoint else None,
        extra=plan.body,
        more_headers=plan.headers,
        chat=flags["backend"] == CHAT_BACKEND,
    )
    listed = await wait_for_model(asked, float(str(flags["ready"])), clock)
    target = replace(asked, model=asked.model or listed[0])
    async with Client(target, clock) as client:
        if target.model not in listed:
            await client.check_model(plan.probe)
        samples = await _samples(client, flags, plan.encode)
        for sample in warmups(samples, int(str(flags["num_warmups"]))):
            warm = await client.ask(sample)
            if warm.error:
                raise BackendError(f"The request before the run failed: {warm.error}")
        weights = await client.weight_bytes()
        reset = bool(flags["reset_prefix_cache"]) and await client.reset_prefix_cache()
        if reset:
            say("the server's prefix cache was emptied before the run", dim=True)
        concurrency = flags["max_concurrency"]
        load = Load(
            rate=float(str(flags["request_rate"])),
            burstiness=float(str(flags["burstiness"])),
            concurrency=concurrency if isinstance(concurrency, int) else None,
            seed=int(str(flags["workload_seed"])),
        )
        with tqdm(total=len(samples), unit="req", disable=bool(flags["disable_tqdm"])) as bar:
            timings, seconds = await run_load(client, samples, load, clock, bar.update)
    cached, prompts = sum(one.cached_tokens for one in timings), sum(one.input_tokens for one in timings)
    note = reuse_note(samples, cached, prompts)
    if note:
        say_notes([note if reset else f"{note} {FRESH}"])
    return Run(timings, seconds, target, reset, weights)


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


async def _samples(client: Client, flags: Flags, encode: Encode | None) -> list[Sample]:
    """The workload's samples; where lengths must be exact and no tokenizer is here, the server tokenises."""
    loop = asyncio.get_running_loop()

    def ask(text: str) -> TokenIds:
        return asyncio.run_coroutine_threadsafe(client.tokens(text), loop).result()

    return await asyncio.to_thread(samples_of, flags, encode or ask, int(str(flags["num_prompts"])))


def _texts(words: object) -> list[str]:
    assert isinstance(words, tuple)
    return [str(word) for word in words]
