"""Edits: one answer's table of changes to single tokens' logits, kept from draw to draw, in the form of EDIT.

Knows nothing of why. Invariant: a token has at most one entry, and a change costs the same however many there are.
"""

from collections.abc import Collection, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from pelton.backends.backend import ALLOWED, EDIT, SEEN, Float32, Int32, Records

ROOM = 16


class Edits:
    """Entries that stay, and tokens banned for the next draw only, which `records` lays over and behind them."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._banned: set[int] = set()
        self._covered: list[tuple[int, np.float32]] = []
        self._hold(np.zeros(ROOM, EDIT))

    def allow(self, tokens: Collection[int]) -> None:
        """These tokens stay where a record says that only allowed ones do."""
        slots = self._slots_of(tokens)
        self._flags[slots] |= ALLOWED

    def see(self, tokens: Iterable[int]) -> None:
        """These tokens have occurred, in the prompt or the answer."""
        for token in tokens:
            slot = self._slot(token)
            self._flags[slot] |= SEEN

    def count(self, token: int) -> None:
        """The token has occurred in the answer, once more."""
        slot = self._slot(token)
        self._count[slot] += 1

    def add(self, token: int, bias: float) -> None:
        """`bias` more for the token's logit, in fp32; -inf is a ban, which no other bias undoes."""
        slot = self._slot(token)
        self._bias[slot] += np.float32(bias)

    def add_all(self, biases: Mapping[int, float]) -> None:
        """As `add`, of many tokens at once."""
        slots = self._slots_of(biases)
        self._bias[slots] += np.fromiter(biases.values(), np.float32, len(biases))

    def ban_once(self, token: int) -> None:
        """The token is banned in the next draw, whatever else is said of it."""
        self._banned.add(token)

    def records(self) -> Records:
        """The entries [n] of EDIT for the next draw: a view, valid until the next change. Then ask `lift` first."""
        end = len(self._slots)
        self._reserve(end + len(self._banned))
        for token in sorted(self._banned):
            slot = self._slots.get(token)
            if slot is None:
                self._buffer[end] = (token, -np.inf, 0, 0)
                end += 1
            else:
                self._covered.append((slot, self._bias[slot]))
                self._bias[slot] = -np.inf
        view: Records = self._buffer[:end]
        return view

    def lift(self) -> None:
        """The draw is over: its own bans end."""
        for slot, bias in self._covered:
            self._bias[slot] = bias
        self._covered.clear()
        self._banned.clear()

    def _slot(self, token: int) -> int:
        """The token's entry, made if there is none; then the arrays may be others than before."""
        slot = self._slots.get(token)
        if slot is None:
            slot = len(self._slots)
            self._reserve(slot + 1)
            self._buffer[slot] = (token, 0, 0, 0)
            self._slots[token] = slot
        return slot

    def _slots_of(self, tokens: Collection[int]) -> NDArray[np.int64]:
        """As `_slot`, for many tokens at once: a request may name the whole vocabulary, for each of its answers."""
        slots, first = self._slots, len(self._slots)
        new = [token for token in dict.fromkeys(tokens) if token not in slots]
        end = first + len(new)
        self._reserve(end)
        self._buffer[first:end] = np.zeros((), EDIT)
        self._buffer["token"][first:end] = new
        slots.update(zip(new, range(first, end), strict=True))
        return np.fromiter(map(slots.__getitem__, tokens), np.int64, len(tokens))

    def _reserve(self, entries: int) -> None:
        if entries > len(self._buffer):
            larger = np.zeros(max(2 * len(self._buffer), entries), EDIT)
            larger[: len(self._buffer)] = self._buffer
            self._hold(larger)

    def _hold(self, buffer: Records) -> None:
        self._buffer = buffer
        self._bias: Float32 = buffer["bias"]
        self._count: Int32 = buffer["count"]
        self._flags: Int32 = buffer["flags"]
