"""Load with conversations: a turn waits for the answer before it, takes it along, and is one of those at once."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from pelton.core.clock import SystemClock
from pelton.measure.bench.conversation import chains, turns
from pelton.measure.bench.figures import Timing
from pelton.measure.bench.load import Load, run_load
from pelton.measure.bench.workload import Sample


def turn(text: str, follows: int | None = None) -> Sample:
    return Sample(1, messages=({"role": "user", "content": text},), follows=follows)


TALKS = [turn("a0"), turn("a1", 0), turn("b0"), turn("a2", 1), turn("b1", 2), turn("c0")]


@dataclass
class Asked:
    """Answers each request with its last message in capitals, and writes down what it was sent and when."""

    fails: str = ""
    sent: list[list[object]] = field(default_factory=list)
    now: int = 0
    most: int = 0

    async def ask(self, sample: Sample) -> Timing:
        self.sent.append([message["content"] for message in sample.messages])
        self.now += 1
        self.most = max(self.most, self.now)
        timing = Timing(SystemClock().now())
        await asyncio.sleep(0.002)
        self.now -= 1
        last = str(sample.messages[-1]["content"])
        timing.pieces, timing.text = [SystemClock().now()], last.upper()
        timing.ended = timing.pieces[-1]
        if last == self.fails:
            timing.error = "no"
        return timing


def load(client: Asked, samples: Sequence[Sample], how: Load) -> tuple[list[Timing], int]:
    done = []
    timings, _ = asyncio.run(run_load(client, samples, how, SystemClock(), lambda: done.append(1)))  # type: ignore[arg-type]
    return timings, len(done)


def test_chains_and_turns() -> None:
    assert chains(TALKS) == [[0, 1, 3], [2, 4], [5]]
    assert turns(TALKS) == [[0, 2, 5], [1, 4], [3]]
    assert turns([]) == []
    for wrong in ([turn("a", 0)], [turn("a", 1), turn("b")], [turn("a"), turn("b", 0), turn("c", 0)]):
        with pytest.raises(ValueError, match="cannot follow"):
            chains(wrong)


@pytest.mark.parametrize("concurrency", [None, 1, 2])
@pytest.mark.parametrize("rate", [float("inf"), 500.0])
def test_a_turn_is_sent_with_the_real_answers_before_it(concurrency: int | None, rate: float) -> None:
    client = Asked()
    timings, done = load(client, TALKS, Load(rate=rate, concurrency=concurrency))
    assert done == len(TALKS) and all(timing.ok for timing in timings)
    assert [timing.text for timing in timings] == ["A0", "A1", "B0", "A2", "B1", "C0"]
    assert ["a0", "A0", "a1"] in client.sent and ["b0", "B0", "b1"] in client.sent and ["c0"] in client.sent
    assert client.sent.count(["a0", "A0", "a1", "A1", "a2"]) == 1 and len(client.sent) == len(TALKS)
    for earlier, later in ((0, 1), (1, 3), (2, 4)):
        assert timings[earlier].ended <= timings[later].sent
    assert client.most <= (concurrency or 3)


def test_a_conversation_goes_on_before_another_begins() -> None:
    client = Asked()
    timings, _ = load(client, TALKS, Load(concurrency=1))
    assert [sent[-1] for sent in client.sent] == ["a0", "a1", "a2", "b0", "b1", "c0"]
    # A later turn has not waited; another conversation has.
    assert timings[1].queued < 0.001 < 0.005 < timings[2].queued < timings[5].queued


def test_what_follows_a_failure_is_not_asked_and_counts_as_failed() -> None:
    client = Asked(fails="a1")
    timings, done = load(client, TALKS, Load(concurrency=2))
    assert done == len(TALKS) and len(client.sent) == len(TALKS) - 1
    assert [timing.ok for timing in timings] == [True, False, True, False, True, True]
    assert "the turn before it failed" in (timings[3].error or "")
