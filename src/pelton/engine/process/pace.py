"""Pace: how long a step may take before the engine process counts as hanging, from what its steps have taken so far.

It watches nothing. Invariant: a step is never given less than the setting, nor less than TIMES what steps of as many
tokens take.
"""

TIMES = 20.0
KEPT = 0.95  # of the longest step, with each one after it: a machine that stood still once is forgotten
BYTES_PER_SECOND = 4e9  # of weights, for each token of a step: what a slow machine surely does before any step is known


class Pace:
    """`least`: seconds that every step is given. `heard`: when there was a sign of life last."""

    def __init__(self, least: float) -> None:
        self.heard = 0.0
        self._least = least
        self._weight_bytes = 0
        # By the bits of a step's number of tokens.
        self._longest: dict[int, float] = {}

    def loaded(self, weight_bytes: int) -> None:
        """The model is known."""
        self._weight_bytes = weight_bytes

    def saw(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens is over."""
        if tokens:
            bits = tokens.bit_length()
            self._longest[bits] = max(seconds, KEPT * self._longest.get(bits, 0.0))

    def patience(self, tokens: int) -> float:
        """Seconds that a step of so many tokens is given.

        From the longest step of as many or more; without any, from the largest one there was, in proportion; before the
        first one, from the model's size.
        """
        if not self._longest:
            return max(self._least, tokens * self._weight_bytes / BYTES_PER_SECOND)
        alike = [seconds for bits, seconds in self._longest.items() if bits >= tokens.bit_length()]
        largest = max(self._longest)
        expected = max(alike) if alike else self._longest[largest] * tokens / 2 ** (largest - 1)
        return max(self._least, TIMES * expected)
