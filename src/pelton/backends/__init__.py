"""Backends: what executes a Program. `reference` (torch, the oracle) and `cpu` (native kernels)."""

from pelton.backends.backend import Backend
from pelton.core.registry import Registry

BACKENDS: Registry[type[Backend]] = Registry(
    "backend",
    {
        "cpu": "pelton.backends.cpu.backend:CpuBackend",
        "reference": "pelton.backends.reference.backend:ReferenceBackend",
    },
)
