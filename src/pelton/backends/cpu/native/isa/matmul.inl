// Order-1 products of one weight panel (16 outputs, one per lane) with many rows, for all packed formats.
// What it is not: a choice of threads or panels. Per K-block and output: two chains from +0 of x[k] * w[k], even k and
// odd k ascending; even + odd; then into the accumulator. Where scales are those of half blocks, each half is a sum of
// its own. Rows and blocks are grouped for speed only: no grouping
// changes the order of one output's operations, so none changes its bits.

// How sums of products reach the accumulator: as they are, or with a scale (and a minimum) for each K-block or each
// half. A unit is what has one sum: a K-block, or a half.
struct Join {
    int scales;
    bool minima;
    bool operator==(const Join&) const = default;
    constexpr int units() const { return scales == 2 ? 2 : 1; } // of a K-block
};

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

constexpr Join join_of(Format format) {
    return {layout(format).scales, layout(format).minima};
}

// How far ahead of the products weights are asked for; as measured, codes, which keep the core busier, want more.
constexpr size_t prefetch_bytes(Format format) {
    return join_of(format).scales ? 12 << 10 : 8 << 10;
}

// The halves in front of the eight K-blocks of which K-block b is one, and the K-block itself; panel: its first byte.
template <Format F>
inline const uint8_t* head_at(const uint8_t* panel, int b) {
    return panel + static_cast<size_t>(b / NESTED_BLOCKS) * panel_bytes(F, NESTED_BLOCKS);
}
template <Format F>
inline const uint8_t* block_at(const uint8_t* panel, int b) {
    if constexpr (layout(F).nested)
        return head_at<F>(panel, b) + head_bytes(F) + static_cast<size_t>(b % NESTED_BLOCKS) * block_bytes(F);
    return panel + static_cast<size_t>(b) * block_bytes(F);
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
    constexpr const Layout& l = layout(F);
    const uint8_t* codes = block + scale_bytes(F);
    const int first = (eighth * 8 + 2 * P) * PANEL;
    if constexpr (l.codes == Codes::f32) {
        const float* p = reinterpret_cast<const float*>(codes) + first;
        even = load(p);
        odd = load(p + PANEL);
    } else if constexpr (l.codes == Codes::bf16) {
        load_pairs(halves(codes) + first, even, odd);
    } else if constexpr (l.codes == Codes::f16) {
        even = load_f16(halves(codes) + first);
        odd = load_f16(halves(codes) + first + PANEL);
    } else if constexpr (l.codes == Codes::int8) {
        const int8_t* p = reinterpret_cast<const int8_t*>(codes) + first;
        even = load_i8(p);
        odd = load_i8(p + PANEL);
    } else if constexpr (l.codes == Codes::crumbs) {
        const U pairs = load_u16(halves(codes) + eighth * PANEL);
        even = crumb<2 * P>(pairs);
        odd = crumb<2 * P + 1>(pairs);
    } else {
        const U nibbles = uload(codes + eighth * 4 * PANEL);
        if constexpr (l.levels) {
            even = level<2 * P>(nibbles);
            odd = level<2 * P + 1>(nibbles);
        } else {
            even = nibble<2 * P, l.minus>(nibbles);
            odd = nibble<2 * P + 1, l.minus>(nibbles);
        }
    }
}

// Where the products of a range of K-blocks read and write. Blocks are those of format F, or, where scales is set,
// codes of a quantised format as bf16, which holds them exactly, with their scales and minima beside them.
struct Strip {
    const uint8_t* weights;
    const float* scales; // [units][16] or null
    const float* minima; // likewise
    const float* x;      // first row, first k of the range
    size_t x_stride;
    const float* sums; // first row, first unit of the range
    size_t sums_stride;
    float* out; // first row
    size_t out_stride;
    int blocks;
    bool resumes; // out holds the accumulators of the blocks before
};

// Of a unit in its block, which is number `half` there.
template <Format F, Join J>
inline void load_scale(const Strip& s, int unit, const uint8_t* block, int half, V& scale, V& minimum) {
    constexpr const Layout& l = layout(F);
    if constexpr (l.scales == 0) {
        if constexpr (J.scales)
            scale = load(s.scales + unit * PANEL);
        if constexpr (J.minima)
            minimum = load(s.minima + unit * PANEL);
    } else if constexpr (l.nested) {
        const uint16_t* head = halves(head_at<F>(s.weights, unit / J.units()));
        const int8_t* factors = reinterpret_cast<const int8_t*>(block) + half * PANEL;
        scale = mul(load_i8(factors), load_f16(head));
        if constexpr (J.minima)
            minimum = mul(load_i8(factors + l.scales * PANEL), load_f16(head + PANEL));
    } else {
        scale = load_f16(halves(block));
        if constexpr (J.minima)
            minimum = load_f16(halves(block) + PANEL);
    }
}

// Units unit .. unit + B - 1 of R rows. B > 1 gives few rows enough independent chains to hide the latency of fma; they
// start with a block then, and are all in the same eight blocks.
template <Format F, Join J, int R, int B>
[[gnu::always_inline]] inline void units_of_rows(const Strip& s, int unit, V* acc) {
    constexpr int per_block = J.units(), eighths = BLOCK / 8 / per_block;
    constexpr size_t bytes = block_bytes(F);
    const uint8_t* block = block_at<F>(s.weights, unit / per_block);
    const int first_half = B > 1 ? 0 : unit % per_block;
    const float* x = s.x + static_cast<size_t>(unit) * (BLOCK / per_block);
    V even[B * R], odd[B * R];
    repeat<B * R>([&](auto i) { even[i] = odd[i] = zero(); });
    if constexpr (J == join_of(F)) { // not from the L1 cache
        const uint8_t* ahead = block + static_cast<size_t>(first_half) * (bytes / 2) + prefetch_bytes(F);
        for (size_t line = 0; line < B * bytes / per_block; line += 64)
            __builtin_prefetch(ahead + line);
    }
    for (int eighth = 0; eighth < eighths; ++eighth, x += 8)
        repeat<4>([&](auto pair) {
            repeat<B>([&](auto i) {
                V w0, w1;
                const int at = (first_half + i % per_block) * eighths + eighth;
                expand<F, pair>(block + i / per_block * bytes, at, w0, w1);
                repeat<R>([&](auto r) {
                    const float* from = x + static_cast<size_t>(r) * s.x_stride + i * (BLOCK / per_block) + pair * 2;
                    even[i * R + r] = fma(set1(from[0]), w0, even[i * R + r]);
                    odd[i * R + r] = fma(set1(from[1]), w1, odd[i * R + r]);
                });
            });
        });
    repeat<B>([&](auto i) __attribute__((always_inline)) { // a call would keep the chains in memory
        V scale = zero(), minimum = zero();
        load_scale<F, J>(s, unit + i, block + i / per_block * bytes, first_half + i % per_block, scale, minimum);
        repeat<R>([&](auto r) {
            const V sum = add(even[i * R + r], odd[i * R + r]);
            acc[r] = J.scales ? fma(scale, sum, acc[r]) : add(acc[r], sum);
            if constexpr (J.minima) {
                const float* sums = s.sums + static_cast<size_t>(r) * s.sums_stride + static_cast<size_t>(unit);
                acc[r] = fma(minimum, set1(sums[i]), acc[r]);
            }
        });
    });
}

template <Format F, Join J, int R>
void product_of_rows(const Strip& s) {
    constexpr int together = R * 2 <= CHAINS ? CHAINS / (R * 2) : 1;
    static_assert(NESTED_BLOCKS % together == 0);
    const int units = s.blocks * J.units();
    V acc[R];
    repeat<R>([&](auto r) { acc[r] = s.resumes ? load(s.out + static_cast<size_t>(r) * s.out_stride) : zero(); });
    int unit = 0;
    for (; unit + together <= units; unit += together)
        units_of_rows<F, J, R, together>(s, unit, acc);
    if constexpr (together > 1)
        for (; unit < units; ++unit)
            units_of_rows<F, J, R, 1>(s, unit, acc);
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
        s.sums += J.minima ? static_cast<size_t>(now) * s.sums_stride : 0;
        s.out += static_cast<size_t>(now) * s.out_stride;
    }
}

// Codes of the strip's blocks as bf16 pairs; scales and minima as fp32.
struct Expanded {
    alignas(64) uint16_t codes[STRIP_BLOCKS * BLOCK_CODES];
    alignas(64) float scales[STRIP_BLOCKS * 2 * PANEL];
    alignas(64) float minima[STRIP_BLOCKS * 2 * PANEL];
};

template <Format F>
inline void expand_strip(const Strip& s, Expanded& to) {
    constexpr int units = join_of(F).units();
    for (int b = 0; b < s.blocks; ++b) {
        const uint8_t* block = block_at<F>(s.weights, b);
        for (int eighth = 0; eighth < 4; ++eighth)
            repeat<4>([&](auto pair) {
                V even, odd;
                expand<F, pair>(block, eighth, even, odd);
                store_pairs(to.codes + b * BLOCK_CODES + (eighth * 8 + pair * 2) * PANEL, even, odd);
            });
        for (int half = 0; half < units; ++half) {
            const int unit = b * units + half;
            V scale = zero(), minimum = zero();
            load_scale<F, join_of(F)>(s, unit, block, half, scale, minimum);
            store(to.scales + unit * PANEL, scale);
            store(to.minima + unit * PANEL, minimum);
        }
    }
}

// Many rows: the panel is cut along K into strips that stay in the L1 cache while all rows use them, quantised ones
// expanded once; out carries the accumulators from strip to strip.
template <Format F>
void product_in_strips(const Strip& whole, int rows) {
    constexpr Join join = join_of(F);
    static_assert(STRIP_BLOCKS % NESTED_BLOCKS == 0);
    [[maybe_unused]] Expanded expanded;
    for (int first = 0; first < whole.blocks; first += STRIP_BLOCKS) {
        Strip s = whole;
        s.blocks = whole.blocks - first < STRIP_BLOCKS ? whole.blocks - first : STRIP_BLOCKS;
        s.weights += panel_bytes(F, first);
        s.x += static_cast<size_t>(first) * BLOCK;
        if constexpr (join.minima)
            s.sums += first * join.units();
        s.resumes = first > 0;
        if constexpr (join.scales == 0) {
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
    const size_t panel = panel_bytes(F, s.blocks);
    if (rows <= ROW_GROUP || (rows <= DIRECT_ROWS && panel <= DIRECT_BYTES))
        product<F, join_of(F)>(s, rows);
    else
        product_in_strips<F>(s, rows);
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

static void matmul(const MatmulArgs& a) {
    const Matrix& m = *a.matrix;
    const uint8_t* weights = m.data + static_cast<size_t>(a.panel) * m.panel_bytes;
    const float* sums = m.uses_half_sums() ? a.sums + m.blocks : a.sums;
    const Strip s{weights,       nullptr, nullptr,      a.x,      a.x_stride, sums,
                  a.sums_stride, a.out,   a.out_stride, m.blocks, false};
    by_format(m.format, [&](auto format) { product_of_panel<format>(s, a.rows); });
}
