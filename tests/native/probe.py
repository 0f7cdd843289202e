"""The kernels of one instruction set as functions on numpy arrays, and random weights to try them on.

Not a second implementation: the only arithmetic here is the decoding of file blocks into codes. Arrays that a kernel
must not write past are given a guard behind their end, which every call checks.
"""

import ctypes
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from tests.program.sources import random_blocks

from pelton.program.formats import FORMATS

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
KVGeometry = tuple[int, int, int, int, bool]  # block bytes, layer offset, key dim, value dim, bf16

BLOCK, PANEL = 32, 16
# In the order of kernels.h. Packed format -> the file formats it is packed from.
CONVERSIONS = {
    "f32": ("F32",),
    "bf16": ("BF16", "F16", "F32"),
    "f16": ("F16",),
    "q8": ("Q8_0",),
    "q4": ("Q4_0",),
    "q4m": ("Q4_1",),
    "q5": ("Q5_0",),
    "q5m": ("Q5_1",),
    "q4t": ("IQ4_NL",),
    "q4km": ("Q4_K",),
    "q5km": ("Q5_K",),
    "q4kt": ("IQ4_XS",),
    "q6kh": ("Q6_K",),
    "q3kh": ("Q3_K",),
    "q2khm": ("Q2_K",),
    "i8c": ("INT8",),
    "q8s2": ("INT8_64",),
    "q8s4": ("INT8_128",),
    "q4s2": ("INT4_64",),
    "q4s4": ("INT4_128",),
    "q4ms2": ("INT4M_64",),
    "q4ms4": ("INT4M_128",),
}
WHOLE_ROWS = ("INT8",)  # one scale for each row, after everything else
FORMS = ("codes", "values", "exact")
FORMAT_NUMBERS = {name: number for number, name in enumerate(CONVERSIONS)}
DENSE = ("f32", "bf16", "f16")
CODED = tuple(name for name in CONVERSIONS if name not in DENSE)
GUARD = np.float32(-12345.0)


def padded(cols: int) -> int:
    """Columns rounded up to whole blocks."""
    return -(-cols // BLOCK) * BLOCK


def same_bits(a: Floats, b: Floats) -> bool:
    """Equal to the bit, except that one NaN is as good as another."""
    nan = np.isnan(a)
    return a.shape == b.shape and bool(
        np.array_equal(nan, np.isnan(b)) and np.array_equal(a[~nan].view("u4"), b[~nan].view("u4"))
    )


def _pointer(array: NDArray[np.generic] | None) -> ctypes.c_void_p | None:
    if array is None:
        return None
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


@dataclass(frozen=True, slots=True)
class Weights:
    """A matrix [rows, cols] as file bytes, packed, and as numbers: `codes` * `scale` + `minimum`, or just `codes`.

    `scale` and `minimum` are [rows, units]; `unit`: how many columns share one: 16, 32, 64, 128 or all.
    """

    format: str
    from_format: str
    rows: int
    cols: int
    raw: Bytes
    packed: Bytes
    codes: Floats
    scale: Floats | None
    minimum: Floats | None
    unit: int = BLOCK

    def values(self) -> Floats:
        """fp32 [rows, cols] as program/formats.py decodes the file, rounded where packing rounds."""
        return _values(self.format, self.from_format, (self.rows, self.cols), self.raw)


def _values(to: str, from_format: str, shape: tuple[int, int], raw: Bytes) -> Floats:
    decoded = FORMATS[from_format].decode(raw.data, *shape)
    return decoded.astype(ml_dtypes.bfloat16).astype(np.float32) if to == "bf16" else decoded


def _aligned(size: int) -> Bytes:
    """Zeros at a 64-byte border, as weights lie."""
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size]


def random_file(from_format: str, rows: int, cols: int, rng: np.random.Generator) -> Bytes:
    """File bytes of a random matrix, values of about unit size."""
    w = rng.standard_normal((rows, cols)).astype(np.float32)
    if from_format in ("F32", "F16", "BF16"):
        dtype = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}[from_format]
        return np.frombuffer(w.astype(dtype).tobytes(), np.uint8)
    if FORMATS[from_format].head_bytes:
        heads = rng.uniform(0.001, 0.02, (rows, 1)) * rng.choice([-1, 1], (rows, 1))
        codes = rng.integers(0, 256, (rows, cols), np.uint8)
        return np.concatenate((heads.astype(np.float32).view(np.uint8), codes), axis=1).reshape(-1)
    block = FORMATS[from_format].block

    def halves(size: tuple[int, int]) -> NDArray[np.float64]:
        return np.asarray(rng.uniform(0.01, 0.2, size) * rng.choice([-1, 1], size) * (BLOCK / block))

    return random_blocks(from_format, rows * (cols // block), rng, halves).reshape(-1)


def fitting(packed: str, cols: int) -> int:
    """The next number of columns from `cols` on that rows of the format can have."""
    return cols + -cols % max(FORMATS[from_format].block for from_format in CONVERSIONS[packed])


class Probe:
    """Kernels of instruction set number `isa`, with denormals flushed as in the executable."""

    def __init__(self, library: ctypes.CDLL, isa: int) -> None:
        self._library = library
        self._isa = isa
        self.door = (library, isa)  # for functions that are called elsewhere
        library.probe_name.restype = ctypes.c_char_p
        library.probe_pack.restype = ctypes.c_char_p
        library.probe_packed_bytes.restype = ctypes.c_size_t
        self.supported = bool(library.probe_supports(isa))
        library.probe_base.restype = ctypes.c_char_p
        self.name: str = library.probe_name(isa).decode()
        self.base: str = library.probe_base(isa).decode()  # of what its kernels are, but for those it has of its own

    def __repr__(self) -> str:
        return self.name

    def pack(
        self,
        to: str,
        from_format: str,
        raw: Bytes,
        shape: tuple[int, int],
        *,
        order: NDArray[np.int32] | None = None,
        panels: list[tuple[int, int]] | None = None,
    ) -> Bytes:
        """Packed bytes of a file's matrix; `panels`: the ranges to pack, one call each."""
        rows, cols = shape
        out = _aligned(self._library.probe_packed_bytes(FORMAT_NUMBERS[to], rows, cols))
        for first, last in panels if panels is not None else [(0, -(-rows // PANEL))]:
            message = self._library.probe_pack(
                FORMAT_NUMBERS[to],
                from_format.encode(),
                _pointer(raw),
                rows,
                cols,
                _pointer(order),
                first,
                last,
                _pointer(out),
            )
            if message:
                raise ValueError(message.decode())
        return out

    def weights(self, to: str, from_format: str, shape: tuple[int, int], rng: np.random.Generator) -> Weights:
        """Random weights, packed."""
        rows, cols = shape
        return self.packed(to, from_format, shape, random_file(from_format, rows, cols, rng))

    def packed(self, to: str, from_format: str, shape: tuple[int, int], raw: Bytes) -> Weights:
        """The weights of given file bytes."""
        rows, cols = shape
        packed = self.pack(to, from_format, raw, shape)
        if to not in DENSE:
            form = FORMATS[from_format]
            assert form.codes is not None
            coded = form.codes(form.blocks(raw, rows, cols))
            codes, scale = coded.codes.reshape(rows, cols), coded.scale.reshape(rows, -1)
            minimum = None if coded.minimum is None else coded.minimum.reshape(rows, -1)
            return Weights(to, from_format, rows, cols, raw, packed, codes, scale, minimum, cols // scale.shape[1])
        values = _values(to, from_format, shape, raw)
        return Weights(to, from_format, rows, cols, raw, packed, values, None, None)

    def prepare(
        self, x: Floats, *, gain: Floats | None = None, eps: float = 1e-5, rounded: bool = True, halves: bool = True
    ) -> tuple[Floats, Floats]:
        """x [rows, cols] -> rows [rows, padded(cols)] and sums [rows, 3 * blocks] of blocks, then of half blocks."""
        rows, cols = x.shape
        out = np.full((rows, padded(cols)), GUARD)
        sums = np.full((rows, 3 * padded(cols) // BLOCK), GUARD)
        for t in range(rows):
            line, block = np.full(padded(cols) + 1, GUARD), np.full(sums.shape[1] + 1, GUARD)
            self._library.probe_prepare(
                self._isa,
                _pointer(np.ascontiguousarray(x[t])),
                _pointer(gain),
                ctypes.c_float(eps),
                cols,
                int(rounded),
                _pointer(line),
                _pointer(block),
                int(halves),
            )
            assert line[-1] == GUARD
            assert block[-1] == GUARD
            out[t], sums[t] = line[:-1], block[:-1]
        return out, sums

    def matmul(self, w: Weights, x: Floats, sums: Floats, *, together: int = 1, form: str = "codes") -> Floats:
        """x [rows, padded(cols)], sums [rows, 3 * blocks] -> [rows, outputs rounded up to panels].

        `together`: panels of a call. Where all x are bf16 the kernels have them as such, too, as in the executable.
        `form`: codes, values or exact, which are values that are not rounded.
        """
        width = -(-w.rows // PANEL) * PANEL
        out = np.full((len(x), width + 3), GUARD)
        self._library.probe_matmul(
            self._isa,
            FORMAT_NUMBERS[w.format],
            w.rows,
            w.cols,
            _pointer(w.packed),
            _pointer(x),
            ctypes.c_size_t(x.shape[1]),
            _pointer(sums),
            ctypes.c_size_t(sums.shape[1]),
            len(x),
            _pointer(out),
            ctypes.c_size_t(out.shape[1]),
            int(not (x.view(np.uint32) & 0xFFFF).any()),
            together,
            FORMS.index(form),
        )
        assert (out[:, width:] == GUARD).all()
        return np.ascontiguousarray(out[:, :width])

    def order1(self, w: Weights, x: Floats, sums: Floats, *, form: str = "codes") -> Floats:
        """The same product by the plain loop of kernel_probe.cpp: [rows, outputs]."""
        if form != "codes":
            values = w.values() if form == "exact" else w.values().astype(ml_dtypes.bfloat16).astype(np.float32)
            w = Weights(w.format, w.from_format, w.rows, w.cols, w.raw, w.packed, values, None, None)
        out = np.zeros((len(x), w.rows), np.float32)
        self._library.probe_order1(
            w.rows,
            w.cols,
            _pointer(w.codes),
            _pointer(w.scale),
            _pointer(w.minimum),
            _pointer(x),
            ctypes.c_size_t(x.shape[1]),
            _pointer(sums),
            ctypes.c_size_t(sums.shape[1]),
            len(x),
            _pointer(out),
            ctypes.c_size_t(w.rows),
            0 if w.scale is not None and w.from_format in WHOLE_ROWS else w.unit,
        )
        return out

    def gather_row(self, w: Weights, row: int, scale: float = 1.0) -> Floats:
        """Row of the matrix times scale: [cols]."""
        out = np.full(w.cols + 1, GUARD)
        self._library.probe_gather_row(
            self._isa,
            FORMAT_NUMBERS[w.format],
            w.rows,
            w.cols,
            _pointer(w.packed),
            row,
            ctypes.c_float(scale),
            _pointer(out),
        )
        assert out[-1] == GUARD
        return out[:-1]

    def rms_norm(self, x: Floats, gain: Floats, eps: float) -> Floats:
        """The norm of one row [n]."""
        out = np.full(len(x) + 1, GUARD)
        self._library.probe_rms_norm(self._isa, _pointer(x), _pointer(gain), ctypes.c_float(eps), len(x), _pointer(out))
        assert out[-1] == GUARD
        return out[:-1]

    def add(self, x: Floats, residual: Floats) -> Floats:
        """residual + x, [n]."""
        out = np.full(len(x) + 1, GUARD)
        self._library.probe_add(self._isa, _pointer(x), _pointer(residual), ctypes.c_size_t(len(x)), _pointer(out))
        assert out[-1] == GUARD
        return out[:-1]

    def gated(self, gate: Floats, up: Floats, activation: int) -> Floats:
        """activation(gate) * up, [n]; 0: silu, 1: gelu_tanh."""
        out = np.full(len(gate) + 1, GUARD)
        self._library.probe_gated(
            self._isa, _pointer(gate), _pointer(up), ctypes.c_size_t(len(gate)), activation, _pointer(out)
        )
        assert out[-1] == GUARD
        return out[:-1]

    def rope_angles(self, position: int, frequency: NDArray[np.float64], factor: float = 1.0) -> Floats:
        """cos and sin: [2, n]."""
        n = len(frequency)
        out = np.full(2 * n + 1, GUARD)
        self._library.probe_rope_angles(
            self._isa, position, _pointer(frequency), n, ctypes.c_double(factor), _pointer(out)
        )
        assert out[-1] == GUARD
        return out[:-1].reshape(2, n)

    def rope(self, x: Floats, angles: Floats, *, interleaved: bool, in_place: bool = False) -> Floats:
        """x [heads, dim] turned by angles [2, n]."""
        heads, dim = x.shape
        out = np.full(heads * dim + 1, GUARD)
        out[:-1] = x.reshape(-1) if in_place else GUARD
        self._library.probe_rope(
            self._isa,
            _pointer(out if in_place else x),
            _pointer(angles),
            angles.shape[1],
            heads,
            dim,
            int(interleaved),
            _pointer(out),
        )
        assert out[-1] == GUARD
        return out[:-1].reshape(heads, dim)

    def kv_write(self, pool: Bytes, geometry: KVGeometry, place: tuple[int, int, int], k: Floats, v: Floats) -> None:
        """k [key dim] and v [value dim] into the pool; place: block, slot, head."""
        block_bytes, layer_offset, key_dim, value_dim, bf16 = geometry
        self._library.probe_kv_write(
            self._isa,
            _pointer(pool),
            ctypes.c_size_t(block_bytes),
            ctypes.c_size_t(layer_offset),
            key_dim,
            value_dim,
            int(bf16),
            *place,
            _pointer(k),
            _pointer(v),
        )
