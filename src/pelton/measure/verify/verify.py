"""verify: plays schedules, compares each answer with the one that the request gets alone, and counts what was tested.

It never decides whether a difference matters: one bit is one. Invariant: a reference is computed once, by the same
executable, before anything is compared with it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice

from tqdm import tqdm

from pelton.core.errors import PeltonError
from pelton.measure.verify import DIMENSIONS
from pelton.measure.verify.cases import Case, Cases
from pelton.measure.verify.compare import Gap, explain, first_gap
from pelton.measure.verify.dimension import Dimension
from pelton.measure.verify.kept import Kept
from pelton.measure.verify.plan import Cell, Planner, Round, Schedule
from pelton.measure.verify.play import Answer, Played, play, play_alone
from pelton.measure.verify.report import CellReport, Difference, Report
from pelton.measure.verify.rig import Rig

DESCRIBED = 3  # differences that are run again to find the op; the others are counted
# What an engine raises when its own books are wrong, or a backend that is asked for what cannot be.
BREAKS = (AssertionError, RuntimeError, ValueError, LookupError, PeltonError)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is run: `schedules` from number 0 on (None: no end), at most `minutes`; or the one numbered `only`."""

    schedules: int | None = 50
    minutes: float | None = None
    only: int | None = None

    def numbers(self, ran: int = 0) -> Iterator[int]:
        """Numbers of the schedules, in order; the first `ran` of them are done."""
        return iter([self.only]) if self.only is not None else islice(count(), ran, self.schedules)


@dataclass(slots=True)
class _Found:
    """What came up so far."""

    answers: int = 0
    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    tried: Counter[Cell] = field(default_factory=Counter)
    events: dict[Cell, Counter[str]] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    others: int = 0

    @classmethod
    def of(cls, report: Report | None) -> "_Found":
        """What a report says; None: nothing yet."""
        if report is None:
            return cls()
        cells = [(tuple(one.cell.items()), one) for one in report.cells]
        return cls(
            answers=report.answers,
            tokens=report.tokens,
            steps=report.steps,
            seconds=report.seconds,
            tried=Counter({cell: one.schedules for cell, one in cells}),
            events={cell: Counter(one.events) for cell, one in cells},
            differences=list(report.differences),
            others=report.others,
        )


def dimensions() -> dict[str, Dimension]:
    """Everything that is registered, by name."""
    return {name: DIMENSIONS.get(name)() for name in DIMENSIONS.names()}


def verify(
    rig: Rig,
    cases: Cases,
    extent: Extent,
    *,
    seed: int = 0,
    over: Mapping[str, Dimension] | None = None,
    progress: bool = False,
    kept: Kept | None = None,
) -> Report:
    """Runs schedules as far as `extent` goes; the report says whether all answers were equal. `over`: dimensions.

    A difference ends nothing: the schedules behind it are run all the same. `kept`: what ran before is not run again,
    and part of the report.
    """
    verifier = _Verifier(rig, cases, seed, dimensions() if over is None else over)
    return verifier.run(extent, progress=progress, kept=kept)


class _Verifier:
    def __init__(self, rig: Rig, cases: Cases, seed: int, over: Mapping[str, Dimension]) -> None:
        self._rig = rig
        self._cases = cases
        self._seed = seed
        self._dimensions = over
        self._planner = Planner(cases, over, rig.sizes, seed)
        self._alone: dict[tuple[Case, int], Answer] = {}

    def run(self, extent: Extent, *, progress: bool, kept: Kept | None) -> Report:
        clock, found = self._rig.clock, _Found.of(None if kept is None else kept.before)
        began, before, ran = clock.now(), found.seconds, found.tried.total()
        total = 1 if extent.only is not None else extent.schedules
        if kept is not None:
            kept.save(self._report(found))  # so that a file that cannot be written is told at once
        with tqdm(total=total, initial=ran, desc="Schedules", unit="schedule", disable=not progress) as bar:
            for number in extent.numbers(ran):
                if extent.minutes is not None and clock.now() - began >= 60 * extent.minutes:
                    break
                self._try(self._planner.schedule(number), found)
                found.seconds = before + clock.now() - began
                if kept is not None and kept.due:
                    kept.save(self._report(found))
                bar.update()
        found.seconds = before + clock.now() - began
        report = self._report(found)
        if kept is not None:
            kept.save(report)
        return report

    def _try(self, schedule: Schedule, found: _Found) -> None:
        found.tried[schedule.cell] += 1
        events = found.events.setdefault(schedule.cell, Counter())
        for round_ in schedule.rounds:
            try:
                played = self._play(schedule, round_)
            except BREAKS as error:
                self._tell(found, self._broken(schedule, round_, error))
                continue
            events.update(played.counts)
            found.steps += played.steps
            self._compare(schedule, round_, played, found)

    def _play(self, schedule: Schedule, round_: Round, *, traced: bool = False) -> Played:
        values = [(self._dimensions[name], value) for name, value in schedule.cell]
        return play(self._rig, round_, self._cases, values, traced=traced)

    def _compare(self, schedule: Schedule, round_: Round, played: Played, found: _Found) -> None:
        """Only the first different answer of a round is described: the others mostly follow from it."""
        described = False
        for answer in played.answers:
            gap = first_gap(self._reference(answer), answer)
            found.answers += 1
            found.tokens += len(answer.tokens)
            if gap is None:
                continue
            if described or len(found.differences) >= DESCRIBED:
                found.others += 1
            else:
                self._tell(found, self._describe(schedule, round_, answer, gap))
            described = True

    def _reference(self, answer: Answer) -> Answer:
        assert answer.ask is not None, f"nobody asked for {answer.request.request_id}"
        case, child = answer.ask.case, answer.request.child
        if (case, child) not in self._alone:
            self._alone[case, child], _ = play_alone(self._rig, self._cases.alone(case, child))
        return self._alone[case, child]

    def _tell(self, found: _Found, difference: Difference) -> None:
        if len(found.differences) < DESCRIBED:
            found.differences.append(difference)
        else:
            found.others += 1

    def _describe(self, schedule: Schedule, round_: Round, answer: Answer, gap: Gap) -> Difference:
        assert answer.ask is not None
        case, request = answer.ask.case, answer.request
        margin, first_op, remark = None, None, ""
        try:
            again = self._play(schedule, round_, traced=True)
            repeated = next(one for one in again.answers if one.request.request_id == request.request_id)
            alone = self._cases.alone(case, request.child)
            explained = explain(self._rig, alone, gap, again.hashes[request.request_id])
            margin, first_op = explained.margin, explained.first_op
            if first_gap(self._reference(answer), repeated) != gap:
                remark = "run again, it was different in another way: something depends on time or on unwritten memory"
            elif first_op is None:
                remark = "every op gave the same as alone: it is the choice of the token that differs"
        except BREAKS as error:
            remark = f"run again to find the op, it broke: {error}"
        return Difference(
            schedule=schedule.number,
            cell=dict(schedule.cell),
            prompt=case.prompt.name,
            way=case.way.name,
            request=request.request_id,
            what=gap.what,
            position=gap.position,
            expected=gap.expected,
            found=gap.found,
            margin=margin,
            first_op=first_op,
            remark=remark,
        )

    def _broken(self, schedule: Schedule, round_: Round, error: BaseException) -> Difference:
        tested = round_.asks[0].case
        return Difference(
            schedule=schedule.number,
            cell=dict(schedule.cell),
            prompt=tested.prompt.name,
            way=tested.way.name,
            request="0",
            what="a break",
            remark=f"the engine broke: {type(error).__name__}: {error}",
        )

    def _report(self, found: _Found) -> Report:
        cells = [cell for cell in self._planner.cells if found.tried[cell]]
        return Report(
            seed=self._seed,
            schedules=found.tried.total(),
            answers=found.answers,
            tokens=found.tokens,
            steps=found.steps,
            seconds=found.seconds,
            cells=tuple(self._cell(cell, found) for cell in cells),
            not_run=tuple(dict(cell) for cell in self._planner.cells if not found.tried[cell]),
            differences=tuple(found.differences),
            others=found.others,
        )

    def _cell(self, cell: Cell, found: _Found) -> CellReport:
        events = found.events[cell]
        proofs = {self._dimensions[name].proof(value) for name, value in cell}
        missing = tuple(sorted(proof for proof in proofs if events[proof] <= 0))
        return CellReport(dict(cell), found.tried[cell], {name: n for name, n in events.items() if n}, missing)
