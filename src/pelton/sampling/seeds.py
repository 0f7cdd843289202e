"""Seeds for requests that bring none. Draws nothing else; where the bits come from is the caller's choice."""

import secrets
from collections.abc import Callable
from random import Random

# Reported seeds pass through JSON, whose readers often hold numbers in fp64.
SEED_BITS = 53

Source = Callable[[int], int]


def seed_source(seed: int | None) -> Source:
    """Random bits on demand: the system's, or with a seed the same ones in every run."""
    return secrets.randbits if seed is None else Random(seed).getrandbits


def fresh_seed(source: Source = secrets.randbits) -> int:
    """A seed for one request, below 2^53. `source(n)` gives n random bits."""
    return source(SEED_BITS)
