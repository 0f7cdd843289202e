"""The step's contract between scheduler and runner: plain frozen records, no tensors, no token values, no phases.

A row says "request r computes `count` tokens from index `start`". Prefill chunks, decoding, prefix hits, speculation
and resumption after preemption are all that one sentence.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed tokens as a tree: `parents[i]` is the place in `tokens` of i's parent, -1 = the last real token."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowPlan:
    """One request's share of a step: tokens at indices [start, start + count), the last `drafted` of them guesses.

    `row` is the request's row for life. `sample`: the last token's logits are wanted (and a token is drawn from them).
    `scored`: how many leading tokens of the piece have a known next token whose log-probability is wanted.
    """

    row: int
    start: int
    count: int
    drafted: int = 0
    sample: bool = True
    scored: int = 0


LOOKUPS = ("complete", "diverged", "evicted", "namespace", "unseen", "too_short", "disabled")


@dataclass(frozen=True, slots=True)
class Lookup:
    """Why no more of a prompt was found in the prefix cache; the first `index` tokens of it were there.

    `kind`, one of LOOKUPS: "complete" (all whole blocks were found), "diverged" (something else stands there: the token
    `there`, and in this prompt `here`), "evicted" (it was there once), "namespace" (another namespace has it), "unseen"
    (nothing stands there), "too_short" (there is no whole block before its last token), "disabled" (this request, or
    nobody, uses the cache).
    """

    kind: str
    index: int = 0
    here: int | None = None
    there: int | None = None

    def __str__(self) -> str:
        differs = f": token {self.here}, where {self.there} was seen" if self.here is not None else ""
        return f"{self.kind.replace('_', ' ')} at {self.index}{differs}"


@dataclass(frozen=True, slots=True)
class Admission:
    """A request takes a row. `cached` leading tokens already stand in its blocks.

    `lookup`: what its prompt was looked up for, the first time that it takes one.
    """

    row: int
    request_id: str
    cached: int = 0
    lookup: Lookup | None = None


@dataclass(frozen=True, slots=True)
class StateOp:
    """Work on blocks of one KV group done before the forward pass, in the order of the plan.

    `kind`: "copy" (all bytes of source to target), "scrub" (target becomes zero; source is the same block), "save"
    (source, a block, to target, a host slot) or "load" (source, a host slot, to target, a block). All saves come first,
    then all scrubs: what was given up is saved before its block is used again.
    """

    kind: str
    source: int
    target: int
    group: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """All that one step does. `new_blocks`: row -> block ids appended to its tables, for each KV group equally many
    (the null block where no token that is still to be computed sees one).

    `released` rows are free before `admitted` ones are taken. `masks`: rows that wait for a grammar mask.
    `repeat`: decode steps to run in one call, at most; every row then has one token, from which another is drawn, and
    blocks for all of them. `num_tokens`: of one step.
    """

    rows: tuple[RowPlan, ...]
    admitted: tuple[Admission, ...] = ()
    released: tuple[int, ...] = ()
    new_blocks: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    state_ops: tuple[StateOp, ...] = ()
    masks: tuple[int, ...] = ()
    repeat: int = 1

    @property
    def num_tokens(self) -> int:
        return sum(row.count for row in self.rows)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one output place, from the raw logits: the drawn token's, its rank, and the top ones."""

    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RowResult:
    """What a row's step gave: accepted tokens in order (none while a prompt is still being computed), or a fault.

    Of several steps each gave one token.

    `scores`: as many as the plan's `scored`, of the known tokens behind the piece's leading ones.
    """

    row: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    next_draft: Draft | None = None
    fault: str | None = None
    scores: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """One RowResult for each RowPlan, in the same order. `steps`: how many of the plan's `repeat` were done.

    `seconds`: in the backend, of which `moving` went into saving and loading blocks.
    """

    rows: tuple[RowResult, ...]
    steps: int = 1
    seconds: float = 0.0
    moving: float = 0.0
