"""Philox4x32-10 against the known answers of Random123, and the Gumbel noise made of it."""

import numpy as np
import pytest
from tests.sampling.chi_square import fits

from pelton.sampling.philox import gumbel, philox, words

KNOWN_ANSWERS = (
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
)


def numbers(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter: str, key: str, answer: str) -> None:
    low, high = numbers(key)
    found = philox(np.array([numbers(counter)] * 3, np.uint64), (low, high))
    assert found.tolist() == [numbers(answer)] * 3


def test_words_lie_at_their_counters() -> None:
    seed, place, child = 0x123456789ABCDEF0, 7, 2
    found = words(seed, place, child, 10)
    for token in range(10):
        counter = np.array([[place, token // 4, child, 0]], np.uint64)
        assert found[token] == philox(counter, (0x9ABCDEF0, 0x12345678))[0, token % 4]


def test_a_longer_vocabulary_begins_with_the_same_words() -> None:
    assert words(5, 1, 0, 1001)[:17].tolist() == words(5, 1, 0, 17).tolist()


def test_noise_is_gumbel() -> None:
    noise = gumbel(99, 0, 0, 40_000)
    # exp(-exp(-g)) of Gumbel noise is uniform.
    cells = np.bincount((np.exp(-np.exp(-noise)) * 50).astype(np.int64), minlength=50)
    assert fits(cells, np.ones(50))
    assert np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.03)
