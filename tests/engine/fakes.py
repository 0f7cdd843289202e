"""Doubles for engine tests: an executable whose tokens hash what it reads through block tables, and a tokenizer."""

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from pelton.backends.backend import SAMPLING, BlockOps, StepInputs, StepOutputs
from pelton.core.clock import FakeClock
from pelton.core.config import ScheduleSection
from pelton.core.counters import Counters
from pelton.core.params import SamplingParams
from pelton.core.request import Request
from pelton.engine.engine import Engine
from pelton.kv.pool import BlockPool
from pelton.runner.rows import RowStates
from pelton.runner.runner import Runner
from pelton.schedule.orders.fcfs import FirstComeFirstServed
from pelton.schedule.scheduler import Scheduler
from pelton.tokenize.tokenizer import Tokenizer

BLOCK = 4
VOCAB = 260
EOS = 256
POISON = 259  # a sequence with this token has NaN logits
EMPTY = -7
MASK = (1 << 64) - 1


def draw(tokens: list[int], seed: int, place: int) -> int:
    """The next token of a sequence: any change of a token, its place, the seed or the place drawn for changes it."""
    state = seed * 0x9E3779B97F4A7C15 + place
    for index, token in enumerate(tokens):
        state = ((state ^ (token + 1) * (2 * index + 1)) * 0x100000001B3 + 0x51ED270B) & MASK
    return (state >> 33) % 251  # 0 .. 250: never an end token


class FakeExecutable:
    """Keeps token ids where K and V would be; a wrong table, slot, start or position gives other tokens, or fails."""

    block_bytes = 1000

    def __init__(self, blocks: int, budget: int) -> None:
        self.budget = budget
        self.steps = 0
        self.largest = 0
        self.broken = False
        self.closed = False
        self.allocate(blocks)

    def allocate(self, blocks: int) -> None:
        self.memory = np.full((blocks, BLOCK), EMPTY, np.int64)

    def run(self, inputs: StepInputs) -> StepOutputs:
        if self.broken:
            raise RuntimeError("broken")
        self.steps += 1
        self.largest = max(self.largest, len(inputs.tokens))
        assert 0 < len(inputs.tokens) <= self.budget and len(inputs.logit_rows) == len(inputs.sampling)
        for name in ("tokens", "positions", "starts", "counts", "tables", "table_offsets", "logit_rows"):
            assert inputs.__getattribute__(name).dtype == np.int32, name
        paths: dict[int, list[int]] = {}
        first = 0
        for number, (start, count) in enumerate(zip(inputs.starts.tolist(), inputs.counts.tolist(), strict=True)):
            table = inputs.tables[inputs.table_offsets[number] : inputs.table_offsets[number + 1]].tolist()
            assert len(table) == -(-(start + count) // BLOCK) and 0 not in table
            for place, token in enumerate(inputs.tokens[first : first + count].tolist()):
                index = start + place
                assert inputs.positions[first + place] == index and 0 <= token < VOCAB
                self.memory[table[index // BLOCK], index % BLOCK] = token
            path = self.memory[table].reshape(-1)[: start + count].tolist()
            assert EMPTY not in path, "a token is read that was never written"
            for place in range(count):
                paths[first + place] = path[: start + place + 1]
            first += count
        assert first == len(inputs.tokens)
        return self._draw([paths[place] for place in inputs.logit_rows.tolist()], inputs)

    def _draw(self, paths: list[list[int]], inputs: StepInputs) -> StepOutputs:
        records = inputs.sampling
        width = max([0, *records["logprobs"].tolist()])
        tokens = [draw(path, int(one["seed"]), int(one["place"])) for path, one in zip(paths, records, strict=True)]
        ids = np.array(tokens, np.int32)
        return StepOutputs(
            tokens=ids,
            logprobs=-(ids.astype(np.float32) + 1) / 8,
            ranks=ids % 3 + 1,
            faults=np.array([POISON in path for path in paths], np.int32),
            top_ids=(ids[:, None] + np.arange(width, dtype=np.int32)) % VOCAB,
            top_logprobs=np.broadcast_to(-1 - np.arange(width, dtype=np.float32), (len(ids), width)),
        )

    def blocks(self) -> BlockOps:
        raise NotImplementedError

    def counters(self) -> dict[str, int]:
        return {"steps": self.steps}

    def close(self) -> None:
        self.closed = True


def fake_encode(params: SamplingParams, place: int) -> np.void:
    record = np.zeros((), SAMPLING)
    record["seed"], record["place"] = params.seed, place
    record["logprobs"] = -1 if params.logprobs is None else params.logprobs
    return record[()]


def expected(prompt: list[int], seed: int, count: int) -> list[int]:
    """What an undisturbed request draws."""
    tokens = list(prompt)
    for place in range(count):
        tokens.append(draw(tokens, seed, place))
    return tokens[len(prompt) :]


def make_engine(
    *, rows: int = 8, budget: int = 64, blocks: int = 200, max_len: int = 400, cap: int = 0
) -> tuple[Engine, FakeExecutable, BlockPool]:
    limits = ScheduleSection(max_num_seqs=rows, max_num_batched_tokens=budget, long_prefill_token_threshold=cap)
    pool = BlockPool(blocks + 1)
    scheduler = Scheduler(limits, FirstComeFirstServed(), pool, BLOCK, max_len)
    executable = FakeExecutable(blocks + 1, budget)
    runner = Runner(executable, RowStates(rows, scheduler.max_len, BLOCK), fake_encode)
    return Engine(scheduler, runner, FakeClock(), Counters()), executable, pool


def make_request(
    name: str,
    prompt: list[int],
    count: int,
    *,
    seed: int = 1,
    stops: frozenset[int] = frozenset(),
    logprobs: int | None = None,
) -> Request:
    params = SamplingParams(seed=seed, max_tokens=count, logprobs=logprobs)
    return Request(name, tuple(prompt), params, stops, count, arrival=0.0)


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
