"""What a technique needs and breaks. The engine never asks a technique who it is, only what it declares here."""

from dataclasses import dataclass
from enum import Enum, Flag, auto


class Fact(Flag):
    """Facts about a running engine that one technique may rely on and another may break."""

    NONE = 0
    ALL_TOKENS_KEPT = auto()  # every computed position stays in the KV cache
    SHARED_PREFIX = auto()  # blocks may be shared between requests
    ROLLBACK = auto()  # the last n positions can be undone
    FIXED_SHAPES = auto()  # steps may be padded to buckets
    ORIGINAL_POSITIONS = auto()  # position of a cached token is a function of its index only
    EXACT_KV = auto()  # K and V are stored as computed, not quantised


class Claim(Enum):
    """What a technique promises about the output."""

    EXACT = "exact"  # same bits
    DISTRIBUTION = "distribution"  # same distribution
    LOSSY = "lossy"  # changes the output; its measured quality cost is documented


@dataclass(frozen=True, slots=True)
class Needs:
    """Declaration of one technique.

    `hidden`: decoder layers whose output it wants; `scores`: rows of attention scores.
    """

    requires: Fact = Fact.NONE
    breaks: Fact = Fact.NONE
    hidden: tuple[int, ...] = ()
    scores: int = 0
    claim: Claim = Claim.EXACT
