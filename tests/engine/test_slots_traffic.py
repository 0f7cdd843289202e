"""Sessions saved and put back at random while others run, are preempted, fail and drive blocks out to files.

Traffic sees every place that is read: one that was put back wrongly, or that went to a file as something else, is told.
"""

from array import array
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from tests.schedule.test_offload import carrier, traffic
from tests.schedule.traffic import Traffic

from pelton.core.config import CacheSection
from pelton.core.errors import RequestError
from pelton.engine.memory import slots
from pelton.engine.memory.slots import NoRoomError, Place, Waking, pieces
from pelton.kv.tiers.chain import nodes_of
from pelton.schedule.scheduler import holdings_of
from pelton.schedule.sessions import SHARE, Name

ACTIONS = 250
SESSIONS = ("a", "b", "c")


class Memory:
    """The one of BlockOps that slots write with, over what traffic takes for memory."""

    def __init__(self, made: Traffic) -> None:
        self._made = made

    def write(self, group: int, block: int, data: bytes) -> None:
        self._made._memory[group, block] = array("q", data).tolist()
        self._made.noticed.discard((group, block))


@dataclass(frozen=True)
class Saved:
    namespace: bytes
    keys: tuple[bytes, ...]
    contents: dict[Place, bytes]


def saved(made: Traffic, session: Name) -> Saved | None:
    """What a file would have."""
    holdings = holdings_of(made.scheduler)
    held, tree = holdings.sessions.held(session), holdings.blocks.tree
    nodes = [] if held is None or tree is None else nodes_of(tree, held)
    contents = {
        (entry, group): array("q", made._memory[group, blocks[entry]]).tobytes()
        for entry in range(len(nodes))
        for group, blocks in enumerate(held or ())
        if blocks[entry]
    }
    last = max((entry for entry, _ in contents), default=-1)
    keys = tuple(node.key for node in nodes[: last + 1])
    return Saved(session[0].encode(), keys, contents) if contents else None


class World:
    """Random actions on traffic; `seen` counts what became of them."""

    def __init__(self, made: Traffic, rng: Random) -> None:
        self.made = made
        self.rng = rng
        self.seen: Counter[str] = Counter()
        self.kept: list[Saved] = []
        self._number = 0

    def act(self) -> None:
        made, rng = self.made, self.rng
        session = ("", rng.choice(SESSIONS))
        match rng.choices(("add", "step", "save", "wake", "preempt", "abort", "bad"), (5, 9, 3, 6, 1, 1, 1))[0]:
            case "add" if len(made.open) < 6:
                self._number += 1
                start = [1, 2] * rng.randrange(11)
                prompt = [*start, *(rng.randrange(3) for _ in range(rng.randrange(1, 7)))]
                made.add(f"{self._number}", prompt, rng.randrange(1, 14), session=rng.choice(("", session[1])))
            case "step":
                made.step()
            case "save":
                found = saved(made, session)
                self.kept += [] if found is None else [found]
            case "wake" if self.kept:
                self.wake(rng.choice(self.kept), session)
            case "preempt" if made.open:
                made.preempt(rng.choice(sorted(made.open)))
            case "abort" if made.open:
                made.abort(rng.choice(sorted(made.open)))
            case "bad" if made.open:
                unlucky = rng.choice(sorted(made.open))
                made.step(faulty=lambda sequence: sequence.name == unlucky)
            case _:
                pass
        made.scheduler.check()

    def wake(self, one: Saved, session: Name) -> None:
        """All of it, with steps in between; or as much as there is room for, or as nobody else changes."""
        holdings = holdings_of(self.made.scheduler)
        places = sorted(one.contents)
        totals = Counter(group for _, group in places)
        if any(totals[group] > SHARE * total for group, total in enumerate(holdings.blocks.total)):
            return
        waking = Waking(holdings, session, one.namespace, one.keys)
        try:
            for piece in pieces(places, (1,) * len(self.made.windows)):
                waking.put({place: one.contents[place] for place in piece}, Memory(self.made))  # type: ignore[arg-type]
                self.made.scheduler.check()
                if self.rng.random() < 0.3:
                    self.made.step()
        except NoRoomError:
            self.seen["no room"] += 1
            if waking.entries:
                holdings.sessions.end(session)
        except RequestError:
            self.seen["changed"] += 1
        else:
            self.seen["woken"] += 1


@pytest.mark.parametrize("windows", [(None,), (None, 6), (7,)])
@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_meanwhile(
    windows: tuple[int | None, ...], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = CacheSection(partial_prefix_blocks=False, preemption_mode="swap" if seed % 2 else "recompute")
    made = traffic(tmp_path, blocks=11 + seed, windows=windows, cache=cache)
    world = World(made, Random(seed))
    for _ in range(ACTIONS):
        monkeypatch.setattr(slots, "MOST_BYTES", world.rng.choice((1, 3, 99)))
        world.act()
    made.run()
    assert world.seen["woken"] >= 5 and made.seen["hit"] > 0 and len(world.kept) >= 5, world.seen
    carrier(made).close()
