"""What the commands write: answers to stdout and nothing else there, everything about them to stderr.

It knows no model. Invariant: stdout holds only text that the user asked for.
"""

import contextlib
import errno
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import BinaryIO

import click

from pelton.core.errors import RequestError

INTERRUPTED = 130  # exit code after Ctrl-C

_CLEAR_LINE = "\r\033[K"


class Failed(click.ClickException):
    """An error on its way to the user: one line, exit code 1."""

    def show(self, file: object = None) -> None:
        say(f"error: {self.message}")


def emit(text: str) -> None:
    """Text of an answer, at once; Failed where stdout takes no more. A reader that went away is BrokenPipeError."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        drop_output()
        raise Failed(f"The output cannot be written: {error.strerror}.") from error


def drop_output() -> None:
    """What stdout still holds goes nowhere: Python's own attempt at the end would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def say(text: str, *, dim: bool = False) -> None:
    """A line about what goes on; it is lost where stderr takes none."""
    with contextlib.suppress(OSError):
        click.secho(text, err=True, dim=dim or None)


def need_stdin() -> BinaryIO:
    """stdin; Failed where the process was started without one."""
    if sys.stdin is None:
        raise Failed("Standard input is closed, and there is nothing else to read from.")
    return sys.stdin.buffer


def check_streams() -> None:
    """Failed without a stdout. The numbers of closed streams are taken, so that no file of ours gets one."""
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)
    if sys.stdout is None:
        raise Failed("Standard output is closed, and there is nowhere to write to.")


def say_notes(notes: Iterable[str]) -> None:
    """What the user should know although nothing failed."""
    for note in notes:
        say(f"note: {note}")


def shows_progress() -> bool:
    """Whether somebody watches stderr."""
    return sys.stderr.isatty()


class _Logs(logging.Handler):
    """Hands over what is logged as information, and collects what is more than that."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show
        self.warnings: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO:
            self._show(f"{record.getMessage()} ...")
        elif record.levelno > logging.INFO:
            self.warnings.append(record.getMessage())


class Status:
    """One line on a watched stderr that says what is being done, and that goes away when it is done.

    What the package logs meanwhile as information takes its place. Warnings are in `warnings`: whoever did it shows
    them, with what else there is to say.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._logs = _Logs(self._show)
        self._level = logging.NOTSET

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was logged meanwhile as a warning or worse, in order."""
        return tuple(self._logs.warnings)

    def __enter__(self) -> "Status":
        logger = logging.getLogger("pelton")
        logger.addHandler(self._logs)
        self._level = logger.level
        logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
        self._show(self._text)
        return self

    def _show(self, text: str) -> None:
        if shows_progress():
            sys.stderr.write(f"{_CLEAR_LINE}{text}")
            sys.stderr.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logger = logging.getLogger("pelton")
        logger.removeHandler(self._logs)
        logger.setLevel(self._level)
        self._show("")


def check_text(text: str, source: str) -> None:
    """RequestError naming `source` if the system handed over bytes that are no text in the encoding of its locale."""
    if not text.isascii() and any("\udc80" <= sign <= "\udcff" for sign in text):
        raise RequestError(
            f"{source} holds bytes that are no {sys.getfilesystemencoding().upper()} text, the encoding of the locale "
            "(LC_ALL, LC_CTYPE, LANG).",
            "Write it in that encoding, or set the locale of the encoding it is in.",
            param="prompt",
        )


def decode_text(raw: bytes, source: str) -> str:
    """UTF-8 text without the newline at its end, if it has one; RequestError naming `source` if it is no UTF-8."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{source} is not UTF-8 text (byte {error.start}).", "Convert it to UTF-8.", param="prompt"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


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
