"""Without a KV cache: each token of an answer is drawn from all that stands before it, computed once more."""

from collections.abc import Sequence
from dataclasses import dataclass

from pelton.core.clock import Clock
from pelton.engine.llm import LLM, work_done
from pelton.measure.baselines.batching import answer
from pelton.measure.baselines.gain import Gain, in_turns, middle
from pelton.measure.bench.offline import Answers

FLOPS = "flops:"


@dataclass(frozen=True, slots=True)
class _Run:
    tokens: tuple[int, ...]
    seconds: float
    flops: int


def no_cache(llm: LLM, prompt: Sequence[int], length: int, repeats: int, clock: Clock) -> Gain:
    """Tokens per second of one answer. The engine must have been started without prefix caching: ValueError else."""
    if llm.get_metrics()["cached_blocks"]:
        raise ValueError("an engine that keeps prefixes has a cache")

    def cached() -> tuple[int, ...]:
        ids = {"prompt_token_ids": list(prompt)}
        return answer(llm.generate(ids, Answers().params(length), use_tqdm=False)[0])

    def uncached() -> tuple[int, ...]:
        drawn: list[int] = []
        for _ in range(length):
            ids = {"prompt_token_ids": [*prompt, *drawn]}
            drawn += answer(llm.generate(ids, Answers().params(1), use_tqdm=False)[0])
        return tuple(drawn)

    def run(way: str) -> _Run:
        before, began = _flops(llm), clock.now()
        tokens = cached() if way == "cached" else uncached()
        return _Run(tokens, clock.now() - began, _flops(llm) - before)

    theirs, ours = in_turns(repeats, lambda: run("uncached"), lambda: run("cached"))
    return Gain(
        name="KV cache",
        baseline_name="all computed again for each token",
        unit="tokens/s of one answer",
        ours=middle([length / one.seconds for one in ours]),
        baseline=middle([length / one.seconds for one in theirs]),
        details={
            "prompt": len(prompt),
            "output": length,
            "gflop": ours[0].flops / 1e9,
            "gflop_without": theirs[0].flops / 1e9,
        },
        same=len({one.tokens for one in (*theirs, *ours)}) == 1,
    )


def _flops(llm: LLM) -> int:
    return sum(count for name, count in work_done(llm).items() if name.startswith(FLOPS))
