"""Doubles for engine tests: an executable whose tokens hash what it reads through block tables, and a tokenizer."""

from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from pelton.backends.backend import (
    COPY,
    FAULT_BAD_LOGITS,
    LOAD,
    SAMPLING,
    SAVE,
    SCRUB,
    BlockOps,
    StepInputs,
    StepOutputs,
    WorkingMemory,
)
from pelton.backends.repeat import in_turn
from pelton.core.clock import FakeClock
from pelton.core.config import CacheSection, ScheduleSection
from pelton.core.counters import Counters
from pelton.core.params import SamplingParams
from pelton.core.request import Request
from pelton.engine.engine import Engine
from pelton.kv.group import KVGroup
from pelton.kv.pool import BlockPool
from pelton.runner.rows import RowStates
from pelton.runner.runner import Runner
from pelton.schedule import ORDERS
from pelton.schedule.ahead.ahead import Ahead
from pelton.schedule.scheduler import Scheduler
from pelton.tokenize.tokenizer import Tokenizer

BLOCK = 4
VOCAB = 260
EOS = 256
POISON = 259  # a sequence with this token has NaN logits
EMPTY = -7
MASK = (1 << 64) - 1


def draw(tokens: list[int], seed: int, place: int, child: int = 0) -> int:
    """The next token of a sequence: any change of a token, its place, the seed or the place drawn for changes it."""
    state = seed * 0x9E3779B97F4A7C15 + place + child * 0xD1B54A32D192ED03
    for index, token in enumerate(tokens):
        state = ((state ^ (token + 1) * (2 * index + 1)) * 0x100000001B3 + 0x51ED270B) & MASK
    return (state >> 33) % 251  # 0 .. 250: never an end token


def score(tokens: list[int], target: int) -> float:
    """The log-probability of `target` behind a sequence."""
    return -((draw(tokens, 0, 0) + target) % 199 + 1) / 8


class FakeExecutable:
    """Keeps token ids where K and V would be; a wrong table, slot, start or position gives other tokens, or fails.

    Who reads a block in `damaged` has NaN logits. A block is damaged until it is scrubbed.
    """

    block_bytes = (1000,)
    memory = WorkingMemory(1 << 21, 1 << 20)

    def __init__(self, blocks: int, budget: int) -> None:
        self.budget = budget
        self.calls = 0
        self.steps = 0
        self.largest = 0
        self.broken = False
        self.closed = False
        self.damaged: set[int] = set()
        self.host: dict[int, tuple[NDArray[np.int64], bool]] = {}
        self.computed = 0
        self.allocate((blocks,))

    def allocate(self, blocks: tuple[int, ...]) -> None:
        self.memory = np.full((*blocks, BLOCK), EMPTY, np.int64)

    def run(self, inputs: StepInputs) -> StepOutputs:
        self.calls += 1
        return in_turn(self._step, inputs) if inputs.repeat > 1 else self._step(inputs)

    def _step(self, inputs: StepInputs) -> StepOutputs:
        if self.broken:
            raise RuntimeError("broken")
        self.steps += 1
        self.largest = max(self.largest, len(inputs.tokens))
        self.computed += len(inputs.tokens)
        self._move(inputs)
        assert 0 < len(inputs.tokens) <= self.budget and len(inputs.logit_rows) == len(inputs.sampling)
        for name in ("tokens", "positions", "starts", "counts", "tables", "table_offsets", "logit_rows"):
            assert inputs.__getattribute__(name).dtype == np.int32, name
        paths: dict[int, list[int]] = {}
        bad: set[int] = set()
        first = 0
        for number, (start, count) in enumerate(zip(inputs.starts.tolist(), inputs.counts.tolist(), strict=True)):
            table = inputs.tables[0, inputs.table_offsets[number] : inputs.table_offsets[number + 1]].tolist()
            assert len(table) >= -(-(start + count) // BLOCK) and 0 not in table
            for place, token in enumerate(inputs.tokens[first : first + count].tolist()):
                index = start + place
                assert inputs.positions[first + place] == index and 0 <= token < VOCAB
                self.memory[table[index // BLOCK], index % BLOCK] = token
            path = self.memory[table].reshape(-1)[: start + count].tolist()
            assert EMPTY not in path, "a token is read that was never written"
            for place in range(count):
                paths[first + place] = path[: start + place + 1]
                if POISON in paths[first + place] or self.damaged & set(table[: (start + place) // BLOCK + 1]):
                    bad.add(first + place)
            first += count
        assert first == len(inputs.tokens)
        rows = inputs.logit_rows.tolist()
        faults = np.array([FAULT_BAD_LOGITS * (place in bad) for place in rows], np.int32)
        return self._draw([paths[place] for place in rows], inputs, faults)

    def _move(self, inputs: StepInputs) -> None:
        """Carries out the copying and scrubbing of blocks."""
        for kind, group, source, target in [] if inputs.block_ops is None else inputs.block_ops.tolist():
            assert group == 0 and (kind in (COPY, SCRUB, SAVE, LOAD))
            if kind == COPY:
                assert source not in self.damaged
                self.memory[target] = self.memory[source]
            elif kind == SAVE:
                self.host[target] = self.memory[source].copy(), source in self.damaged
            elif kind == LOAD:
                self.memory[target], bad = self.host[source]
                if bad:
                    self.damaged.add(target)
            else:
                self.memory[target] = EMPTY
                self.damaged.discard(target)

    def _draw(self, paths: list[list[int]], inputs: StepInputs, faults: NDArray[np.int32]) -> StepOutputs:
        records = inputs.sampling
        width = max([0, *records["logprobs"].tolist()])
        tokens, logprobs = [], []
        for path, one in zip(paths, records, strict=True):
            seed, place, child, target = (int(one[name]) for name in ("seed", "place", "child", "target"))
            token = draw(path, seed, place, child) if target < 0 else target
            tokens.append(token)
            logprobs.append(-(token + 1) / 8 if target < 0 else score(path, target))
        ids = np.array(tokens, np.int32)
        return StepOutputs(
            tokens=ids,
            logprobs=np.array(logprobs, np.float32),
            ranks=ids % 3 + 1,
            faults=faults,
            top_ids=(ids[:, None] + np.arange(width, dtype=np.int32)) % VOCAB,
            top_logprobs=np.broadcast_to(-1 - np.arange(width, dtype=np.float32), (len(ids), width)),
        )

    def blocks(self) -> BlockOps:
        raise NotImplementedError

    def labels(self) -> tuple[str, ...]:
        return ()

    def counters(self) -> dict[str, int]:
        return {"steps": self.steps}

    def close(self) -> None:
        self.closed = True


def fake_encode(params: SamplingParams, place: int, child: int) -> np.void:
    record = np.zeros((), SAMPLING)
    record["seed"], record["place"], record["child"] = params.seed, place, child
    record["logprobs"] = -1 if params.logprobs is None else params.logprobs
    record["target"], record["repetition"] = -1, 1
    return record[()]


def expected(prompt: list[int], seed: int, count: int, child: int = 0) -> list[int]:
    """What an undisturbed request draws."""
    tokens = list(prompt)
    for place in range(count):
        tokens.append(draw(tokens, seed, place, child))
    return tokens[len(prompt) :]


def make_engine(
    *,
    rows: int = 8,
    budget: int = 64,
    blocks: int | tuple[int, int] = 200,
    max_len: int = 400,
    cap: int = 0,
    prefixes: bool = True,
    steps: int = 1,
    order: str = "fcfs",
) -> tuple[Engine, FakeExecutable, BlockPool]:
    """`steps`: most of one call. `blocks`: also host slots, which preempted requests then always use."""
    blocks, slots = blocks if isinstance(blocks, tuple) else (blocks, 0)
    limits = ScheduleSection(
        max_num_seqs=rows,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=cap,
        max_steps_per_call=steps,
    )
    cache = CacheSection(enable_prefix_caching=prefixes, preemption_mode="swap")
    pool = BlockPool(blocks + 1)
    scheduler = Scheduler(limits, cache, ORDERS.get(order)(), (KVGroup(pool, slots=slots),), BLOCK, max_len)
    executable = FakeExecutable(blocks + 1, budget)
    runner = Runner(executable, RowStates(rows, scheduler.max_len, BLOCK), fake_encode)
    return Engine(scheduler, runner, FakeClock(), Counters(), BLOCK), executable, pool


def planning_ahead(engine: Engine) -> Engine:
    """The same engine with a planning depth of 2."""
    scheduler = engine.scheduler
    scheduler.ahead = Ahead(scheduler._planner, scheduler._places, scheduler._blocks, scheduler.max_len)
    return engine


def held(engine: Engine) -> int:
    """KV blocks that requests use."""
    stats = engine.scheduler.stats()
    return stats.held_blocks


def make_request(
    name: str,
    prompt: list[int],
    count: int,
    *,
    stops: frozenset[int] = frozenset(),
    salt: str = "",
    **params: Any,
) -> Request:
    """`params` are fields of SamplingParams; seed 1 where none is given."""
    chosen = SamplingParams(**{"seed": 1, "max_tokens": count, **params})
    return Request(name, tuple(prompt), chosen, stops, count, arrival=0.0, cache_salt=salt)


def byte_tokenizer() -> Tokenizer:
    """256 bytes in order (token 65 is "A"), then the special tokens <end>, <start>, <pad>, and one more."""
    alphabet = {chr(n) if 33 <= n <= 126 or 161 <= n <= 172 or 174 <= n <= 255 else "": n for n in range(256)}
    shifted = [n for n in range(256) if chr(n) not in alphabet]
    alphabet = {text: n for text, n in alphabet.items() if text} | {chr(256 + i): n for i, n in enumerate(shifted)}
    inner = tokenizers.Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(text, special=True) for text in ("<end>", "<start>", "<pad>", "<poison>")])
    return Tokenizer(inner)
