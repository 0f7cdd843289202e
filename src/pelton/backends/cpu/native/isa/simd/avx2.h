// Sixteen lanes in two AVX2 registers. What it is not: included by itself; simd.h does, inside the namespace of the
// instruction set. Invariant: each function does what the one of its name in portable.h does, to the bit.

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
template <int I> inline V byte(U codes) {
    auto one = [](__m256i c) { return _mm256_cvtepi32_ps(_mm256_srai_epi32(I < 3 ? _mm256_slli_epi32(c, 24 - 8 * I) : c, 24)); };
    return {one(codes.a), one(codes.b)};
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
