"""What fetching tells on stderr while it goes on. It decides nothing and fetches nothing."""

import contextlib
import os
import sys
from functools import partial

from tqdm import tqdm

MEGABYTE = 1_000_000


class Progress:
    """What is told, if wanted: bars on a terminal; else a line at the start of a fetch and one at its end.

    A terminal that says that it has no columns, as some that are no real ones do, gets lines: bars would be empty.
    """

    def __init__(self, wanted: bool) -> None:
        watched = sys.stderr is not None and sys.stderr.isatty() and _columns() != 0
        self.bars, self._lines = wanted and watched, wanted and not watched
        self._wanted = wanted

    @property
    def bar_class(self) -> "partial[tqdm[None]]":
        """Makes bars, for who makes them himself."""
        return partial(tqdm, disable=not self.bars)

    def bar(self, what: str, total: int | None) -> "tqdm[None]":
        """A bar of bytes, of which one that is not wanted shows nothing."""
        return tqdm(desc=what, total=total, unit="B", unit_scale=True, unit_divisor=1024, disable=not self.bars)

    def line(self, text: str, size: int | None, about: str = "") -> None:
        """A line where no bars are; `size` in bytes."""
        if self._lines and sys.stderr is not None:
            amount = f" ({about}{size / MEGABYTE:.0f} MB)" if size else ""
            sys.stderr.write(f"{text}{amount}\n")
            sys.stderr.flush()

    def note(self, text: str) -> None:
        """What the user should know, bars or none."""
        if self._wanted and sys.stderr is not None:
            sys.stderr.write(f"note: {text}\n")
            sys.stderr.flush()


def _columns() -> int | None:
    """The width of the terminal; None if it does not say."""
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns
    return None
