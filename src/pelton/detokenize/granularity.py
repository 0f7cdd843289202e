"""Gate: holds text back until a piece of it may end: at a token, a word or a sentence. It sees text only, no tokens.

Clusters are Unicode's extended grapheme clusters, words its default words (UAX #29). Invariant: all pieces, finish()
included, joined are the text; no piece but the last ends inside an emoji sequence, unless too much would be held.
"""

from collections.abc import Callable, Mapping

import regex

# Code points from which on what is held comes out at the next finer border: word for sentence, cluster for word, then
# anywhere, so that endless words and endless stacks of marks flow.
MOST_HELD: Mapping[str, int] = {"token": 64, "word": 128, "sentence": 1024}
SLICE = 256  # code points that are looked at together with what is held

_JOINS = r"\p{GCB=Extend}\p{GCB=SpacingMark}\p{GCB=ZWJ}"  # continue whatever stands before them
_CLUSTER = regex.compile(r"\X")
# What a piece of a token may end with though nothing is known of the next character. An emoji sequence may go on behind
# what is not here (keycaps behind digits, # and *), and so do clusters in ordinary text: scripts that write vowels or
# tones as marks, conjoining jamo.
_PLAIN = frozenset("\t\n" + "".join(map(chr, range(0x20, 0x7F)))) - frozenset("0123456789#*")
_SETTLED = regex.compile(
    rf"[[\p{{LC}}\p{{P}}\p{{S}}\p{{Z}}\p{{Han}}\p{{Hiragana}}\p{{Katakana}}\p{{GCB=LV}}\p{{GCB=LVT}}]"
    rf"--[\p{{ExtPict}}\p{{GCB=Regional_Indicator}}\p{{GCB=Prepend}}{_JOINS}#*]]",
    regex.VERSION1,
)
_WORD_BORDER = regex.compile(r"\b", regex.WORD)
# Whether a word goes on over these is told by what follows.
_LINKS = r"\p{WB=MidLetter}\p{WB=MidNum}\p{WB=MidNumLet}\p{WB=Single_Quote}\p{WB=Double_Quote}"
_OPEN_LINK = regex.compile(rf"[{_LINKS}][\p{{WB=Extend}}\p{{WB=Format}}\p{{WB=ZWJ}}]*\Z")

_LINE_END = r"\r\n|[\n\v\f\x85\u2028\u2029]|\r(?=[^\n])"
_CLOSING = r"""\p{Pe}\p{Pf}"'"""
_WIDE = r"[\p{SB=STerm}--[!?]]\uff0e"  # no space follows these in writing
_SPACES = r"[\p{Zs}\t]"
_SENTENCE_END = regex.compile(
    rf"{_LINE_END}"
    # Wide stops and closing quotes; a decimal point between wide digits is none.
    rf"|(?<![{_WIDE}])[{_WIDE}][{_WIDE}!?.\u2026{_CLOSING}{_JOINS}]*+{_SPACES}*+(?=[^\s{_JOINS}])(?<!\uff0e(?=\p{{Nd}}))"
    # Other stops need a space behind them; a point before a small letter belongs to an abbreviation.
    rf"|(?<![.!?\u2026])[.\u2026]++[{_CLOSING}]*+{_SPACES}++(?=[^\s\p{{Ll}}{_JOINS}])"
    rf"|(?<![.!?\u2026])[.\u2026]*+[!?][!?.\u2026]*+[{_CLOSING}]*+{_SPACES}++(?=[^\s{_JOINS}])",
    regex.VERSION1,
)


class Gate:
    """Lets text out in pieces that end at borders of `granularity`: a key of MOST_HELD.

    With "token" everything comes out at once but for a last cluster that ordinary text or an emoji sequence may go on
    with; a mark behind a Latin letter, say, comes in the next piece. With "word" and "sentence" no cluster is split.
    """

    def __init__(self, granularity: str) -> None:
        self._most = MOST_HELD[granularity]
        self._border, *self._finer = _FROM[granularity]
        self._held = ""

    def feed(self, delta: str) -> str:
        """What may come out now that `delta` has arrived.

        Where a cluster ends may depend on all before it (flags), so that a long one is taken in slices: as if it had
        come so, its time stays proportional to its length.
        """
        return "".join([self._take(delta[start : start + SLICE]) for start in range(0, len(delta), SLICE)])

    def _take(self, delta: str) -> str:
        text = self._held + delta
        cut = self._border(text)
        for finer in self._finer:
            if len(text) - cut < self._most:
                break
            cut += finer(text[cut:])
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """What is still held: the answer ends."""
        text, self._held = self._held, ""
        return text


def _after_token(text: str) -> int:
    last = text[-1]
    return len(text) if last in _PLAIN or _SETTLED.match(last) else _last_cluster(text)


def _last_cluster(text: str) -> int:
    """Where the last cluster starts, the only one that can still grow."""
    return len(text) - len(_CLUSTER.findall(text)[-1]) if text else 0


def _after_word(text: str) -> int:
    """The last border that what follows cannot undo; words split no cluster but for odd ones, such as of jamo."""
    starts = [found.start() for found in _CLUSTER.finditer(text)]
    link = _OPEN_LINK.search(text)
    most = starts[-1] if link is None else min(starts[-1], link.start() - 1)
    borders = {found.start() for found in _WORD_BORDER.finditer(text)}
    return next((place for place in reversed(starts) if place <= most and place in borders), 0)


def _after_sentence(text: str) -> int:
    ends = [found.end() for found in _SENTENCE_END.finditer(text)]
    return ends[-1] if ends else 0


Border = Callable[[str], int]
_FROM: Mapping[str, tuple[Border, ...]] = {
    "token": (_after_token, len),
    "word": (_after_word, _last_cluster, len),
    "sentence": (_after_sentence, _after_word, _last_cluster, len),
}
