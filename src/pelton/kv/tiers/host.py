"""HostSlots: which slots of host memory are free. A slot holds a copy of one block of its KV group. Moves no byte.

Invariant: a slot is either free or somebody's, and those of each group are numbered from 0.
"""

from collections.abc import Iterable, Sequence

from pelton.kv.group import Held


class HostSlots:
    """The slot freed last is given out first: its memory is touched already."""

    def __init__(self, slots: Sequence[int]) -> None:
        self.total = tuple(slots)
        self._free = [list(range(count - 1, -1, -1)) for count in slots]

    @property
    def free(self) -> tuple[int, ...]:
        """Of each group."""
        return tuple(map(len, self._free))

    @property
    def used(self) -> int:
        """Slots of all groups that hold something."""
        return sum(self.total) - sum(self.free)

    def alloc(self, counts: Sequence[int]) -> Held | None:
        """So many slots of each group, or None (nothing changed) where fewer are free."""
        if any(count > len(free) for count, free in zip(counts, self._free, strict=True)):
            return None
        return tuple(tuple(free.pop() for _ in range(count)) for count, free in zip(counts, self._free, strict=True))

    def release(self, held: Iterable[Iterable[int]]) -> None:
        """These slots of each group are free again."""
        for free, slots in zip(self._free, held, strict=False):
            free += slots

    def give_back(self, places: Iterable[tuple[int, int]]) -> None:
        """These slots (group, slot) are free again."""
        for group, slot in places:
            self._free[group].append(slot)

    def counts(self, groups: Iterable[int]) -> list[int]:
        """How often each group is named."""
        counts = [0] * len(self.total)
        for group in groups:
            counts[group] += 1
        return counts

    def check(self, held: Iterable[tuple[int, int]]) -> None:
        """Asserts that those held (group, slot), named once each, and the free ones are all there are."""
        listed = [*held, *((group, slot) for group, free in enumerate(self._free) for slot in free)]
        every = {(group, slot) for group, total in enumerate(self.total) for slot in range(total)}
        assert len(listed) == len(set(listed)), f"a host slot is twice among {sorted(listed)}"
        assert set(listed) == every, f"host slots nobody has, or that there are not: {set(listed) ^ every}"
