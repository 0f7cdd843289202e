"""Kernels of one row beside those of probe.py: the centred norm, an activation alone, logits scaled and capped.

What it is not: arithmetic. Each call checks that nothing was written behind the row's end.
"""

import ctypes

import numpy as np
from tests.native.probe import GUARD, Floats, Probe


def _pointer(array: Floats | None) -> ctypes.c_void_p | None:
    return None if array is None else ctypes.c_void_p(array.ctypes.data)


def _row(out: Floats) -> Floats:
    assert out[-1] == GUARD
    return out[:-1]


def layer_norm(probe: Probe, x: Floats, gain: Floats, bias: Floats | None, eps: float) -> Floats:
    """The centred norm of one row [n]."""
    (library, isa), out = probe.door, np.full(len(x) + 1, GUARD)
    pointers = (_pointer(x), _pointer(gain), _pointer(bias))
    library.probe_layer_norm(isa, *pointers, ctypes.c_float(eps), len(x), _pointer(out))
    return _row(out)


def activate(probe: Probe, x: Floats, activation: int) -> Floats:
    """activation(x), [n]; 0: silu, 1: gelu_tanh."""
    (library, isa), out = probe.door, np.full(len(x) + 1, GUARD)
    library.probe_activate(isa, _pointer(x), ctypes.c_size_t(len(x)), activation, _pointer(out))
    return _row(out)


def cap_logits(probe: Probe, x: Floats, scale: float, softcap: float) -> Floats:
    """x [n] times scale, then capped unless `softcap` is 0."""
    (library, isa), out = probe.door, np.append(x, GUARD)
    numbers = (ctypes.c_float(scale), ctypes.c_float(softcap))
    library.probe_cap_logits(isa, _pointer(out), ctypes.c_size_t(len(x)), *numbers)
    return _row(out)
