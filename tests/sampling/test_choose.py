"""The choice in numpy: greedy, order of steps, log-probabilities. The kernel is compared with it in tests/native."""

import numpy as np
import pytest
from tests.sampling.chi_square import fits

from pelton.backends.backend import ALLOWED, EDIT, ONLY_ALLOWED, SEEN, Records
from pelton.core.params import SamplingParams
from pelton.sampling.choose import choose, edit, scores
from pelton.sampling.encode import encode
from pelton.sampling.philox import gumbel

LOGITS = np.array([0.5, 2.0, -1.0, 2.0, 1.0, -np.inf], np.float32)


def test_greedy_takes_the_lowest_of_equals_and_needs_no_noise() -> None:
    for seed in range(20):
        params = SamplingParams(temperature=0, seed=seed, top_k=1, top_p=0.1)
        assert choose(LOGITS, encode(params, seed))[0] == 1


def test_scores_are_scaled_logits_plus_noise() -> None:
    found = scores(LOGITS, encode(SamplingParams(temperature=0.5, seed=3, top_k=3), 8))
    expected = LOGITS.astype(np.float64) * 2 + gumbel(3, 8, 0, 6)
    expected[[0, 2, 5]] = -np.inf
    np.testing.assert_array_equal(found, expected)


def test_top_p_sees_what_the_others_left() -> None:
    # Alone it keeps three of eight; after top_k 3 the mass of two is enough.
    logits = np.log(np.array([0.3, 0.25, 0.2, 0.05, 0.05, 0.05, 0.05, 0.05])).astype(np.float32)

    def kept(**asked: float) -> int:
        return int(np.isfinite(scores(logits, encode(SamplingParams(seed=1, **asked), 0))).sum())

    assert (kept(top_p=0.7), kept(top_k=3), kept(top_p=0.7, top_k=3)) == (3, 3, 2)


def test_draws_follow_the_softmax() -> None:
    record = encode(SamplingParams(seed=17, temperature=1.0), 0)
    counts = np.zeros(6, np.int64)
    for place in range(4000):
        record["place"] = place
        counts[choose(LOGITS, record)[0]] += 1
    assert fits(counts, np.exp(LOGITS.astype(np.float64)))


def test_logprobs_are_of_the_raw_logits() -> None:
    params = SamplingParams(temperature=3.0, top_k=2, seed=1, logprobs=20)
    token, logprob, rank, ids, logprobs = choose(LOGITS, encode(params, 0))
    expected = LOGITS.astype(np.float64) - np.log(np.exp(LOGITS.astype(np.float64)).sum())
    assert token in (1, 3)
    assert (logprob, rank) == (pytest.approx(expected[1]), 1)
    assert ids == [1, 3, 4, 0, 2]
    assert logprobs == pytest.approx(expected[ids])


def test_without_logprobs_there_is_no_rank_and_no_list() -> None:
    token, logprob, rank, ids, logprobs = choose(LOGITS, encode(SamplingParams(temperature=0, seed=1), 0))
    assert (token, rank, ids, logprobs) == (1, 0, [], [])
    assert logprob == pytest.approx(2 - np.log(np.exp(LOGITS.astype(np.float64)).sum()))


def edits(*entries: tuple[int, float, int, int]) -> Records:
    return np.array(list(entries), EDIT)


def test_edits_are_what_the_record_of_an_edit_says() -> None:
    record = encode(SamplingParams(seed=1, repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25), 0)
    logits = np.array([1.0, -1.0, 1.0, 3.0, -1.0], np.float32)
    found = edit(logits, record, edits((0, 0, 0, SEEN), (1, 0, 2, SEEN), (2, -5.0, 1, SEEN), (3, -np.inf, 9, SEEN)))
    assert found.tolist() == [0.5, -2 - 1 - 0.25, -8 - 0.5 - 0.25, -np.inf, -1.0]
    assert found.dtype == np.float32 and logits.tolist() == [1.0, -1.0, 1.0, 3.0, -1.0]
    assert edit(logits, record, edits()) is logits


def test_only_allowed_tokens_are_left() -> None:
    record = encode(SamplingParams(seed=1, allowed_token_ids=[1, 3]), 0)
    assert record["flags"] == ONLY_ALLOWED
    found = edit(LOGITS, record, edits((1, 0, 0, ALLOWED), (2, 50.0, 0, 0), (3, 0.5, 0, ALLOWED)))
    assert found.tolist() == [-np.inf, 2.0, -np.inf, 2.5, -np.inf, -np.inf]


def test_greedy_takes_the_best_of_the_edited() -> None:
    record = encode(SamplingParams(temperature=0, seed=1, logprobs=3), 0)
    token, logprob, rank, ids, _ = choose(LOGITS, record, edits((1, -np.inf, 0, 0), (3, -1.5, 0, 0)))
    assert (token, rank, ids) == (4, 3, [1, 3, 4])
    assert logprob == pytest.approx(1 - np.log(np.exp(LOGITS.astype(np.float64)).sum()))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_no_token_is_left(temperature: float) -> None:
    record = encode(SamplingParams(temperature=temperature, seed=1, allowed_token_ids=[2], logprobs=2), 0)
    assert choose(LOGITS, record, edits((2, -np.inf, 0, ALLOWED))) == (-1, -np.inf, 0, [], [])


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_only_token_left_is_drawn(temperature: float) -> None:
    for seed in range(20):
        record = encode(SamplingParams(temperature=temperature, seed=seed, allowed_token_ids=[2]), 0)
        assert choose(LOGITS, record, edits((2, -100.0, 0, ALLOWED)))[0] == 2


def test_a_known_token_is_told_and_not_drawn() -> None:
    record = encode(SamplingParams(temperature=0, seed=1, logprobs=1), 0)
    record["target"] = 0
    token, logprob, rank, ids, _ = choose(LOGITS, record)
    assert (token, rank, ids) == (0, 4, [1])
    assert logprob == pytest.approx(0.5 - np.log(np.exp(LOGITS.astype(np.float64)).sum()))
