"""Static batching: a batch is formed, and the next one begins when its longest answer is whole (before Orca, 2022).

What it loses are the places of answers that are over while others of the batch go on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pelton.core.clock import Clock
from pelton.core.request import RequestOutput
from pelton.engine.llm import LLM
from pelton.measure.baselines.gain import Gain, in_turns, middle
from pelton.measure.bench.offline import Answers, prompt_of
from pelton.measure.bench.workload import Sample


@dataclass(frozen=True, slots=True)
class _Run:
    tokens: tuple[tuple[int, ...], ...]
    seconds: float

    @property
    def rate(self) -> float:
        return sum(map(len, self.tokens)) / self.seconds


def static_batching(llm: LLM, samples: Sequence[Sample], size: int, repeats: int, clock: Clock) -> Gain:
    """Output tokens per second of all samples, `size` at a time, against the engine, which has as many rows."""
    prompts = [prompt_of(llm, sample) for sample in samples]
    params = [Answers().params(sample.output_len) for sample in samples]

    def run(step: int) -> _Run:
        outputs: list[RequestOutput] = []
        began = clock.now()
        for start in range(0, len(prompts), step):
            outputs += llm.generate(prompts[start : start + step], params[start : start + step], use_tqdm=False)
        return _Run(tuple(answer(output) for output in outputs), clock.now() - began)

    theirs, ours = in_turns(repeats, lambda: run(size), lambda: run(len(prompts)))
    return Gain(
        name="continuous batching",
        baseline_name="static batches",
        unit="output tokens/s",
        ours=middle([one.rate for one in ours]),
        baseline=middle([one.rate for one in theirs]),
        details={"batch": size, "requests": len(samples), "idle_share": idle(list(map(len, theirs[0].tokens)), size)},
        same=len({one.tokens for one in (*theirs, *ours)}) == 1,
    )


def answer(output: RequestOutput) -> tuple[int, ...]:
    """The tokens of the first answer."""
    return tuple(output.outputs[0].token_ids)


def idle(lengths: Sequence[int], size: int) -> float:
    """Share of the places in static batches, step by step, that wait for the batch's longest answer."""
    batches = [lengths[start : start + size] for start in range(0, len(lengths), size)]
    places = sum(size * max(batch) for batch in batches)
    return 1 - sum(lengths) / places if places else 0.0
