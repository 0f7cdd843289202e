"""Plays rounds: requests join as scheduled, the engine steps, and what it tells is written down. Compares nothing.

Invariant: what is written down of an answer is all that the engine told of it, bit for bit.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from pelton.core.config import CacheSection, ScheduleSection
from pelton.core.events import (
    Event,
    PromptScored,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    TokensGenerated,
)
from pelton.core.plan import StepPlan, TokenLogprobs
from pelton.core.request import Request
from pelton.engine.engine import Engine
from pelton.kv.tiers.worker import Carrier
from pelton.measure.verify.cases import Cases
from pelton.measure.verify.dimension import TEST, Ask, Dimension, Live, Piece, StepSeen
from pelton.measure.verify.plan import Round
from pelton.measure.verify.rig import Rig
from pelton.measure.verify.trace import Hashes, TracedExecutable

STEPS_PER_TOKEN = 20  # more than that, and a round is not going to end


@dataclass(slots=True)
class Answer:
    """All that was told of one sequence. `scores`: index -> log-probabilities of the prompt's token there."""

    request: Request
    ask: Ask | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    scores: dict[int, TokenLogprobs] = field(default_factory=dict)
    finished: RequestFinished | None = None
    conflict: int | None = None  # a prompt index that was scored twice, and differently

    def take(self, event: Event) -> None:
        """One more event of this sequence."""
        match event:
            case TokensGenerated(tokens=tokens, logprobs=logprobs):
                self.tokens += tokens
                self.logprobs += logprobs
            case PromptScored(start=start, scores=scores):
                for index, score in enumerate(scores, start):
                    if self.scores.setdefault(index, score) != score and self.conflict is None:
                        self.conflict = index
            case RequestFinished():
                self.finished = event
            case _:
                pass


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a round. `hashes` by request id where it was traced."""

    answers: tuple[Answer, ...]
    counts: Counter[str]
    steps: int
    hashes: Mapping[str, Hashes]


class Stage:
    """An engine with everything it does written down."""

    def __init__(self, engine: Engine, traced: TracedExecutable | None) -> None:
        self.engine = engine
        self.answers: dict[str, Answer] = {}
        self.left: set[str] = set()
        self._traced = traced
        self._pieces: tuple[Piece, ...] = ()
        self.hashes: dict[str, Hashes] = {}
        engine.on_plan = self._planned

    def add(self, request: Request, ask: Ask | None = None) -> None:
        """The request joins."""
        self.answers[request.request_id] = Answer(request, ask)
        self.engine.add_request(request)

    def step(self) -> StepSeen:
        """One step, and what was seen of it."""
        before = self.engine.stats
        self._pieces = ()
        events = tuple(self.engine.step())
        if self._traced is not None:
            self._keep_hashes(self._traced)
        for event in events:
            self.answers[event.request_id].take(event)
        requests = {request_id: answer.request for request_id, answer in self.answers.items()}
        plan = self.engine.last_plan or StepPlan(())
        seen = StepSeen(plan, self._pieces, events, before, self.engine.stats, requests, frozenset(self.left))
        self.left.update(event.request_id for event in events if isinstance(event, RequestPreempted))
        return seen

    def _planned(self, plan: StepPlan) -> None:
        pieces = []
        for row in plan.rows:
            owner = self.engine.scheduler.request_at(row.row)
            assert owner is not None, f"the plan names row {row.row}, which nobody has"
            pieces.append(Piece(self.answers[owner].request, row.start, row.count))
        self._pieces = tuple(pieces)

    def _keep_hashes(self, traced: TracedExecutable) -> None:
        """The executable's sequences are the plan's rows in their order; several steps stand one behind the other."""
        column, step = 0, 0
        while column < traced.last.shape[1]:
            for piece in self._pieces:
                kept = self.hashes.setdefault(piece.request.request_id, Hashes())
                kept.add(piece.start + step, traced.last[:, column : column + piece.count])
                column += piece.count
            step += 1


def play(
    rig: Rig, round_: Round, cases: Cases, values: Sequence[tuple[Dimension, str]], *, traced: bool = False
) -> Played:
    """Runs a round to its end. Whatever the engine raises comes out; RuntimeError where it does not end."""
    with rig.files(round_.cache) as disk:
        stage = _stage(rig, round_, disk, traced=traced)
        try:
            return _played(stage, round_, cases, values)
        finally:
            stage.engine.runner.close()


def _played(stage: Stage, round_: Round, cases: Cases, values: Sequence[tuple[Dimension, str]]) -> Played:
    live = Live(stage.engine, Random(f"{round_.name}/steps"), cases)
    requests = _requests(round_, cases)
    left = STEPS_PER_TOKEN * sum(len(one.prompt_token_ids) + one.max_tokens for ask in requests for one in ask[1])
    steps = 0
    for phase in round_.phases:
        waiting = sorted((pair for pair in requests if pair[0].phase == phase), key=lambda pair: pair[0].after)
        step, live.fresh = 0, round_.fresh and phase == TEST
        while waiting or stage.engine.has_work:
            if not stage.engine.has_work:
                step = waiting[0][0].after
            while waiting and waiting[0][0].after <= step:
                ask, sequences = waiting.pop(0)
                for request in sequences:
                    stage.add(request, ask)
            for dimension, value in values:
                dimension.between(value, live)
            seen = stage.step()
            _follow(live, round_, stage.answers, seen)
            for dimension, _ in values:
                live.counts.update(dimension.count(seen))
            step, steps = step + 1, steps + 1
            if steps > left:
                raise RuntimeError(f"the requests are not over after {steps} steps")
    stage.engine.check()
    return Played(tuple(stage.answers.values()), live.counts, steps, stage.hashes)


def play_alone(rig: Rig, request: Request, *, traced: bool = False) -> tuple[Answer, Hashes]:
    """The request all by itself: its whole prompt in one piece, then step by step, no cache, nobody beside it."""
    schedule = ScheduleSection(max_num_seqs=1, max_num_batched_tokens=rig.sizes.tokens, max_steps_per_call=1)
    alone = Round("alone", (), schedule, CacheSection(enable_prefix_caching=False), rig.sizes.blocks)
    stage = _stage(rig, alone, None, traced=traced)
    stage.add(request)
    while stage.engine.has_work:
        stage.step()
    return stage.answers[request.request_id], stage.hashes.get(request.request_id, Hashes())


def _stage(rig: Rig, round_: Round, disk: Carrier | None, *, traced: bool) -> Stage:
    executable = TracedExecutable(rig.executable) if traced else None
    return Stage(rig.engine(round_.schedule, round_.cache, round_.blocks, executable, disk), executable)


def _requests(round_: Round, cases: Cases) -> list[tuple[Ask, tuple[Request, ...]]]:
    return [
        (ask, cases.requests(ask.case, str(number), ask.n, ask.salt, ask.session))
        for number, ask in enumerate(round_.asks)
    ]


def _follow(live: Live, round_: Round, answers: Mapping[str, Answer], seen: StepSeen) -> None:
    """`drawn` names those that have a row now. The tested request is the round's first."""
    for event in seen.events:
        if isinstance(event, RequestScheduled | TokensGenerated):
            answer = answers[event.request_id]
            live.drawn[event.request_id] = len(answer.tokens)
            live.fresh &= answer.ask is not round_.asks[0]
        elif isinstance(event, RequestPreempted | RequestFinished):
            live.drawn.pop(event.request_id, None)
