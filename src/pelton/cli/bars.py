"""Bars: values as one line of blocks of their heights, in letters where the terminal has no blocks.

It computes no figure. Invariant: what is not nothing is seen.
"""

import sys
from collections.abc import Sequence

HEIGHTS = " ▁▂▃▄▅▆▇█"
PLAIN = " .:-=+*#@"
WIDTH = 60


def bar(values: Sequence[float], width: int = WIDTH) -> str:
    """One line of blocks whose heights are the values', the largest filling the line's height."""
    marks, most = _marks(), max(values, default=0.0)
    count = min(width, len(values))
    shown = []
    for place in range(count):
        part = values[place * len(values) // count : (place + 1) * len(values) // count]
        height = max(part) / most if most else 0.0
        shown.append(marks[max(round(height * (len(marks) - 1)), 1 if height else 0)])
    return "".join(shown)


def _marks() -> str:
    try:
        HEIGHTS.encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return PLAIN
    return HEIGHTS
