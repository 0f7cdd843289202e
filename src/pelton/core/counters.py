"""Counters that any layer may bump and `measure` reads: plain named sums, no library."""


class Counters:
    """Named totals since start. Unknown names start at 0."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}

    def add(self, name: str, amount: float = 1) -> None:
        self._totals[name] = self._totals.get(name, 0) + amount

    def get(self, name: str) -> float:
        return self._totals.get(name, 0)

    def snapshot(self) -> dict[str, float]:
        return dict(self._totals)
