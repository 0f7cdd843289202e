"""The interface of a workload: what is asked, how long the answers are. When it is asked is the load's business.

Invariant: the same options and seed give the same samples.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

from pelton.core.errors import SettingError

Message = Mapping[str, object]
TokenIds = tuple[int, ...]
PROMPT_KEYS = ("prompt", "prompt_token_ids", "messages")  # of a line of a file; it has one of them
PROMPT_FORM = 'Give it one of these: "prompt" (text), "prompt_token_ids", "messages".'


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: either `prompt` (text or token ids) or `messages`, and how many tokens of answer it asks for.

    `follows`: place of the sample whose answer it waits for; then `messages` are only what is new, and everything said
    before, real answers among it, comes in front when it is asked.
    """

    output_len: int
    prompt: str | TokenIds | None = None
    messages: tuple[Message, ...] = ()
    follows: int | None = None


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """`data`: folder of public data sets, or None. `path`: the user's own file. Lengths in tokens; None: the
    workload's own. `encode` gives a text's token ids.
    """

    count: int
    data: Path | None = None
    path: Path | None = None
    input_len: int | None = None
    output_len: int | None = None
    prefix_len: int = 0
    encode: Callable[[str], TokenIds] | None = None
    random: Random = field(default_factory=lambda: Random(0))

    def pick(self, rows: list[Mapping[str, object]]) -> list[Mapping[str, object]]:
        """`count` of the rows in a random order, each as seldom again as possible."""
        if not rows:
            raise SettingError(f"--data {self.data} has too few rows for this workload.", "Add some to its files.")
        picked: list[Mapping[str, object]] = []
        while len(picked) < self.count:
            picked += self.random.sample(rows, len(rows))
        return picked[: self.count]


class Workload(Protocol):
    """Makes the samples of one kind of traffic."""

    def samples(self, options: WorkloadOptions) -> list[Sample]:
        """As many as `options.count`; SettingError where something it needs is not there."""
        ...


def rows_of(options: WorkloadOptions, name: str, *keys: str) -> list[Mapping[str, object]]:
    """The lines of one data set, `keys` in each; SettingError where the folder, the file or one of these is missing."""
    if options.data is None:
        raise SettingError(f"This workload is built from {name}.", "Name the folder of data sets by --data.")
    file = options.data / name
    if not file.is_file():
        raise SettingError(f"--data {options.data} has no {name}.", "Name the folder that holds it.")
    rows = list(json_lines(file))
    for number, row in enumerate(rows, 1):
        lacking = [key for key in keys if key not in row]
        if lacking:
            raise SettingError(f"{file}: row {number} has no {lacking[0]!r}.", f"Each row needs {', '.join(keys)}.")
    if not rows:
        raise SettingError(f"{file} has no rows.")
    return rows


def json_lines(file: Path, called: str = "") -> Iterator[Mapping[str, object]]:
    """The tables of a file with one JSON value a line; SettingError naming the first line that is none.

    `called`: how its user names the file.
    """
    called = called or str(file)
    for number, line in enumerate(text_of(file, called).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise SettingError(f"{called}, line {number}, is no JSON: {error}.") from error
        if not isinstance(row, dict):
            raise SettingError(f"{called}, line {number}, is no JSON object.", 'Write it like {"prompt": "..."}.')
        yield row


def prompt_key(row: Mapping[str, object]) -> str:
    """Which of PROMPT_KEYS a line has; ValueError that says what is wrong where it has none or several."""
    there = [key for key in PROMPT_KEYS if row.get(key) is not None]
    if len(there) == 1:
        return there[0]
    raise ValueError(f"has {' and '.join(there)}" if there else "has no prompt")


def text_of(file: Path, called: str) -> str:
    """A whole file; SettingError where it cannot be read or is no text."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{called} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{called} is no text in UTF-8: byte {error.start}.") from error
