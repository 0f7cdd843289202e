// Codes of packed panels (kernels.h) as words of bytes, and what belongs to them. What it is not: products.

// Levels of four nibbles a lane, each plus `offset`.
#if defined(PELTON_ISA_AVX512)
inline U words_of_levels(U nibbles, int offset) {
    const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(IQ4_LEVELS));
    const __m128i table = _mm_add_epi8(levels, _mm_set1_epi8(static_cast<char>(offset)));
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), nibbles.v)};
}
// Bit 8 EIGHTH + 2 i + ODD of each lane to bit 4 of its byte i.
template <int EIGHTH, int ODD> inline U spread_bits(U bits) {
    const __m512i bytes = _mm512_shuffle_epi8(
        bits.v, _mm512_set4_epi32(0x0c0c0c0c + EIGHTH * 0x01010101, 0x08080808 + EIGHTH * 0x01010101,
                                  0x04040404 + EIGHTH * 0x01010101, EIGHTH * 0x01010101));
    return {_mm512_maskz_set1_epi8(_mm512_test_epi8_mask(bytes, _mm512_set1_epi32(0x40100401 << ODD)), 16)};
}
#elif defined(PELTON_ISA_AVX2)
inline U words_of_levels(U nibbles, int) {
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(IQ4_LEVELS)));
    return {_mm256_shuffle_epi8(table, nibbles.a), _mm256_shuffle_epi8(table, nibbles.b)};
}
template <int EIGHTH, int ODD> inline U spread_bits(U bits) {
    const __m256i place = _mm256_broadcastsi128_si256(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
    const __m256i from = _mm256_add_epi8(place, _mm256_set1_epi8(EIGHTH)), one = _mm256_set1_epi32(0x40100401 << ODD);
    auto half = [&](__m256i b) {
        const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(b, from), one), one);
        return _mm256_and_si256(set, _mm256_set1_epi8(16));
    };
    return {half(bits.a), half(bits.b)};
}
#else
struct Lanes {
    uint32_t at[LANES];
};
inline Lanes lanes_of(U a) {
    Lanes lanes;
    store(reinterpret_cast<float*>(lanes.at), floats(a));
    return lanes;
}
#if defined(PELTON_ISA_NEON)
inline U words_of_levels(U nibbles, int) {
    const uint8x16_t table = vreinterpretq_u8_s8(vld1q_s8(IQ4_LEVELS));
    return each_u([&](int i) { return vreinterpretq_u32_u8(vqtbl1q_u8(table, vreinterpretq_u8_u32(nibbles.v[i]))); });
}
#else
inline U words_of_levels(U nibbles, int) {
    return each_u([&](int i) {
        uint32_t word = 0;
        for (int k = 0; k < 32; k += 8)
            word |= static_cast<uint32_t>(static_cast<uint8_t>(IQ4_LEVELS[nibbles.v[i] >> k & 15u])) << k;
        return word;
    });
}
#endif
template <int EIGHTH, int ODD>
inline U spread_bits(U bits) {
    Lanes lanes = lanes_of(bits);
    for (uint32_t& lane : lanes.at) {
        const uint32_t eight = lane >> (8 * EIGHTH + ODD);
        lane = (eight & 1u) << 4 | (eight & 4u) << 10 | (eight & 16u) << 16 | (eight & 64u) << 22;
    }
    return uload(lanes.at);
}
#endif

// What a byte of a format holds at most; 0: it is wide.
constexpr int most_of(Format format) {
    const Layout& l = layout(format);
    switch (l.codes) {
    case Codes::nibbles:
        return l.levels ? 0 : 15;
    case Codes::fives:
        return 31;
    case Codes::sixes:
        return 63;
    case Codes::crumbs:
        return 3;
    case Codes::threes:
        return 7;
    default:
        return 0;
    }
}

// What its bytes have too much.
constexpr int offset_of(Format format) {
    return most_of(format) ? layout(format).minus : WIDE_OFFSET;
}

// Which copy of a row goes with a format's words.
constexpr bool in_fours(Format format) {
    return layout(format).codes == Codes::int8;
}

// Of eight nibbles or eight crumbs a lane the even ones and the odd ones.
inline void split_nibbles(U eight, U& even, U& odd) {
    even = uand(eight, uset1(0x0f0f0f0fu));
    odd = uand(shr<4>(eight), uset1(0x0f0f0f0fu));
}
inline void split_crumbs(U eight, U& even, U& odd) {
    const U halves = uand(uadd(eight, shl<8>(uand(eight, uset1(0xff00u)))), uset1(0x00ff00ffu));
    const U pairs = uadd(uand(halves, uset1(0x000f000fu)), shl<4>(uand(halves, uset1(0x00f000f0u))));
    even = uand(pairs, uset1(0x03030303u));
    odd = uand(shr<2>(pairs), uset1(0x03030303u));
}

// Words of k = 8 EIGHTH .. 8 EIGHTH + 7 of a block: of the first four and the last four, or, where codes are narrower
// than a byte, of the even ones and the odd ones.
template <Format F, int EIGHTH>
[[gnu::always_inline]] inline void words_of(const uint8_t* block, U& first, U& second) {
    constexpr const Layout& l = layout(F);
    constexpr size_t nibbles = 4 * 4 * PANEL, crumbs = nibbles / 2;
    const uint8_t* codes = block + scale_bytes(F);
    const auto half = [&](size_t at) { return load_u16(halves(codes + at) + EIGHTH * PANEL); };
    if constexpr (l.codes == Codes::int8) {
        first = raised(uload(codes + 2 * EIGHTH * 4 * PANEL));
        second = raised(uload(codes + (2 * EIGHTH + 1) * 4 * PANEL));
    } else if constexpr (l.codes == Codes::crumbs || l.codes == Codes::threes) {
        split_crumbs(half(0), first, second);
    } else {
        split_nibbles(uload(codes + EIGHTH * 4 * PANEL), first, second);
    }
    if constexpr (l.levels) {
        first = words_of_levels(first, WIDE_OFFSET);
        second = words_of_levels(second, WIDE_OFFSET);
    }
    if constexpr (l.codes == Codes::fives || l.codes == Codes::threes) {
        const U bits = uload(codes + (l.codes == Codes::fives ? nibbles : crumbs));
        constexpr int down = l.codes == Codes::fives ? 0 : 2;
        first = uadd(first, shr<down>(spread_bits<EIGHTH, 0>(bits)));
        second = uadd(second, shr<down>(spread_bits<EIGHTH, 1>(bits)));
    }
    if constexpr (l.codes == Codes::sixes) {
        U even, odd;
        split_crumbs(half(nibbles), even, odd);
        first = uadd(first, shl<4>(even));
        second = uadd(second, shl<4>(odd));
    }
}

// K-blocks whose codes and numbers share scales, out of n that are left; 1 also where halves of a block have their own.
constexpr int unit_blocks(Format format, int left) {
    const int span = layout(format).span ? layout(format).span : INT_GROUP;
    return span > left ? left : span;
}
