"""What the scheduler knows of one request: lengths, place and blocks. No tokens, no parameters of sampling."""

from dataclasses import dataclass

from pelton.kv.table import BlockTable


@dataclass(slots=True, eq=False)
class Tracked:
    """One request. `total` tokens are known (prompt and drawn ones), the first `computed` of them stand in the cache.

    `number` counts requests in the order they were added. `row` is None while the request waits.
    """

    request_id: str
    number: int
    prompt: int
    max_tokens: int
    priority: int
    arrival: float
    table: BlockTable
    total: int
    computed: int = 0
    row: int | None = None

    @property
    def remaining(self) -> int:
        """Known tokens that are not computed yet; 1 while decoding."""
        return self.total - self.computed

    @property
    def generated(self) -> int:
        return self.total - self.prompt
