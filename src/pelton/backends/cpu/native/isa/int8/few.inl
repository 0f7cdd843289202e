// Integer products of few rows with a panel, whose codes are taken as they are packed.
// What it is not: for many rows, for which codes would be unpacked too often.

#if defined(PELTON_ISA_AVX512)
constexpr int PACKED_ROWS = 4;
#elif defined(PELTON_ISA_AVX2)
constexpr int PACKED_ROWS = 2;
#else
constexpr int PACKED_ROWS = 1;
#endif
constexpr size_t AHEAD = 12 << 10; // bytes, as measured

struct IntStrip {
    const uint8_t* panel;
    int blocks;
    IntRows x;
    float* out;
    size_t out_stride;
};

// Onto acc: what the K-blocks first .. end - 1 of a unit, or one half of a block, give.
template <Format F, int R, int HALF>
[[gnu::always_inline]] inline void packed_unit(const IntStrip& s, int first, int end, V* acc) {
    constexpr const Layout& l = layout(F);
    constexpr int most = most_of(F), offset = offset_of(F), per_block = l.scales == 2 ? 2 : 1;
    constexpr int eighths = 4 / per_block, most_together = words_together(most) / 2;
    constexpr int together = most_together < eighths ? most_together : eighths, parts = eighths / together;
    // Sums over more than a block are made of several, which need not wait for each other.
    constexpr int chains = l.span != 1 && R * parts <= 4 ? parts : 1;
    const int8_t* x = in_fours(F) ? s.x.fours : s.x.eights;
    const int32_t* sums = s.x.sums + (per_block == 2 ? s.blocks : 0);
    int32_t sum_x[R] = {};
    for (int b = first; b < end; ++b)
        repeat<R>([&](auto r) { sum_x[r] += sums[r * s.x.sums_stride + static_cast<size_t>(b * per_block + HALF)]; });
    U sum[R * chains];
    repeat<R * chains>([&](auto i) { sum[i] = uset1(i < R ? static_cast<uint32_t>(-offset * sum_x[i % R]) : 0u); });
    for (int b = first; b < end; ++b) {
        const uint8_t* block = block_at<F>(s.panel, b);
        if constexpr (HALF == 0)
            for (size_t line = 0; line < block_bytes(F); line += 64) __builtin_prefetch(block + AHEAD + line);
        const int8_t* from = x + b * BLOCK + HALF * (BLOCK / 2);
        repeat<parts>([&](auto i) __attribute__((always_inline)) {
            U w[2 * together];
            repeat<together>([&](auto j) { words_of<F, HALF * eighths + i * together + j>(block, w[2 * j], w[2 * j + 1]); });
            repeat<R>([&](auto r) __attribute__((always_inline)) {
                U& to = sum[i % chains * R + r];
                to = dots<most, 2 * together>(to, w, from + r * s.x.stride + i * together * 8);
            });
        });
    }
    if constexpr (chains > 1)
        repeat<R*(chains - 1)>([&](auto i) { sum[i % R] = uadd(sum[i % R], sum[R + i]); });
    V scale = zero(), minimum = zero();
    if constexpr (l.span != 0) load_scale<F>(s.panel, first, HALF, s.blocks, scale, minimum);
    repeat<R>([&](auto r) __attribute__((always_inline)) {
        if constexpr (l.span == 0) acc[r] = from_i32(sum[r]);
        else acc[r] = fma(scale, from_i32(sum[r]), acc[r]);
        if constexpr (l.minima) acc[r] = fma(minimum, set1(static_cast<float>(sum_x[r])), acc[r]);
    });
}

template <Format F, int R>
void product_of_packed(const IntStrip& s) {
    constexpr const Layout& l = layout(F);
    V total[R], acc[R];
    repeat<R>([&](auto r) { total[r] = zero(); });
    for (int b = 0, group = 0; b < s.blocks; ++group) {
        const int end = s.blocks - b < INT_GROUP ? s.blocks : b + INT_GROUP;
        repeat<R>([&](auto r) { acc[r] = zero(); });
        while (b < end) {
            const int first = b;
            b += unit_blocks(F, end - b);
            packed_unit<F, R, 0>(s, first, b, acc);
            if constexpr (l.scales == 2) packed_unit<F, R, 1>(s, first, b, acc);
        }
        repeat<R>([&](auto r) { total[r] = fma(set1(s.x.scales[r * s.x.scales_stride + static_cast<size_t>(group)]), acc[r], total[r]); });
    }
    V scale = zero(), minimum = zero();
    if constexpr (l.span == 0) load_scale<F>(s.panel, 0, 0, s.blocks, scale, minimum);
    repeat<R>([&](auto r) { store(s.out + r * s.out_stride, l.span == 0 ? mul(total[r], scale) : total[r]); });
}

// rows: 1 .. PACKED_ROWS.
template <Format F>
void product_of_few(IntStrip s, int rows) {
    while (rows > 0) {
        const int now = rows >= PACKED_ROWS ? PACKED_ROWS : rows >= 2 ? 2 : 1;
        if (now == PACKED_ROWS)
            product_of_packed<F, PACKED_ROWS>(s);
        else if (now == 2)
            product_of_packed<F, 2>(s);
        else
            product_of_packed<F, 1>(s);
        rows -= now;
        s.x.fours += static_cast<size_t>(now) * s.x.stride;
        s.x.eights += static_cast<size_t>(now) * s.x.stride;
        s.x.scales += static_cast<size_t>(now) * s.x.scales_stride;
        s.x.sums += static_cast<size_t>(now) * s.x.sums_stride;
        s.out += static_cast<size_t>(now) * s.out_stride;
    }
}
