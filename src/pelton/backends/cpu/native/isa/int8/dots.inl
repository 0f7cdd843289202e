// Sums of products of bytes, four to a word, one word to a lane; exact on every ISA.
// What it is not: arithmetic with an order. Codes are bytes from 0 to MOST, or, where MOST is 0, wide ones: signed
// numbers plus WIDE_OFFSET. x is from -127 to 127, so no sum of two products with a narrow or a signed code leaves 16
// bits.

#if defined(PELTON_ISA_AVX512)
inline V from_i32(U a) {
    return {_mm512_cvtepi32_ps(a.v)};
}
#elif defined(PELTON_ISA_AVX2)
inline V from_i32(U x) {
    return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}
#elif defined(PELTON_ISA_NEON)
inline V from_i32(U a) {
    return each([&](int i) { return vcvtq_f32_s32(vreinterpretq_s32_u32(a.v[i])); });
}
#else
inline V from_i32(U a) {
    return each([&](int i) { return static_cast<float>(static_cast<int32_t>(a.v[i])); });
}
#endif

inline U word_at(const int8_t* x, int i) {
    uint32_t word;
    std::memcpy(&word, x + 4 * i, 4);
    return uset1(word);
}

// COUNT products each of the words w with x[0..4 COUNT), the same for all lanes, onto acc.
#if defined(PELTON_ISA_AVX512) && defined(__AVX512VNNI__)
constexpr int WIDE_OFFSET = 128;
inline U raised(U codes) { return {_mm512_xor_si512(codes.v, _mm512_set1_epi8(-128))}; }
constexpr int words_together(int) { return 2; }
template <int MOST, int COUNT>
[[gnu::always_inline]] inline U dots(U acc, const U* w, const int8_t* x) {
    for (int i = 0; i < COUNT; ++i) acc.v = _mm512_dpbusd_epi32(acc.v, w[i].v, word_at(x, i).v);
    return acc;
}
#elif defined(PELTON_ISA_AVX512) || defined(PELTON_ISA_AVX2)
constexpr int WIDE_OFFSET = 0;
inline U raised(U codes) { return codes; }
// So many sums of two products stay within 16 bits.
constexpr int words_together(int most) { return most == 0 || most > 31 ? 2 : most > 15 ? 4 : 8; }
#if defined(PELTON_ISA_AVX512)
using Half = __m512i;
inline Half pairs(Half w, Half x) { return _mm512_maddubs_epi16(w, x); }
inline Half sum16(Half a, Half b) { return _mm512_add_epi16(a, b); }
inline Half sum32(Half acc, Half pairs) {
    return _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
inline Half magnitude(Half w) { return _mm512_abs_epi8(w); }
inline Half signed_by(Half x, Half w) {
    return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
}
template <class F> inline U each_half(U a, F f) { return {f(a.v, &U::v)}; }
#else
using Half = __m256i;
inline Half pairs(Half w, Half x) { return _mm256_maddubs_epi16(w, x); }
inline Half sum16(Half a, Half b) { return _mm256_add_epi16(a, b); }
inline Half sum32(Half acc, Half pairs) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline Half magnitude(Half w) { return _mm256_abs_epi8(w); }
inline Half signed_by(Half x, Half w) { return _mm256_sign_epi8(x, w); }
template <class F> inline U each_half(U a, F f) { return {f(a.a, &U::a), f(a.b, &U::b)}; }
#endif
template <int MOST, int COUNT>
[[gnu::always_inline]] inline U dots(U acc, const U* w, const int8_t* x) {
    return each_half(acc, [&](Half a, Half U::*half) __attribute__((always_inline)) {
        if constexpr (MOST == 0) {  // |w| is at most 128, so x takes the sign
            for (int i = 0; i < COUNT; ++i) {
                const Half code = w[i].*half;
                a = sum32(a, pairs(magnitude(code), signed_by(word_at(x, i).*half, code)));
            }
            return a;
        } else {
            Half sum = pairs(w[0].*half, word_at(x, 0).*half);
            for (int i = 1; i < COUNT; ++i) sum = sum16(sum, pairs(w[i].*half, word_at(x, i).*half));
            return sum32(a, sum);
        }
    });
}
#else
constexpr int WIDE_OFFSET = 0;
inline U raised(U codes) { return codes; }
constexpr int words_together(int) { return 2; }
#if defined(PELTON_ISA_NEON)
template <int MOST, int COUNT>
[[gnu::always_inline]] inline U dots(U acc, const U* w, const int8_t* x) {  // narrow codes have no sign either
    for (int i = 0; i < COUNT; ++i) {
        const int8x16_t four = vreinterpretq_s8_u32(word_at(x, i).v[0]);
        acc = each_u([&](int quarter) {
            const int8x16_t codes = vreinterpretq_s8_u32(w[i].v[quarter]);
            const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(codes), vget_low_s8(four)));
            const int32x4_t high = vpaddlq_s16(vmull_high_s8(codes, four));
            return vaddq_u32(acc.v[quarter], vreinterpretq_u32_s32(vpaddq_s32(low, high)));
        });
    }
    return acc;
}
#else
template <int MOST, int COUNT>
inline U dots(U acc, const U* w, const int8_t* x) {
    return each_u([&](int i) {
        int32_t sum = static_cast<int32_t>(acc.v[i]);
        for (int k = 0; k < 4 * COUNT; ++k)
            sum += static_cast<int8_t>(w[k / 4].v[i] >> (8 * (k % 4)) & 255u) * x[k]; // narrow ones have no sign either
        return static_cast<uint32_t>(sum);
    });
}
#endif
#endif
