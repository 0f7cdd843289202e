// What each fixed case costs: instructions, under callgrind, or products of the matrix unit, in plain C++.
// Compiled by counts.py with COUNT_TILES or without; "case<tab>count" a line, where it counts by itself.
#include <cstdio>

#include "cases.h"

#if defined(COUNT_TILES)

namespace pelton {
const Kernels& kernels_amx_emulated();
uint64_t amx_emulated_products();
}  // namespace pelton

int main() {
    pelton::FlushDenormals flush;
    cases::every(pelton::kernels_amx_emulated(), [](const std::string& name, const std::function<void()>& run) {
        const uint64_t before = pelton::amx_emulated_products();
        run();
        std::printf("%s\t%llu\n", name.c_str(), static_cast<unsigned long long>(pelton::amx_emulated_products() - before));
    });
}

#else

#include <valgrind/callgrind.h>

int main() {
    pelton::FlushDenormals flush;
    cases::every(pelton::kernels_avx2(), [](const std::string& name, const std::function<void()>& run) {
        run();  // what is done only once is done
        CALLGRIND_ZERO_STATS;
        run();
        CALLGRIND_DUMP_STATS_AT(name.c_str());
    });
}

#endif
