"""The noise of draws: Philox4x32-10 (Salmon et al., SC 2011) by key and counter, and Gumbel noise made of its words.

Not a stream: a number depends on (seed, place, token id, child) alone, so neither batch mates nor a restart change it.
"""

import numpy as np
from numpy.typing import NDArray

UInt64 = NDArray[np.uint64]
LOW = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(32)
MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def philox(counter: UInt64, key: tuple[int, int]) -> UInt64:
    """Counters [n, 4] of 32-bit words under a key of two -> [n, 4] random 32-bit words, held in 64 bits."""
    a, b, c, d = counter.T
    low, high = key
    for _ in range(ROUNDS):
        first, second = MULTIPLIERS[0] * a, MULTIPLIERS[1] * c
        a, b = (second >> SHIFT) ^ b ^ np.uint64(low), second & LOW
        c, d = (first >> SHIFT) ^ d ^ np.uint64(high), first & LOW
        low, high = (low + WEYL[0]) & 0xFFFFFFFF, (high + WEYL[1]) & 0xFFFFFFFF
    return np.stack([a, b, c, d], axis=1)


def words(seed: int, place: int, child: int, vocab: int) -> UInt64:
    """Each token's random word [vocab]: number id mod 4 at counter (place, id / 4, child, 0), the seed as key."""
    counter = np.zeros((-(-vocab // 4), 4), np.uint64)
    counter[:, 0] = place
    counter[:, 1] = np.arange(len(counter))
    counter[:, 2] = child
    return philox(counter, (seed & 0xFFFFFFFF, seed >> 32)).reshape(-1)[:vocab]


def gumbel(seed: int, place: int, child: int, vocab: int) -> NDArray[np.float64]:
    """Standard Gumbel noise [vocab]: -log(-log(1 - u)) with u = (word + 1/2) / 2^32, from -3.2 to 22.9."""
    u = (words(seed, place, child, vocab).astype(np.float64) + 0.5) * 2.0**-32
    noise: NDArray[np.float64] = -np.log(-np.log1p(-u))
    return noise
