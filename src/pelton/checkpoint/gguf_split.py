"""The parts of a GGUF that was split: which files they are, and whether they belong together. Opens nothing.

Invariant: a part counts only where its name and its own metadata agree; what does not fit is told by file name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pelton.core.errors import CheckpointError

NUMBER, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"  # number from 0 on
NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
SHOWN_NAMES = 5
COMPLETE = "Give the first of all parts of one model, in one folder and with the names they were published under."


@dataclass(frozen=True, slots=True)
class Split:
    """What a part's metadata say of it: part `number` (from 0) of `count`, `tensors` in all of them if known."""

    number: int
    count: int
    tensors: int | None

    def __str__(self) -> str:
        return f"part {self.number + 1} of {self.count}"


def read_split(path: Path, values: Mapping[str, object]) -> Split | None:
    """The split that metadata tell of; None for a whole file. Raises CheckpointError where they make no sense.

    A file that is named as a part of several must say so itself.
    """
    found = {key: values[key] for key in (NUMBER, COUNT, TENSORS) if values.get(key) is not None}
    for key, value in found.items():
        if not isinstance(value, int) or value < 0:
            raise CheckpointError(f"{path}: {key} is {value!r:.40}, not a number of parts or tensors.", COMPLETE)
    numbers = {key: value for key, value in found.items() if isinstance(value, int)}
    count, named = numbers.get(COUNT, 0), NAME.fullmatch(path.name)
    if count <= 1:
        if named and int(named["count"]) > 1:
            raise CheckpointError(f"{path}: is named as one of several parts, but its metadata name none.", COMPLETE)
        return None
    split = Split(numbers.get(NUMBER, 0), count, numbers.get(TENSORS))
    if split.number >= count:
        raise CheckpointError(f"{path}: {NUMBER} is {split.number}, but {COUNT} is {count}.", COMPLETE)
    if not named:
        raise CheckpointError(f"{path}: is {split}, and its name does not tell those of the others.", COMPLETE)
    if (int(named["number"]), int(named["count"])) != (split.number + 1, count):
        raise CheckpointError(f"{path}: by its metadata this file is {split}.", COMPLETE)
    return split


def part_paths(path: Path, split: Split) -> list[Path]:
    """All parts in order. Raises CheckpointError naming those that are missing."""
    named = NAME.fullmatch(path.name)
    assert named is not None
    names = [f"{named['stem']}-{number:05}-of-{split.count:05}.gguf" for number in range(1, split.count + 1)]
    present = {entry.name for entry in path.parent.iterdir()}
    missing = [name for name in names if name not in present]
    if missing:
        shown = ", ".join(missing[:SHOWN_NAMES])
        more = f" and {len(missing) - SHOWN_NAMES} more" if len(missing) > SHOWN_NAMES else ""
        raise CheckpointError(f"{path}: is {split}; missing beside it: {shown}{more}.", COMPLETE)
    return [path.with_name(name) for name in names]


def check_part(path: Path, found: Split | None, first: Split) -> None:
    """Holds what a further part says of itself against the first one; raises CheckpointError naming the file."""
    if found is None or (found.count, found.tensors) != (first.count, first.tensors):
        told = "of no split model" if found is None else f"{found} with {found.tensors} tensors in all"
        wanted = f"{first.count} parts with {first.tensors} tensors in all"
        raise CheckpointError(f"{path}: belongs to another model: it is {told}, the first is of {wanted}.", COMPLETE)


def check_tensors(path: Path, number: int, first: Split) -> None:
    """Whether all parts together have as many tensors as the first one says."""
    if first.tensors is not None and number != first.tensors:
        what = f"all {first.count} parts hold {number} tensors, but {TENSORS} is {first.tensors}"
        raise CheckpointError(f"{path}: {what}: one of them belongs to another model.", COMPLETE)
