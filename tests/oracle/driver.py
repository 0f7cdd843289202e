"""Feeds sequences to an Executable of any backend, piece by piece. Its block tables are shuffled."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pelton.backends import BACKENDS
from pelton.backends.backend import SAMPLING, CompileOptions, StepInputs, StepOutputs
from pelton.program.module import Module

BLOCK = 32
MAX_TOKENS = 512


@dataclass
class Fed:
    """One sequence: its tokens so far and the blocks it owns, by KV group."""

    tokens: list[int] = field(default_factory=list)
    tables: list[list[int]] = field(default_factory=list)


def sampling(rows: int, **fields: float) -> NDArray[np.void]:
    """Greedy records, no log-probabilities, with the given fields set."""
    records = np.zeros(rows, SAMPLING)
    records["top_p"] = 1.0
    records["logprobs"] = -1
    records["repetition"] = 1.0
    records["target"] = -1
    for name, value in fields.items():
        records[name] = value
    return records


class Driver:
    """An executable with room for `blocks` KV blocks. Sequences are named by any text."""

    def __init__(self, backend: str, module: Module, *, exact: bool = True, blocks: int = 64, seed: int = 0) -> None:
        options = CompileOptions(max_tokens=MAX_TOKENS, max_rows=MAX_TOKENS, exact=exact, threads=1)
        self.executable = BACKENDS.get(backend)().compile(module, options)
        groups = len(module.states)
        self.executable.allocate((blocks,) * groups)
        generator = np.random.default_rng(seed)
        self._free = [generator.permutation(blocks).tolist() for _ in range(groups)]
        self._fed: dict[str, Fed] = {}

    def step(self, pieces: Mapping[str, Sequence[int]], **fields: float) -> StepOutputs:
        """One step that adds these tokens to these sequences; `fields` as for `sampling`."""
        return self.executable.run(self.inputs(pieces, **fields))

    def inputs(self, pieces: Mapping[str, Sequence[int]], **fields: float) -> StepInputs:
        """What that step takes; logits of every token are asked for."""
        groups = len(self._free)
        fed = [self._fed.setdefault(name, Fed(tables=[[] for _ in range(groups)])) for name in pieces]
        starts = [len(sequence.tokens) for sequence in fed]
        for sequence, tokens in zip(fed, pieces.values(), strict=True):
            sequence.tokens += tokens
            for table, free in zip(sequence.tables, self._free, strict=True):
                while len(table) * BLOCK < len(sequence.tokens):
                    table.append(free.pop())
        counts = [len(tokens) for tokens in pieces.values()]
        total = sum(counts)
        offsets = np.cumsum([0, *(len(sequence.tables[0]) if groups else 0 for sequence in fed)])
        tables = np.zeros((groups, offsets[-1]), np.int32)
        for group, row in enumerate(tables):
            row[:] = [block for sequence in fed for block in sequence.tables[group]]
        return StepInputs(
            tokens=_int32(token for tokens in pieces.values() for token in tokens),
            positions=_int32(s + i for s, count in zip(starts, counts, strict=True) for i in range(count)),
            starts=_int32(starts),
            counts=_int32(counts),
            tables=tables,
            table_offsets=_int32(offsets),
            logit_rows=np.arange(total, dtype=np.int32),
            sampling=sampling(total, **fields),
            want_logits=True,
        )

    def logits(self, pieces: Mapping[str, Sequence[int]]) -> dict[str, NDArray[np.float32]]:
        """One step; per sequence the logits [tokens, vocab] of its new tokens."""
        logits = self.step(pieces).logits
        assert logits is not None
        ends = np.cumsum([len(tokens) for tokens in pieces.values()])[:-1]
        return dict(zip(pieces, np.split(logits, ends), strict=True))

    def chunked(self, tokens: Sequence[int], size: int, name: str = "a") -> NDArray[np.float32]:
        """All logits [tokens, vocab] of one sequence fed `size` tokens at a time."""
        steps = (tokens[at : at + size] for at in range(0, len(tokens), size))
        return np.concatenate([self.logits({name: step})[name] for step in steps])

    def drop(self, name: str) -> None:
        """Forgets a sequence; its blocks are used again, with what stands in them."""
        for free, table in zip(self._free, self._fed.pop(name).tables, strict=True):
            free += table

    def table(self, name: str, group: int = 0) -> list[int]:
        return self._fed[name].tables[group]


def _int32(numbers: Iterable[int]) -> NDArray[np.int32]:
    return np.array(list(numbers), np.int32)
