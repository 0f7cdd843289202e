"""Each step's mathematics against the warper of transformers, ties at borders, and the order of the steps."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pelton.core.params import SamplingParams
from pelton.sampling import STEPS, ordered_steps
from pelton.sampling.step import History, Logits

WARPERS: dict[str, tuple[type[LogitsProcessor], tuple[float, ...]]] = {
    "temperature": (TemperatureLogitsWarper, (0.2, 0.7, 1.5, 30.0)),
    "min_p": (MinPLogitsWarper, (1e-4, 0.05, 0.3, 1.0)),
    "top_k": (TopKLogitsWarper, (1, 2, 40, 999, 5000)),
    "top_p": (TopPLogitsWarper, (0.01, 0.3, 0.9, 0.999)),
}
CASES = [(name, value) for name, (_, values) in WARPERS.items() for value in values]


PROMPT = (3, 5, 3, 9)


BEGIN = History(PROMPT)


def apply(name: str, value: object, logits: Logits, history: History = BEGIN) -> Logits:
    return STEPS.get(name)().apply(logits, SamplingParams(**{name: value, "max_tokens": None}), history)


def processed(processor: LogitsProcessor, logits: Logits, history: History) -> npt.NDArray[np.float32]:
    """What transformers makes of one row."""
    ids = torch.tensor([[*history.prompt, *history.output]])
    result: npt.NDArray[np.float32] = processor(ids, torch.from_numpy(logits.copy())[None])[0].numpy()
    return result


@pytest.mark.parametrize(("name", "value"), CASES)
@pytest.mark.parametrize("vocab", [1, 2, 17, 1000])
def test_the_same_as_transformers(name: str, value: float, vocab: int) -> None:
    warper = WARPERS[name][0](value)
    rng = np.random.default_rng(vocab)
    for spread in (0.1, 1.0, 4.0):
        logits = rng.normal(0, spread, vocab)
        expected = warper(None, torch.from_numpy(logits)[None])[0].numpy()
        np.testing.assert_allclose(apply(name, value, logits), expected, rtol=1e-15)


@pytest.mark.parametrize(("name", "value"), CASES)
def test_the_precision_of_the_logits_is_kept(name: str, value: float) -> None:
    logits = np.random.default_rng(0).normal(0, 2, 300)
    single = apply(name, value, logits.astype(np.float32))
    double = apply(name, value, logits)
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(single, double, rtol=1e-6)


def test_ties() -> None:
    logits = np.array([1, 0, 2, 1, 1, 0, 1], np.float32)
    assert np.isfinite(apply("top_k", 2, logits)).nonzero()[0].tolist() == [0, 2, 3, 4, 6]
    weights = np.exp(logits.astype(np.float64))
    third = (weights[2] + 1.5 * weights[0]) / weights.sum()
    assert np.isfinite(apply("top_p", third, logits)).nonzero()[0].tolist() == [0, 2, 3]
    assert np.isfinite(apply("min_p", 1.0, logits)).nonzero()[0].tolist() == [2]


def test_mass_that_meets_the_border_exactly_is_enough() -> None:
    assert np.isfinite(apply("top_p", 0.5, np.zeros(8, np.float32))).nonzero()[0].tolist() == [0, 1, 2, 3]


def test_an_enormous_temperature_evens_everything_out() -> None:
    logits = np.array([3, -np.inf, -5], np.float32)
    assert apply("temperature", 1e300, logits) == pytest.approx([0, -np.inf, 0], abs=1e-37)


def rows(vocab: int = 40) -> list[Logits]:
    rng = np.random.default_rng(4)
    return [rng.normal(0, spread, vocab).astype(np.float32) for spread in (0.1, 3.0, 40.0)]


@pytest.mark.parametrize("penalty", [0.01, 0.8, 1.05, 1.3, 100.0])
def test_repetition_is_that_of_transformers(penalty: float) -> None:
    for output in ([], [7], [7, 7, 3, 39]):
        history = History(PROMPT, output)
        for logits in rows():
            expected = processed(RepetitionPenaltyLogitsProcessor(penalty), logits, history)
            assert np.array_equal(apply("repetition_penalty", penalty, logits, history), expected)


def test_repetition_counts_a_token_once() -> None:
    logits = np.array([-2.0, 2.0, 1.0, -1.0], np.float32)
    params = SamplingParams(repetition_penalty=2.0)
    step = STEPS.get("repetition_penalty")()
    assert step.apply(logits, params, History((0, 1, 1), [1, 0])).tolist() == [-4.0, 1.0, 1.0, -1.0]


def test_frequency_and_presence_are_openais_rule() -> None:
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, with c of the answer alone."""
    step = STEPS.get("count_penalties")()
    logits = np.array([1.0, 1.0, 1.0, -1.0, 0.0], np.float32)
    history = History((4, 4, 0), [1, 3, 1, 1])
    for frequency, presence, expected in (
        (0.5, 0.0, [1.0, -0.5, 1.0, -1.5, 0.0]),
        (0.0, 0.25, [1.0, 0.75, 1.0, -1.25, 0.0]),
        (-0.5, 0.25, [1.0, 2.25, 1.0, -0.75, 0.0]),
    ):
        params = SamplingParams(frequency_penalty=frequency, presence_penalty=presence)
        assert step.apply(logits, params, history).tolist() == expected
        assert step.apply(logits, params, History((4, 4, 0))).tolist() == logits.tolist()


WORDS = ((11,), (12, 13), (12, 12, 14), (7, 12, 13, 15))


def test_bad_words_are_those_of_transformers_within_the_answer() -> None:
    processor = NoBadWordsLogitsProcessor([list(word) for word in WORDS])
    banned = set()
    for output in ([], [12], [12, 12], [7, 12, 13], [12, 7], [3, 7, 12, 13], [13, 12, 11], [3, 12], [7, 3, 13]):
        history = History(PROMPT, output, banned=WORDS)
        for logits in rows():
            found = apply("bad_words", ["four", "words"], logits, history)
            assert np.array_equal(found, processed(processor, logits, history))
            banned |= set(np.flatnonzero(found == -np.inf).tolist())
    assert banned == {11, 13, 14, 15}


def test_a_bad_word_that_began_in_the_prompt_may_be_completed() -> None:
    (logits, *_) = rows()
    found = apply("bad_words", ["x"], logits, History((3, 12), [], banned=WORDS))
    assert np.flatnonzero(found == -np.inf).tolist() == [11]


@pytest.mark.parametrize("least", [1, 3])
def test_min_tokens_is_min_new_tokens_of_transformers(least: int) -> None:
    processor = MinNewTokensLengthLogitsProcessor(len(PROMPT), least, [0, 7])
    for output in ([], [1], [1, 7], [1, 1, 1], [1, 1, 1, 1]):
        history = History(PROMPT, output, stop_ids=(0, 7))
        for logits in rows():
            found = apply("min_tokens", least, logits, history)
            assert np.array_equal(found, processed(processor, logits, history))
            assert (found == -np.inf).any() == (len(output) < least)


def test_logit_bias_is_the_sequence_bias_of_single_tokens_of_transformers() -> None:
    bias = {4: 1.25, 17: -100.0, 3: 0.1}
    processor = SequenceBiasLogitsProcessor([[[token], amount] for token, amount in bias.items()])
    for logits in rows():
        assert np.array_equal(apply("logit_bias", bias, logits), processed(processor, logits, History(PROMPT)))


def test_allowed_tokens_alone_are_kept() -> None:
    for logits in rows():
        found = STEPS.get("allowed_tokens")().apply(logits, SamplingParams(allowed_token_ids=[4, 0, 4]), History((1,)))
        assert np.flatnonzero(np.isfinite(found)).tolist() == [0, 4]
        assert found[[0, 4]].tolist() == logits[[0, 4]].tolist()


def test_the_order() -> None:
    # Penalties after biases, top_p after the others: the order is part of what a seed means.
    assert [type(step).__name__ for step in ordered_steps()] == [
        "AllowedTokens",
        "BadWords",
        "MinTokens",
        "LogitBias",
        "RepetitionPenalty",
        "CountPenalties",
        "Temperature",
        "MinP",
        "TopK",
        "TopP",
    ]
