"""Views of a checkpoint's tensors under other names or in parts, so that every family sees one layout.

Reads no bytes itself. Invariant: each tensor of the file is in the view once, whole, in parts or under a new name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pelton.core.errors import CheckpointError
from pelton.program.formats import FORMATS
from pelton.program.weights import TensorSource, identity_of

Tensors = Mapping[str, TensorSource]


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Some rows [rows, cols] (or numbers [rows]) of a tensor; see program.weights.TensorSource."""

    name: str
    source: TensorSource
    rows: range | tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.source.shape[1:])

    @property
    def format(self) -> str:
        return self.source.format

    def read(self) -> memoryview:
        """The rows' bytes: the file's own where they stand together, else a copy."""
        size = FORMATS[self.format].row_bytes(self.source.shape[1] if len(self.source.shape) == 2 else 1)
        raw = self.source.read()
        if isinstance(self.rows, range) and self.rows.step == 1:
            return raw[self.rows.start * size : self.rows.stop * size]
        table = np.frombuffer(raw, np.uint8).reshape(-1, size)
        return np.ascontiguousarray(table[list(self.rows)]).reshape(-1).data

    def release(self) -> None:
        """Lets the whole tensor's pages go; they come back when another part is read."""
        self.source.release()

    def identity(self, *, read: bool, advance: Callable[[int], object] | None = None) -> str | None:
        """See program.weights.Identified."""
        whole = identity_of(self.source, read=read, advance=advance)
        return None if whole is None else f"{whole}[{self.rows}]"


def origin(source: TensorSource) -> TensorSource:
    """The tensor of the file that a source of this module takes its rows from; others are it themselves."""
    while isinstance(source, TensorRows):
        source = source.source
    return source


def renamed(tensors: Tensors, rename: Callable[[str], str]) -> dict[str, TensorSource]:
    """All tensors by `rename(name)`; CheckpointError where two get the same name."""
    view: dict[str, TensorSource] = {}
    for name, tensor in tensors.items():
        new = rename(name)
        if new in view:
            raise CheckpointError(f"Tensors {tensor.name!r} and {view[new].name!r} are the same one, {new!r}.")
        view[new] = tensor
    return view


def split(tensors: Tensors, whole: str, parts: Mapping[str, Sequence[int]]) -> dict[str, TensorSource]:
    """Tensors `<prefix>.<whole>.weight` and `.bias` in parts: `<prefix>.<part>.weight` has the rows that `parts` names.

    A family's fused projection (q, k and v in one matrix) so becomes the three it is made of. CheckpointError where a
    tensor has another number of rows than the parts take together.
    """
    view: dict[str, TensorSource] = {}
    total = sum(len(rows) for rows in parts.values())
    for name, tensor in tensors.items():
        prefix, _, suffix = name.rpartition(".")
        if prefix != whole and not prefix.endswith(f".{whole}"):
            view[name] = tensor
            continue
        if tensor.shape[0] != total:
            raise CheckpointError(
                f"Tensor {tensor.name!r} has {tensor.shape[0]} rows, but the config asks for {total} in all its parts."
            )
        for part, rows in parts.items():
            new = f"{prefix.removesuffix(whole)}{part}.{suffix}"
            view[new] = TensorRows(new, tensor, rows if isinstance(rows, range) else tuple(rows))
    return view
