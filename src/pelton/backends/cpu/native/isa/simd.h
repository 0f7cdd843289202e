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
#endif

#if defined(PELTON_ISA_AVX512)
#define PELTON_NS avx512
#elif defined(PELTON_ISA_AVX2)
#define PELTON_NS avx2
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

struct V {
    __m512 v;
};
struct U {
    __m512i v;
};

inline V zero() { return {_mm512_setzero_ps()}; }
inline V set1(float x) { return {_mm512_set1_ps(x)}; }
inline V load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, V a) { _mm512_storeu_ps(p, a.v); }
inline V add(V a, V b) { return {_mm512_add_ps(a.v, b.v)}; }
inline V sub(V a, V b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline V mul(V a, V b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline V div(V a, V b) { return {_mm512_div_ps(a.v, b.v)}; }
inline V fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline V max(V a, V b) { return {_mm512_max_ps(a.v, b.v)}; }
inline V min(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
inline U bits(V a) { return {_mm512_castps_si512(a.v)}; }
inline V floats(U a) { return {_mm512_castsi512_ps(a.v)}; }
inline U uset1(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
inline U uload(const void* p) { return {_mm512_loadu_si512(p)}; }
inline U uadd(U a, U b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline U usub(U a, U b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline U uand(U a, U b) { return {_mm512_and_si512(a.v, b.v)}; }
template <int N> inline U shl(U a) { return {_mm512_slli_epi32(a.v, N)}; }
template <int N> inline U shr(U a) { return {_mm512_srli_epi32(a.v, N)}; }
// Lanes where x is smaller than y take a, others (NaN included) b.
inline V where_less(V x, V y, V a, V b) { return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ), b.v, a.v)}; }
inline V where_nan(V x, V a, V b) { return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), b.v, a.v)}; }
// Lanes [first, last) take a, others b.
inline V where_lanes(int first, int last, V a, V b) {
    auto upto = [](int n) { return n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u; };
    return {_mm512_mask_blend_ps(static_cast<__mmask16>(upto(last) & ~upto(first)), b.v, a.v)};
}
inline V load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
inline V load_i8(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// Code number I (0..7) of each lane's eight 4-bit codes, less MINUS: the look-up ignores all but four bits of a lane.
template <int I, int MINUS> inline V nibble(U codes) {
    const __m512 codes_as_floats = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 table = _mm512_sub_ps(codes_as_floats, _mm512_set1_ps(MINUS));
    return {_mm512_permutexvar_ps(I ? _mm512_srli_epi32(codes.v, 4 * I) : codes.v, table)};
}
// What code number I of each lane stands for in IQ4_LEVELS.
template <int I> inline V level(U codes) {
    const __m512 table = _mm512_setr_ps(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    return {_mm512_permutexvar_ps(I ? _mm512_srli_epi32(codes.v, 4 * I) : codes.v, table)};
}
inline U load_u16(const uint16_t* p) { return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
// Code number I (0..7) of each lane's eight 2-bit codes; here too the look-up sees the code above, which changes nothing.
template <int I> inline V crumb(U codes) {
    const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
    return {_mm512_permutexvar_ps(I ? _mm512_srli_epi32(codes.v, 2 * I) : codes.v, table)};
}

#elif defined(PELTON_ISA_AVX2)

struct V {
    __m256 a, b;
};
struct U {
    __m256i a, b;
};

inline V zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline V set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, V x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline V add(V x, V y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline V sub(V x, V y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline V mul(V x, V y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline V div(V x, V y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline V fma(V x, V y, V z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline V max(V x, V y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline V min(V x, V y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline U bits(V x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
inline V floats(U x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
inline U uset1(uint32_t x) { return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))}; }
inline U uload(const void* p) {
    auto q = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
inline U uadd(U x, U y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline U usub(U x, U y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
inline U uand(U x, U y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
template <int N> inline U shl(U x) { return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)}; }
template <int N> inline U shr(U x) { return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)}; }
inline V where_less(V x, V y, V a, V b) {
    return {_mm256_blendv_ps(b.a, a.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
            _mm256_blendv_ps(b.b, a.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
inline V where_nan(V x, V a, V b) {
    return {_mm256_blendv_ps(b.a, a.a, _mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q)),
            _mm256_blendv_ps(b.b, a.b, _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q))};
}
inline V where_lanes(int first, int last, V a, V b) {
    const __m256i low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), high = _mm256_add_epi32(low, _mm256_set1_epi32(8));
    auto mask = [&](__m256i lane) {
        return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), lane),
                                                       _mm256_cmpgt_epi32(_mm256_set1_epi32(last), lane)));
    };
    return {_mm256_blendv_ps(b.a, a.a, mask(low)), _mm256_blendv_ps(b.b, a.b, mask(high))};
}
inline V load_f16(const uint16_t* p) {
    auto q = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
inline V load_i8(const int8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8))))};
}
template <int I, int MINUS> inline V nibble(U codes) {
    auto one = [](__m256i c) {
        if constexpr (I > 0) c = _mm256_srli_epi32(c, 4 * I);
        if constexpr (I < 7) c = _mm256_and_si256(c, _mm256_set1_epi32(15));
        if constexpr (MINUS != 0) c = _mm256_sub_epi32(c, _mm256_set1_epi32(MINUS));
        return _mm256_cvtepi32_ps(c);
    };
    return {one(codes.a), one(codes.b)};
}
template <int I> inline V level(U codes) {
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(IQ4_LEVELS)));
    auto one = [&](__m256i c) {
        // All four codes of a lane that are even (or odd) at once, a byte each; then one of these bytes with its sign.
        const __m256i nibbles = _mm256_and_si256(I % 2 ? _mm256_srli_epi32(c, 4) : c, _mm256_set1_epi8(15));
        const __m256i levels = _mm256_shuffle_epi8(table, nibbles);
        return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(levels, 24 - I / 2 * 8), 24));
    };
    return {one(codes.a), one(codes.b)};
}
inline U load_u16(const uint16_t* p) {
    auto q = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))};
}
template <int I> inline V crumb(U codes) {
    auto one = [](__m256i c) { return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(c, 2 * I), _mm256_set1_epi32(3))); };
    return {one(codes.a), one(codes.b)};
}

#else

struct V {
    float v[16];
};
struct U {
    uint32_t v[16];
};

template <class F> inline V each(F f) {
    V r;
    for (int i = 0; i < 16; ++i) r.v[i] = f(i);
    return r;
}
template <class F> inline U each_u(F f) {
    U r;
    for (int i = 0; i < 16; ++i) r.v[i] = f(i);
    return r;
}
inline V zero() { return each([](int) { return 0.0f; }); }
inline V set1(float x) { return each([=](int) { return x; }); }
inline V load(const float* p) { return each([=](int i) { return p[i]; }); }
inline void store(float* p, V a) { std::memcpy(p, a.v, sizeof a.v); }
inline V add(V a, V b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
inline V sub(V a, V b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
inline V mul(V a, V b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
inline V div(V a, V b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
inline V fma(V a, V b, V c) { return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); }); }
inline V max(V a, V b) { return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
inline V min(V a, V b) { return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
inline U bits(V a) { return each_u([&](int i) { return bits_of(a.v[i]); }); }
inline V floats(U a) { return each([&](int i) { return float_of(a.v[i]); }); }
inline U uset1(uint32_t x) { return each_u([=](int) { return x; }); }
inline U uload(const void* p) {
    U r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
inline U uadd(U a, U b) { return each_u([&](int i) { return a.v[i] + b.v[i]; }); }
inline U usub(U a, U b) { return each_u([&](int i) { return a.v[i] - b.v[i]; }); }
inline U uand(U a, U b) { return each_u([&](int i) { return a.v[i] & b.v[i]; }); }
template <int N> inline U shl(U a) { return each_u([&](int i) { return a.v[i] << N; }); }
template <int N> inline U shr(U a) { return each_u([&](int i) { return a.v[i] >> N; }); }
inline V where_less(V x, V y, V a, V b) { return each([&](int i) { return x.v[i] < y.v[i] ? a.v[i] : b.v[i]; }); }
inline V where_nan(V x, V a, V b) { return each([&](int i) { return x.v[i] != x.v[i] ? a.v[i] : b.v[i]; }); }
inline V where_lanes(int first, int last, V a, V b) { return each([&](int i) { return i >= first && i < last ? a.v[i] : b.v[i]; }); }
inline V load_f16(const uint16_t* p) { return each([=](int i) { return from_f16(p[i]); }); }
inline V load_i8(const int8_t* p) { return each([=](int i) { return static_cast<float>(p[i]); }); }
template <int I, int MINUS> inline V nibble(U codes) {
    return each([&](int i) { return static_cast<float>(static_cast<int>((codes.v[i] >> (4 * I)) & 15u) - MINUS); });
}
template <int I> inline V level(U codes) {
    return each([&](int i) { return static_cast<float>(IQ4_LEVELS[(codes.v[i] >> (4 * I)) & 15u]); });
}
inline U load_u16(const uint16_t* p) { return each_u([=](int i) { return p[i]; }); }
template <int I> inline V crumb(U codes) {
    return each([&](int i) { return static_cast<float>((codes.v[i] >> (2 * I)) & 3u); });
}

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
