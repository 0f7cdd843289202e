"""place: a static memory plan. Every value of an entry gets a fixed offset in one arena, sized for the largest step.

Values whose lives do not overlap share memory; an op's outputs never overlap its inputs.
"""

from dataclasses import dataclass

from pelton.program.module import Entry
from pelton.program.values import TOKENS

ALIGN = 16  # elements: one cache line of fp32


@dataclass(frozen=True, slots=True)
class Placement:
    """`offsets`: value -> first element in the arena; `size`: elements of the arena.

    Inputs of the entry have no place.
    """

    offsets: dict[str, int]
    size: int


@dataclass(frozen=True, slots=True)
class _Life:
    name: str
    size: int
    born: int
    dies: int


def place(entry: Entry, max_tokens: int) -> Placement:
    """First fit in order of birth for steps of up to `max_tokens` tokens."""
    placed: list[tuple[_Life, int]] = []
    size = 0
    for life in _lives(entry, max_tokens):
        busy = sorted(
            (offset, offset + other.size)
            for other, offset in placed
            if other.dies >= life.born and life.dies >= other.born
        )
        offset = 0
        for start, end in busy:
            if offset + life.size <= start:
                break
            offset = max(offset, end)
        placed.append((life, offset))
        size = max(size, offset + life.size)
    return Placement({life.name: offset for life, offset in placed}, size)


def _lives(entry: Entry, max_tokens: int) -> list[_Life]:
    born = {name: i for i, op in enumerate(entry.ops) for name in op.outputs}
    dies = {name: i for i, op in enumerate(entry.ops) for name in op.inputs}
    lives = []
    for name, start in born.items():
        rows, width = entry.values[name].shape
        if rows != TOKENS or not isinstance(width, int):
            raise ValueError(f"value {name!r}: only [T, constant] can be placed, not {entry.values[name].shape}")
        size = -(-max_tokens * width // ALIGN) * ALIGN
        end = len(entry.ops) if name in entry.outputs else dies.get(name, start)
        lives.append(_Life(name, size, start, end))
    return lives
