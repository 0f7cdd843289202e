"""One sequence's cache as the attention kernels see it, a way to call them, and the fp64 oracle.

What it is not: a test. Invariant: every table entry that no tested row may read points far outside the pool, so that a
kernel which reads one crashes instead of passing.
"""

import ctypes
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import numpy.typing as npt
from tests.native.isas import ISAS

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

BLOCK, CHUNK = 32, 512
FORBIDDEN = 1 << 30
LAYERS, LAYER = 2, 1  # the tested layer is the second of two in a block


class KVViewRecord(ctypes.Structure):
    """KVView of kernels.h."""

    _fields_ = [
        ("pool", ctypes.c_void_p),
        ("block_bytes", ctypes.c_size_t),
        ("layer_offset", ctypes.c_size_t),
        ("head_bytes", ctypes.c_size_t),
        ("key_dim", ctypes.c_int),
        ("value_dim", ctypes.c_int),
        ("bf16", ctypes.c_bool),
    ]


class RowRecord(ctypes.Structure):
    """AttendRow of kernels.h; its state is placed by the door."""

    _fields_ = [("q", ctypes.c_void_p), ("state", ctypes.c_void_p), ("index", ctypes.c_int)]


class AttendRecord(ctypes.Structure):
    """AttendArgs of kernels.h."""

    _fields_ = [
        ("kv", KVViewRecord),
        ("table", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("num_rows", ctypes.c_int),
        ("kv_head", ctypes.c_int),
        ("group", ctypes.c_int),
        ("window", ctypes.c_int),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("slopes", ctypes.c_void_p),
        ("tail", ctypes.c_void_p),
        ("tail_block", ctypes.c_int),
    ]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a layer's attention looks like."""

    key_dim: int = 64
    value_dim: int = 64
    heads: int = 1
    group: int = 3
    bf16: bool = True
    window: int = 0
    softcap: float = 0.0
    slopes: tuple[float, ...] = ()  # of the query heads

    @property
    def scale(self) -> float:
        return float(np.float32(self.key_dim**-0.5))


def bf16(x: Floats) -> Floats:
    """Rounded to bf16, as fp32."""
    return np.asarray(x.astype(ml_dtypes.bfloat16), dtype=np.float32)


@dataclass(slots=True)
class Sequence:
    """k [indices, heads, key_dim], v [indices, heads, value_dim], q [indices, heads * group, key_dim]; all fp32."""

    shape: Shape
    k: Floats
    v: Floats
    q: Floats
    seed: int = 0
    behind: float = 0.0  # what slots behind the last index hold
    table: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))  # of the last record
    keeps: list[object] = field(default_factory=list)  # what else it points at

    @property
    def indices(self) -> int:
        return len(self.k)

    def visible(self, index: int) -> slice:
        """Indices the row at `index` attends to."""
        return slice(max(0, index - self.shape.window + 1) if self.shape.window else 0, index + 1)

    def record(self, first: int, rows: int, head: int = 0) -> AttendRecord:
        """Arguments for rows [first, first + rows) and a KV head; pool and table are packed for just these rows."""
        shape, dtype = self.shape, ml_dtypes.bfloat16 if self.shape.bf16 else np.float32
        size, width = np.dtype(dtype).itemsize, shape.key_dim + shape.value_dim
        used = range(self.visible(first).start // BLOCK, (first + rows - 1) // BLOCK + 1)
        places = np.random.default_rng(self.seed).permutation(len(used) + 3)[: len(used)]
        pool = np.full((len(used) + 3, LAYERS, shape.heads, BLOCK * width), self.behind, dtype)
        table = np.full(used.stop + 2 * CHUNK // BLOCK, FORBIDDEN, np.int32)
        for place, block in zip(places, used, strict=True):
            table[block] = place
            for which in range(shape.heads):
                pool[place, LAYER, which] = self.packed(block, which).astype(dtype)
        q = np.ascontiguousarray(self.q[first : first + rows])
        kv = KVViewRecord(
            pool.ctypes.data,
            pool[0].nbytes,
            pool[0, 0].nbytes * LAYER,
            BLOCK * width * size,
            shape.key_dim,
            shape.value_dim,
            shape.bf16,
        )
        slopes = np.array(shape.slopes[head * shape.group : (head + 1) * shape.group], np.float32)
        places_of_rows = (RowRecord * rows)(*(RowRecord(row.ctypes.data, None, first + r) for r, row in enumerate(q)))
        self.table, self.keeps = table, [pool, q, slopes, places_of_rows]
        return AttendRecord(
            kv=kv,
            table=table.ctypes.data,
            rows=ctypes.addressof(places_of_rows),
            num_rows=rows,
            kv_head=head,
            group=shape.group,
            window=shape.window,
            scale=shape.scale,
            softcap=shape.softcap,
            slopes=slopes.ctypes.data if shape.slopes else None,
        )

    def packed(self, block: int, head: int) -> Floats:
        sides: list[Floats] = []
        for array in (self.k, self.v):
            side = np.full((BLOCK, array.shape[-1]), self.behind, np.float32)
            part = array[block * BLOCK : (block + 1) * BLOCK, head]
            side[: len(part)] = part
            sides.append(side)
        k, v = sides
        if not self.shape.bf16:
            return np.concatenate([k.T.ravel(), v.ravel()])
        k = k.reshape(BLOCK, -1, 2).transpose(1, 0, 2)
        v = v.reshape(BLOCK // 2, 2, -1).transpose(0, 2, 1)
        return np.concatenate([k.ravel(), v.ravel()])


def sequence(shape: Shape, indices: int, seed: int = 0, spread: float = 1.5) -> Sequence:
    """Random q, k, v. `spread` is the standard deviation of the scores: large enough for uneven weights."""
    rng = np.random.default_rng((seed, indices, shape.key_dim, shape.value_dim))

    def draw(*dims: int) -> Floats:
        return rng.standard_normal(dims, np.float32)

    k, v = draw(indices, shape.heads, shape.key_dim), draw(indices, shape.heads, shape.value_dim)
    q = draw(indices, shape.heads * shape.group, shape.key_dim) * np.float32(spread)
    return Sequence(shape, bf16(k) if shape.bf16 else k, bf16(v) if shape.bf16 else v, q, seed)


def _pointer(array: Floats) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@dataclass(frozen=True, slots=True)
class Kernels:
    """The attention kernels of one ISA."""

    library: ctypes.CDLL
    name: str

    @property
    def isa(self) -> int:
        return ISAS.index(self.name)

    def partial(self, seq: Sequence, first: int, rows: int, head: int, chunk: int) -> Floats:
        """State of one chunk: [rows, group, 2 + value_dim]. Starts from garbage, which the kernel must overwrite."""
        record = seq.record(first, rows, head)
        out = np.full((rows, seq.shape.group, 2 + seq.shape.value_dim), 777.0, np.float32)
        self.library.attend_probe_chunk(self.isa, ctypes.byref(record), chunk, _pointer(out))
        return out

    def tiles(self, record: AttendRecord, first: int, last: int, states: Floats, *, resume: bool) -> None:
        """Moves states [rows, group, 2 + value_dim] on over these tiles."""
        self.library.attend_probe_tiles(self.isa, ctypes.byref(record), first, last, int(resume), _pointer(states))

    def lse(self, states: Floats) -> Floats:
        """[...] of states [..., 2 + value_dim]."""
        out = np.full(states.shape[:-1], 777.0, np.float32)
        self.library.attend_probe_lse(self.isa, _pointer(states), out.size, states.shape[-1] - 2, _pointer(out))
        return out

    def columns(self, record: AttendRecord, first: int, last: int, lse: Floats, sums: Floats) -> None:
        """Adds to sums [64 * (last - first)] what the rows, of LSEs [rows, group], give to these tiles' keys."""
        self.library.attend_probe_columns(self.isa, ctypes.byref(record), first, last, _pointer(lse), _pointer(sums))

    def merge(self, into: Floats, later: Floats) -> None:
        count = into.size // into.shape[-1]
        self.library.attend_probe_merge(self.isa, _pointer(into), _pointer(later), count, into.shape[-1] - 2)

    def finish(self, state: Floats) -> Floats:
        out = np.full((*state.shape[:-1], state.shape[-1] - 2), 777.0, np.float32)
        for place in np.ndindex(*state.shape[:-1]):
            self.library.attend_probe_finish(self.isa, _pointer(state[place]), out.shape[-1], _pointer(out[place]))
        return out

    def states(self, seq: Sequence, first: int, rows: int) -> Floats:
        """Merged states [rows, heads * group, 2 + value_dim] of rows [first, first + rows), chunk after chunk."""
        heads: list[Floats] = []
        for head in range(seq.shape.heads):
            chunks = range(seq.visible(first).start // CHUNK, (first + rows - 1) // CHUNK + 1)
            state = self.partial(seq, first, rows, head, chunks[0])
            for chunk in chunks[1:]:
                self.merge(state, self.partial(seq, first, rows, head, chunk))
            heads.append(state)
        return np.concatenate(heads, axis=1)

    def attend(self, seq: Sequence, first: int, rows: int) -> Floats:
        """[rows, heads * group, value_dim]."""
        return self.finish(self.states(seq, first, rows))


def kernels(library: ctypes.CDLL, isa: str) -> Kernels:
    """The kernels of an ISA this CPU has, by its name in the table."""
    number, pointer = ctypes.c_int, ctypes.c_void_p
    library.attend_probe_chunk.argtypes = [number, pointer, number, pointer]
    library.attend_probe_merge.argtypes = [number, pointer, pointer, number, number]
    library.attend_probe_finish.argtypes = [number, pointer, number, pointer]
    library.attend_probe_tiles.argtypes = [number, pointer, number, number, number, pointer]
    library.attend_probe_columns.argtypes = [number, pointer, number, number, pointer, pointer]
    library.attend_probe_lse.argtypes = [number, pointer, number, number, pointer]
    for name in ("chunk", "tiles", "columns", "lse", "merge", "finish"):
        getattr(library, f"attend_probe_{name}").restype = None
    return Kernels(library, isa)


def oracle(seq: Sequence, index: int) -> Doubles:
    """Plain softmax attention of one row in fp64: [heads * group, value_dim]."""
    shape, seen = seq.shape, seq.visible(index)
    q = (bf16(seq.q[index]) if shape.bf16 else seq.q[index]).astype(np.float64)
    k, v = seq.k[seen].astype(np.float64), seq.v[seen].astype(np.float64)
    out = np.empty((shape.heads * shape.group, shape.value_dim))
    for head in range(len(q)):
        s = k[:, head // shape.group] @ q[head] * shape.scale
        if shape.softcap:
            s = shape.softcap * np.tanh(s / shape.softcap)
        if shape.slopes:
            s = s + np.float64(np.float32(shape.slopes[head])) * np.arange(1 - len(k), 1)
        p = np.exp(s - s.max())
        out[head] = p @ v[:, head // shape.group] / p.sum()
    return out
