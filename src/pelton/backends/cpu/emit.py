"""Emits a Program for the native executable: weights packed, values placed, ops as plain records.

Runs once, at load.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pelton.backends.cpu import _native
from pelton.backends.cpu.packed import GivenUp, Keeper, PackedCache, Wanted, file_bytes
from pelton.core.errors import BackendError
from pelton.program.formats import FORMATS
from pelton.program.module import Module
from pelton.program.op import Op
from pelton.program.ops.elementwise import ACTIVATIONS
from pelton.program.ops.linear import biases
from pelton.program.passes.activations import INT8
from pelton.program.passes.place import Placement, place
from pelton.program.states import State
from pelton.program.weights import VALUES, VECTOR, Storage, identity_of

# File format -> packed format: (default arithmetic, exact arithmetic). Block formats keep their codes in both.
PACKED = {
    "F32": ("bf16", "f32"),
    "F16": ("bf16", "f16"),
    "BF16": ("bf16", "bf16"),
    "Q4_0": ("q4", "q4"),
    "Q4_1": ("q4m", "q4m"),
    "Q5_0": ("q5", "q5"),
    "Q5_1": ("q5m", "q5m"),
    "Q8_0": ("q8", "q8"),
    "IQ4_NL": ("q4t", "q4t"),
    "Q2_K": ("q2khm", "q2khm"),
    "Q3_K": ("q3kh", "q3kh"),
    "Q4_K": ("q4km", "q4km"),
    "Q5_K": ("q5km", "q5km"),
    "Q6_K": ("q6kh", "q6kh"),
    "IQ4_XS": ("q4kt", "q4kt"),
    "INT8": ("i8c", "i8c"),
    "INT8_64": ("q8s2", "q8s2"),
    "INT8_128": ("q8s4", "q8s4"),
    "INT4_64": ("q4s2", "q4s2"),
    "INT4_128": ("q4s4", "q4s4"),
    "INT4M_64": ("q4ms2", "q4ms2"),
    "INT4M_128": ("q4ms4", "q4ms4"),
}
MAX_HEAD_DIM = 512  # what the attention kernel is made for (native/kernels.h)
KINDS = (
    "embed",
    "rms_norm",
    "layer_norm",
    "linear",
    "gated",
    "activate",
    "add",
    "rope_table",
    "rope",
    "kv_write",
    "rope_kv",
    "attend",
    "head",
)
NORMS = ("rms_norm", "layer_norm")


def refusal(op: Op, states: Mapping[str, State] | None = None) -> str | None:
    """Why there is no native kernel for the op, or None. With `states` the cache's geometry is judged too."""
    if op.kind not in KINDS:
        return f"no native kernel for op {op.kind!r}"
    spec = states[op.state].spec if states and op.state else None
    if spec and max(spec.key_dim, spec.value_dim) > MAX_HEAD_DIM:
        return f"heads of {max(spec.key_dim, spec.value_dim)} numbers; at most {MAX_HEAD_DIM}"
    if spec and (spec.key_dim % 2 or spec.value_dim % 2):
        return f"heads of {spec.key_dim} and {spec.value_dim} numbers; only even ones"
    return None


@dataclass(slots=True)
class Emitter:
    """Fills one native Executable from one entry of a module. `keeper`: what writes the packed weights to the disk."""

    native: _native.Executable
    module: Module
    entry: str
    max_tokens: int
    exact: bool
    cache: PackedCache
    keeper: Keeper | None = None

    def emit(self) -> None:
        """Packs or maps weights, adds states and ops, closes the executable."""
        entry = self.module.entries[self.entry]
        placement = place(entry, self.max_tokens)
        matrices, vectors = self._weights(entry.ops)
        states = {name: self._state(name) for name in self.module.states}
        for op in entry.ops:
            self.native.add_op(self._record(op, placement, matrices, vectors, states))
        self.native.finish(placement.size)

    def _weights(self, ops: tuple[Op, ...]) -> tuple[dict[str, int], dict[str, int]]:
        used = dict.fromkeys(name for op in ops for name in _weights_of(op))
        vectors: dict[str, int] = {}
        storages: dict[str, Storage] = {}
        for name in used:
            view = self.module.weights[name]
            storage = self.module.storages[view.storage]
            if view.use == VECTOR:
                vectors[name] = self.native.add_vector(_vector(storage))
            elif storage.format not in PACKED:
                raise BackendError(f"The CPU backend has no kernel for {storage.format} weights.")
            else:
                storages[view.storage] = storage
        matrices = dict(zip(storages, self._matrices(tuple(storages.values())), strict=True))
        for name, number in matrices.items():
            if storages[name].form == VALUES:
                self.native.use_values(number)
        return {name: matrices[self.module.weights[name].storage] for name in used if name not in vectors}, vectors

    def _matrices(self, storages: tuple[Storage, ...]) -> list[int]:
        """The number of each in the executable: mapped where a file has them packed, else packed now."""
        if not self.cache.used:
            return [self._matrix(storage) for storage in storages]
        wanted = self._wanted(storages, read=False)
        file = None if wanted is None else self.cache.open(wanted)
        if file is not None and wanted is not None:
            try:
                return [
                    self.native.add_packed(one.target, one.rows, one.cols, file.descriptor, entry.offset, entry.size)
                    for one, entry in zip(wanted, file.entries, strict=True)
                ]
            finally:
                file.close()
        numbers = [self._matrix(storage) for storage in storages]
        parts = [self.native.packed_matrix(number).data for number in numbers]
        if self.cache.has_room(file_bytes(parts)):

            def write(stopped: Callable[[], bool]) -> None:
                def advance(_: int) -> None:
                    if stopped():
                        raise GivenUp

                try:
                    if (found := self._wanted(storages, read=True, advance=advance)) is not None:
                        self.cache.write(found, parts, stopped)
                except GivenUp:
                    pass
                finally:
                    parts.clear()

            self.keeper = Keeper(write)
        return numbers

    def _wanted(
        self, storages: tuple[Storage, ...], *, read: bool, advance: Callable[[int], object] | None = None
    ) -> list[Wanted] | None:
        """What decides the packed bytes; None where an identity is not known. `read`, `advance`: see Identified."""
        wanted = []
        for storage in storages:
            identity = identity_of(storage.source, read=read, advance=advance)
            if identity is None:
                return None
            target, name = PACKED[storage.format][self.exact], f"{identity} {storage.format} {storage.made}"
            wanted.append(Wanted(name, target, storage.rows, storage.cols, storage.row_order))
        return wanted

    def _matrix(self, storage: Storage) -> int:
        target = PACKED[storage.format][self.exact]
        raw = np.frombuffer(storage.source.read(), np.uint8)
        order = None if storage.row_order is None else np.array(storage.row_order, np.int32)
        number = self.native.add_matrix(target, storage.format, raw, storage.rows, storage.cols, order)
        del raw  # the mapping may only be let go once nobody looks at it
        storage.source.release()
        return number

    def _state(self, name: str) -> int:
        state = self.module.states[name]
        spec = state.spec
        return self.native.add_state(state.layers, spec.heads, spec.key_dim, spec.value_dim, spec.window or 0)

    def _record(
        self, op: Op, placement: Placement, matrices: dict[str, int], vectors: dict[str, int], states: dict[str, int]
    ) -> dict[str, object]:
        def slot(name: str) -> tuple[int, int]:
            width = self.module.entries[self.entry].values[name].shape[1]
            assert isinstance(width, int)
            return placement.offsets[name], width

        used = [name for name in op.weights if name in matrices]
        gain = op.text("gain") or (op.weights[0] if op.kind in NORMS else "")
        offsets = op.weights[1:] if op.kind in NORMS else biases(op) if op.kind == "linear" else ()
        activation = op.text("activation")
        return {
            "kind": op.kind,
            "inputs": [slot(name) for name in op.inputs if name in placement.offsets],
            "outputs": [slot(name) for name in op.outputs],
            "matrices": [matrices[name] for name in used],
            "biases": [vectors.get(name, -1) for name in offsets],
            "gain": vectors.get(gain, -1),
            "eps": op.number("eps"),
            "scale": op.number("scale", 1.0),
            "softcap": op.number("softcap"),
            "activation": ACTIVATIONS.index(activation) if activation else -1,
            "residual": op.kind == "linear" and len(op.inputs) > 1,
            "int8": op.text("activations") == INT8,
            "state": states[op.state] if op.state else -1,
            "layer": op.integer("layer"),
            "heads": op.integer("heads"),
            "kv_heads": op.integer("kv_heads"),
            "interleaved": bool(op.attrs.get("interleaved", False)),
            "factor": op.number("factor", 1.0),
            "frequencies": _numbers(op, "inverse_frequencies"),
            "slopes": _numbers(op, "slopes"),
        }


def _numbers(op: Op, attr: str) -> list[float]:
    values = op.attrs.get(attr, ())
    assert isinstance(values, tuple)
    return [float(value) for value in values]


def _weights_of(op: Op) -> list[str]:
    extra = biases(op) if op.kind == "linear" else ()
    return [name for name in (*op.weights, op.text("gain"), *extra) if name]


def _vector(storage: Storage) -> NDArray[np.float32]:
    values = FORMATS[storage.format].decode(storage.source.read(), storage.rows, storage.cols).reshape(-1)
    if storage.row_order is not None:
        values = values[list(storage.row_order)]
    return np.ascontiguousarray(values + np.float32(storage.plus)) if storage.plus else np.ascontiguousarray(values)
