// What the arithmetic units give when nothing waits for memory: one loop for each instruction that products can be made of.
// Not a claim that kernels use it: order 1 excludes some (docs/numerics.md).
#include "available.h"
#include "probe.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pelton {

namespace {

void keep(const void* p) { asm volatile("" ::"r"(p) : "memory"); }

#if defined(__x86_64__)

// A chain for each of CHAINS registers hides the latency of the instruction.
[[gnu::target("avx2,fma")]] uint64_t fma_avx2(uint64_t rounds) {
    constexpr int CHAINS = 12;
    __m256 sums[CHAINS];
    for (auto& sum : sums) sum = _mm256_setzero_ps();
    __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
    for (uint64_t i = 0; i < rounds; ++i) {
        asm volatile("" : "+x"(a), "+x"(b));
        for (auto& sum : sums) sum = _mm256_fmadd_ps(a, b, sum);
    }
    keep(sums);
    return rounds * CHAINS * 8 * 2;
}

[[gnu::target("avx512f")]] uint64_t fma_avx512(uint64_t rounds) {
    constexpr int CHAINS = 16;
    __m512 sums[CHAINS];
    for (auto& sum : sums) sum = _mm512_setzero_ps();
    __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
    for (uint64_t i = 0; i < rounds; ++i) {
        asm volatile("" : "+v"(a), "+v"(b));
        for (auto& sum : sums) sum = _mm512_fmadd_ps(a, b, sum);
    }
    keep(sums);
    return rounds * CHAINS * 16 * 2;
}

[[gnu::target("avx512f,avx512bf16")]] uint64_t dot_bf16(uint64_t rounds) {
    constexpr int CHAINS = 16;
    __m512 sums[CHAINS];
    for (auto& sum : sums) sum = _mm512_setzero_ps();
    __m512i a = _mm512_set1_epi16(0x3F00), b = _mm512_set1_epi16(0x3E80);
    for (uint64_t i = 0; i < rounds; ++i) {
        asm volatile("" : "+v"(a), "+v"(b));
        for (auto& sum : sums) sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
    }
    keep(sums);
    return rounds * CHAINS * 32 * 2;
}

[[gnu::target("avx512f,avx512vnni")]] uint64_t dot_int8(uint64_t rounds) {
    constexpr int CHAINS = 16;
    __m512i sums[CHAINS];
    for (auto& sum : sums) sum = _mm512_setzero_si512();
    __m512i a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(2);
    for (uint64_t i = 0; i < rounds; ++i) {
        asm volatile("" : "+v"(a), "+v"(b));
        for (auto& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, b);
    }
    keep(sums);
    return rounds * CHAINS * 64 * 2;
}

#if defined(PELTON_HAS_AMX)

// Eight whole tiles of 16 rows of 64 bytes.
struct TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Four accumulators, two tiles of each factor, as a product of two by two tiles has them. The configuration is an operand
// of all its bytes: a compiler that does not know which are read leaves the stores out.
#define PELTON_TILES(INSTRUCTION, OPS)                                                                              \
    const TileConfig config;                                                                                        \
    asm volatile("ldtilecfg %0" ::"m"(config));                                                                     \
    asm volatile("tilezero %tmm0\n tilezero %tmm1\n tilezero %tmm2\n tilezero %tmm3\n"                              \
                 "tilezero %tmm4\n tilezero %tmm5\n tilezero %tmm6\n tilezero %tmm7");                              \
    for (uint64_t i = 0; i < rounds; ++i)                                                                           \
        asm volatile(INSTRUCTION " %tmm6, %tmm4, %tmm0\n" INSTRUCTION " %tmm7, %tmm4, %tmm1\n"                      \
                     INSTRUCTION " %tmm6, %tmm5, %tmm2\n" INSTRUCTION " %tmm7, %tmm5, %tmm3");                      \
    asm volatile("tilerelease");                                                                                    \
    return rounds * 4 * (OPS)

uint64_t tiles_bf16(uint64_t rounds) { PELTON_TILES("tdpbf16ps", 16 * 16 * 32 * 2); }
uint64_t tiles_int8(uint64_t rounds) { PELTON_TILES("tdpbssd", 16 * 16 * 64 * 2); }

#endif

#elif defined(__aarch64__)

uint64_t fma_neon(uint64_t rounds) {
    constexpr int LANES = 16 * 4;
    float sums[LANES] = {};
    float a = 0.5f, b = 0.25f;
    for (uint64_t i = 0; i < rounds; ++i) {
        asm volatile("" : "+w"(a), "+w"(b));
        for (float& sum : sums) sum = __builtin_fmaf(a, b, sum);
    }
    keep(sums);
    return rounds * LANES * 2;
}

#endif

}  // namespace

std::vector<Peak> peaks() {
    std::vector<Peak> found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back({"avx2 fp32 fma", fma_avx2});
    if (__builtin_cpu_supports("avx512f")) found.push_back({"avx512 fp32 fma", fma_avx512});
    if (__builtin_cpu_supports("avx512bf16")) found.push_back({"avx512 bf16 dot", dot_bf16});
    if (__builtin_cpu_supports("avx512vnni")) found.push_back({"avx512 int8 dot", dot_int8});
#if defined(PELTON_HAS_AMX)
    for (const InstructionSet& set : instruction_sets())
        if (set.kernels && set.name == std::string("amx")) {
            found.push_back({"amx bf16 tiles", tiles_bf16});
            found.push_back({"amx int8 tiles", tiles_int8});
        }
#endif
#elif defined(__aarch64__)
    found.push_back({"neon fp32 fma", fma_neon});
#endif
    return found;
}

std::vector<double> Probe::peak(const Peak& peak, double seconds) {
    constexpr uint64_t ROUNDS = 4096;  // some tens of microseconds
    return rates(seconds, [&](int, double until) {
        const double start = probe_seconds();
        double now = start;
        uint64_t done = 0;
        do {
            done += peak.run(ROUNDS);
            now = probe_seconds();
        } while (now < until);
        return static_cast<double>(done) / (now - start);
    });
}

}  // namespace pelton
