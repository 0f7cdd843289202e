"""Metrics: what /metrics tells. It watches the engine's steps and ends of requests; it asks nobody.

Names, labels and buckets under `vllm:` are vLLM's, so that its dashboards work; what only this engine knows is under
`pelton:`. Invariant: once all requests are over, the counters of tokens are the sums of what their clients were told.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import pelton
from pelton.core.clock import Clock, SystemClock
from pelton.core.config import EngineConfig
from pelton.core.counters import EngineStats
from pelton.core.events import Event, RequestFinished, RequestPreempted, RequestScheduled, TokensGenerated
from pelton.core.plan import LOOKUPS
from pelton.core.request import Request, RequestOutput
from pelton.engine.load.deadlines import LATE
from pelton.engine.report import StartReport
from pelton.serve.metrics.families import Families, by, info
from pelton.serve.metrics.histogram import (
    ANSWERS,
    BETWEEN_TOKENS,
    FIRST_TOKEN,
    LATENCY,
    PREEMPTIONS,
    SCHEDULE_SECONDS,
    STEP_SECONDS,
    STEP_TOKENS,
    Histogram,
    token_edges,
)

ENGINE = "0"  # one engine per server
REASONS = ("stop", "length", "abort", "error")
REJECTIONS = ("max_num_queued_reqs",)
ABORTS = ("disconnect", "shutdown")
STATES = ("waiting", "running")
MOST_TOKENS = 1 << 17  # edges of token counts until the model's context is known
BAD_LOGITS = "logits"  # a word of the errors of requests whose logits were NaN or infinite

# What the engine itself counts from its start: name -> (figure, help).
TOTALS: Mapping[str, tuple[Callable[[EngineStats], float], str]] = {
    "vllm:num_preemptions": (
        lambda stats: stats.preemptions_total,
        "Requests that lost their blocks, and were computed again or waited in host memory.",
    ),
    "vllm:prefix_cache_queries": (
        lambda stats: stats.prefix_queries_total,
        "Prompt tokens looked up in the prefix cache.",
    ),
    "vllm:prefix_cache_hits": (lambda stats: stats.prefix_hits_total, "Prompt tokens found in the prefix cache."),
    "pelton:prefix_cache_inflight_hits": (
        lambda stats: stats.prefix_inflight_total,
        "Prompt tokens found while another request was still computing them.",
    ),
    "pelton:prefix_cache_evictions": (
        lambda stats: stats.prefix_evictions_total,
        "Blocks that the prefix cache gave up.",
    ),
    "pelton:copied_blocks": (
        lambda stats: stats.copied_blocks_total,
        "Blocks copied, since somebody goes on in the midst of one that others have, too: answers that part, prompts "
        "that begin alike, steps of a beam.",
    ),
    "pelton:swaps": (lambda stats: stats.swaps_total, "Preempted requests whose blocks waited in host memory."),
    "pelton:swaps_lost": (
        lambda stats: stats.swaps_lost_total,
        "Of those, requests computed again after all, since a prefix they shared was gone.",
    ),
    "pelton:kv_saved_blocks": (lambda stats: stats.saved_blocks_total, "Blocks of preempted requests saved."),
    "pelton:kv_loaded_blocks": (lambda stats: stats.loaded_blocks_total, "Blocks of preempted requests loaded."),
    "pelton:kv_disk_stored_blocks": (lambda stats: stats.disk_stored_total, "Evicted blocks written to files."),
    "pelton:kv_disk_loaded_blocks": (lambda stats: stats.disk_loaded_total, "Blocks loaded from files."),
    "pelton:kv_disk_hit_tokens": (lambda stats: stats.disk_hit_tokens_total, "Prompt tokens that files had."),
    "pelton:kv_disk_dropped_blocks": (
        lambda stats: stats.disk_dropped_total,
        "Evicted blocks that were not written, since too many were on their way.",
    ),
    "pelton:kv_disk_rejected_files": (
        lambda stats: stats.disk_rejected_total,
        "Files of blocks deleted because they were not as they were written.",
    ),
    "pelton:kv_disk_failures": (lambda stats: stats.disk_failed_total, "Reads and writes of files that failed."),
    "pelton:steps": (lambda stats: stats.steps_total, "Steps of the engine."),
    "pelton:plans_ahead": (
        lambda stats: stats.plans_ahead_total,
        "Steps whose plan was made while the step before ran.",
    ),
    "pelton:plans_ahead_trimmed": (lambda stats: stats.plans_trimmed_total, "Of those, plans that lost some rows."),
    "pelton:plans_ahead_taken_back": (
        lambda stats: stats.plans_taken_back_total,
        "Plans that were made so and then made again.",
    ),
    "pelton:backend_seconds": (
        lambda stats: stats.backend_seconds_total,
        "Time of steps in the backend; what pelton:step_seconds sums up to beyond it is the engine's own work.",
    ),
    "pelton:computed_tokens": (
        lambda stats: stats.computed_tokens_total,
        "Tokens computed, of prompts and answers, repeated work included.",
    ),
}
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": (FIRST_TOKEN, "From a request's arrival to its first token."),
    "vllm:inter_token_latency_seconds": (BETWEEN_TOKENS, "Between tokens of an answer."),
    "vllm:request_time_per_output_token_seconds": (BETWEEN_TOKENS, "Mean time between tokens, one value per request."),
    "vllm:e2e_request_latency_seconds": (LATENCY, "From a request's arrival to its end."),
    "vllm:request_queue_time_seconds": (LATENCY, "From a request's arrival until it is first computed."),
    "vllm:request_inference_time_seconds": (LATENCY, "From when a request is first computed to its end."),
    "vllm:request_prefill_time_seconds": (LATENCY, "From when a request is first computed to its first token."),
    "vllm:request_decode_time_seconds": (LATENCY, "From a request's first token to its end."),
    "vllm:request_params_n": (ANSWERS, "Answers asked for."),
    "vllm:request_num_preemptions": (PREEMPTIONS, "Preemptions of a request."),
    "vllm:iteration_tokens_total": (STEP_TOKENS, "Tokens computed in a step."),
    "pelton:step_seconds": (STEP_SECONDS, "Time of a step."),
    "pelton:schedule_seconds": (SCHEDULE_SECONDS, "Time to plan a step."),
}
TOKEN_HISTOGRAMS = {
    "vllm:request_prompt_tokens": "Tokens of a prompt.",
    "vllm:request_generation_tokens": "Tokens of an answer.",
    "vllm:request_max_num_generation_tokens": "Tokens of the longest of a request's answers.",
    "vllm:request_params_max_tokens": "Most tokens asked for.",
    "vllm:request_prefill_kv_computed_tokens": "Tokens of a prompt that were not in the prefix cache.",
}


class _Sequence:
    """What is known of one sequence in the engine: tokens so far, when the last one came, preemptions, its end."""

    __slots__ = ("ended", "last", "preempted", "tokens")

    def __init__(self) -> None:
        self.ended = False
        self.tokens = 0
        self.last: float | None = None
        self.preempted = 0


class _Kinds:
    """How many there were of each kind; those that there may be are told from the start, at 0."""

    def __init__(self) -> None:
        self.ended = Counter(dict.fromkeys(REASONS, 0))
        self.lookups = Counter(dict.fromkeys(LOOKUPS, 0))
        self.rejected = Counter(dict.fromkeys(REJECTIONS, 0))
        self.aborted = Counter(dict.fromkeys(ABORTS, 0))
        self.late = Counter(dict.fromkeys(STATES, 0))


class Metrics(Collector):
    """An observer of the AsyncEngine, used from its event loop alone.

    What requests were given (tokens of prompts, latencies, reasons) is counted as they end, generated tokens and the
    engine's state with each step.
    """

    def __init__(self, model_name: str, clock: Clock | None = None) -> None:
        self._families = Families({"model_name": model_name, "engine": ENGINE})
        self._clock = clock or SystemClock()
        self._stats = EngineStats()
        self._before = dict.fromkeys(TOTALS, 0.0)  # of engines that were restarted
        self._open: dict[str, _Sequence] = {}
        self._left: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._kinds = _Kinds()
        self._abort_reason = ABORTS[0]
        self._engine: tuple[EngineConfig, StartReport] | None = None
        self._histograms = {name: Histogram(edges) for name, (edges, _) in HISTOGRAMS.items()}
        self._histograms |= {name: Histogram(token_edges(MOST_TOKENS)) for name in TOKEN_HISTOGRAMS}
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def ready(self, config: EngineConfig, report: StartReport) -> None:
        """The engine runs: its sizes are known. Nothing has been counted yet."""
        for name in TOKEN_HISTOGRAMS:
            self._histograms[name] = Histogram(token_edges(report.max_model_len))
        self._engine = (config, report)

    def on_step(self, stats: EngineStats, events: Iterable[Event]) -> None:
        """One step of the engine; the requests that it finished are told after it."""
        self._stats = stats
        now = self._clock.now()
        latency = self._histograms["vllm:inter_token_latency_seconds"]
        for event in events:
            match event:
                case TokensGenerated(request_id=name, tokens=tokens):
                    sequence = self._open.get(name)
                    if sequence is None:
                        continue
                    if sequence.last is not None:
                        latency.observe(now - sequence.last)
                    sequence.last = now
                    sequence.tokens += len(tokens)
                    self._counts["generated"] += len(tokens)
                case RequestScheduled(request_id=name, lookup=lookup):
                    if lookup is not None:
                        self._kinds.lookups[lookup.kind] += 1
                    if name not in self._left:
                        self._open.setdefault(name, _Sequence())
                case RequestFinished(request_id=name):
                    self._left.discard(name)
                    if name in self._open:
                        self._open[name].ended = True
                case RequestPreempted(request_id=name) if name in self._open:
                    self._open[name].preempted += 1
                case _:
                    pass
        if stats.step_tokens:
            self._histograms["vllm:iteration_tokens_total"].observe(stats.step_tokens)
            self._histograms["pelton:step_seconds"].observe(stats.step_seconds)
            self._histograms["pelton:schedule_seconds"].observe(stats.schedule_seconds)

    def on_finished(self, output: RequestOutput, request: Request) -> None:
        """A request is over, with all its answers."""
        names = (request.request_id, *(f"{request.request_id}/{child}" for child in range(1, request.params.n)))
        sequences = [self._open.pop(name, _Sequence()) for name in names]
        # Of those that a client left the engine tells the end later, and maybe a token before.
        self._left.update(name for name, sequence in zip(names, sequences, strict=True) if not sequence.ended)
        for answer in output.outputs:
            self._kinds.ended[answer.finish_reason or "abort"] += 1
        if any(answer.finish_reason in ("abort", None) for answer in output.outputs):
            self._kinds.aborted[self._abort_reason] += 1
        tokens = [len(answer.token_ids) for answer in output.outputs]
        # A stop string may end an answer within the tokens of a step, or after the engine computed one more.
        self._counts["generated"] += sum(tokens) - sum(sequence.tokens for sequence in sequences)
        if output.error is not None and BAD_LOGITS in output.error:
            self._counts["corrupted"] += 1
        if output.error_code == LATE:
            self._kinds.late[STATES[output.metrics.first_scheduled is not None]] += 1
        if output.metrics.first_token is not None or all(
            answer.finish_reason in ("stop", "length") for answer in output.outputs
        ):
            self._count_prompt(len(output.prompt_token_ids), output.num_cached_tokens)
        self._observe("vllm:request_num_preemptions", sum(sequence.preempted for sequence in sequences))
        self._observe("vllm:request_params_n", request.params.n)
        self._observe("vllm:request_params_max_tokens", request.max_tokens)
        self._observe("vllm:request_max_num_generation_tokens", max(tokens, default=0))
        for count in tokens:
            self._observe("vllm:request_generation_tokens", count)
        self._observe_times(output, tokens)

    def _count_prompt(self, tokens: int, cached: int) -> None:
        self._counts["prompt"] += tokens
        self._counts["cached"] += cached
        self._observe("vllm:request_prompt_tokens", tokens)
        self._observe("vllm:request_prefill_kv_computed_tokens", tokens - cached)

    def _observe_times(self, output: RequestOutput, tokens: list[int]) -> None:
        times = output.metrics
        end = self._clock.now() if times.finished is None else times.finished
        self._observe("vllm:e2e_request_latency_seconds", end - times.arrival)
        if times.first_scheduled is not None:
            self._observe("vllm:request_queue_time_seconds", times.first_scheduled - times.arrival)
            self._observe("vllm:request_inference_time_seconds", end - times.first_scheduled)
        if times.first_token is not None:
            self._observe("vllm:time_to_first_token_seconds", times.first_token - times.arrival)
            self._observe("vllm:request_decode_time_seconds", end - times.first_token)
            if times.first_scheduled is not None:
                self._observe("vllm:request_prefill_time_seconds", times.first_token - times.first_scheduled)
            if max(tokens) > 1:
                mean = (end - times.first_token) / (max(tokens) - 1)
                self._observe("vllm:request_time_per_output_token_seconds", mean)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)

    def on_restart(self) -> None:
        """The engine process was started again; its own totals begin at 0."""
        for name, (figure, _) in TOTALS.items():
            self._before[name] += figure(self._stats)
        self._stats = EngineStats()
        self._left.clear()
        self._counts["restarts"] += 1

    def on_rejected(self, reason: str) -> None:
        """A request was not taken, because too many waited."""
        self._kinds.rejected[reason] += 1

    def ending(self) -> None:
        """From now on requests that are aborted are so because the server ends, not because their clients left."""
        self._abort_reason = "shutdown"

    def render(self) -> tuple[bytes, str]:
        """(text, content type) for /metrics."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def collect(self) -> Iterator[Metric]:
        """All families; the registry asks for them."""
        yield from self._gauges()
        yield from self._counters()
        for name, (_, text) in HISTOGRAMS.items():
            yield self._families.histogram(name, text, self._histograms[name])
        for name, text in TOKEN_HISTOGRAMS.items():
            yield self._families.histogram(name, text, self._histograms[name])

    def _gauges(self) -> Iterator[Metric]:
        stats, families = self._stats, self._families
        yield families.gauge("vllm:num_requests_running", "Requests being computed.", stats.running)
        yield families.gauge("vllm:num_requests_waiting", "Requests that wait to be computed.", stats.waiting)
        reasons = by("reason", {"capacity": stats.waiting - stats.deferred, "deferred": stats.deferred})
        yield families.gauge("vllm:num_requests_waiting_by_reason", "Requests that wait, by what for.", reasons)
        yield families.gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.", stats.kv_usage)
        if self._engine is not None:
            yield info("vllm:cache_config_info", "The KV cache.", _cache_info(*self._engine))
            yield families.gauge("pelton:start_seconds", "Time the engine took to start.", self._engine[1].seconds)
            text = "Bytes of the weights as they are held, all of which a step reads but for rows looked up."
            yield families.gauge("pelton:weight_bytes", text, self._engine[1].held_bytes)
        free = stats.kv_blocks - stats.held_blocks - stats.cached_blocks
        states = by("state", {"held": stats.held_blocks, "cached": stats.cached_blocks, "free": free})
        yield families.gauge("pelton:kv_blocks", "KV blocks, by what they hold.", states)
        text = "KV blocks that there would be more if nothing were shared."
        yield families.gauge("pelton:kv_spared_blocks", text, stats.spared_blocks)
        yield families.gauge("pelton:sessions", "Sessions whose blocks are held.", stats.sessions)
        text = "Blocks that sessions hold, some of them with requests."
        yield families.gauge("pelton:session_blocks", text, stats.session_blocks)
        text = "Share of the token places in held KV blocks that hold no token, 0 to 1."
        yield families.gauge("pelton:kv_waste_perc", text, stats.kv_waste)
        slots = by("state", {"held": stats.host_slots_used, "free": stats.host_slots - stats.host_slots_used})
        yield families.gauge("pelton:kv_host_slots", "Places of blocks in host memory.", slots)
        yield families.gauge("pelton:num_requests_swapped", "Requests whose blocks wait there.", stats.swapped)
        yield families.gauge("pelton:kv_disk_bytes", "Bytes of all files of blocks.", stats.disk_bytes)
        yield families.gauge("pelton:asyncio_tasks", "Tasks of the process that speaks HTTP.", _tasks())
        yield info("pelton:build_info", "What runs here.", {"version": pelton.__version__})

    def _counters(self) -> Iterator[Metric]:
        counts, families = self._counts, self._families
        for name, (figure, text) in TOTALS.items():
            yield families.counter(name, text, self._before[name] + figure(self._stats))
        # A counter must not fall, also where more came than a client was told in the end.
        counts["shown"] = max(counts["shown"], counts["generated"])
        yield families.counter("vllm:generation_tokens", "Generated tokens.", counts["shown"])
        yield families.counter("vllm:prompt_tokens", "Tokens of prompts.", counts["prompt"])
        yield families.counter("vllm:prompt_tokens_cached", "Tokens of prompts that were cached.", counts["cached"])
        computed, cached = counts["prompt"] - counts["cached"], counts["cached"]
        sources = by("source", {"local_compute": computed, "local_cache_hit": cached, "external_kv_transfer": 0})
        yield families.counter("vllm:prompt_tokens_by_source", "Tokens of prompts, by where from.", sources)
        yield families.counter(
            "vllm:request_success", "Answers that ended, by why.", by("finished_reason", self._kinds.ended)
        )
        text = "Prompts looked up in the prefix cache, by why no more of them was found."
        yield families.counter("pelton:prefix_cache_lookups", text, by("reason", self._kinds.lookups))
        text = "Requests that were not taken, by the limit that was reached."
        yield families.counter("vllm:admission_rejections", text, by("reason", self._kinds.rejected))
        text = "Requests that ended because their logits were not finite."
        yield families.counter("vllm:corrupted_requests", text, counts["corrupted"])
        yield families.counter(
            "pelton:aborted", "Requests ended before their time, by why.", by("reason", self._kinds.aborted)
        )
        text = "Requests whose time was up before they were finished, by what they were at."
        yield families.counter("pelton:request_timeouts", text, by("state", self._kinds.late))
        yield families.counter("pelton:engine_restarts", "Times the engine was started again.", counts["restarts"])


def _cache_info(config: EngineConfig, report: StartReport) -> dict[str, str]:
    """The labels of vllm:cache_config_info that have a meaning here."""
    return {
        "block_size": str(report.block_size),
        "cache_dtype": report.dtype,
        "enable_prefix_caching": str(config.cache.enable_prefix_caching),
        "kv_cache_memory_bytes": str(report.kv_bytes),
        "num_gpu_blocks": str(report.kv_blocks),
        "num_gpu_blocks_override": str(config.cache.num_blocks),
        "max_model_len": str(report.max_model_len),
        "engine": ENGINE,
    }


def _tasks() -> int:
    """Of the event loop that this is called in; 0 outside of one."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0
