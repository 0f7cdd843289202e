"""StepSeconds: how long a step takes, by the Program's cost rules, the machine's rates, and how far real steps stay
behind what these allow. It runs nothing and measures nothing.

An op's limit is the longer of moving its bytes and computing its products. Invariant: equal steps take equal times.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from pelton.backends.cpu.probe.figures import FLOAT, INT8, MachineProbe
from pelton.backends.cpu.probe.limits import matrix_rate, read_rate
from pelton.program import OPS
from pelton.program.module import Module
from pelton.program.op import Cost, Op
from pelton.program.ops.attend import BLOCK
from pelton.program.values import StepShape

ENTRY = "target"
# What a step's ops are told apart by: products by all tokens, attention, the head by its rows, and the rest.
PRODUCTS, ATTENTION, HEAD, REST = "linear", "attend", "head", "rest"
Curve = tuple[tuple[int, float], ...]
# Steps by which equal ops are recognised: each must cost the same.
_PROBES = (StepShape(((7, 3), (30_000, 1)), 2), StepShape(((0, 64),), 1))


class Slack(msgspec.Struct, frozen=True):
    """How many times its limit each kind of op takes, by rows: of products and the rest the step's tokens, of attention
    those of a sequence, of the head the rows of logits; between two of them by the logarithm.

    `attend_s`: seconds of each attend op whatever its size. `around_s`: of a step, outside its ops. `call_s` and
    `row_s`: what the engine does for a call beside computing, and for each sequence of it.
    """

    products: Curve
    attention: Curve
    head: Curve
    rest: Curve
    attend_s: float
    around_s: float
    call_s: float
    row_s: float


# Medians of SmolLM2-135M in 4 and 8 bits and in bf16, of 1, 8, 32 and 2,048 tokens, on two cores of a server's
# processor (bench/results/step.jsonl); what Python takes is about twice of that with nothing to compute. Another
# machine or model may differ by a half: then measure.
TYPICAL = Slack(
    products=((1, 1.2), (8, 1.5), (32, 1.55), (2048, 1.45)),
    attention=((1, 1.4), (8, 2.0), (64, 2.6)),
    head=((1, 1.35), (8, 1.4), (32, 1.75)),
    rest=((1, 6.0), (8, 3.3), (32, 3.0), (2048, 2.2)),
    attend_s=3e-6,
    around_s=3e-5,
    call_s=1.5e-4,
    row_s=9e-6,
)


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes read, FLOPs of products and bytes copied, each per second. `origin`: where they are from, for people."""

    read: float
    products: float
    copy: float
    origin: str

    @staticmethod
    def probed(probe: MachineProbe, module: Module, *, int8: bool = False) -> "Rates":
        """Those of a model's steps: reading at the rate of a working set like its weights."""
        copy = max(rate.bytes_per_s.median for rate in probe.copies)
        origin = f"probe of {probe.date}{probe.mark}"
        return Rates(read_rate(probe, module.weight_bytes), matrix_rate(probe, INT8 if int8 else FLOAT), copy, origin)

    def seconds(self, cost: Cost) -> float:
        """The limit: what the work takes at least."""
        return max((cost.read + cost.written) / self.read, cost.flops / self.products)


@dataclass(frozen=True, slots=True)
class Group:
    """`times` ops that cost the same in every step; `op` is one of them, `places` where they stand in the entry."""

    op: Op
    kind: str
    places: tuple[int, ...]

    @property
    def times(self) -> int:
        return len(self.places)


def groups_of(module: Module, *, exact: bool) -> tuple[Group, ...]:
    """The entry's ops, equal ones together."""
    tables = module.tables(ENTRY, exact=exact)
    found: dict[object, tuple[Op, list[int]]] = {}
    for place, op in enumerate(module.entries[ENTRY].ops):
        rule = OPS.get(op.kind)()
        key = (op.kind, op.state, *(rule.cost(op, tables, step) for step in _PROBES))
        found.setdefault(key, (op, []))[1].append(place)
    return tuple(Group(op, _kind(op), tuple(places)) for op, places in found.values())


def _kind(op: Op) -> str:
    return op.kind if op.kind in (PRODUCTS, ATTENTION, HEAD) else REST


def at(curve: Curve, rows: int) -> float:
    """The curve's value, between two of its points by the logarithm of the rows; beyond the ends, what is there."""
    place = bisect_left(curve, (rows,))
    if place == len(curve):
        return curve[-1][1]
    high, above = curve[place]
    if high == rows or not place:
        return above
    low, below = curve[place - 1]
    return below + (above - below) * math.log(rows / low) / math.log(high / low)


class StepSeconds:
    """Of one model on one machine. `exact`: fp32 arithmetic and cache."""

    def __init__(self, module: Module, rates: Rates, slack: Slack = TYPICAL, *, exact: bool = False) -> None:
        self.rates = rates
        self.slack = slack
        self._groups = groups_of(module, exact=exact)
        self._tables = module.tables(ENTRY, exact=exact)
        self._by_tokens: dict[int, float] = {}
        self._by_rows: dict[int, float] = {}
        self._decoding: dict[int, float] = {}

    def step(self, contexts: Sequence[tuple[int, int]], rows: int) -> float:
        """Seconds in the backend of a step with these (start, tokens) of sequences and so many rows of logits."""
        tokens = sum(count for _, count in contexts)
        seconds = self.slack.around_s + self._tokens(tokens) + self._head(rows)
        return seconds + sum(self._attention(start, count) for start, count in contexts) + self._attend_ops()

    def around(self, sequences: int) -> float:
        """Seconds of the engine's own work for a call: planning, gathering, telling."""
        return self.slack.call_s + self.slack.row_s * sequences

    def copying(self, count: int) -> float:
        """Seconds of copying so many bytes."""
        return count / self.rates.copy

    def prompt(self, tokens: int, budget: int) -> float:
        """Seconds of computing a prompt alone, in steps of `budget`."""
        starts = range(0, tokens, budget)
        return sum(
            self.step(((start, min(budget, tokens - start)),), int(start + budget >= tokens)) for start in starts
        )

    def _tokens(self, tokens: int) -> float:
        """All ops but attention and the head."""
        found = self._by_tokens.get(tokens)
        if found is None:
            step = StepShape(((0, tokens),), 0)
            found = self._by_tokens[tokens] = sum(
                group.times * self._limit(group, step) * at(self._curve(group.kind), tokens)
                for group in self._groups
                if group.kind in (PRODUCTS, REST)
            )
        return found

    def _head(self, rows: int) -> float:
        if not rows:
            return 0.0
        found = self._by_rows.get(rows)
        if found is None:
            step = StepShape(((0, rows),), rows)
            found = self._by_rows[rows] = sum(
                group.times * self._limit(group, step) * at(self.slack.head, rows)
                for group in self._groups
                if group.kind == HEAD
            )
        return found

    def _attention(self, start: int, count: int) -> float:
        """Of one sequence. A single token's depends on whole blocks alone, but for a window's border."""
        if count > 1:
            return self._attend(start, count)
        block = start // BLOCK
        found = self._decoding.get(block)
        if found is None:
            found = self._decoding[block] = self._attend(block * BLOCK + BLOCK // 2, 1)
        return found

    def _attend(self, start: int, count: int) -> float:
        step, slack = StepShape(((start, count),), 0), at(self.slack.attention, count)
        return slack * sum(group.times * self._limit(group, step) for group in self._groups if group.kind == ATTENTION)

    def _attend_ops(self) -> float:
        return self.slack.attend_s * sum(group.times for group in self._groups if group.kind == ATTENTION)

    def _curve(self, kind: str) -> Curve:
        return self.slack.products if kind == PRODUCTS else self.slack.rest

    def _limit(self, group: Group, step: StepShape) -> float:
        return self.rates.seconds(OPS.get(group.op.kind)().cost(group.op, self._tables, step))
