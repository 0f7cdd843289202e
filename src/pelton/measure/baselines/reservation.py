"""Contiguous reservation: each request gets room for the longest it might become, as before arXiv 2309.06180.

Without pages a row's memory is taken whole, so as many requests run at once as whole reservations fit.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pelton.core.clock import Clock
from pelton.engine.llm import LLM
from pelton.engine.report import StartReport
from pelton.measure.baselines.batching import answer
from pelton.measure.baselines.gain import Gain, in_turns, middle
from pelton.measure.bench.offline import Answers, prompt_of
from pelton.measure.bench.workload import Sample

LOOK_SECONDS = 0.01  # between looks at how much of the memory holds tokens


@dataclass(frozen=True, slots=True)
class _Run:
    """`held`: token places with a token, `places`: in blocks that requests held, `rows`: requests; sums of looks."""

    tokens: tuple[tuple[int, ...], ...]
    seconds: float
    held: float
    places: float
    rows: float

    @property
    def rate(self) -> float:
        return sum(map(len, self.tokens)) / self.seconds


def fitting(report: StartReport) -> int:
    """How many requests of max_model_len tokens fit into the KV memory at once, each with all of its room."""
    longest = -(-report.max_model_len // report.block_size)
    whole = [blocks - 1 for blocks, _, window in report.kv_groups if window is None]
    return max(1, min(whole, default=report.kv_blocks - 1) // longest)


def reserved(llm: LLM, samples: Sequence[Sample], rows: int, repeats: int, clock: Clock) -> Gain:
    """Output tokens per second of all samples where each reserves max_model_len tokens, against pages; `rows`: at once
    at most, in both.
    """
    report = llm.report
    most = min(rows, fitting(report))
    theirs, ours = in_turns(repeats, lambda: _run(llm, samples, most, clock), lambda: _run(llm, samples, rows, clock))
    room = report.max_model_len * len(report.kv_groups)
    return Gain(
        name="paged KV memory",
        baseline_name="room for max_model_len reserved",
        unit="output tokens/s",
        ours=middle([one.rate for one in ours]),
        baseline=middle([one.rate for one in theirs]),
        details={
            "most_at_once": rows,
            "most_at_once_without": most,
            "waste": middle([1 - one.held / one.places if one.places else 0.0 for one in ours]),
            "waste_without": middle([1 - one.held / (one.rows * room) if one.rows else 0.0 for one in theirs]),
            "max_model_len": report.max_model_len,
        },
        same=len({one.tokens for one in (*theirs, *ours)}) == 1,
    )


def _run(llm: LLM, samples: Sequence[Sample], rows: int, clock: Clock) -> _Run:
    """All samples, `rows` of them at once."""
    looks = _Looks(llm)

    def ask(sample: Sample) -> tuple[int, ...]:
        return answer(llm.generate(prompt_of(llm, sample), Answers().params(sample.output_len), use_tqdm=False)[0])

    began = clock.now()
    with looks, ThreadPoolExecutor(rows) as askers:
        tokens = tuple(askers.map(ask, samples))
    return _Run(tokens, clock.now() - began, looks.held, looks.places, looks.rows)


class _Looks:
    """Looks at the KV memory now and then while it is entered."""

    def __init__(self, llm: LLM) -> None:
        self.held = self.places = self.rows = 0.0
        self._llm = llm
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="pelton-looks")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        size = self._llm.report.block_size
        while not self._over.wait(LOOK_SECONDS):
            now = self._llm.get_metrics()
            places = now["held_blocks"] * size
            self.places += places
            self.held += places * (1 - now["kv_waste"])
            self.rows += now["running"]
