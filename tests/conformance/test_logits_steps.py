"""Every logits step: no change where it is not wanted, a moved argmax only where it says so, rows on their own."""

import numpy as np
import pytest
from registry_entries import entries

from pelton.backends.backend import SAMPLING
from pelton.core.needs import Claim, Needs
from pelton.core.params import SamplingParams
from pelton.sampling import STEPS, ordered_steps
from pelton.sampling.step import Logits, LogitsStep

NEUTRAL = SamplingParams(temperature=1.0, seed=1)
# Requests that ask for something: a step is tried with those it wants.
REQUESTS = [
    SamplingParams(
        temperature=float(rng.choice([0.3, 1.0, 1.7])),
        top_p=float(rng.choice([0.3, 0.9, 1.0])),
        top_k=int(rng.choice([0, 1, 5, 70])),
        min_p=float(rng.choice([0.0, 0.02, 0.5])),
        seed=number,
    )
    for number, rng in enumerate(map(np.random.default_rng, range(80)))
]


def step_of(name: str) -> LogitsStep:
    return STEPS.get(name)()


def rows(count: int = 12, vocab: int = 67) -> list[Logits]:
    rng = np.random.default_rng(5)
    made: list[Logits] = []
    for number in range(count):
        logits = rng.normal(0, 3, vocab).astype(np.float32)
        if number % 3 == 1:
            logits = np.round(logits)
        if number % 4 == 1:
            logits[rng.permutation(vocab)[: vocab - 3]] = -np.inf
        made.append(logits)
    return made


@pytest.mark.parametrize("name", entries("logits_step"))
def test_some_requests_want_it_and_the_neutral_one_does_not(name: str) -> None:
    step = step_of(name)
    assert not step.wanted(NEUTRAL)
    assert any(step.wanted(params) for params in REQUESTS)


@pytest.mark.parametrize("name", entries("logits_step"))
def test_unused_it_encodes_nothing(name: str) -> None:
    step = step_of(name)
    neutral, fresh = np.zeros(1, SAMPLING)[0], np.zeros(1, SAMPLING)[0]
    step.encode(NEUTRAL, neutral)
    used = {field for field in SAMPLING.names or () if changed_by(step, field)}
    for params in REQUESTS:
        if not step.wanted(params):
            step.encode(params, fresh)
            assert fresh == neutral
    # What it uses belongs to it alone.
    for other in ordered_steps():
        if type(other) is not type(step):
            assert not used & {field for field in SAMPLING.names or () if changed_by(other, field)}


def changed_by(step: LogitsStep, field: str) -> bool:
    """Whether the step writes this field for some request."""
    record = np.zeros(1, SAMPLING)[0]
    for params in REQUESTS:
        record[field] = 77
        step.encode(params, record)
        if record[field] != 77:
            return True
    return False


@pytest.mark.parametrize("name", entries("logits_step"))
def test_where_it_is_wanted_something_changes(name: str) -> None:
    step = step_of(name)
    wanted = [params for params in REQUESTS if step.wanted(params)]
    changed = [not np.array_equal(step.apply(logits, params), logits) for params in wanted for logits in rows()]
    assert any(changed)


@pytest.mark.parametrize("name", entries("logits_step"))
def test_it_says_whether_it_moves_the_most_likely_token(name: str) -> None:
    step = step_of(name)
    for params in filter(step.wanted, REQUESTS):
        for logits in rows():
            applied = step.apply(logits, params)
            assert np.isfinite(applied).any()
            assert applied.shape == logits.shape and applied.dtype == logits.dtype
            assert (applied[logits == -np.inf] == -np.inf).all(), "a hidden token has come back"
            if not step.moves_argmax:
                assert np.argmax(applied) == np.argmax(logits)


@pytest.mark.parametrize("name", entries("logits_step"))
def test_a_row_depends_on_itself_alone(name: str) -> None:
    params = [params for params in REQUESTS if step_of(name).wanted(params)][:10]
    one = step_of(name)
    given = rows()
    together = [[one.apply(logits, p).tobytes() for p in params] for logits in given]
    apart = [[step_of(name).apply(logits, p).tobytes() for p in params] for logits in reversed(given)]
    assert together == apart[::-1]
    assert [row.tobytes() for row in given] == [row.tobytes() for row in rows()], "the given logits were changed"


@pytest.mark.parametrize("name", entries("logits_step"))
def test_declarations(name: str) -> None:
    step = step_of(name)
    assert isinstance(step.needs, Needs) and step.needs.claim is Claim.EXACT
    assert isinstance(step.moves_argmax, bool)
    assert (step.stage < 7) == step.moves_argmax, "a step behind the greedy choice cannot move it"
    assert [other.stage for other in ordered_steps()].count(step.stage) == 1
