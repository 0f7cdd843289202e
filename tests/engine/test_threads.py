"""LLM from several threads: each gets what it would get alone, nothing is lost, nobody waits for ever."""

import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.engine.conftest import FakeLLM
from tests.engine.fakes import FakeExecutable

from pelton.backends.backend import StepInputs, StepOutputs
from pelton.core.errors import BackendError, RequestError
from pelton.core.params import SamplingParams
from pelton.core.request import CompletionOutput
from pelton.engine.llm import LLM
from pelton.engine.outputs import Answer

Make = Callable[..., FakeLLM]
PARAMS = SamplingParams(seed=1, max_tokens=12)
Call = Callable[[LLM], list[CompletionOutput]]


def generated(name: str) -> Call:
    params = [SamplingParams(seed=n, max_tokens=20 + 7 * n, logprobs=2) for n in range(3)]
    return lambda llm: [
        output.outputs[0] for output in llm.generate([name, name * 5, name * 9], params, use_tqdm=False)
    ]


def streamed(name: str) -> Call:
    def call(llm: LLM) -> list[CompletionOutput]:
        found = []
        for seed in range(2):
            pieces = list(llm.stream(name * 3, SamplingParams(seed=seed, max_tokens=30, logprobs=1)))
            answer = pieces[-1].output
            assert answer is not None
            assert "".join(piece.text for piece in pieces) == answer.outputs[0].text
            assert [token for piece in pieces for token in piece.token_ids] == answer.outputs[0].token_ids
            found += answer.outputs
        return found

    return call


CALLS = [generated("one"), streamed("two"), generated("three"), streamed("four")]


def together(llm: LLM, calls: Sequence[Call]) -> list[list[CompletionOutput]]:
    barrier = threading.Barrier(len(calls))

    def run(call: Call) -> list[CompletionOutput]:
        barrier.wait(10)
        return call(llm)

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


class Watch:
    """Wraps a fake executable's run: takes a moment with the GIL released, counts steps of several sequences."""

    def __init__(self, executable: FakeExecutable, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shared = 0
        self.entered = 0
        self.during: Callable[[], object] | None = None
        self._run = executable.run
        monkeypatch.setattr(executable, "run", self.run)

    def run(self, inputs: StepInputs) -> StepOutputs:
        self.entered += 1
        time.sleep(0.001)
        assert self.entered == 1, "two threads are in a step"
        if self.during is not None:
            during, self.during = self.during, None
            during()
        self.shared += len(inputs.counts) > 3  # one call alone has three sequences at most
        outputs = self._run(inputs)
        self.entered -= 1
        return outputs


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("blocks", [200, 60])
def test_each_thread_gets_what_it_gets_alone(
    fake_llm: Make, monkeypatch: pytest.MonkeyPatch, count: int, blocks: int
) -> None:
    alone = fake_llm().llm
    wanted = [call(alone) for call in CALLS[:count]]
    for _ in range(3):
        fake = fake_llm(budget=40, blocks=blocks)
        watch = Watch(fake.executable, monkeypatch)
        assert together(fake.llm, CALLS[:count]) == wanted
        assert watch.shared > 10, "the threads' requests run in the same steps"
        fake.session.engine.check()
        assert fake.held == 0 and not fake.session.engine.has_work
        counters = fake.llm.get_metrics()
        assert counters["finished_length"] == sum(map(len, wanted)) and "check_failures" not in counters


def test_each_thread_gets_what_it_gets_alone_from_a_model(tiny_model: Path) -> None:
    """With `python -O`, so that no assertion is what keeps the threads apart. Calls are so short that on a busy machine
    they may run one after the other; one round of many must show them in the same steps.
    """
    pytest.importorskip("pelton.backends.cpu._native")
    code = (
        "import sys\nfrom tests.engine.test_threads import CALLS, together\nfrom pelton import LLM\n"
        "with LLM(sys.argv[1], num_blocks=64, max_num_batched_tokens=24) as llm:\n"
        "    wanted = [call(llm) for call in CALLS]\n"
        "    def steps():\n"
        "        return llm._parts.inner.executable.counters()['steps']\n"
        "    alone, share, good = steps(), 1, True\n"
        "    for _ in range(20):\n"
        "        before = steps()\n"
        "        good = good and together(llm, CALLS) == wanted\n"
        "        share = min(share, (steps() - before) / alone)\n"
        "        llm._parts.session.engine.scheduler.check()\n"
        "        if share < 0.9 or not good:\n"
        "            break\n"
        "sys.exit(0 if good and share < 0.9 else f'{good}, {share:.2f} of the steps that the calls take one by one')\n"
    )
    done = subprocess.run(
        [sys.executable, "-O", "-c", code, str(tiny_model)], capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 0, done.stderr


def test_an_answer_that_another_waiter_finished_is_not_lost(fake_llm: Make) -> None:
    fake = fake_llm()
    stream = fake.llm.stream("short", PARAMS)
    first = next(stream)
    fake.llm.generate("a longer one", SamplingParams(seed=1, max_tokens=40), use_tqdm=False)
    steps = fake.executable.steps
    (last,) = stream
    assert fake.executable.steps == steps and last.output is not None
    assert [*first.token_ids, *last.token_ids] == last.output.outputs[0].token_ids and len(last.token_ids) == 11


@pytest.mark.parametrize("where", ["step", "answer"])
def test_what_breaks_in_one_thread_ends_the_others_with_an_error(
    fake_llm: Make, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    fake = fake_llm()
    # The step that breaks would have been the other's last.
    stream, other = fake.llm.stream("hi", PARAMS), fake.llm.stream("ho", SamplingParams(seed=1, max_tokens=2))
    next(stream), next(other)
    fake.executable.broken = where == "step"
    with monkeypatch.context() as patch:
        if where == "answer":
            patch.setattr(Answer, "take", lambda *_: 1 / 0)
        with pytest.raises(RuntimeError if where == "step" else ZeroDivisionError):
            list(stream)
    fake.executable.broken = False
    (last,) = other
    assert last.output is not None and last.output.outputs[0].finish_reason == "error" and "broke" in last.output.error  # type: ignore[operator]
    counters = fake.llm.get_metrics()
    assert counters["finished_error"] + counters.get("finished_length", 0) == 2 and fake.held == 0
    assert len(fake.llm.generate("hi", PARAMS, use_tqdm=False)[0].outputs[0].token_ids) == 12


def test_a_waiter_without_work_is_told(fake_llm: Make) -> None:
    fake = fake_llm()
    request = fake.llm._parts.requests.make("hi", PARAMS)
    (answer,) = fake.session.start([request])
    fake.session.drop([request.request_id])
    fake.session.advance()
    assert fake.session.advance() == []
    for wait in (lambda: fake.session.next_pieces(answer), lambda: fake.session.unfinished([answer])):
        with pytest.raises(RuntimeError, match="nobody computes"):
            wait()


def test_closing_in_one_thread_ends_the_waiting_of_the_others(fake_llm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_llm()
    Watch(fake.executable, monkeypatch)
    ends: list[str | None] = []

    def forever() -> None:
        for piece in fake.llm.stream("hi", SamplingParams(seed=1, max_tokens=None)):
            if piece.output is not None:
                ends.append(piece.output.outputs[0].finish_reason)

    threads = [threading.Thread(target=forever) for _ in range(3)]
    for thread in threads:
        thread.start()
    while fake.session.engine.scheduler.num_running < 3:
        time.sleep(0.001)
    fake.llm.close()
    for thread in threads:
        thread.join(10)
    assert ends == ["abort"] * 3 and fake.executable.closed and fake.held == 0
    with pytest.raises(RequestError, match="closed"):
        fake.llm.generate("hi", PARAMS, use_tqdm=False)


@pytest.fixture
def no_garbage() -> Iterator[None]:
    """Python drops a KeyboardInterrupt that it raises in a finaliser, and other tests leave garbage that has some."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage")
def test_ctrl_c_ends_the_main_threads_call_only(fake_llm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = fake_llm().llm
    wanted = [call(alone) for call in CALLS[:2]]
    fake = fake_llm()
    watch = Watch(fake.executable, monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(call, fake.llm) for call in CALLS[:2]]
        for _ in range(3):
            watch.during = lambda: signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                fake.llm.generate(["hi"] * 4, SamplingParams(seed=1, max_tokens=None), use_tqdm=False)
        assert [other.result(20) for other in others] == wanted
    assert fake.held == 0 and fake.llm.get_metrics()["finished_abort"] == 12
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_stream_collected_in_the_middle_of_a_step_leaves_after_it(
    fake_llm: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python may collect garbage, and so close a forgotten stream, anywhere: also where the engine computes."""
    fake = fake_llm()
    watch = Watch(fake.executable, monkeypatch)
    forgotten = [fake.llm.stream("hi", PARAMS)]
    next(forgotten[0])

    def forget() -> None:
        forgotten.clear()
        gc.collect()
        assert fake.session.engine.scheduler.num_running == 2, "not while the step uses it"

    watch.during = forget
    pieces = list(fake.llm.stream("ho", PARAMS))
    assert pieces[-1].output is not None and len(pieces[-1].output.outputs[0].token_ids) == 12
    assert fake.llm.get_metrics()["finished_abort"] == 1 and fake.held == 0


def test_a_call_from_within_a_step_is_refused(fake_llm: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal's handler may make one: waiting for the turn to be over would be for ever."""
    fake = fake_llm()
    watch = Watch(fake.executable, monkeypatch)
    told = []

    def call() -> None:
        for inner in (fake.llm.close, lambda: fake.llm.generate("ho", PARAMS, use_tqdm=False)):
            try:
                inner()
            except BackendError as error:
                told.append(str(error))

    watch.during = call
    (output,) = fake.llm.generate("hi", PARAMS, use_tqdm=False)
    assert len(told) == 2 and "while it computes" in told[0] and len(output.outputs[0].token_ids) == 12
