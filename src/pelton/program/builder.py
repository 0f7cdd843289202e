"""Builder: what model code calls to add weights, states and ops. Knows no layer and no model."""

from collections.abc import Mapping

from pelton.core.errors import CheckpointError, UnsupportedModelError
from pelton.program import OPS
from pelton.program.module import Entry, Module
from pelton.program.op import Attr, Op, Tables
from pelton.program.states import KVSpec, State
from pelton.program.values import TOKENS, Dim, Value
from pelton.program.weights import GATHER, MATRIX, VECTOR, Storage, TensorSource, WeightView


class Builder:
    """Collects one module with one entry per `entry` call.

    Every tensor must be used or explicitly ignored by `finish`.
    """

    def __init__(self, tensors: Mapping[str, TensorSource]) -> None:
        self._tensors = tensors
        self._storages: dict[str, Storage] = {}
        self._weights: dict[str, WeightView] = {}
        self._groups: dict[KVSpec, State] = {}
        self._entries: dict[str, Entry] = {}
        self._values: dict[str, Value] = {}
        self._ops: list[Op] = []

    def has(self, tensor: str) -> bool:
        """Whether the checkpoint holds this tensor."""
        return tensor in self._tensors

    def check(self, tensor: str, shape: tuple[int, ...]) -> TensorSource:
        """The checkpoint's tensor; raises CheckpointError if there is none of this name or it has another shape."""
        source = self._tensors.get(tensor)
        if source is None:
            raise CheckpointError(
                f"The checkpoint has no tensor {tensor!r}.", "The file is incomplete or of another family."
            )
        if tuple(source.shape) != shape:
            raise CheckpointError(
                f"Tensor {tensor!r} has shape {tuple(source.shape)}, but the config asks for {shape}."
            )
        return source

    def matrix(
        self, tensor: str, rows: int, cols: int, *, row_order: tuple[int, ...] | None = None, shard: str | None = None
    ) -> str:
        """A weight applied as x[.., cols] @ W.T -> [.., rows]; returns the view's name."""
        return self._view(tensor, (rows, cols), MATRIX, row_order, shard)

    def gather(self, tensor: str, rows: int, cols: int) -> str:
        """A table whose rows are looked up by id; returns the view's name."""
        return self._view(tensor, (rows, cols), GATHER, None, "rows")

    def vector(self, tensor: str, size: int, *, row_order: tuple[int, ...] | None = None, plus: float = 0.0) -> str:
        """A vector of gains or biases (`row_order` as for the matrix it belongs to); returns the view's name.

        `plus`: added to each number as it is read.
        """
        return self._view(tensor, (size,), VECTOR, row_order, None, plus)

    def state(self, spec: KVSpec) -> tuple[str, int]:
        """A layer's cache: (group name, layer within the group). Equal specs join one group."""
        group = self._groups.get(spec, State(f"kv{len(self._groups)}", spec, 0))
        self._groups[spec] = State(group.name, spec, group.layers + 1)
        return group.name, group.layers

    def input(self, name: str, shape: tuple[Dim, ...] = (TOKENS,), dtype: str = "i32") -> str:
        """A value that each step brings along; returns its name."""
        self._values[name] = Value(name, shape, dtype)
        return name

    def op(self, kind: str, inputs: tuple[str, ...], outputs: tuple[str, ...] = (), *, weights: tuple[str, ...] = (),
           state: str | None = None, attrs: Mapping[str, Attr] | None = None) -> tuple[str, ...]:  # fmt: skip
        """Adds an op whose outputs have these names (unique in the entry); their shapes come from its rule."""
        op = Op(kind, inputs, outputs, weights, state, attrs or {})
        shapes = OPS.get(kind)().shapes(op, self._tables())
        for name, shape in zip(outputs, shapes, strict=True):
            if name in self._values:
                raise ValueError(f"value {name!r} is defined twice")
            self._values[name] = Value(name, shape)
        self._ops.append(op)
        return outputs

    def entry(self, name: str, inputs: tuple[str, ...], outputs: tuple[str, ...] = ()) -> None:
        """Closes the ops added so far as one entry."""
        self._entries[name] = Entry(name, tuple(self._ops), dict(self._values), inputs, outputs)
        self._ops, self._values = [], {}

    def finish(self, *, vocab: int, context: int, ignored: tuple[str, ...] = ()) -> Module:
        """The module. A tensor that no op uses, and whose name does not end with one of `ignored`, is refused."""
        left = [name for name in self._tensors if name not in self._storages and not name.endswith(ignored or ("\0",))]
        if left:
            raise UnsupportedModelError(
                f"The checkpoint has {len(left)} tensors this model family does not use, for example {left[0]!r}.",
                "It is probably of another family or a newer variant.",
            )
        states = {state.name: state for state in self._groups.values()}
        return Module(self._storages, self._weights, states, self._entries, vocab, context)

    def _tables(self) -> Tables:
        return Tables(self._storages, self._weights, {s.name: s for s in self._groups.values()}, self._values)

    def _view(
        self,
        tensor: str,
        shape: tuple[int, ...],
        use: str,
        order: tuple[int, ...] | None,
        shard: str | None,
        plus: float = 0.0,
    ) -> str:
        source = self.check(tensor, shape)
        rows, cols = shape if len(shape) == 2 else (1, shape[0])
        self._storages.setdefault(tensor, Storage(tensor, rows, cols, source, order, plus))
        name = f"{tensor}:{use}"
        self._weights[name] = WeightView(name, tensor, use, shard)
        return name
