"""Trace: recorded traffic as numbers, and the interface of what reads one kind of file. Knows no engine and no model.

Invariant: calls are in the order of their arrival; their lengths are the file's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pelton.core.errors import SettingError


@dataclass(frozen=True, slots=True)
class Call:
    """One request: when it came (seconds from the trace's first), and how many tokens prompt and answer had.

    `pieces`: ids of the prompt's pieces, each of Trace.piece tokens but for the last; prompts that begin with the same
    ids begin with the same tokens. Empty: it shares no beginning with another. `client`: whose it was, where known.
    """

    at: float
    prompt: int
    output: int
    pieces: tuple[int, ...] = ()
    client: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """`timed`: whether the file says when requests came; else all of them have `at` 0."""

    calls: tuple[Call, ...]
    timed: bool = True
    piece: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """What a reader is given: the file's lines that hold something, with their numbers in it.

    `called`: how its user names the file. `part`: what stood behind # in that name. `count`: as many calls as are
    wanted, None for all; of use to a reader that draws them. `seed`: of such draws.
    """

    lines: Sequence[tuple[int, str]]
    called: str
    part: str = ""
    count: int | None = None
    seed: int = 0

    def error(self, number: int, cause: str, remedy: str = "") -> SettingError:
        """The error for one line."""
        return SettingError(f"{self.called}, line {number}: {cause}.", remedy)

    def no_parts(self) -> None:
        """SettingError where a part is asked for, for readers that know none."""
        if self.part:
            raise SettingError(f"{self.called} has no parts, so #{self.part} names none.", "Leave it out.")


class TraceReader(Protocol):
    """Reads one kind of file."""

    def claims(self, first: str) -> bool:
        """Whether a file with this first line is of its kind."""
        ...

    def read(self, source: Source) -> Trace:
        """The whole trace; SettingError naming the line that is none of its kind."""
        ...


def source_of(path: Path, *, count: int | None = None, seed: int = 0) -> Source:
    """The file at `path`, which may end in #PART. SettingError where it cannot be read or holds nothing."""
    file, _, part = str(path).partition("#")
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SettingError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{file} is no text in UTF-8: byte {error.start}.") from error
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise SettingError(f"{file} is empty.", "Name a trace, such as JSON lines of timestamp and lengths.")
    return Source(lines, file, part, count, seed)


def in_order(calls: Sequence[Call]) -> tuple[Call, ...]:
    """The calls by their arrival, equal ones as they were."""
    return tuple(sorted(calls, key=lambda call: call.at))


def counted(value: object) -> int | None:
    """A number of tokens as files have it (12, 12.0, "12"), None for what is none."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return int(number) if number >= 0 and number == int(number) else None
