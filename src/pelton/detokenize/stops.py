"""StopStrings: holds text back as long as it could begin a stop string. It sees text only, no tokens.

Invariant: nothing given out is part of a stop string that the text then completed (unless `include` asks for it).
"""

from collections.abc import Sequence
from functools import lru_cache

NONE = -1
KEPT = 4  # automatons: the answers of a call have the same stop strings


class StopStrings:
    """Searches several stop strings in a text that arrives in pieces, at a cost that does not depend on their number.

    The stop string that ends first wins, of those that end together the first in the list. With `include` the text
    given out ends with the stop string, else before it.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        if not all(stops):
            raise ValueError("an empty stop string would stop before the first token")
        self._stops = tuple(stops)
        self._include = include
        self._automaton = _automaton(self._stops)
        self._state = 0
        self._held = ""
        self._found: str | None = None

    def feed(self, delta: str, *, ends: bool = True) -> tuple[str, str | None]:
        """(text that is safe to give out, the stop string that `delta` completed or None).

        After a stop string the rest is dropped: every later call gives ("", that stop string). Without `ends` what
        `delta` completes is no match; what begins in it and is completed later is one.
        """
        if self._found is not None:
            return "", self._found
        automaton, state = self._automaton, self._state
        if not state and automaton.begins.isdisjoint(delta):
            return delta, None
        text = self._held + delta
        for place, char in enumerate(delta, len(self._held) + 1):
            state = automaton.after(state, char)
            ended = automaton.ended[state]
            if ended != NONE and ends:
                self._found = self._stops[ended]
                self._held = ""
                return text[: place if self._include else place - len(self._found)], self._found
        self._state = state
        safe = len(text) - automaton.begun[state]
        self._held = text[safe:]
        return text[:safe], None

    def finish(self) -> str:
        """What is still held back; nothing after a stop string."""
        text, self._held = self._held, ""
        self._state = 0
        return text


class _Automaton:
    """A state is the longest end of the text that begins a stop string; state 0 is none (Aho and Corasick, CACM 1975).

    `begins`: first characters of stop strings. For each state `ended`: the first stop string of the list that ends
    there, or NONE; `begun`: characters of the longest end that is the beginning, and not all, of a stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._shorter = [0]
        self.ended = [NONE]
        self.begun = [0]
        for number, stop in enumerate(stops):
            self._add(stop, number)
        self._link()
        self.begins = frozenset(self._next[0])

    def after(self, state: int, char: str) -> int:
        """The state behind one more character; a walk to shorter ends costs no more than what came before it."""
        following = self._next
        while char not in following[state]:
            if not state:
                return 0
            state = self._shorter[state]
        return following[state][char]

    def _add(self, stop: str, number: int) -> None:
        state = 0
        for depth, char in enumerate(stop, 1):
            following = self._next[state].get(char)
            if following is None:
                following = self._next[state][char] = len(self._next)
                self._next.append({})
                self._shorter.append(0)
                self.ended.append(NONE)
                self.begun.append(depth)
            state = following
        if self.ended[state] == NONE:
            self.ended[state] = number

    def _link(self) -> None:
        """Each state's next shorter end, shorter states first; what holds of that one holds of the state too."""
        states = list(self._next[0].values())
        for state in states:
            shorter = self._shorter[state]
            if not self._next[state]:
                self.begun[state] = self.begun[shorter]
            ends = [number for number in (self.ended[state], self.ended[shorter]) if number != NONE]
            self.ended[state] = min(ends, default=NONE)
            for char, following in self._next[state].items():
                self._shorter[following] = self.after(shorter, char)
                states.append(following)


@lru_cache(KEPT)
def _automaton(stops: tuple[str, ...]) -> _Automaton:
    return _Automaton(stops)
