"""Bench without a server: latency of one batch, throughput of many requests, in the present process."""

from collections.abc import Callable, Sequence

import numpy as np

from pelton.core.clock import Clock
from pelton.core.params import SamplingParams
from pelton.engine.llm import LLM
from pelton.engine.prompts import Prompt
from pelton.measure.bench.workload import Sample

LATENCY_PERCENTILES = (10, 25, 50, 75, 90, 99)


def prompt_of(llm: LLM, sample: Sample) -> Prompt:
    """The sample as `LLM.generate` takes it."""
    if sample.messages:
        return llm.chat_prompt(sample.messages)
    if isinstance(sample.prompt, tuple):
        return {"prompt_token_ids": list(sample.prompt)}
    assert sample.prompt is not None
    return sample.prompt


def latency(
    llm: LLM, batch: Sequence[Sample], n: int, warmups: int, iterations: int, clock: Clock, done: Callable[[], None]
) -> dict[str, object]:
    """Seconds from handing over a batch to its last token, with vLLM's keys. Prefixes are forgotten in between."""
    prompts = [prompt_of(llm, sample) for sample in batch]
    params = [_fixed(sample.output_len, n) for sample in batch]
    taken = []
    for number in range(warmups + iterations):
        llm.reset_prefix_cache()
        start = clock.now()
        llm.generate(prompts, params, use_tqdm=False)
        if number >= warmups:
            taken.append(clock.now() - start)
        done()
    percentiles = np.percentile(taken, LATENCY_PERCENTILES)
    return {
        "avg_latency": float(np.mean(taken)),
        "latencies": taken,
        "percentiles": {str(at): float(value) for at, value in zip(LATENCY_PERCENTILES, percentiles, strict=True)},
    }


def throughput(llm: LLM, samples: Sequence[Sample], n: int, clock: Clock, *, progress: bool) -> dict[str, object]:
    """All samples handed over at once, with vLLM's keys; tokens of prompts and answers together, and of answers."""
    prompts = [prompt_of(llm, sample) for sample in samples]
    start = clock.now()
    outputs = llm.generate(prompts, [_fixed(sample.output_len, n) for sample in samples], use_tqdm=progress)
    seconds = clock.now() - start
    tokens_in = sum(len(output.prompt_token_ids) for output in outputs)
    tokens_out = sum(len(one.token_ids) for output in outputs for one in output.outputs)
    return {
        "elapsed_time": seconds,
        "num_requests": len(samples),
        "total_num_tokens": tokens_in + tokens_out,
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "requests_per_second": len(samples) / seconds,
        "tokens_per_second": (tokens_in + tokens_out) / seconds,
        "output_tokens_per_second": tokens_out / seconds,
        "failed": sum(output.error is not None for output in outputs),
    }


def _fixed(length: int, n: int) -> SamplingParams:
    """Answers of exactly this length, so that every run does the same work."""
    return SamplingParams(n=n, temperature=1.0 if n > 1 else 0.0, seed=0, max_tokens=length, ignore_eos=True)
