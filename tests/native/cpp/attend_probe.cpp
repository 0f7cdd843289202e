// Doors through which tests/native/test_attend*.py reach the attention kernels of one ISA by ctypes.
// What it is not: part of the package. Denormals are flushed inside every call, as in the executable.
#include "kernels.h"

namespace {

const pelton::Kernels& attend_kernels(int isa) {
#if defined(__x86_64__)
    if (isa == 2) return pelton::kernels_avx512();
    if (isa == 1) return pelton::kernels_avx2();
#endif
    static_cast<void>(isa);
    return pelton::kernels_portable();
}

}  // namespace

extern "C" {

void attend_probe_chunk(int isa, const pelton::AttendArgs* args, int chunk, float* partial) {
    pelton::FlushDenormals guard;
    attend_kernels(isa).attend_chunk(*args, chunk, partial);
}

void attend_probe_merge(int isa, float* into, const float* later, int count, int value_dim) {
    pelton::FlushDenormals guard;
    attend_kernels(isa).attend_merge(into, later, count, value_dim);
}

void attend_probe_finish(int isa, const float* state, int value_dim, float* out) {
    pelton::FlushDenormals guard;
    attend_kernels(isa).attend_finish(state, value_dim, out);
}
}
