"""K and V as they were computed, in the numbers' own width: the codec that changes nothing."""

from pelton.core.needs import Needs
from pelton.kv.codec import UNCODED, Geometry


class Plain:
    """Every number of every token is stored once, so a block's size is exactly the tokens' size."""

    layout = UNCODED
    needs = Needs()

    def bytes_per_block(self, spec: Geometry, tokens: int, element: int) -> int:
        """tokens x heads x (key_dim + value_dim) numbers of `element` bytes."""
        return tokens * spec.token_bytes(element)
