"""Costs of a whole entry: what each op does in a step of given sizes, and the sums.

Feeds `pelton program` and planning.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pelton.program import OPS
from pelton.program.module import Module
from pelton.program.op import Cost, Op
from pelton.program.values import StepShape


@dataclass(frozen=True, slots=True)
class OpCost:
    """One op and what it costs."""

    op: Op
    cost: Cost


def op_costs(module: Module, step: StepShape, *, entry: str = "target", exact: bool = False) -> Iterator[OpCost]:
    """Cost of each op of the entry, in order. `exact`: fp32 arithmetic and cache."""
    tables = module.tables(entry, exact=exact)
    for op in module.entries[entry].ops:
        yield OpCost(op, OPS.get(op.kind)().cost(op, tables, step))


def total_cost(module: Module, step: StepShape, *, entry: str = "target", exact: bool = False) -> Cost:
    """Sum over all ops of the entry."""
    total = Cost()
    for item in op_costs(module, step, entry=entry, exact=exact):
        total += item.cost
    return total


def context_cost(module: Module) -> float:
    """FLOPs that each earlier token adds to a token, over those of a token without any (none of its logits wanted)."""
    last = module.context - 1
    if not last:
        return 0.0
    first, far = (total_cost(module, StepShape(((start, 1),), 0)).flops for start in (0, last))
    return (far - first) / last / first
