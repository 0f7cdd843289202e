// Sixteen lanes in one AVX-512 register. What it is not: included by itself; simd.h does, inside the namespace of the
// instruction set. Invariant: each function does what the one of its name in portable.h does, to the bit.

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
// Byte number I (0..3) of each lane, with its sign.
template <int I> inline V byte(U codes) {
    return {_mm512_cvtepi32_ps(_mm512_srai_epi32(I < 3 ? _mm512_slli_epi32(codes.v, 24 - 8 * I) : codes.v, 24))};
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
