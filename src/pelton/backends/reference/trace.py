"""Hashes of what each op gave for each token: equal numbers mean equal bits. Not comparable with another backend's."""

from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray

from pelton.backends.reference.step import Sequence, Step
from pelton.program.op import Op

Hashes = NDArray[np.uint64]


class Tracer:
    """Is told of each op in turn. `hashes` uint64 [ops, tokens]; 0 where an op gave a token nothing."""

    def __init__(self, ops: int, step: Step) -> None:
        self._step = step
        self._next = 0
        self.hashes: Hashes = np.zeros((ops, sum(sequence.count for sequence in step.sequences)), np.uint64)

    def __call__(self, op: Op, results: tuple[torch.Tensor, ...]) -> None:
        """`results`: what the op gave."""
        line = self.hashes[self._next]
        self._next += 1
        if op.kind == "head":
            line[self._step.logit_rows.numpy()] = [_hash([row]) for row in results[0]]
        elif op.kind == "kv_write":
            for sequence in self._step.sequences:
                line[sequence.first : sequence.first + sequence.count] = self._stored(op, sequence)
        else:
            line[:] = [_hash(list(rows)) for rows in zip(*results, strict=True)]

    def _stored(self, op: Op, sequence: Sequence) -> list[int]:
        """Of the keys and values that the sequence's new tokens now have in the cache."""
        pool = self._step.pool(op)
        slots = sequence.slots(pool.group, sequence.start, sequence.start + sequence.count)
        keys, values = pool.read(op.integer("layer"), slots)
        return [_hash([keys[:, token], values[:, token]]) for token in range(sequence.count)]


def _hash(parts: list[torch.Tensor]) -> int:
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(part.contiguous().numpy().tobytes())
    return int.from_bytes(digest.digest(), "little")
