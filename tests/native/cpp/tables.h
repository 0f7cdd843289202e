// The kernels by number, in the order of tests/native/isas.py.
// What it is not: part of the product. Invariant: no code of an instruction set runs where this CPU lacks it.
#pragma once

#include <stdexcept>

#include "available.h"
#include "kernels.h"

namespace pelton {

const Kernels& kernels_amx_emulated();
uint64_t amx_emulated_products();
bool amx_emulated_released();

inline constexpr const char* ISA_NAMES[] = {
    "portable",
#if defined(__x86_64__)
    "avx2",
    "avx512",
    "avx512_vnni",
    "avx512_bf16",
    "amx_emulated",  // the kernels of AMX on a matrix unit in plain C++
    "amx",
#elif defined(__aarch64__)
    "neon",
#endif
};

inline bool isa_emulated(int isa) { return ISA_NAMES[isa] == std::string("amx_emulated"); }

// Of the instruction set whose kernels it is built on: that itself, but for AMX.
inline const char* isa_base(int isa) {
#if defined(PELTON_PROBE_PLAIN_BASE)
    if (isa_emulated(isa)) return "portable";
#endif
    return isa >= 3 ? "avx512" : ISA_NAMES[isa];
}

inline bool isa_supported(int isa) {
    const std::string name = isa_emulated(isa) ? isa_base(isa) : ISA_NAMES[isa];
    for (const InstructionSet& set : instruction_sets())
        if (name == set.name) return set.refusal.empty();
    return false;
}

inline const Kernels& kernels_at(int isa) {
#if defined(__x86_64__)
    if (isa_emulated(isa)) return kernels_amx_emulated();
#endif
    return kernels_named(ISA_NAMES[isa]);
}

}  // namespace pelton
