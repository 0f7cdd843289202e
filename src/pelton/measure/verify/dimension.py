"""The interface of a dimension: one thing that must not change an answer, in two or more values.

It shapes schedules and counts what happened in them; it compares nothing. Invariant: all chance comes from the random
generator it is handed, so that a schedule's number says all about it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

from pelton.core.config import CacheSection, ScheduleSection
from pelton.core.counters import EngineStats
from pelton.core.events import Event
from pelton.core.plan import StepPlan
from pelton.core.request import Request
from pelton.engine.engine import Engine
from pelton.measure.verify.cases import Case, Cases, Prompt

PREPARE = -1  # the phase before the one that the tested request belongs to
TEST = 0


@dataclass(slots=True)
class Ask:
    """A request for n answers. It joins `after` steps of its phase; a phase begins when the one before is over.

    `salt`: it shares prefixes only with requests that have the same one; where it `keeps` it, also in a round in which
    no two others share any. `session`: what it computes is held for others of the same one.
    """

    case: Case
    n: int = 1
    phase: int = TEST
    after: int = 0
    salt: str = ""
    session: str = ""
    keeps: bool = False


@dataclass(slots=True)
class Draft:
    """A round in the making: `asks[0]` is the tested request, `schedule` and `cache` are the engine's settings.

    `step_tokens`: most tokens that a step can have. `scarce`: fewer blocks than all the requests need at once.
    `private`: no two requests share a prefix. `fresh`: the tested one wants what was computed right before it.
    """

    cases: Cases
    asks: list[Ask]
    schedule: ScheduleSection
    cache: CacheSection
    block_size: int
    step_tokens: int
    scarce: bool = False
    private: bool = False
    fresh: bool = False

    @property
    def tested(self) -> Ask:
        return self.asks[0]


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [start, start + count) of a request that a step computes."""

    request: Request
    start: int
    count: int

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.request.prompt_token_ids

    @property
    def ends_in_prompt(self) -> bool:
        """Whether a later piece computes more of the prompt."""
        return self.start + self.count < len(self.prompt)


@dataclass(frozen=True, slots=True)
class StepSeen:
    """One step from outside: its plan, whose tokens it computed, what it told, and the engine's figures around it.

    `requests`: the open ones at its start by id. `left`: ids of those that had to leave a row before.
    """

    plan: StepPlan
    pieces: tuple[Piece, ...]
    events: tuple[Event, ...]
    before: EngineStats
    after: EngineStats
    requests: Mapping[str, Request]
    left: frozenset[str] = frozenset()


@dataclass(slots=True)
class Live:
    """A round that runs. `drawn`: request id -> tokens so far, of those that have a row; `counts`: events so far.

    `fresh`: the tested request is about to begin, and wants to find what is cached now.
    """

    engine: Engine
    rng: Random
    cases: Cases
    drawn: dict[str, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    fresh: bool = False

    def limit_pieces(self, tokens: int) -> None:
        """From now on a step computes at most so many tokens of a prompt; 0: as many as fit."""
        scheduler = self.engine.scheduler
        scheduler.limits = replace(scheduler.limits, long_prefill_token_threshold=tokens)

    def limit_steps(self, steps: int) -> None:
        """From now on a call does at most so many steps."""
        scheduler = self.engine.scheduler
        scheduler.limits = replace(scheduler.limits, max_steps_per_call=steps)


class Dimension(Protocol):
    """Made without arguments. The names of counters are its own; they are added up over all schedules of a cell."""

    @property
    def values(self) -> tuple[str, ...]:
        """What it can be; the first one is the plain one."""
        ...

    def suits(self, value: str, prompt: Prompt, block_size: int) -> bool:
        """Whether the value can show anything with this prompt."""
        ...

    def shape(self, value: str, draft: Draft, rng: Random) -> None:
        """Settings and further requests that bring the value about."""
        ...

    def between(self, value: str, live: Live) -> None:
        """What is done before each step."""
        ...

    def count(self, seen: StepSeen) -> Mapping[str, int]:
        """Counters of what happened in one step, whatever the value is."""
        ...

    def proof(self, value: str) -> str:
        """The counter that is above 0 in every cell in which the value was really there."""
        ...
