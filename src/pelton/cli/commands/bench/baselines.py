"""`pelton bench baselines`: what each technique gains on this machine, measured against doing without it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
from tqdm import tqdm

from pelton.checkpoint.checkpoint import open_checkpoint
from pelton.cli.commands.bench.options import (
    AT_LEAST_1,
    OUTPUT_OPTION,
    WORKLOAD_OPTIONS,
    check_output,
    check_workload,
    samples_of,
)
from pelton.cli.commands.bench.results import machine, write_json
from pelton.cli.fetching import fetch_section, fetched
from pelton.cli.loading import load
from pelton.cli.options import Flags, choose_model, debug_option, engine_options, engine_settings, model_options
from pelton.cli.terminal import emit, say_notes, shows_progress, table_lines
from pelton.core.clock import SystemClock
from pelton.core.config import BLOCK_TOKENS, resolve
from pelton.engine.llm import LLM
from pelton.measure.baselines.attention import unfused_attention
from pelton.measure.baselines.batching import static_batching
from pelton.measure.baselines.gain import Gain
from pelton.measure.baselines.recompute import no_cache
from pelton.measure.baselines.reservation import reserved
from pelton.measure.bench.offline import prompt_of
from pelton.measure.bench.workload import Sample
from pelton.models import build_module
from pelton.program.passes import run_passes

BATCHING, CACHE, RESERVATION, ATTENTION = "static-batching", "no-kv-cache", "reservation", "unfused-attention"
BASELINES = (BATCHING, CACHE, RESERVATION, ATTENTION)
NUM_SEQS, REPEATS = 8, 3
PROMPT_TOKENS = (512, 2048)  # of the prompts whose attention is measured
CACHED_PROMPT, CACHED_OUTPUT = 128, 32  # tokens at most, of the answer that is computed without a cache
HEADER = ("technique", "without it", "ours", "without", "", "ratio")


@click.command("baselines")
@model_options
@WORKLOAD_OPTIONS
@click.option("--only", multiple=True, type=click.Choice(BASELINES), help="Of the four this one [all]; repeatable.")
@click.option("--repeats", type=AT_LEAST_1, default=REPEATS, show_default=True, help="Turns, of which the median.")
@OUTPUT_OPTION
@engine_options
@debug_option
def baselines_command(model: str | None, model_flag: str | None, **flags: object) -> None:
    """Measure what techniques gain here: the engine in turns with itself without one of them.

    Continuous batching against static batches, the KV cache against computing everything again, pages against room
    reserved for max_model_len, and fused attention against scores in memory. Prefix caching is off. Requests are those
    of --workload; with answers of equal lengths, static batches lose little.
    """
    reference = choose_model(model, model_flag)
    check_output(flags["output_json"])
    check_workload(flags)
    if flags["enable_prefix_caching"]:
        raise click.UsageError("--enable-prefix-caching would hide what is measured here. Leave it out.")
    chosen = [name for name in BASELINES if name in tuple(flags["only"] or BASELINES)]  # type: ignore[arg-type]
    flags = {
        **flags,
        "enable_prefix_caching": False,
        "max_num_seqs": NUM_SEQS if flags["max_num_seqs"] is None else flags["max_num_seqs"],
    }
    before = machine()
    gains = list(_gains(reference, chosen, flags))
    emit("\n".join(_lines(gains)) + "\n")
    say_notes(_notes(gains))
    file = flags["output_json"]
    if isinstance(file, Path):
        records = [gain.record() for gain in gains]
        write_json(file, {"gains": records, "model_id": reference, "client": before, "repeats": flags["repeats"]})


def _gains(reference: str, chosen: Sequence[str], flags: Flags) -> Iterator[Gain]:
    repeats, clock = int(str(flags["repeats"])), SystemClock()
    quiet = bool(flags["disable_tqdm"]) or not shows_progress()
    with tqdm(total=len(chosen), unit="baseline", leave=False, disable=quiet) as bar:
        if any(name != ATTENTION for name in chosen):
            with load(reference, flags) as llm:
                samples = _samples(flags, llm)
                rows = int(str(flags["max_num_seqs"]))
                prompt = _prompt(llm, samples[0])
                runs: dict[str, Callable[[], Gain]] = {
                    BATCHING: lambda: static_batching(llm, samples, rows, repeats, clock),
                    CACHE: lambda: no_cache(llm, prompt, CACHED_OUTPUT, repeats, clock),
                    RESERVATION: lambda: reserved(llm, samples, rows, repeats, clock),
                }
                for name in chosen:
                    if name in runs:
                        bar.set_description(name)
                        yield runs[name]()
                        bar.update()
        if ATTENTION in chosen:
            bar.set_description(ATTENTION)
            yield from _attention(reference, flags, repeats)
            bar.update()


def _samples(flags: Flags, llm: LLM) -> list[Sample]:
    """Those that wait for nobody's answer."""
    tokenizer = llm.get_tokenizer()
    made = samples_of(flags, lambda text: tuple(tokenizer.encode(text)), int(str(flags["num_prompts"])))
    first = [sample for sample in made if sample.follows is None]
    if len(first) < len(made):
        say_notes(
            [
                f"{len(first)} requests of --num-prompts {len(made)}: the others are later turns of conversations, and "
                "wait for an answer, where here all requests are there at once"
            ]
        )
    return first


def _prompt(llm: LLM, sample: Sample) -> list[int]:
    prompt = prompt_of(llm, sample)
    ids = prompt["prompt_token_ids"] if isinstance(prompt, dict) else llm.get_tokenizer().encode(str(prompt))
    assert isinstance(ids, list)
    most = max(1, min(CACHED_PROMPT, llm.report.max_model_len - CACHED_OUTPUT))
    return ids[:most]


def _attention(reference: str, flags: Flags, repeats: int) -> Iterator[Gain]:
    path = fetched(reference, fetch_section(flags))
    checkpoint = open_checkpoint(path)
    try:
        module = run_passes(build_module(checkpoint))
        for tokens in PROMPT_TOKENS:
            if tokens > module.context:
                continue
            sizes = {"max_num_batched_tokens": tokens, "max_num_seqs": 1, "max_model_len": tokens}
            given = {name: value for name, value in engine_settings(flags).items() if name != "kv_cache_memory_bytes"}
            blocks = -(-tokens // BLOCK_TOKENS)
            config = resolve(str(path), {**given, **sizes, "num_blocks": blocks})
            yield unfused_attention(config, module, tokens, repeats, SystemClock())
    finally:
        checkpoint.close()


def _lines(gains: Sequence[Gain]) -> list[str]:
    rows: list[tuple[str, ...]] = [HEADER]
    for gain in gains:
        ratio = f"{gain.ratio:.2f}x"
        rows.append((gain.name, gain.baseline_name, _number(gain.ours), _number(gain.baseline), gain.unit, ratio))
    lines = table_lines(rows, left=2)
    for gain in gains:
        told = ", ".join(f"{name} {_number(value)}" for name, value in gain.details.items())
        same = {True: "; answers the same", False: "; ANSWERS DIFFER", None: ""}[gain.same]
        lines.append(f"{gain.name}: {told}{same}")
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def _notes(gains: Sequence[Gain]) -> list[str]:
    notes = []
    for gain in gains:
        if (
            gain.details.get("most_at_once") == gain.details.get("most_at_once_without")
            and "most_at_once" in gain.details
        ):
            notes.append(
                f"The KV memory has room for {gain.details['most_at_once']:.0f} reservations at once, so pages gain no "
                "requests here; --kv-cache-memory-bytes with less, or more of --max-num-seqs, shows it."
            )
        if gain.details.get("idle_share") == 0:
            notes.append("All answers are equally long, so static batches idle nowhere; --workload chat has others.")
    return notes
