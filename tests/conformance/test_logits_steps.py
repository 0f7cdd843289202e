"""Every logits step: no change where it is not wanted, a moved argmax only where it says so, rows on their own."""

import numpy as np
import numpy.typing as npt
import pytest
from registry_entries import entries

from pelton.backends.backend import SAMPLING, Records
from pelton.core.needs import Claim, Needs
from pelton.core.params import SamplingParams
from pelton.core.request import Request
from pelton.sampling import STEPS, ordered_steps
from pelton.sampling.choose import edit
from pelton.sampling.edits import Edits
from pelton.sampling.encode import encode
from pelton.sampling.follow import follow
from pelton.sampling.step import History, Logits, LogitsStep

VOCAB = 67
NEUTRAL = SamplingParams(temperature=1.0, seed=1)
NO_EDITS: Records = Edits().records()


def request_of(number: int) -> Request:
    """A request that asks for something, its prompt, and words that it bans."""
    rng = np.random.default_rng(number)
    least = int(rng.choice([0, 0, 4]))
    chance = rng.integers(0, 4, 3) == 0
    ids = [int(token) for token in rng.permutation(VOCAB)]
    params = SamplingParams(
        temperature=float(rng.choice([0.3, 1.0, 1.7])),
        top_p=float(rng.choice([0.3, 0.9, 1.0])),
        top_k=int(rng.choice([0, 1, 5, 70])),
        min_p=float(rng.choice([0.0, 0.02, 0.5])),
        repetition_penalty=float(rng.choice([1.0, 1.0, 1.3, 0.7])),
        frequency_penalty=float(rng.choice([0, 0, 0.7, -1.1])),
        presence_penalty=float(rng.choice([0, 0, 1.3, -0.9])),
        logit_bias={token: float(rng.normal(0, 20)) for token in ids[:5]} if chance[0] else None,
        allowed_token_ids=ids[20:60] if chance[1] else None,
        bad_words=["word"] if chance[2] else None,
        min_tokens=least,
        seed=number,
    )
    words = ((ids[9],), (ids[1], ids[2]), (ids[3], ids[1], ids[4])) if params.bad_words else ()
    prompt = tuple(rng.choice(ids[:8], 6).tolist())
    return Request(str(number), prompt, params, frozenset(ids[-3:]), 16, 0.0, bad_word_ids=words)


REQUESTS = [request_of(number) for number in range(160)]


def step_of(name: str) -> LogitsStep:
    return STEPS.get(name)()


def wanting(name: str) -> list[Request]:
    return [request for request in REQUESTS if step_of(name).wanted(request.params)]


def answer_of(request: Request, tokens: int) -> list[int]:
    """An answer of few different tokens, so that words come about and tokens repeat."""
    rng = np.random.default_rng(request.params.seed)
    few = [*request.prompt_token_ids[:2], *(token for word in request.bad_word_ids for token in word[:-1]), 1]
    return [int(token) for token in rng.choice(few, tokens)]


def history_of(request: Request, tokens: int = 5) -> History:
    stops = tuple(request.stop_token_ids)
    return History(request.prompt_token_ids, answer_of(request, tokens), stops, request.bad_word_ids)


def rows(count: int = 12) -> list[npt.NDArray[np.float32]]:
    rng = np.random.default_rng(5)
    made = []
    for number in range(count):
        logits = rng.normal(0, 3, VOCAB).astype(np.float32)
        if number % 3 == 1:
            logits = np.round(logits)
        if number % 4 == 1:
            logits[rng.permutation(VOCAB)[: VOCAB - 3]] = -np.inf
        made.append(logits)
    return made


@pytest.mark.parametrize("name", entries("logits_step"))
def test_some_requests_want_it_and_the_neutral_one_does_not(name: str) -> None:
    assert not step_of(name).wanted(NEUTRAL)
    assert len(wanting(name)) >= 10


@pytest.mark.parametrize("name", entries("logits_step"))
def test_unused_it_encodes_nothing(name: str) -> None:
    step = step_of(name)
    neutral, fresh = np.zeros(1, SAMPLING)[0], np.zeros(1, SAMPLING)[0]
    step.encode(NEUTRAL, neutral)
    used = {field for field in SAMPLING.names or () if changed_by(step, field)}
    for request in REQUESTS:
        if not step.wanted(request.params):
            step.encode(request.params, fresh)
            assert fresh == neutral
    # What it uses belongs to it alone.
    for other in ordered_steps():
        if type(other) is not type(step):
            assert not used & {field for field in SAMPLING.names or () if changed_by(other, field)}


def changed_by(step: LogitsStep, field: str) -> bool:
    """Whether the step writes this field for some request."""
    record = np.zeros(1, SAMPLING)[0]
    for request in REQUESTS:
        record[field] = 77
        step.encode(request.params, record)
        if record[field] != 77:
            return True
    return False


@pytest.mark.parametrize("name", entries("logits_step"))
def test_where_it_is_wanted_something_changes(name: str) -> None:
    step = step_of(name)
    histories = [(request.params, history_of(request, 3)) for request in wanting(name)]
    changed = [
        not np.array_equal(step.apply(logits, params, history), logits)
        for params, history in histories
        for logits in rows()
    ]
    assert any(changed)


@pytest.mark.parametrize("name", entries("logits_step"))
def test_it_says_whether_it_moves_the_most_likely_token(name: str) -> None:
    step = step_of(name)
    moved = False
    for request in wanting(name):
        for logits in rows():
            applied = step.apply(logits, request.params, history_of(request, 3))
            assert applied.shape == logits.shape and applied.dtype == logits.dtype
            assert (applied[logits == -np.inf] == -np.inf).all(), "a hidden token has come back"
            same = np.argmax(applied) == np.argmax(logits)
            if not step.moves_argmax:
                assert same and np.isfinite(applied).any()
            moved |= not same
    assert moved == step.moves_argmax


@pytest.mark.parametrize("name", entries("logits_step"))
def test_the_native_form_is_the_mathematics(name: str) -> None:
    """Record and edits of this step alone, carried out, give `apply` exactly, while an answer grows."""
    step = step_of(name)
    edited = 0
    for request in wanting(name):
        record = np.zeros(1, SAMPLING)[0]
        for one in ordered_steps():
            one.encode(NEUTRAL, record)
        step.encode(request.params, record)
        edits, known, answer = Edits(), 0, answer_of(request, 9)
        for length in range(9):
            history = History(
                request.prompt_token_ids, answer[:length], tuple(request.stop_token_ids), request.bad_word_ids
            )
            edits.lift()
            step.edit(request.params, history, edits, known)
            known = history.known
            records = edits.records()
            edited += len(records)
            assert len(set(records["token"].tolist())) == len(records), "a token has two entries"
            if not step.moves_argmax:
                assert not len(records)
                continue
            for logits in rows(5):
                expected = step.apply(logits, request.params, history)
                assert np.array_equal(edit(logits, record, records), expected)  # but for the sign of zero
    assert bool(edited) == step.moves_argmax


def test_all_of_them_together() -> None:
    """Followed token by token, or anew from what is known: the chain of the steps before the draw, exactly."""
    early = [step for step in ordered_steps() if step.moves_argmax]
    compared = 0
    for request in REQUESTS:
        wanted = [step for step in early if step.wanted(request.params)]
        followed = follow(request)
        assert (followed is None) == (not wanted)
        answer = answer_of(request, 8)
        for length in range(9):
            history = History(
                request.prompt_token_ids, answer[:length], tuple(request.stop_token_ids), request.bad_word_ids
            )
            record = encode(request.params, length)
            records = NO_EDITS if followed is None else followed.records()
            anew = follow(request, answer[:length])
            assert sorted(records.tolist()) == sorted(NO_EDITS.tolist() if anew is None else anew.records().tolist())
            for logits in rows(4):
                expected: Logits = logits
                for step in wanted:
                    expected = step.apply(expected, request.params, history)
                assert np.array_equal(edit(logits, record, records), expected)  # but for the sign of zero
                compared += not np.array_equal(expected, logits)
            if followed is not None and length < 8:
                followed.take(answer[length])
    assert compared > 1000


@pytest.mark.parametrize("name", entries("logits_step"))
def test_a_row_depends_on_itself_alone(name: str) -> None:
    asked = [(request.params, history_of(request)) for request in wanting(name)[:10]]
    one = step_of(name)
    given = rows()
    together = [[one.apply(logits, *ask).tobytes() for ask in asked] for logits in given]
    apart = [[step_of(name).apply(logits, *ask).tobytes() for ask in asked] for logits in reversed(given)]
    assert together == apart[::-1]
    assert [row.tobytes() for row in given] == [row.tobytes() for row in rows()], "the given logits were changed"


@pytest.mark.parametrize("name", entries("logits_step"))
def test_declarations(name: str) -> None:
    step = step_of(name)
    assert isinstance(step.needs, Needs) and step.needs.claim is Claim.EXACT
    assert isinstance(step.moves_argmax, bool)
    assert (step.stage < 7) == step.moves_argmax, "a step behind the greedy choice cannot move it"
    assert [other.stage for other in ordered_steps()].count(step.stage) == 1
