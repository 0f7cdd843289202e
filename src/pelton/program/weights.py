"""Weights: storages (bytes in a file, in a format) and the views ops take of them. Nothing is read here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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


@runtime_checkable
class Identified(Protocol):
    """A TensorSource that knows what its bytes are."""

    def identity(self, *, read: bool, advance: Callable[[int], object] | None = None) -> str | None:
        """Equal identities mean equal bytes, whatever file they are in; None where that cannot be known.

        `read`: the file may be read as a whole to find out; else only what is remembered of it is used.
        `advance` is told of the bytes of each chunk that is read; what it raises comes out and ends the reading.
        """
        ...


def identity_of(source: TensorSource, *, read: bool, advance: Callable[[int], object] | None = None) -> str | None:
    """See Identified; None for sources that are not."""
    return source.identity(read=read, advance=advance) if isinstance(source, Identified) else None


# Forms of a product with coded weights: integer codes first and scales on the sums, or weights made of them first.
CODES, VALUES = "codes", "values"


@dataclass(frozen=True, slots=True)
class Storage:
    """Weight bytes. `row_order[i]` is the file's row that stands at row i (None: as in the file).

    `plus` is added to each number as it is read: 1 where a file keeps gains less one. Of vectors only. `form`: how
    products with coded weights are computed; VALUES: a weight is scale * code, plus the minimum, each rounded to fp32,
    then rounded to bf16 (not in fp32 arithmetic). Rows that are looked up are not rounded to bf16 in either form.
    `made`: by which rule the source makes the codes as it is read; "": the file has them.
    """

    name: str
    rows: int
    cols: int
    source: TensorSource
    row_order: tuple[int, ...] | None = None
    plus: float = 0.0
    form: str = CODES
    made: str = ""

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
