// The digests of every instruction set of a machine that another one pretends to be, and its answers to single functions.
// What it is not: a test; tests/native/test_cross.py compares. Arguments: "digests", or a function and its numbers follow on
// the standard input: how many, then so many hexadecimal floats.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tables.h"

extern "C" const char* probe_digests(int isa);

#define DOORS(isa)                                                              \
    extern "C" void function_probe_##isa##_exp(const float*, int, float*);       \
    extern "C" void function_probe_##isa##_exp_double(const double*, int, double*); \
    extern "C" void function_probe_##isa##_log_double(const double*, int, double*);
DOORS(neon)

namespace {

template <class T> void answer(void (*function)(const T*, int, T*), const std::vector<double>& given) {
    std::vector<T> x(given.begin(), given.end()), out(given.size());
    function(x.data(), static_cast<int>(x.size()), out.data());
    for (T y : out) std::printf("%a\n", static_cast<double>(y));
}

template <int ACTIVATION> void gated(const float* x, int n, float* out) {
    pelton::FlushDenormals flush;
    const std::vector<float> ones(static_cast<size_t>(n), 1.0f);
    pelton::kernels_named("neon").gated(x, ones.data(), static_cast<size_t>(n), ACTIVATION, out);
}

}  // namespace

int main(int count, char** words) {
    const std::string wish = count > 1 ? words[1] : "digests";
    if (wish == "digests") {
        for (const pelton::InstructionSet& set : pelton::instruction_sets())
            for (int isa = 0; isa < 2; ++isa)
                if (set.name == std::string(pelton::ISA_NAMES[isa])) std::printf("isa %s\n%s", set.name, probe_digests(isa));
        return 0;
    }
    std::vector<double> given;
    for (double x; std::scanf("%la", &x) == 1;) given.push_back(x);
    if (wish == "exp") answer<float>(function_probe_neon_exp, given);
    else if (wish == "exp_double") answer<double>(function_probe_neon_exp_double, given);
    else if (wish == "log_double") answer<double>(function_probe_neon_log_double, given);
    else if (wish == "silu") answer<float>(gated<0>, given);
    else if (wish == "gelu_tanh") answer<float>(gated<1>, given);
    else return 2;
    return 0;
}
