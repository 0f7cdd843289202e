// Which instruction sets there are kernels for, and for each that cannot run here the reason.
// What it is not: a choice; backends/cpu/machine.py makes it. Invariant: what has no reason against it runs here, and has
// been tried where a CPU's word is not enough (AMX).
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace pelton {

struct InstructionSet {
    const char* name;
    const Kernels* kernels;  // null where it cannot run
    std::string refusal;     // why; empty: it runs here
    bool wanting = false;    // the CPU has it, and yet it cannot run: worth a word to the user
};

// All that this processor family has, best first.
const std::vector<InstructionSet>& instruction_sets();

// The kernels of one that runs here. Throws std::invalid_argument, which says why not.
const Kernels& kernels_named(const std::string& name);

// Whether products of random numbers, denormals among them, are the same bits as the portable kernels'.
bool products_agree(const Kernels& kernels);

}  // namespace pelton
