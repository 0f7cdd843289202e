"""Bench without a server: latency of one batch, throughput of many requests, in the present process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pelton.core.clock import Clock
from pelton.core.params import SamplingParams
from pelton.core.request import RequestOutput
from pelton.engine.llm import LLM
from pelton.engine.prompts import Prompt
from pelton.measure.bench.conversation import History, remembered, spoken, turns
from pelton.measure.bench.host import HostWork
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


@dataclass(frozen=True, slots=True)
class Answers:
    """`n` answers to each prompt, made into text or left as tokens."""

    n: int = 1
    detokenize: bool = True

    def params(self, length: int) -> SamplingParams:
        """Answers of exactly this length, so that every run does the same work."""
        return SamplingParams(
            n=self.n,
            temperature=1.0 if self.n > 1 else 0.0,
            seed=0,
            max_tokens=length,
            ignore_eos=True,
            detokenize=self.detokenize,
        )


@dataclass(frozen=True, slots=True)
class Iterations:
    """How often a batch is measured, after how many times that do not count."""

    count: int
    warmups: int = 0


def latency(
    llm: LLM,
    batch: Sequence[Sample],
    answers: Answers,
    iterations: Iterations,
    clock: Clock,
    done: Callable[[], None],
) -> dict[str, object]:
    """Seconds from handing over a batch to its last token, with vLLM's keys. Prefixes are forgotten in between."""
    prompts = [prompt_of(llm, sample) for sample in batch]
    params = [answers.params(sample.output_len) for sample in batch]
    taken = []
    host = HostWork(llm)
    for number in range(iterations.warmups + iterations.count):
        llm.reset_prefix_cache()
        if number == iterations.warmups:
            host = HostWork(llm)
        start = clock.now()
        llm.generate(prompts, params, use_tqdm=False)
        if number >= iterations.warmups:
            taken.append(clock.now() - start)
        done()
    percentiles = np.percentile(taken, LATENCY_PERCENTILES)
    return {
        "avg_latency": float(np.mean(taken)),
        "std_latency": float(np.std(taken)),
        "latencies": taken,
        "percentiles": {str(at): float(value) for at, value in zip(LATENCY_PERCENTILES, percentiles, strict=True)},
        "host": host.figures(sum(taken)),
    }


def throughput(
    llm: LLM, samples: Sequence[Sample], answers: Answers, clock: Clock, *, progress: bool
) -> dict[str, object]:
    """All samples handed over at once, with vLLM's keys; tokens of prompts and answers together, and of answers.

    Conversations: all first turns at once, then all second ones with the real answers to the first, and so on. The
    time between, in which prompts are put together, is not counted. Their answers are made into text in any case.
    """
    if any(sample.follows is not None for sample in samples):
        answers = replace(answers, detokenize=True)
    seconds, host = 0.0, HostWork(llm)
    outputs: list[RequestOutput] = []
    histories: dict[int | None, History] = {}
    for turn in turns(samples):
        asked = [spoken(samples[place], histories.get(samples[place].follows, ())) for place in turn]
        prompts = [prompt_of(llm, sample) for sample in asked]
        params = [answers.params(sample.output_len) for sample in asked]
        start = clock.now()
        given = llm.generate(prompts, params, use_tqdm=progress)
        seconds += clock.now() - start
        outputs += given
        for place, sample, output in zip(turn, asked, given, strict=True):
            histories[place] = remembered(sample, output.outputs[0].text if output.outputs else "")
    tokens_in = sum(len(output.prompt_token_ids) for output in outputs)
    tokens_out = sum(len(one.token_ids) for output in outputs for one in output.outputs)
    return {
        "elapsed_time": seconds,
        "num_requests": len(samples),
        "total_num_tokens": tokens_in + tokens_out,
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "total_cached_tokens": sum(output.num_cached_tokens for output in outputs),
        "requests_per_second": len(samples) / seconds,
        "tokens_per_second": (tokens_in + tokens_out) / seconds,
        "output_tokens_per_second": tokens_out / seconds,
        "failed": sum(output.error is not None for output in outputs),
        "host": host.figures(seconds),
    }
