"""How compressed-tensors packs integers: dense little-endian words of 32 bits, each integer plus half its range.

Knows no files. Invariant: `unpack` of `pack` gives the integers back.
"""

import numpy as np
from numpy.typing import NDArray

WORD = 32
Words = NDArray[np.int32]
Stored = NDArray[np.uint8]  # integers plus half their range, from 0


def words(count: int, bits: int) -> int:
    """Words that so many integers take."""
    return -(-count * bits // WORD)


def pack(stored: Stored, bits: int) -> Words:
    """int32 [rows, words] of [rows, count]; 4 or 8 bits each, the first in the lowest bits, the rest of a word 0."""
    rows, count = stored.shape
    each = WORD // bits
    padded = np.zeros((rows, words(count, bits) * each), np.uint8)
    padded[:, :count] = stored
    octets = padded if bits == 8 else padded[:, ::2] | padded[:, 1::2] << np.uint8(4)
    return np.ascontiguousarray(octets).view("<i4")


def unpack(packed: Words, bits: int, count: int) -> Stored:
    """[rows, count] of the words [rows, n]."""
    octets = np.ascontiguousarray(packed).view(np.uint8)
    if bits == 8:
        return octets[:, :count]
    pairs = np.stack((octets & np.uint8(15), octets >> np.uint8(4)), axis=-1)
    return pairs.reshape(len(packed), -1)[:, :count]
