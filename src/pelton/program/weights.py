"""Weights: storages (bytes in a file, in a format) and the views ops take of them. Nothing is read here."""

from dataclasses import dataclass
from typing import Protocol

from pelton.program.formats import FORMATS


class TensorSource(Protocol):
    """A tensor in a mapped file, read lazily.

    `format` names an entry of FORMATS; `shape` is (rows, cols) or (n,), row-major, cols = the axis of a dot product.
    """

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def format(self) -> str: ...
    def read(self) -> memoryview:
        """The tensor's bytes in the file's layout: rows x bytes per row. Valid while the checkpoint is open."""
        ...

    def release(self) -> None:
        """Lets the operating system drop the tensor's mapped pages; read() maps them again."""
        ...


@dataclass(frozen=True, slots=True)
class Storage:
    """Weight bytes. `row_order[i]` is the file's row that stands at row i (None: as in the file).

    `plus` is added to each number as it is read: 1 where a file keeps gains less one. Of vectors only.
    """

    name: str
    rows: int
    cols: int
    source: TensorSource
    row_order: tuple[int, ...] | None = None
    plus: float = 0.0

    @property
    def format(self) -> str:
        return self.source.format

    @property
    def nbytes(self) -> int:
        """Size at file precision."""
        return self.rows * FORMATS[self.format].row_bytes(self.cols)


GATHER, MATRIX, VECTOR = "gather", "matrix", "vector"


@dataclass(frozen=True, slots=True)
class WeightView:
    """How an op uses a storage: rows gathered by id, a matrix [rows, cols] applied as x @ W.T, or a vector.

    `shard`: the axis tensor parallelism cuts ("rows", "cols" or None). Tied embedding and head are two views of
    one storage.
    """

    name: str
    storage: str
    use: str
    shard: str | None = None
