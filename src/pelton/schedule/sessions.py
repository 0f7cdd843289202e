"""Sessions: what a conversation has computed is held after its request is over, so that the next turn finds it.

Held are references on blocks of the prefix tree, nothing else; whoever runs goes first. Invariant: a session that is
not used for its time, or is too much for the share of the pool that sessions may have, holds nothing.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pelton.kv.blocks import Blocks
from pelton.kv.group import Held

Name = tuple[str, str]  # the salt of its requests, and the session's id
SHARE = 0.5  # of each KV group's blocks that all sessions together may hold


@dataclass(frozen=True, slots=True)
class _Session:
    """`held`: its path's blocks, as a table has them; `until`: seconds, when it is given up unless it is used again."""

    held: Held
    until: float


class Sessions:
    """By name, those unused longest first. `seconds`: how long one is held; 0: none is."""

    def __init__(self, blocks: Blocks, seconds: float) -> None:
        self.given_up = 0
        self._blocks = blocks
        self._seconds = seconds
        self._now = 0.0
        self._open: OrderedDict[Name, _Session] = OrderedDict()
        self._pins: tuple[Counter[int], ...] = tuple(Counter() for _ in blocks.groups)

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, name: Name) -> bool:
        return name in self._open

    def held(self, name: Name) -> Held | None:
        """What a session holds, None where there is none of this name; the same object until that changes."""
        session = self._open.get(name)
        return None if session is None else session.held

    def listed(self) -> Iterator[tuple[Name, Held, float]]:
        """All of them with what they hold, and when each is given up; the first is the first to be."""
        return ((name, session.held, session.until) for name, session in self._open.items())

    @property
    def num_blocks(self) -> int:
        """Blocks of all groups that sessions hold."""
        return sum(map(len, self._pins))

    def keep(self, name: Name, held: Held) -> None:
        """The session holds these blocks of the tree, in place of what it held before; nothing where they alone are too
        much: others need not give way for that.
        """
        if not self._seconds:
            return
        if _over_share([sum(map(bool, blocks)) for blocks in held], self._blocks.total):
            self.given_up += self.end(name)
            return
        self._blocks.share(held)
        for pins, blocks in zip(self._pins, held, strict=True):
            pins.update(block for block in blocks if block)
        self.end(name)
        self._open[name] = _Session(held, self._now + self._seconds)
        while self._too_much():
            self._give_up(next(iter(self._open)))

    def end(self, name: Name) -> bool:
        """Lets go of what a session holds; False where there is none of this name."""
        session = self._open.pop(name, None)
        if session is None:
            return False
        for pins, blocks in zip(self._pins, session.held, strict=True):
            pins.subtract(block for block in blocks if block)
            for block in blocks:
                if not pins[block]:
                    del pins[block]
        self._blocks.release(session.held)
        return True

    def end_all(self) -> None:
        """Nothing is held any more."""
        for name in list(self._open):
            self.end(name)

    def expire(self, now: float) -> None:
        """It is `now`, in seconds: lets go of what was not used for too long."""
        self._now = max(now, self._now)
        # All are held equally long, so those unused longest are over first.
        while self._open and next(iter(self._open.values())).until < self._now:
            self._give_up(next(iter(self._open)))

    def give_back(self) -> bool:
        """Gives up the session unused longest of those with a block that no request holds; False where there is none.

        Nothing becomes available as long as another session holds it too.
        """
        for name, session in self._open.items():
            if any(self._alone(number, blocks) for number, blocks in enumerate(session.held)):
                self._give_up(name)
                return True
        return False

    def check(self) -> Sequence[tuple[int, int]]:
        """Asserts that the figures agree; returns what is held (group, block), an entry for each reference."""
        for number, pins in enumerate(self._pins):
            counted = Counter(block for session in self._open.values() for block in session.held[number] if block)
            assert counted == pins and all(count > 0 for count in pins.values()), f"{counted} held, {pins} counted"
        assert not self._too_much()
        ends = [session.until for session in self._open.values()]
        assert ends == sorted(ends), f"not in the order of their ends: {ends}"
        held = (enumerate(session.held) for session in self._open.values())
        return [(group, block) for groups in held for group, blocks in groups for block in blocks if block]

    def _alone(self, group: int, blocks: Sequence[int]) -> bool:
        """Whether sessions are the only holders of one of a group's blocks (but the tree)."""
        tree, references, pins = self._blocks.tree, self._blocks.groups[group].pool.references, self._pins[group]
        return any(
            references(block) == pins[block] + (tree is not None and tree.at(group, block) is not None)
            for block in blocks
            if block
        )

    def _give_up(self, name: Name) -> None:
        self.given_up += 1
        self.end(name)

    def _too_much(self) -> bool:
        return _over_share([len(pins) for pins in self._pins], self._blocks.total)


def _over_share(held: Sequence[int], totals: Sequence[int]) -> bool:
    """Whether so many blocks of each group are more than sessions may hold."""
    return any(number > SHARE * total for number, total in zip(held, totals, strict=True))
