"""What the commands write: answers to stdout and nothing else there, everything about them to stderr.

It knows no model. Invariant: stdout holds only text that the user asked for.
"""

import sys
from collections.abc import Sequence
from types import TracebackType

import click

from pelton.core.errors import RequestError

INTERRUPTED = 130  # exit code after Ctrl-C

_CLEAR_LINE = "\r\033[K"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def emit(text: str) -> None:
    """Text of an answer, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def say(text: str) -> None:
    """A line about what goes on."""
    click.echo(text, err=True)


def shows_progress() -> bool:
    """Whether somebody watches stderr."""
    return sys.stderr.isatty()


class Status:
    """One line on a watched stderr that says what is being done, and that goes away when it is done."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __enter__(self) -> "Status":
        if shows_progress():
            sys.stderr.write(self._text)
            sys.stderr.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if shows_progress():
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()


def decode_text(raw: bytes, source: str) -> str:
    """UTF-8 text without the newline at its end, if it has one; RequestError naming `source` if it is no UTF-8."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{source} is not UTF-8 text (byte {error.start}).", "Convert it to UTF-8.", param="prompt"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


def size_text(count: float) -> str:
    """Bytes for people: "93.8 MiB"."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} {_UNITS[0]}" if unit == 0 else f"{count:.1f} {_UNITS[unit]}"


def count_text(count: float) -> str:
    """A count for people: "3.1 M"."""
    for unit in ("", " k", " M", " G", " T"):
        if count < 1000 or unit == " T":
            break
        count /= 1000
    return f"{count:.0f}" if unit == "" else f"{count:.1f}{unit}"


def table_lines(rows: Sequence[tuple[str, ...]], left: int = 1) -> list[str]:
    """Rows as aligned lines; the first `left` columns are aligned to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            text.ljust(width) if column < left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
