// Sixteen fp32 lanes on every ISA, so that each kernel is written once and gives the same bits everywhere.
// What it is not: a general library. Every operation is one correctly rounded IEEE operation per lane (or a fixed
// sequence of them); sums across lanes do not exist here, because the order of a sum is part of the numerics (order 1).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "../kernels.h"

#if defined(PELTON_ISA_AVX512) || defined(PELTON_ISA_AVX2)
#include <immintrin.h>
#elif defined(PELTON_ISA_NEON)
#include <arm_neon.h>
#endif

#if defined(PELTON_ISA_AMX_EMULATED)  // in tests only
#define PELTON_NS amx_emulated
#elif defined(PELTON_ISA_AMX)
#define PELTON_NS amx
#elif defined(PELTON_ISA_AVX512_BF16)
#define PELTON_NS avx512_bf16
#elif defined(PELTON_ISA_AVX512_VNNI)
#define PELTON_NS avx512_vnni
#elif defined(PELTON_ISA_AVX512)
#define PELTON_NS avx512
#elif defined(PELTON_ISA_AVX2)
#define PELTON_NS avx2
#elif defined(PELTON_ISA_NEON)
#define PELTON_NS neon
#else
#define PELTON_NS portable
#endif

namespace pelton::PELTON_NS {

constexpr int LANES = 16;

inline uint32_t bits_of(float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    return u;
}

inline float float_of(uint32_t u) {
    float x;
    std::memcpy(&x, &u, 4);
    return x;
}

// Round to nearest even to bf16, as the upper half of an fp32; NaN stays NaN.
inline uint16_t to_bf16(float x) {
    uint32_t u = bits_of(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
    return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

inline float from_bf16(uint16_t h) { return float_of(static_cast<uint32_t>(h) << 16); }

// IEEE half to fp32; exact for all inputs, subnormals included (no arithmetic that FTZ could touch).
inline float from_f16(uint16_t h) {
    uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 1023u;
    if (exponent == 31) return float_of(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0u));
    if (exponent) return float_of(sign | ((exponent + 112u) << 23) | (mantissa << 13));
    if (!mantissa) return float_of(sign);
    int shift = __builtin_clz(mantissa) - 21;
    return float_of(sign | ((113u - static_cast<uint32_t>(shift)) << 23) | (((mantissa << shift) & 1023u) << 13));
}

#if defined(PELTON_ISA_AVX512)
#include "simd/avx512.h"
#elif defined(PELTON_ISA_AVX2)
#include "simd/avx2.h"
#elif defined(PELTON_ISA_NEON)
#include "simd/neon.h"
#else
#include "simd/portable.h"
#endif

// ---- the same source on every ISA from here on ----

// 32 bf16 as 16 pairs: lane j of even is p[2j], of odd p[2j + 1].
inline void load_pairs(const uint16_t* p, V& even, V& odd) {
    U both = uload(p);
    even = floats(shl<16>(both));
    odd = floats(uand(both, uset1(0xffff0000u)));
}

// The reverse; every lane must hold a bf16 value.
inline void store_pairs(uint16_t* p, V even, V odd) {
    store(reinterpret_cast<float*>(p), floats(uadd(shr<16>(bits(even)), bits(odd))));
}

// Each lane rounded to the nearest bf16 (ties to even), kept as fp32; NaN stays NaN.
inline V round_bf16(V x) {
    U u = bits(x);
    U rounded = uand(uadd(u, uadd(uset1(0x7fffu), uand(shr<16>(u), uset1(1)))), uset1(0xffff0000u));
    return where_nan(x, x, floats(rounded));
}

// Lanes [0, n) of p, zeros behind.
inline V load_part(const float* p, int n) {
    if (n >= 16) return load(p);
    float part[16] = {};
    for (int i = 0; i < n; ++i) part[i] = p[i];
    return load(part);
}

inline void store_part(float* p, V x, int n) {
    if (n >= 16) return store(p, x);
    float part[16];
    store(part, x);
    for (int i = 0; i < n; ++i) p[i] = part[i];
}

// e^x to about 1 ulp: x = n ln 2 + r, polynomial in r, exponent added. exp(0) = 1 exactly; below -87.3 it is 0; above
// 88.7 infinity; NaN stays NaN.
inline V exp(V x) {
    const V low = set1(-87.33654f), high = set1(88.72283f), magic = set1(12582912.0f);
    V c = min(max(x, low), high);
    V shifted = fma(c, set1(1.44269504f), magic);  // n in the low mantissa bits
    V n = sub(shifted, magic);
    V r = fma(n, set1(-0.693145752f), c);
    r = fma(n, set1(-1.42860677e-6f), r);
    V p = set1(1.38888889e-3f);
    p = fma(p, r, set1(8.33333333e-3f));
    p = fma(p, r, set1(4.16666667e-2f));
    p = fma(p, r, set1(1.66666667e-1f));
    p = fma(p, r, set1(0.5f));
    p = fma(p, r, set1(1.0f));
    p = fma(p, r, set1(1.0f));
    // 2^n in two factors, since n reaches 128 at the upper end.
    U half = shr<1>(usub(uadd(bits(shifted), uset1(256)), uset1(0x4b400000u)));
    U rest = usub(usub(bits(shifted), uset1(0x4b400000u)), usub(half, uset1(128)));
    V first = floats(shl<23>(usub(half, uset1(1)))), second = floats(shl<23>(uadd(rest, uset1(127))));
    V y = mul(mul(p, first), second);
    y = where_less(x, low, zero(), y);
    y = where_less(high, x, floats(uset1(0x7f800000u)), y);
    return where_nan(x, x, y);
}

}  // namespace pelton::PELTON_NS
