"""StopStrings: holds text back as long as it could begin a stop string. It sees text only, no tokens.

Invariant: nothing given out is part of a stop string that the text then completed (unless `include` asks for it).
"""

from collections.abc import Sequence


class StopStrings:
    """Searches several stop strings in a text that arrives in pieces, each character once (Knuth-Morris-Pratt).

    The stop string that ends first wins, of those that end together the first in the list. With `include` the text
    given out ends with the stop string, else before it.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        if not all(stops):
            raise ValueError("an empty stop string would stop before the first token")
        self._stops = tuple(stops)
        self._include = include
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""
        self._found: str | None = None

    def feed(self, delta: str, *, ends: bool = True) -> tuple[str, str | None]:
        """(text that is safe to give out, the stop string that `delta` completed or None).

        After a stop string the rest is dropped: every later call gives ("", that stop string). Without `ends` what
        `delta` completes is no match; what begins in it and is completed later is one.
        """
        if self._found is not None:
            return "", self._found
        if not self._stops:
            return delta, None
        text = self._held + delta
        for place, char in enumerate(delta, len(self._held) + 1):
            self._found = self._step(char, ends)
            if self._found is not None:
                self._held = ""
                return text[: place if self._include else place - len(self._found)], self._found
        safe = len(text) - max(self._matched)
        self._held = text[safe:]
        return text[:safe], None

    def finish(self) -> str:
        """What is still held back; nothing after a stop string."""
        text, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return text

    def _step(self, char: str, ends: bool) -> str | None:
        """Advance all matches by one character; the first stop string of the list that is now complete."""
        found = None
        for index, stop in enumerate(self._stops):
            length = self._matched[index]
            while length and stop[length] != char:
                length = self._borders[index][length - 1]
            length += stop[length] == char
            if length == len(stop):
                if ends:
                    found = found or stop
                else:
                    length = self._borders[index][-1]
            self._matched[index] = length
        return found


def _borders(pattern: str) -> list[int]:
    """For each prefix of `pattern` the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(pattern)
    length = 0
    for place in range(1, len(pattern)):
        while length and pattern[length] != pattern[place]:
            length = borders[length - 1]
        length += pattern[length] == pattern[place]
        borders[place] = length
    return borders
