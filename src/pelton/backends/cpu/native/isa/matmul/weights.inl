// Reading packed panels (kernels.h): where their K-blocks stand, and their numbers as fp32 lanes, one lane an output.
// What it is not: products. Everything here is exact, but for what a weight of the values form is rounded to.

// How sums of products reach the accumulator: as they are, or with a scale (and a minimum) for each unit. A unit is what
// has one sum: a K-block, or a half of one.
struct Join {
    int scales;
    bool minima;
    bool operator==(const Join&) const = default;
    constexpr int units() const { return scales == 2 ? 2 : 1; } // of a K-block
};

constexpr int BLOCK_CODES = BLOCK * PANEL; // weights of a K-block

constexpr Join join_of(Format format) {
    return {layout(format).scales, layout(format).minima};
}

// K-blocks that one scale is of; 0: all.
constexpr int span_of(Format format) {
    return layout(format).span;
}

// The halves in front of the K-blocks of which K-block b is one, and the K-block itself; panel: its first byte.
template <Format F>
inline const uint8_t* head_at(const uint8_t* panel, int b) {
    constexpr int group = head_blocks(F) ? head_blocks(F) : 1;
    return panel + static_cast<size_t>(b / group) * blocks_bytes(F, group);
}
template <Format F>
inline const uint8_t* block_at(const uint8_t* panel, int b) {
    if constexpr (head_blocks(F) > 0)
        return head_at<F>(panel, b) + head_bytes(F) + static_cast<size_t>(b % head_blocks(F)) * block_bytes(F);
    return panel + static_cast<size_t>(b) * block_bytes(F);
}

inline const uint16_t* halves(const uint8_t* p) {
    return reinterpret_cast<const uint16_t*>(p);
}

// f(0), ..., f(N - 1) with constants, so that arrays of vectors indexed by them live in registers.
template <int... I, class F>
[[gnu::always_inline]] inline void repeat(std::integer_sequence<int, I...>, [[maybe_unused]] F f) {
    (f(std::integral_constant<int, I>()), ...);
}
template <int N, class F>
[[gnu::always_inline]] inline void repeat(F f) {
    repeat(std::make_integer_sequence<int, N>(), f);
}

// f of the matrix's format as a constant.
template <class Call>
inline void by_format(Format format, Call f) {
    constexpr int count = sizeof(LAYOUTS) / sizeof(LAYOUTS[0]);
    repeat<count>([&](auto i) {
        if (format == static_cast<Format>(int(i)))
            f(std::integral_constant<Format, static_cast<Format>(int(i))>());
    });
}

// ---- codes ----

// Bits [at, at + bits) of each lane, moved to bit `to`.
template <int at, int bits, int to>
inline U bits_to(U word) {
    U moved = word;
    if constexpr (at > to)
        moved = shr<at - to>(word);
    if constexpr (at < to)
        moved = shl<to - at>(word);
    return uand(moved, uset1(((1u << bits) - 1u) << to));
}

// Bits [AT, AT + BITS) of each lane as a whole number, less MINUS: they stay where they are, behind the exponent of such a
// power of two that they are worth their number, and that power is then taken away. AT + BITS is at most 23.
template <int AT, int BITS, int MINUS>
inline V number_at(U word) {
    const uint32_t mask = ((1u << BITS) - 1u) << AT, top = (127u + 23u - AT) << 23;
    const V less = set1(static_cast<float>((1 << (23 - AT)) + MINUS));
#if defined(PELTON_ISA_AVX512)
    constexpr int AND_OR = 0xea;
    return sub(floats({_mm512_ternarylogic_epi32(word.v, uset1(mask).v, uset1(top).v, AND_OR)}), less);
#else
    return sub(floats(uadd(uand(word, uset1(mask)), uset1(top))), less);
#endif
}

#if defined(PELTON_ISA_AVX512)
// The look-ups ignore all but the lowest bits of a lane, so that nothing need be cleared above them.

constexpr int TAKE_A = 0xe4; // of ternary logic (a, b, c): c ? a : b

template <int at, int to>
inline __m512i moved(U word) {
    if constexpr (at > to)
        return _mm512_srli_epi32(word.v, at - to);
    else if constexpr (at < to)
        return _mm512_slli_epi32(word.v, to - at);
    else
        return word.v;
}

// Code number I (0..7) of eight nibbles, whose fifth bit is bit K of `high`.
template <int I, int K, int MINUS>
inline V five(U nibbles, U high) {
    const __m512 low = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 table = _mm512_sub_ps(low, _mm512_set1_ps(MINUS));
    const __m512 code = _mm512_permutexvar_ps(moved<4 * I, 0>(nibbles), table);
    const __mmask16 more = _mm512_test_epi32_mask(high.v, _mm512_set1_epi32(static_cast<int>(1u << K)));
    return {_mm512_mask_add_ps(code, more, code, _mm512_set1_ps(16))};
}

// Code number I of eight nibbles, whose bits 4 and 5 are number I of eight crumbs.
template <int I, int MINUS>
inline V six(U nibbles, U crumbs) {
    constexpr int at = I < 5 ? 4 * I : 0; // where it can stay
    const __m512i low = I < 5 ? nibbles.v : moved<4 * I, 0>(nibbles), high = moved<2 * I, at + 4>(crumbs);
    return number_at<at, 6, MINUS>({_mm512_ternarylogic_epi32(low, high, _mm512_set1_epi32(15 << at), TAKE_A)});
}

// Code number I of eight crumbs, whose bit 2 is bit K of `high`.
template <int I, int K, int MINUS>
inline V three(U crumbs, U high) {
    const __m512 codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512 table = _mm512_sub_ps(codes, _mm512_set1_ps(MINUS));
    const __m512i low = moved<2 * I, 0>(crumbs), mask = _mm512_set1_epi32(3);
    return {_mm512_permutexvar_ps(_mm512_ternarylogic_epi32(low, moved<K, 2>(high), mask, TAKE_A), table)};
}

// Byte number I (0..3) of each lane, with its sign.
template <int I>
inline V signed_byte(U word) {
    const U raised = {_mm512_xor_si512(word.v, _mm512_set1_epi8(-128))}; // from 0 to 255
    if constexpr (I < 2)
        return number_at<8 * I, 8, 128>(raised);
    else
        return number_at<8 * I - 16, 8, 128>(shr<16>(raised));
}

#else

template <int I, int K, int MINUS>
inline V five(U nibbles, U high) {
    return number_at<0, 5, MINUS>(uadd(bits_to<4 * I, 4, 0>(nibbles), bits_to<K, 1, 4>(high)));
}

template <int I, int MINUS>
inline V six(U nibbles, U crumbs) {
    return number_at<0, 6, MINUS>(uadd(bits_to<4 * I, 4, 0>(nibbles), bits_to<2 * I, 2, 4>(crumbs)));
}

template <int I, int K, int MINUS>
inline V three(U crumbs, U high) {
    return number_at<0, 3, MINUS>(uadd(bits_to<2 * I, 2, 0>(crumbs), bits_to<K, 1, 2>(high)));
}

template <int I>
inline V signed_byte(U word) {
    return byte<I>(word);
}

#endif

// A word of each lane whose highest byte is byte number `eighth` of its word: bits 8 eighth .. 8 eighth + 7 are 24 .. 31.
// What stands before the words is read with them.
inline U byte_on_top(const uint8_t* words, int eighth) {
    return uload(words - (3 - eighth));
}

// Weight or code k = 8 eighth + I of a K-block in each output, as fp32.
template <Format F, int I>
[[gnu::always_inline]] inline V code_of(const uint8_t* codes, int eighth) {
    constexpr const Layout& l = layout(F);
    constexpr size_t nibbles = 4 * 4 * PANEL, crumbs = nibbles / 2;
    const auto word = [&] { return uload(codes + eighth * 4 * PANEL); };
    const auto half = [&](size_t at) { return load_u16(halves(codes + at) + eighth * PANEL); };
    if constexpr (l.codes == Codes::f32)
        return load(reinterpret_cast<const float*>(codes) + (8 * eighth + I) * PANEL);
    else if constexpr (l.codes == Codes::f16)
        return load_f16(halves(codes) + (8 * eighth + I) * PANEL);
    else if constexpr (l.codes == Codes::int8)
        return signed_byte<I % 4>(uload(codes + (2 * eighth + I / 4) * 4 * PANEL));
    else if constexpr (l.codes == Codes::crumbs)
        return crumb<I>(half(0));
    else if constexpr (l.codes == Codes::threes)
        return three<I, 24 + I, l.minus>(half(0), byte_on_top(codes + crumbs, eighth));
    else if constexpr (l.codes == Codes::fives)
        return five<I, 24 + I, l.minus>(word(), byte_on_top(codes + nibbles, eighth));
    else if constexpr (l.codes == Codes::sixes)
        return six<I, l.minus>(word(), half(nibbles));
    else if constexpr (l.levels)
        return level<I>(word());
    else
        return nibble<I, l.minus>(word());
}

// Of k = 8 eighth + 2 P and the k behind it; block: the K-block's first byte.
template <Format F, int P>
[[gnu::always_inline]] inline void expand(const uint8_t* block, int eighth, V& even, V& odd) {
    const uint8_t* codes = block + scale_bytes(F);
    if constexpr (layout(F).codes == Codes::bf16) {
        load_pairs(halves(codes) + (8 * eighth + 2 * P) * PANEL, even, odd);
    } else {
        even = code_of<F, 2 * P>(codes, eighth);
        odd = code_of<F, 2 * P + 1>(codes, eighth);
    }
}

// ---- scales ----

// Of K-block b of a panel, or of its half number `half`. blocks: of the whole panel, at whose end a row's scale stands.
template <Format F>
[[gnu::always_inline]] inline void load_scale(const uint8_t* panel, int b, int half, int blocks, V& scale,
                                              V& minimum) {
    constexpr const Layout& l = layout(F);
    if constexpr (l.nested) {
        const uint16_t* head = halves(head_at<F>(panel, b));
        const int8_t* factors = reinterpret_cast<const int8_t*>(block_at<F>(panel, b)) + half * PANEL;
        scale = mul(load_i8(factors), load_f16(head));
        if constexpr (l.minima)
            minimum = mul(load_i8(factors + l.scales * PANEL), load_f16(head + PANEL));
    } else if constexpr (l.span == 0) {
        scale = load(reinterpret_cast<const float*>(panel + blocks_bytes(F, blocks)));
    } else if constexpr (l.scales > 0) {
        const uint16_t* from = halves(l.span > 1 ? head_at<F>(panel, b) : block_at<F>(panel, b));
        scale = load_f16(from);
        if constexpr (l.minima)
            minimum = load_f16(from + PANEL);
    }
}

// A weight of the values form.
template <Format F>
[[gnu::always_inline]] inline V value_of(V code, V scale, V minimum, bool round) {
    V value = mul(scale, code);
    if constexpr (layout(F).minima)
        value = add(value, minimum);
    return round ? round_bf16(value) : value;
}

// ---- what numbers of x are multiplied with ----

// Where x comes in fp32, a number is one of its numbers. dpbf16ps adds two products of bf16 to each lane, one after the other
// as two fma would, that of the upper halves first. So with every second k side by side, the earlier one above, it goes on
// with a chain of order 1 at twice the rate.
#if defined(PELTON_ISA_AVX512_BF16)
constexpr int K_OF_NUMBER = 2;
using Number = uint32_t; // of each four k: (k + 2, k), then (k + 3, k + 1)
#else
constexpr int K_OF_NUMBER = 1;
using Number = float;
#endif

// Of P panels: `even` is multiplied with the first of two adjacent numbers, `odd` with the second.
template <int P>
struct Weights {
#if defined(PELTON_ISA_AVX512_BF16)
    U even[P], odd[P];

    // The upper halves of `above` over those of `below`; and the lower ones.
    static U upper_halves(U above, U below) { return by_halves(above.v, _mm512_srli_epi32(below.v, 16)); }
    static U lower_halves(U above, U below) { return by_halves(_mm512_slli_epi32(above.v, 16), below.v); }
    static U by_halves(__m512i above, __m512i below) {
        return {_mm512_ternarylogic_epi32(above, below, _mm512_set1_epi32(static_cast<int>(0xffff0000u)), TAKE_A)};
    }

    // Four adjacent k of each output: two and two side by side.
    [[gnu::always_inline]] void load_fours(const void* first_two, const void* second_two, int p) {
        const U first = uload(first_two), second = uload(second_two);
        even[p] = lower_halves(first, second);
        odd[p] = upper_halves(first, second);
    }
    template <Format F, int TURN, class Change>
    [[gnu::always_inline]] void expand(const uint8_t* block, int eighth, int p, Change change) {
        if constexpr (layout(F).codes == Codes::bf16) {
            const uint16_t* from = halves(block + scale_bytes(F)) + (8 * eighth + 4 * TURN) * PANEL;
            load_fours(from, from + 2 * PANEL, p);
        } else {
            V k[4];
            PELTON_NS::expand<F, 2 * TURN>(block, eighth, k[0], k[1]);
            PELTON_NS::expand<F, 2 * TURN + 1>(block, eighth, k[2], k[3]);
            even[p] = upper_halves(bits(change(k[0])), bits(change(k[2])));
            odd[p] = upper_halves(bits(change(k[1])), bits(change(k[3])));
        }
    }
    void load(const float* from, int p) { even[p] = uload(from), odd[p] = uload(from + P * PANEL); }
    void store(float* to, int p, int step) const { PELTON_NS::store(to, floats(even[p])), PELTON_NS::store(to + step, floats(odd[p])); }
    V times_even(Number x, int p, V chain) const { return products(x, even[p], chain); }
    V times_odd(Number x, int p, V chain) const { return products(x, odd[p], chain); }
    static V products(Number x, U w, V chain) {
        const __m512i both = _mm512_set1_epi32(static_cast<int>(x));
        return {_mm512_dpbf16_ps(chain.v, (__m512bh)both, (__m512bh)w.v)};
    }
#else
    V even[P], odd[P];

    template <Format F, int TURN, class Change>
    [[gnu::always_inline]] void expand(const uint8_t* block, int eighth, int p, Change change) {
        PELTON_NS::expand<F, TURN>(block, eighth, even[p], odd[p]);
        even[p] = change(even[p]);
        odd[p] = change(odd[p]);
    }
    void load(const float* from, int p) { even[p] = PELTON_NS::load(from), odd[p] = PELTON_NS::load(from + P * PANEL); }
    void store(float* to, int p, int step) const { PELTON_NS::store(to, even[p]), PELTON_NS::store(to + step, odd[p]); }
    V times_even(Number x, int p, V chain) const { return fma(set1(x), even[p], chain); }
    V times_odd(Number x, int p, V chain) const { return fma(set1(x), odd[p], chain); }
#endif

    // k = 8 eighth + 2 K_OF_NUMBER TURN and so many more of a K-block: weights or codes. `change`: of each, before it is taken.
    template <Format F, int TURN>
    [[gnu::always_inline]] void expand(const uint8_t* block, int eighth, int p) {
        expand<F, TURN>(block, eighth, p, [](V code) { return code; });
    }
};
