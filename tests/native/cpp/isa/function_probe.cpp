// Doors to functions inside the kernels (exp, the fp64 exp and log, the noise), compiled once for each ISA from the
// kernels' own sources. What it is not: a copy of them. The namespaces get other names here, so that the linker does not
// mix these functions with those of isa/kernels.cpp.
#define portable function_probe_portable
#define avx2 function_probe_avx2
#define avx512 function_probe_avx512
#define neon function_probe_neon

#include <vector>

#include "isa/simd.h"
#include "kernels.h"

namespace pelton::PELTON_NS {

#include "isa/choose.inl"

}  // namespace pelton::PELTON_NS

using namespace pelton;
using namespace pelton::PELTON_NS;

#define GLUE2(a, b) a##b
#define GLUE(a, b) GLUE2(a, b)
#define DOOR(name) extern "C" void GLUE(PELTON_NS, _##name)

DOOR(exp)(const float* x, int n, float* out) {
    FlushDenormals guard;
    for (int i = 0; i < n; ++i) store_part(out + i, PELTON_NS::exp(set1(x[i])), 1);
}

DOOR(exp_double)(const double* x, int n, double* out) {
    FlushDenormals guard;
    for (int i = 0; i < n; ++i) out[i] = exp_double(x[i]);
}

DOOR(log_double)(const double* x, int n, double* out) {
    FlushDenormals guard;
    for (int i = 0; i < n; ++i) out[i] = log_double(x[i]);
}

// The words of 64 tokens, from token 64 * group on.
DOOR(noise_words)(const Sampling* wish, int group, uint32_t* out) {
    noise_words(*wish, group, out);
}

DOOR(gumbel)(const uint32_t* words, int n, double* out) {
    FlushDenormals guard;
    for (int i = 0; i < n; ++i) out[i] = gumbel(words[i]);
}

DOOR(edit_row)(const float* logits, int vocab, const Sampling* wish, const Edit* edits, int num_edits, float* out) {
    FlushDenormals guard;
    std::vector<double> scratch(choose_scratch_bytes(vocab) / sizeof(double) + 1);
    const float* row = edit_row(logits, vocab, *wish, {edits, num_edits}, scratch.data());
    std::memcpy(out, row, static_cast<size_t>(vocab) * sizeof(float));
}
