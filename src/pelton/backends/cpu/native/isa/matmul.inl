// Order-1 products of one weight panel (16 outputs, one per lane) with many rows, for all six packed formats.
// What it is not: a choice of threads or panels. Per K-block and output: two chains from +0 of x[k] * w[k], even k and
// odd k ascending; even + odd; then into the accumulator. Rows and blocks are grouped for speed only: no grouping
// changes the order of one output's operations, so none changes its bits.

// How a block's sum of products reaches the accumulator.
enum class Join { plain, scaled, scaled_with_minimum };

// ROW_GROUP: the chains of so many rows fit the registers beside the weights. CHAINS: so many chains at once hide the
// latency of fma; fewer rows take several K-blocks together to reach it. DIRECT_ROWS: up to so many, expanding codes again
// for each group costs less than keeping them expanded.
#if defined(PELTON_ISA_AVX512)
constexpr int ROW_GROUP = 8, CHAINS = 8, DIRECT_ROWS = 32;
#elif defined(PELTON_ISA_AVX2)
constexpr int ROW_GROUP = 2, CHAINS = 4, DIRECT_ROWS = 2;
#else
constexpr int ROW_GROUP = 2, CHAINS = 2, DIRECT_ROWS = 2;
#endif

constexpr size_t DIRECT_BYTES = 256 << 10;
constexpr int BLOCK_CODES = BLOCK * PANEL; // weights of a block
constexpr int STRIP_BLOCKS = 16;           // K-blocks that many rows use at a time: 16 KB of bf16, half of a small L1

constexpr size_t bytes_of_block(Format format) {
    switch (format) {
    case Format::f32:
        return BLOCK_CODES * 4;
    case Format::bf16:
    case Format::f16:
        return BLOCK_CODES * 2;
    case Format::q8:
        return PANEL * 2 + BLOCK_CODES;
    case Format::q4:
        return PANEL * 2 + BLOCK_CODES / 2;
    case Format::q4m:
        return PANEL * 4 + BLOCK_CODES / 2;
    }
    return 0;
}

constexpr Join join_of(Format format) {
    if (format == Format::q4m)
        return Join::scaled_with_minimum;
    return format == Format::q8 || format == Format::q4 ? Join::scaled : Join::plain;
}

// How far ahead of the products weights are asked for; as measured, codes, which keep the core busier, want more.
constexpr size_t prefetch_bytes(Format format) {
    return join_of(format) == Join::plain ? 8 << 10 : 12 << 10;
}

inline const uint16_t* halves(const uint8_t* p) {
    return reinterpret_cast<const uint16_t*>(p);
}

// f(0), ..., f(N - 1) with constants, so that arrays of vectors indexed by them live in registers.
template <int... I, class F>
[[gnu::always_inline]] inline void repeat(std::integer_sequence<int, I...>, F f) {
    (f(std::integral_constant<int, I>()), ...);
}
template <int N, class F>
[[gnu::always_inline]] inline void repeat(F f) {
    repeat(std::make_integer_sequence<int, N>(), f);
}

// Weights (or codes) of k = 8 * eighth + 2 * P and the k behind it in each output, as fp32.
template <Format F, int P>
[[gnu::always_inline]] inline void expand(const uint8_t* block, int eighth, V& even, V& odd) {
    const int first = (eighth * 8 + 2 * P) * PANEL;
    if constexpr (F == Format::f32) {
        const float* p = reinterpret_cast<const float*>(block) + first;
        even = load(p);
        odd = load(p + PANEL);
    } else if constexpr (F == Format::bf16) {
        load_pairs(halves(block) + first, even, odd);
    } else if constexpr (F == Format::f16) {
        even = load_f16(halves(block) + first);
        odd = load_f16(halves(block) + first + PANEL);
    } else if constexpr (F == Format::q8) {
        const int8_t* p = reinterpret_cast<const int8_t*>(block) + 2 * PANEL + first;
        even = load_i8(p);
        odd = load_i8(p + PANEL);
    } else {
        constexpr int minus = F == Format::q4 ? 8 : 0;
        const U codes = uload(block + (F == Format::q4 ? 2 : 4) * PANEL + eighth * 4 * PANEL);
        even = nibble<2 * P, minus>(codes);
        odd = nibble<2 * P + 1, minus>(codes);
    }
}

// Where the products of a range of K-blocks read and write. Blocks are those of format F, or, where scales is set,
// codes of a quantised format as bf16, which holds them exactly, with their scales and minima beside them.
struct Strip {
    const uint8_t* weights;
    const float* scales; // [blocks][16] or null
    const float* minima; // likewise
    const float* x;      // first row, first k of the range
    size_t x_stride;
    const float* sums; // first row, first block of the range
    size_t sums_stride;
    float* out; // first row
    size_t out_stride;
    int blocks;
    bool resumes; // out holds the accumulators of the blocks before
};

template <Format F, Join J>
inline void load_scale(const Strip& s, int b, const uint8_t* block, V& scale, V& minimum) {
    if constexpr (join_of(F) == Join::plain) {
        if constexpr (J != Join::plain)
            scale = load(s.scales + b * PANEL);
        if constexpr (J == Join::scaled_with_minimum)
            minimum = load(s.minima + b * PANEL);
    } else {
        scale = load_f16(halves(block));
        if constexpr (J == Join::scaled_with_minimum)
            minimum = load_f16(halves(block) + PANEL);
    }
}

// Blocks b .. b + B - 1 of R rows. B > 1 gives few rows enough independent chains to hide the latency of fma.
template <Format F, Join J, int R, int B>
[[gnu::always_inline]] inline void blocks_of_rows(const Strip& s, int b, V* acc) {
    constexpr size_t bytes = bytes_of_block(F);
    const uint8_t* weights = s.weights + static_cast<size_t>(b) * bytes;
    const float* x = s.x + static_cast<size_t>(b) * BLOCK;
    V even[B * R], odd[B * R];
    repeat<B * R>([&](auto i) { even[i] = odd[i] = zero(); });
    if constexpr (J == join_of(F)) // not from the L1 cache
        for (size_t line = 0; line < B * bytes; line += 64)
            __builtin_prefetch(weights + prefetch_bytes(F) + line);
    for (int eighth = 0; eighth < 4; ++eighth, x += 8)
        repeat<4>([&](auto pair) {
            repeat<B>([&](auto i) {
                V w0, w1;
                expand<F, pair>(weights + i * bytes, eighth, w0, w1);
                repeat<R>([&](auto r) {
                    const float* at = x + static_cast<size_t>(r) * s.x_stride + i * BLOCK + pair * 2;
                    even[i * R + r] = fma(set1(at[0]), w0, even[i * R + r]);
                    odd[i * R + r] = fma(set1(at[1]), w1, odd[i * R + r]);
                });
            });
        });
    repeat<B>([&](auto i) {
        V scale = zero(), minimum = zero();
        load_scale<F, J>(s, b + i, weights + i * bytes, scale, minimum);
        repeat<R>([&](auto r) {
            const V sum = add(even[i * R + r], odd[i * R + r]);
            acc[r] = J == Join::plain ? add(acc[r], sum) : fma(scale, sum, acc[r]);
            if constexpr (J == Join::scaled_with_minimum) {
                const float* sums = s.sums + static_cast<size_t>(r) * s.sums_stride + static_cast<size_t>(b);
                acc[r] = fma(minimum, set1(sums[i]), acc[r]);
            }
        });
    });
}

template <Format F, Join J, int R>
void product_of_rows(const Strip& s) {
    constexpr int together = R * 2 <= CHAINS ? CHAINS / (R * 2) : 1;
    V acc[R];
    repeat<R>([&](auto r) { acc[r] = s.resumes ? load(s.out + static_cast<size_t>(r) * s.out_stride) : zero(); });
    int b = 0;
    for (; b + together <= s.blocks; b += together)
        blocks_of_rows<F, J, R, together>(s, b, acc);
    if constexpr (together > 1)
        for (; b < s.blocks; ++b)
            blocks_of_rows<F, J, R, 1>(s, b, acc);
    repeat<R>([&](auto r) { store(s.out + static_cast<size_t>(r) * s.out_stride, acc[r]); });
}

// rows: 1 .. ROW_GROUP.
template <Format F, Join J, int R = ROW_GROUP>
void product_of_group(const Strip& s, int rows) {
    if (rows == R)
        return product_of_rows<F, J, R>(s);
    if constexpr (R > 1)
        product_of_group<F, J, R - 1>(s, rows);
}

// Any number of rows, in groups as equal as they can be.
template <Format F, Join J>
void product(Strip s, int rows) {
    for (int groups = (rows + ROW_GROUP - 1) / ROW_GROUP; groups > 0; --groups) {
        int now = (rows + groups - 1) / groups;
        product_of_group<F, J>(s, now);
        rows -= now;
        s.x += static_cast<size_t>(now) * s.x_stride;
        s.sums += J == Join::scaled_with_minimum ? static_cast<size_t>(now) * s.sums_stride : 0;
        s.out += static_cast<size_t>(now) * s.out_stride;
    }
}

// Codes of the strip's blocks as bf16 pairs; scales and minima as fp32.
struct Expanded {
    alignas(64) uint16_t codes[STRIP_BLOCKS * BLOCK_CODES];
    alignas(64) float scales[STRIP_BLOCKS * PANEL];
    alignas(64) float minima[STRIP_BLOCKS * PANEL];
};

template <Format F>
inline void expand_strip(const Strip& s, Expanded& to) {
    for (int b = 0; b < s.blocks; ++b) {
        const uint8_t* block = s.weights + static_cast<size_t>(b) * bytes_of_block(F);
        for (int eighth = 0; eighth < 4; ++eighth)
            repeat<4>([&](auto pair) {
                V even, odd;
                expand<F, pair>(block, eighth, even, odd);
                store_pairs(to.codes + b * BLOCK_CODES + (eighth * 8 + pair * 2) * PANEL, even, odd);
            });
        V scale = zero(), minimum = zero();
        load_scale<F, join_of(F)>(s, b, block, scale, minimum);
        store(to.scales + b * PANEL, scale);
        store(to.minima + b * PANEL, minimum);
    }
}

// Many rows: the panel is cut along K into strips that stay in the L1 cache while all rows use them, quantised ones
// expanded once; out carries the accumulators from strip to strip.
template <Format F>
void product_in_strips(const Strip& whole, int rows) {
    constexpr Join join = join_of(F);
    [[maybe_unused]] Expanded expanded;
    for (int first = 0; first < whole.blocks; first += STRIP_BLOCKS) {
        Strip s = whole;
        s.blocks = whole.blocks - first < STRIP_BLOCKS ? whole.blocks - first : STRIP_BLOCKS;
        s.weights += static_cast<size_t>(first) * bytes_of_block(F);
        s.x += static_cast<size_t>(first) * BLOCK;
        if constexpr (join == Join::scaled_with_minimum)
            s.sums += first;
        s.resumes = first > 0;
        if constexpr (join == Join::plain) {
            product<F, join>(s, rows);
        } else {
            expand_strip<F>(s, expanded);
            s.weights = reinterpret_cast<const uint8_t*>(expanded.codes);
            s.scales = expanded.scales;
            s.minima = expanded.minima;
            product<Format::bf16, join>(s, rows);
        }
    }
}

template <Format F>
void product_of_panel(const Strip& s, int rows) {
    // Another pass over the panel for each group must find it in the L2 cache: memory gives it once.
    const size_t panel = static_cast<size_t>(s.blocks) * bytes_of_block(F);
    if (rows <= ROW_GROUP || (rows <= DIRECT_ROWS && panel <= DIRECT_BYTES))
        product<F, join_of(F)>(s, rows);
    else
        product_in_strips<F>(s, rows);
}

static void matmul(const MatmulArgs& a) {
    const Matrix& m = *a.matrix;
    const uint8_t* weights = m.data + static_cast<size_t>(a.panel) * m.panel_bytes;
    const Strip s{weights,       nullptr, nullptr,      a.x,      a.x_stride, a.sums,
                  a.sums_stride, a.out,   a.out_stride, m.blocks, false};
    switch (m.format) {
    case Format::f32:
        return product_of_panel<Format::f32>(s, a.rows);
    case Format::bf16:
        return product_of_panel<Format::bf16>(s, a.rows);
    case Format::f16:
        return product_of_panel<Format::f16>(s, a.rows);
    case Format::q8:
        return product_of_panel<Format::q8>(s, a.rows);
    case Format::q4:
        return product_of_panel<Format::q4>(s, a.rows);
    case Format::q4m:
        return product_of_panel<Format::q4m>(s, a.rows);
    }
}
