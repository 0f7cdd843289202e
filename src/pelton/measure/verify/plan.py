"""Planner: which schedules are run, each a pure function of the seed and its number. It runs none of them.

Invariant: cells (combinations of the dimensions' values) come in an order drawn from the seed, each once before any
comes again; the first few have every value, the next ones every pair of values, as far as few cells can.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from random import Random

from pelton.core.config import CacheSection, ScheduleSection
from pelton.measure.verify.cases import Case, Cases, Prompt
from pelton.measure.verify.dimension import TEST, Ask, Dimension, Draft
from pelton.measure.verify.rig import Sizes

Cell = tuple[tuple[str, str], ...]  # (dimension, value) for each dimension
SMALLEST_BUDGET = 48
SPARE = 2  # blocks beyond what a round's requests need


@dataclass(frozen=True, slots=True)
class Round:
    """Requests for one new engine. `blocks`: how many KV blocks it has; `name` seeds what is random in it. `fresh`: as
    in Draft.
    """

    name: str
    asks: tuple[Ask, ...]
    schedule: ScheduleSection
    cache: CacheSection
    blocks: int
    fresh: bool = False

    @property
    def phases(self) -> list[int]:
        return sorted({ask.phase for ask in self.asks})


@dataclass(frozen=True, slots=True)
class Schedule:
    """One cell, tried once with a greedy and once with a seeded request."""

    number: int
    cell: Cell
    rounds: tuple[Round, ...]


def covering(cells: Sequence[Cell]) -> list[Cell]:
    """The same cells, those first that have most values nobody before them had, then most pairs of values.

    Among equals the order stays; once all pairs are there, it stays for the rest.
    """
    left, ordered = list(cells), list[Cell]()
    seen: set[object] = set()
    while left:
        found = [
            (sum(one not in seen for one in cell), sum(pair not in seen for pair in combinations(cell, 2)))
            for cell in left
        ]
        best = max(found)
        if best == (0, 0):
            break
        cell = left.pop(found.index(best))
        seen.update(cell, combinations(cell, 2))
        ordered.append(cell)
    return ordered + left


class Planner:
    """Makes schedules by number, from 0 on."""

    def __init__(self, cases: Cases, dimensions: Mapping[str, Dimension], sizes: Sizes, seed: int) -> None:
        self._cases = cases
        self._dimensions = dict(dimensions)
        self._sizes = sizes
        self._seed = seed
        values = ([(name, value) for value in dimension.values] for name, dimension in self._dimensions.items())
        self.cells: tuple[Cell, ...] = tuple(product(*values))
        self._orders: dict[int, list[Cell]] = {}

    def cell(self, number: int) -> Cell:
        """The cell of this schedule."""
        turn, place = divmod(number, len(self.cells))
        if turn not in self._orders:
            self._orders[turn] = covering(self._rng("cells", turn).sample(self.cells, len(self.cells)))
        return self._orders[turn][place]

    def schedule(self, number: int) -> Schedule:
        """The schedule with this number."""
        cell = self.cell(number)
        rounds = (self._round(number, cell, greedy=True), self._round(number, cell, greedy=False))
        return Schedule(number, cell, rounds)

    def _round(self, number: int, cell: Cell, *, greedy: bool) -> Round:
        name = f"{number}/{'greedy' if greedy else 'seeded'}"
        rng = self._rng(name)
        tested = Ask(self._tested(2 * number + greedy, cell, rng, greedy=greedy))
        draft = Draft(
            cases=self._cases,
            asks=[tested],
            schedule=ScheduleSection(
                max_num_seqs=self._sizes.rows,
                max_num_batched_tokens=rng.choice((self._sizes.tokens, self._budget(rng))),
                max_steps_per_call=1,
            ),
            cache=CacheSection(preemption_mode="recompute"),  # never by what was measured
            block_size=self._sizes.block_size,
            step_tokens=self._sizes.tokens,
        )
        for dimension, value in cell:
            # Generators of their own: a new dimension leaves alone what the others draw.
            self._dimensions[dimension].shape(value, draft, self._rng(name, dimension))
        if draft.private:
            for place, ask in enumerate(draft.asks):
                ask.salt = ask.salt if ask.keeps else f"own {place}"
        blocks = self._blocks(draft, rng)
        return Round(f"{self._seed}/{name}", tuple(draft.asks), draft.schedule, draft.cache, blocks, draft.fresh)

    def _tested(self, turn: int, cell: Cell, rng: Random, *, greedy: bool) -> Case:
        """All prompts and ways get their turn; one that the cell has no use for is passed over."""
        prompt = next(self._suited(turn, cell), max(self._cases.prompts, key=len))
        return self._cases.case(prompt, rng.choice([way for way in self._cases.ways if way.greedy == greedy]))

    def _suited(self, turn: int, cell: Cell) -> Iterator[Prompt]:
        prompts = self._cases.prompts
        again, place = divmod(turn, len(prompts))
        shuffled = self._rng("prompts", again).sample(prompts, len(prompts))
        for prompt in shuffled[place:] + shuffled[:place]:
            if all(self._dimensions[name].suits(value, prompt, self._sizes.block_size) for name, value in cell):
                yield prompt

    def _budget(self, rng: Random) -> int:
        return min(self._sizes.tokens, rng.randint(SMALLEST_BUDGET, 4 * SMALLEST_BUDGET))

    def _blocks(self, draft: Draft, rng: Random) -> int:
        """Plenty; or what the round needs at once, so that what is cached must go; or, where scarce, less than that."""
        phases = {ask.phase for ask in draft.asks}
        needs = {phase: sum(self._need(ask) for ask in draft.asks if ask.phase == phase) for phase in phases}
        if draft.scarce:
            # Where several meet, two find room at once: a prefix can be in flight, a step be shared.
            meet = min(2, sum(ask.n for ask in draft.asks if ask.phase == TEST))
            least = SPARE + meet * max(self._need(ask) // ask.n for ask in draft.asks)
            return min(self._sizes.blocks, rng.choice((least, rng.randint(least, max(least, needs[TEST] * 3 // 4)))))
        return min(self._sizes.blocks, rng.choice((self._sizes.blocks, max(needs.values()) + SPARE)))

    def _need(self, ask: Ask) -> int:
        """Blocks of all its answers to their last token, shared ones counted for each, and one in reserve for each."""
        tokens = len(ask.case.prompt) + self._cases.max_tokens
        return ask.n * (-(-tokens // self._sizes.block_size) + 1)

    def _rng(self, *parts: object) -> Random:
        return Random("/".join(map(str, (self._seed, *parts))))
