"""The instruction sets that the kernel tests compile for, by number and with their compiler's flags.

What it is not: what a user may choose. `amx_emulated` is the kernels of AMX on a matrix unit in plain C++: only tests
have it, since few machines have the real one.
"""

import platform
from pathlib import Path

_ON_X86 = platform.machine() in ("x86_64", "AMD64")
_ON_ARM = platform.machine() in ("aarch64", "arm64")
# gcc 12's own header warns of what it leaves undefined on purpose.
_AVX512 = (
    "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mavx2 -mf16c -Wno-uninitialized -Wno-maybe-uninitialized "
    "-DPELTON_ISA_AVX512=1"
).split()


def _cpu_has(*flags: str) -> bool:
    try:
        words = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return False
    return set(flags) <= set(words)


# A machine without AVX-512 still tests the logic of the AMX kernels.
PLAIN_BASE = not _cpu_has("avx512f", "avx512bw", "avx512dq", "avx512vl")
# Name -> source of its kernels and flags; the order is that of tests/native/cpp/tables.h.
TARGETS: dict[str, tuple[str, list[str]]] = {"portable": ("kernels", ["-DPELTON_ISA_PORTABLE=1"])}
if _ON_X86:
    TARGETS |= {
        "avx2": ("kernels", "-mavx2 -mfma -mf16c -DPELTON_ISA_AVX2=1".split()),
        "avx512": ("kernels", _AVX512),
        "avx512_vnni": ("int8", [*_AVX512, "-mavx512vnni", "-DPELTON_ISA_AVX512_VNNI=1"]),
        "avx512_bf16": ("bf16", [*_AVX512, "-mavx512bf16", "-DPELTON_ISA_AVX512_BF16=1"]),
        "amx_emulated": ("amx/kernels", ["-DPELTON_ISA_AMX_EMULATED=1", *([] if PLAIN_BASE else _AVX512)]),
    }
    if _cpu_has("amx_tile", "amx_bf16", "amx_int8"):
        TARGETS["amx"] = ("amx/kernels", ["-mamx-tile", "-mamx-bf16", "-mamx-int8", "-DPELTON_ISA_AMX=1", *_AVX512])
elif _ON_ARM:
    TARGETS["neon"] = ("kernels", ["-DPELTON_ISA_NEON=1"])
ISAS = tuple(TARGETS)
INTEGER_SETS = ("avx512_vnni",)  # whose other kernels are those of the set they are built on
WHOLE_SETS = tuple(name for name in ISAS if name not in INTEGER_SETS)
# For what is compiled once: what tests/native/cpp/tables.h and available.cpp need to know.
DEFINITIONS = [
    *(["-DPELTON_PROBE_PLAIN_BASE"] if PLAIN_BASE else []),
    *(["-DPELTON_HAS_AMX"] if "amx" in TARGETS else []),
]
