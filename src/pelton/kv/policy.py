"""The interface of a KV policy: which tokens of a request stay in the cache. It moves no block and changes no byte.

Without a policy every computed token stays. No policy exists yet.
"""

from collections.abc import Sequence
from typing import ClassVar, Protocol

from pelton.core.needs import Needs


class KVPolicy(Protocol):
    """One rule. `needs` says what it breaks, such as that all tokens are kept, and how many rows of scores it wants."""

    needs: ClassVar[Needs]

    def observe(self, request_id: str, layer: int, scores: Sequence[float]) -> None:
        """One layer's attention scores [cached tokens] of the last step; the sequence is valid during the call only."""
        ...

    def keep(self, request_id: str, layer: int) -> tuple[int, ...] | None:
        """Indices to keep, ascending, or None for all. They are those of before the call: what is kept moves up after.

        Whoever asks writes the kept tokens to fresh private blocks, so blocks that others share stay as they are.
        """
        ...

    def forget(self, request_id: str) -> None:
        """The request is over; nothing about it is asked again. One that was never observed is let be."""
        ...
