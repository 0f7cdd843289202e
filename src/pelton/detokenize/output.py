"""OutputText: accepted tokens in, safe text out, how many of the tokens still belong to the answer. It keeps no text.

Invariant: the pieces of all pushes and of finish(), joined, do not depend on how the tokens were grouped into pushes,
nor on the granularity. Stop strings see the text before it is held back for its granularity.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pelton.detokenize.granularity import Gate
from pelton.detokenize.stops import StopStrings
from pelton.detokenize.stream import TokenBytes, TokenStream


@dataclass(frozen=True, slots=True)
class TextPiece:
    """What one push gave. `delta`: new text; `stop`: the stop string that ended the answer, or None.

    `kept`: how many of the pushed tokens belong to the answer, the one that completed the stop string included; token
    ids and log-probabilities after it are to be dropped.
    """

    delta: str
    stop: str | None
    kept: int


class OutputText:
    """The text of one answer. The engine pushes the tokens it accepted in a step, all at once, and asks nothing twice.

    An end token that should leave no text must be special or not be pushed. After a stop string nothing more is kept.
    What the first `min_tokens` tokens complete is no stop string: it must end in the text of a later one.
    `granularity`: where pieces end, see Gate.
    """

    def __init__(
        self,
        vocabulary: TokenBytes,
        *,
        stops: Sequence[str] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        prompt_ids: Sequence[int] = (),
        min_tokens: int = 0,
        granularity: str = "token",
    ) -> None:
        self._stream = TokenStream(vocabulary, skip_special=skip_special, prompt_ids=prompt_ids)
        self._stops = StopStrings(stops, include=include_stop) if stops else None
        self._gate = Gate(granularity)
        self._stop: str | None = None
        self._unstoppable = min_tokens

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer, or None."""
        return self._stop

    def push(self, ids: Sequence[int]) -> TextPiece:
        """Text of the next tokens; see TextPiece."""
        if self._stops is None:
            return TextPiece(self._gate.feed(self._stream.add(ids)), None, len(ids))
        if self._stop is not None:
            return TextPiece("", self._stop, 0)
        pieces = []
        for kept, token_id in enumerate(ids, 1):
            self._unstoppable -= 1
            text, self._stop = self._stops.feed(self._stream.add((token_id,)), ends=self._unstoppable < 0)
            pieces.append(text)
            if self._stop is not None:
                return TextPiece(self._gate.feed("".join(pieces)) + self._gate.finish(), self._stop, kept)
        return TextPiece(self._gate.feed("".join(pieces)), None, len(ids))

    def finish(self) -> TextPiece:
        """What is still held, at the end of an answer without a stop string: an unfinished character becomes U+FFFD."""
        rest = self._stream.finish()
        if self._stop is not None:
            return TextPiece("", self._stop, 0)
        if self._stops is not None:
            text, self._stop = self._stops.feed(rest, ends=self._unstoppable < 0)
            rest = text + self._stops.finish()
        return TextPiece(self._gate.feed(rest) + self._gate.finish(), self._stop, 0)
