"""What the kernels of one instruction set give for a case: a function for each kind, named as the kind is.

What it is not: arithmetic. Invariant: inputs reach the kernels as they stand in the case.
"""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tests.native import row_functions
from tests.native.attend_case import Kernels, Shape, kernels
from tests.native.attend_case import Sequence as Tokens
from tests.native.choose_case import NativeChoice, native_choices, record
from tests.native.int8_case import IntProbe
from tests.native.library import every_probe
from tests.native.probe import CONVERSIONS, Floats, Probe
from tests.numerics.cases import Case, logits_of

from pelton.backends.backend import EDIT, SAMPLING


def _doubles(numbers: Sequence[float]) -> NDArray[np.float64]:
    return np.array(numbers, np.float64)


def _floats(numbers: object) -> Floats:
    return np.array(numbers, np.float32)


@dataclass(frozen=True, slots=True)
class Isa:
    """One instruction set through all its doors."""

    library: ctypes.CDLL
    probe: Probe
    attend: Kernels
    choice: NativeChoice

    def __repr__(self) -> str:
        return self.probe.name

    def door(self, name: str, given: NDArray[np.generic], gives: type[np.generic]) -> object:
        out = np.zeros(len(given), gives)
        door = getattr(self.library, f"function_probe_{self.probe.base}_{name}")
        door(ctypes.c_void_p(given.ctypes.data), len(given), ctypes.c_void_p(out.ctypes.data))
        return out.tolist()


def exp(isa: Isa, case: Case) -> object:
    return isa.door("exp", _floats(case["x"]), np.float32)


def exp_double(isa: Isa, case: Case) -> object:
    return isa.door("exp_double", _doubles(case["x"]), np.float64)


def log_double(isa: Isa, case: Case) -> object:
    return isa.door("log_double", _doubles(case["x"]), np.float64)


def gumbel(isa: Isa, case: Case) -> object:
    return isa.door("gumbel", np.array(case["words"], np.uint32), np.float64)


def philox(isa: Isa, case: Case) -> object:
    wish = np.array([record(seed=case["seed"], place=case["place"], child=case["child"])], SAMPLING)
    words, (group, at) = np.zeros(64, np.uint32), divmod(case["token"], 64)
    door = getattr(isa.library, f"function_probe_{isa.probe.base}_noise_words")
    door(ctypes.c_void_p(wish.ctypes.data), group, ctypes.c_void_p(words.ctypes.data))
    return words[at : at + 4].tolist()


def tanh(isa: Isa, case: Case) -> object:
    """Seen as the m of an attention over one token, with scale and soft-cap 1."""
    found = []
    for x in case["x"]:
        shape = Shape(key_dim=2, value_dim=2, group=1, bf16=False, softcap=1.0)
        seq = Tokens(shape, _floats([[[1, 0]]]), _floats([[[0, 0]]]), _floats([[[x, 0]]]))
        given, out = seq.record(0, 1), np.zeros(4, np.float32)
        given.scale = 1.0
        isa.library.attend_probe_chunk(isa.attend.isa, ctypes.byref(given), 0, ctypes.c_void_p(out.ctypes.data))
        found.append(float(out[0]))
    return found


def bf16(isa: Isa, case: Case) -> object:
    x = _floats([case["x"]])
    return isa.probe.prepare(x, rounded=True)[0][0, : x.shape[1]].tolist()


def product(isa: Isa, case: Case) -> float:
    form, cols = case["form"], len(case["x"])
    names = {"f32": "F32", "bf16": "BF16", "f16": "F16", "q8": "Q8_0", "q4": "Q4_0", "q4m": "Q4_1"}
    w = isa.probe.packed(form, names[form], (1, cols), np.frombuffer(_file_bytes(case), np.uint8))
    x, sums = isa.probe.prepare(_floats([case["x"]]), rounded=False)
    return float(isa.probe.matmul(w, x, sums)[0, 0])


def nested_product(isa: Isa, case: Case) -> float:
    w = isa.probe.packed(case["form"], NESTED[case["form"]], (1, 256), np.frombuffer(_nested_bytes(case), np.uint8))
    x, sums = isa.probe.prepare(_floats([case["x"]]), rounded=False)
    return float(isa.probe.matmul(w, x, sums)[0, 0])


def int8_product(isa: Isa, case: Case) -> float:
    """Of all kernels that this instruction set has for it: they may agree on nothing but one number."""
    raw, form, cols = _nested_bytes(case) if case["form"] in NESTED else _file_bytes(case), case["form"], len(case["x"])
    w = isa.probe.packed(form, CONVERSIONS[form][0], (1, cols), np.frombuffer(raw, np.uint8))
    ints = [IntProbe(probe) for probe in every_probe(isa.library) if probe.base == isa.probe.base]
    found = {float(own.matmul(w, own.prepare(_floats([case["x"]])))[0, 0]) for own in ints}
    assert len(found) == 1 or all(map(math.isnan, found)), (isa, found)
    return found.pop()


def rms_norm(isa: Isa, case: Case) -> object:
    gain = _floats(case["gain"])
    parts = _floats(case["x"]).reshape(-1, len(gain))
    return [y for part in parts for y in isa.probe.rms_norm(part, gain, case["eps"]).tolist()]


def layer_norm(isa: Isa, case: Case) -> object:
    bias = _floats(case["bias"]) if "bias" in case else None
    return row_functions.layer_norm(isa.probe, _floats(case["x"]), _floats(case["gain"]), bias, case["eps"]).tolist()


def silu(isa: Isa, case: Case) -> object:
    return isa.probe.gated(_floats(case["x"]), np.ones(len(case["x"]), np.float32), 0).tolist()


def gelu_tanh(isa: Isa, case: Case) -> object:
    return isa.probe.gated(_floats(case["x"]), np.ones(len(case["x"]), np.float32), 1).tolist()


def angles(isa: Isa, case: Case) -> object:
    found = isa.probe.rope_angles(case["position"], _doubles(case["frequencies"]), case["factor"])
    return found.tolist()


def rotation(isa: Isa, case: Case) -> object:
    x, angles = _floats([[case["x1"], case["x2"]]]), _floats([[case["cos"]], [case["sin"]]])
    return isa.probe.rope(x, angles, interleaved=False)[0].tolist()


def attention(isa: Isa, case: Case) -> Case:
    k, v, q = (_floats(case[name]) for name in "kvq")
    slopes = (case["slope"],) if "slope" in case else ()
    shape = Shape(k.shape[1], v.shape[1], 1, 1, case["form"] == "bf16", case.get("window", 0), case["softcap"], slopes)
    seq = Tokens(shape, k[:, None], v[:, None], np.broadcast_to(q, (len(k), 1, len(q))).copy())
    state = isa.attend.states(seq, len(k) - 1, 1)
    return {"m": float(state[0, 0, 0]), "l": float(state[0, 0, 1]), "y": isa.attend.finish(state)[0, 0].tolist()}


def logits(isa: Isa, case: Case) -> object:
    return row_functions.cap_logits(isa.probe, _floats(case["x"]), case["scale"], case["softcap"]).tolist()


def merge(isa: Isa, case: Case) -> object:
    first = _floats([[case["first"]]])
    isa.attend.merge(first, _floats([[case["later"]]]))
    return first[0, 0].tolist()


def statistics(isa: Isa, case: Case) -> Case:
    logits = _floats(logits_of(case))
    found = isa.choice.stats(logits, 0, len(logits))
    return {"max": float(found["max"]), "argmax": int(found["argmax"]), "sum": float(found["sum"])}


def edited(isa: Isa, case: Case) -> object:
    logits, wish = _floats(case["logits"]), np.array([record(**case["wish"])], SAMPLING)
    edits, out = np.array([tuple(edit) for edit in case["edits"]], EDIT), np.zeros(len(logits), np.float32)
    door = getattr(isa.library, f"function_probe_{isa.probe.base}_edit_row")
    arrays = [ctypes.c_void_p(array.ctypes.data) for array in (logits, wish, edits, out)]
    door(arrays[0], len(logits), arrays[1], arrays[2], len(edits), arrays[3])
    return out.tolist()


def choice(isa: Isa, case: Case) -> Case:
    chosen = isa.choice.choose(_floats(logits_of(case)), record(**case["wish"]))
    return {"token": chosen.token, "logprob": float(chosen.logprob)}


def _file_bytes(case: Case) -> bytes:
    """A row of weights as its file format has it."""
    w = np.array(case["w"])
    if case["form"] in ("f32", "f16"):
        return w.astype(np.float32 if case["form"] == "f32" else np.float16).tobytes()
    if case["form"] == "bf16":
        return (w.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    if case["form"] == "i8c":
        return np.float32(case["scales"][0]).tobytes() + w.astype(np.int8).tobytes()
    made = b""
    for number, codes in enumerate(w.astype(np.int64).reshape(len(case["scales"]), -1)):
        made += np.float16(case["scales"][number]).tobytes()
        if case["form"] in ("q8", "q8s2"):
            made += codes.astype(np.int8).tobytes()
            continue
        made += np.float16(case["minima"][number]).tobytes() if case["form"] == "q4m" else b""
        nibbles = codes + (8 if case["form"] == "q4" else 0)
        made += (nibbles[:16] | nibbles[16:] << 4).astype(np.uint8).tobytes()
    return made


NESTED = {"q4km": "Q4_K", "q6kh": "Q6_K", "q2khm": "Q2_K"}


def _nested_bytes(case: Case) -> bytes:
    """A block of 256 as its file format has it; a file's minima are subtracted."""
    lines = np.array(case["w"]).reshape(2, 4, 32)
    scale, factors = np.float16(case["scale"]).tobytes(), np.array(case["scale_factors"])
    if case["form"] == "q6kh":
        low, high = lines + 32 & 15, lines + 32 >> 4
        return _bytes(low[:, :2] | low[:, 2:] << 4, _pairs(high), factors) + scale
    minimum, minima = np.float16(-case["minimum"]).tobytes(), np.array(case["minimum_factors"])
    if case["form"] == "q2khm":
        return _bytes(factors | minima << 4, _pairs(lines)) + scale + minimum
    tops = factors[4:] >> 4 << 6, minima[4:] >> 4 << 6
    sixes = _bytes(factors[:4] | tops[0], minima[:4] | tops[1], factors[4:] & 15 | (minima[4:] & 15) << 4)
    codes = lines.reshape(4, 2, 32)
    return scale + minimum + sixes + _bytes(codes[:, 0] | codes[:, 1] << 4)


def _bytes(*parts: NDArray[np.signedinteger]) -> bytes:
    return b"".join(part.astype(np.uint8).tobytes() for part in parts)


def _pairs(lines: NDArray[np.signedinteger]) -> NDArray[np.signedinteger]:
    """Four lines of 2-bit codes [2, 4, 32] in the bytes of one."""
    return lines[:, 0] | lines[:, 1] << 2 | lines[:, 2] << 4 | lines[:, 3] << 6


def every_isa(library: ctypes.CDLL, probes: list[Probe]) -> list[Isa]:
    """One for each instruction set of this CPU."""
    choices = native_choices(library, probes)
    return [
        Isa(library, probe, kernels(library, probe.name), choice) for probe, choice in zip(probes, choices, strict=True)
    ]
