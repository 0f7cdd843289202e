"""What verify found, as records, JSON and lines for people. It judges by what it is told and runs nothing."""

from collections import Counter
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that is not what it was alone. `position`: of the first output token that differs (or of the prompt's
    token, for a score); `margin`: the reference's log-probability of its likeliest token there less the second's.

    `request`: its number in the schedule. `first_op`: where the computation parted, None where it did not.
    """

    schedule: int
    cell: dict[str, str]
    prompt: str
    way: str
    request: str
    what: str
    position: int | None = None
    expected: str = ""
    found: str = ""
    margin: float | None = None
    first_op: str | None = None
    remark: str = ""

    def lines(self) -> list[str]:
        """The difference for people."""
        where = "" if self.position is None else f" at position {self.position}"
        margin = "" if self.margin is None else f"; alone, the two likeliest tokens there are {self.margin:.6g} apart"
        found = [f"  expected {self.expected}, found {self.found}{margin}"] if self.expected or self.found else []
        parted = [f"  first op that differed: {self.first_op}"] if self.first_op else []
        remark = [f"  {self.remark}"] if self.remark else []
        return [
            f"DIFFERENT  {self.what}{where}: {self.prompt}, {self.way} (request {self.request})",
            f"  schedule {self.schedule} ({_text(self.cell)})",
            *found,
            *parted,
            *remark,
        ]


@dataclass(frozen=True, slots=True)
class CellReport:
    """One cell: how often it was tried, what happened in it, and the events it promised that never happened."""

    cell: dict[str, str]
    schedules: int
    events: dict[str, int]
    missing: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """What is missing, for people; none where nothing is."""
        return [f"EMPTY  {_text(self.cell)}: no {event}" for event in self.missing]


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run. `tokens` of all answers that were compared; `others`: differences beyond those described."""

    seed: int
    schedules: int
    answers: int
    tokens: int
    steps: int
    seconds: float
    cells: tuple[CellReport, ...]
    not_run: tuple[dict[str, str], ...] = ()
    differences: tuple[Difference, ...] = ()
    others: int = 0

    @property
    def empty(self) -> list[CellReport]:
        """Cells in which something that they test never happened."""
        return [cell for cell in self.cells if cell.missing]

    @property
    def passed(self) -> bool:
        """All answers equal, and no cell empty. Cells that were not run say nothing."""
        return not self.differences and not self.empty

    @property
    def events(self) -> Counter[str]:
        """What happened, over all cells."""
        total: Counter[str] = Counter()
        for cell in self.cells:
            total.update(cell.events)
        return total

    def record(self) -> dict[str, object]:
        """All of it as JSON takes it."""
        return {"passed": self.passed, **asdict(self), "events": dict(self.events)}

    def lines(self) -> list[str]:
        """The run for people, the verdict last."""
        told = [line for difference in self.differences for line in difference.lines()]
        if self.others:
            told.append(f"DIFFERENT  and {_counted(self.others, 'more answer')}")
        told += [line for cell in self.cells for line in cell.lines()]
        happened = ", ".join(f"{count:,} {name}" for name, count in sorted(self.events.items()))
        told.append(f"what happened: {happened or 'nothing'}")
        if self.not_run:
            cells = len(self.not_run) + len(self.cells)
            told.append(f"{len(self.not_run)} of {cells} cells not reached; --json lists them")
        ran = (
            f"{_counted(self.schedules, 'schedule')} in {_counted(len(self.cells), 'cell')}, "
            f"{_counted(self.answers, 'answer')}, {_counted(self.tokens, 'token')}, {_counted(self.steps, 'step')}, "
            f"{self.seconds:.1f} s, seed {self.seed}"
        )
        verdict = "equal to the last bit" if self.passed else "FAILED"
        return [*told, f"{verdict}: {ran}"]


def _counted(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _text(cell: dict[str, str]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in cell.items())
