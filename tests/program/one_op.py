"""Modules of a few ops whose result can be seen through any backend: rows of tables in, logits of an identity head out.

`x = bench.rows(width)` is a value whose row t is known: the table's row of token t.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tests.oracle.driver import Driver
from tests.program.sources import ArraySource, dense, drawn

from pelton.program.builder import Builder
from pelton.program.module import Module

VOCAB, IDENTITY = 40, "identity"
TOKENS = np.random.default_rng(3).integers(0, VOCAB, 75).tolist()

Numbers = NDArray[np.float64]


class Bench:
    """Tensors, the builder over them, and their numbers for the expected result."""

    def __init__(self) -> None:
        self._tensors: dict[str, ArraySource] = {}
        self.builder = Builder(self._tensors)
        self.ids = self.builder.input("ids")
        self.positions = self.builder.input("positions")

    def tensor(self, shape: tuple[int, ...], form: str = "F32", scale: float = 1.0) -> tuple[str, Numbers]:
        """A random tensor: its name and numbers. `scale` multiplies F32 ones."""
        name = f"t{len(self._tensors)}"
        source = drawn(name, shape, form, seed=len(self._tensors))
        if form == "F32":
            source = dense(name, source.numbers * scale)
        self._tensors[name] = source
        return name, source.numbers.astype(np.float64)

    def tensor_of(self, numbers: Numbers) -> str:
        """A tensor of these numbers: its name."""
        name = f"t{len(self._tensors)}"
        self._tensors[name] = dense(name, numbers)
        return name

    def matrix(self, rows: int, cols: int, form: str = "F32") -> tuple[str, Numbers]:
        """A matrix view and its numbers [rows, cols]."""
        name, numbers = self.tensor((rows, cols), form)
        return self.builder.matrix(name, rows, cols), numbers

    def vector(self, size: int) -> tuple[str, Numbers]:
        """A vector view and its numbers."""
        name, numbers = self.tensor((size,), scale=size**0.5)
        return self.builder.vector(name, size), numbers

    def rows(self, width: int) -> tuple[str, Numbers]:
        """A value [T, width] and its numbers for TOKENS, of the size of 1."""
        name, numbers = self.tensor((VOCAB, width), scale=width**0.5)
        value = f"{name}.rows"
        self.builder.op("embed", (self.ids,), (value,), weights=(self.builder.gather(name, VOCAB, width),))
        return value, numbers[TOKENS]

    def seen(self, value: str, width: int) -> Module:
        """The module whose first logits are `value` [T, width]; zeros follow where there are more token ids."""
        vocab = max(width, VOCAB)
        self._tensors[IDENTITY] = dense(IDENTITY, np.eye(vocab, width))
        identity = self.builder.matrix(IDENTITY, vocab, width)
        self.builder.op("head", (value,), weights=(identity,))
        return self.finished(vocab)

    def finished(self, vocab: int) -> Module:
        """The module of an entry that has its own head."""
        self.builder.entry("target", (self.ids, self.positions))
        return self.builder.finish(vocab=vocab, context=512)


def result(backend: str, module: Module, chunk: int = len(TOKENS), tokens: Sequence[int] = TOKENS) -> Numbers:
    """Seen values [tokens, width], or logits where the module has its own head; `chunk` tokens a step, in fp32."""
    logits = Driver(backend, module).chunked(tokens, chunk).astype(np.float64)
    return logits[:, : module.storages[IDENTITY].cols] if IDENTITY in module.storages else logits
