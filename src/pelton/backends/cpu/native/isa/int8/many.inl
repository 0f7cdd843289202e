// Integer products of many rows with panels, whose codes are unpacked to bytes for a range of K-blocks at a time.
// What it is not: for few rows. Between ranges the accumulators stand where the outputs will.

#if defined(PELTON_ISA_AVX512)
constexpr int INT_ROWS = 6, INT_PANELS = 2, INT_BLOCKS = 24;
#elif defined(PELTON_ISA_AVX2)
constexpr int INT_ROWS = 4, INT_PANELS = 1, INT_BLOCKS = 24;
#else
constexpr int INT_ROWS = 4, INT_PANELS = 1, INT_BLOCKS = 24;
#endif
constexpr int WORDS = BLOCK / 4;  // of a K-block and lane

static_assert(INT_BLOCKS % NESTED_BLOCKS == 0 && NESTED_BLOCKS % INT_GROUP == 0);

// Codes of a range of K-blocks of some panels, a word after the other, and scales and minima of its units.
struct Bytes {
    alignas(64) uint8_t words[INT_PANELS][INT_BLOCKS * WORDS * 4 * PANEL];
    alignas(64) float scales[INT_PANELS][INT_BLOCKS * 2 * PANEL];
    alignas(64) float minima[INT_PANELS][INT_BLOCKS * 2 * PANEL];
    int all_words;
    bool resumes, ends;  // whether there are blocks in front of the range, and whether it is the last
};

// Of a group of rows: where they are read and written, and what their sums begin with.
struct IntTile {
    const int8_t* x;
    size_t stride;
    const float* scales;
    size_t scales_stride;
    float* out;
    size_t out_stride;
    const int32_t (*starts)[INT_BLOCKS * 2]; // of each unit: minus offset * sum of x
    const float (*sums)[INT_BLOCKS * 2];     // sum of x

    void advance(int rows) {
        x += static_cast<size_t>(rows) * stride;
        scales += static_cast<size_t>(rows) * scales_stride;
        out += static_cast<size_t>(rows) * out_stride;
        starts += rows;
        sums += rows;
    }
};

struct Starts {
    alignas(64) int32_t whole[INT_ROWS][INT_BLOCKS * 2];
    alignas(64) float sums[INT_ROWS][INT_BLOCKS * 2];
};

// How sums are joined: no minima, minima, or one scale for the whole row, which waits until its end. A group's sum is whole and
// below 2^24, so that in the last case it may be added up in fp32 as well, a K-block at a time.
enum class Ends { scale, minimum, whole };

// UNIT: words of a unit; a group's last may have fewer.
template <int MOST, Ends ENDS, int UNIT, int R, int P>
void product_of_bytes(const Bytes& b, const IntTile& t) {
    constexpr int together = words_together(MOST) < 4 ? words_together(MOST) : 4;
    V acc[R * P];
    U sum[R * P];
    const int8_t* x = t.x;
    const uint8_t* words = b.words[0];
    int unit = 0, left = b.all_words;
    for (int group = 0; left > 0; ++group) {
        int of_group = left < INT_GROUP * WORDS ? left : INT_GROUP * WORDS;
        left -= of_group;
        repeat<R * P>([&](auto i) { acc[i] = zero(); });
        for (; of_group > 0; ++unit) {
            const int here = UNIT <= WORDS || of_group > UNIT ? UNIT : of_group;
            of_group -= here;
            repeat<R>([&](auto r) {
                repeat<P>([&](auto p) {  // no codes with minima have an offset
                    sum[r * P + p] = uset1(ENDS == Ends::minimum ? 0u : static_cast<uint32_t>(t.starts[r][unit]));
                });
            });
            for (int i = 0; i < here; i += together, x += together * 4, words += together * 4 * PANEL) {
                U w[P][together];
                repeat<P>([&](auto p) {
                    repeat<together>([&](auto j) { w[p][j] = uload(words + p * sizeof b.words[0] + j * 4 * PANEL); });
                });
                repeat<R>([&](auto r) __attribute__((always_inline)) {
                    repeat<P>([&](auto p) __attribute__((always_inline)) {
                        sum[r * P + p] = dots<MOST, together>(sum[r * P + p], w[p], x + r * t.stride);
                    });
                });
            }
            repeat<P>([&](auto p) __attribute__((always_inline)) {
                const V scale = load(b.scales[p] + unit * PANEL);
                repeat<R>([&](auto r) __attribute__((always_inline)) {
                    V& to = acc[r * P + p];
                    if constexpr (ENDS == Ends::whole) to = add(to, from_i32(sum[r * P + p]));
                    else to = fma(scale, from_i32(sum[r * P + p]), to);
                    if constexpr (ENDS == Ends::minimum)
                        to = fma(load(b.minima[p] + unit * PANEL), set1(t.sums[r][unit]), to);
                });
            });
        }
        const bool starts = !b.resumes && group == 0;
        repeat<R>([&](auto r) __attribute__((always_inline)) {
            const V scale = set1(t.scales[r * t.scales_stride + static_cast<size_t>(group)]);
            repeat<P>([&](auto p) __attribute__((always_inline)) {
                float* place = t.out + static_cast<size_t>(r) * t.out_stride + p * PANEL;
                V total = fma(scale, acc[r * P + p], starts ? zero() : load(place));
                if constexpr (ENDS == Ends::whole)
                    if (b.ends && left == 0) total = mul(total, load(b.scales[p]));
                store(place, total);
            });
        });
    }
}

template <Format F>
inline void expand_bytes(const uint8_t* panel, int first, int blocks, int p, Bytes& to) {
    constexpr const Layout& l = layout(F);
    constexpr int per_block = l.scales == 2 ? 2 : 1;
    uint8_t* words = to.words[p];
    for (int b = first; b < first + blocks; ++b, words += WORDS * 4 * PANEL) {
        const uint8_t* block = block_at<F>(panel, b);
        repeat<4>([&](auto eighth) {
            U w[2];
            words_of<F, eighth>(block, w[0], w[1]);
            store(reinterpret_cast<float*>(words + 2 * eighth * 4 * PANEL), floats(w[0]));
            store(reinterpret_cast<float*>(words + (2 * eighth + 1) * 4 * PANEL), floats(w[1]));
        });
    }
    int unit = 0;
    for (int b = first; l.span != 0 && b < first + blocks; b += unit_blocks(F, first + blocks - b))
        for (int half = 0; half < per_block; ++half, ++unit) {
            V scale = zero(), minimum = zero();
            load_scale<F>(panel, b, half, 0, scale, minimum);
            store(to.scales[p] + unit * PANEL, scale);
            store(to.minima[p] + unit * PANEL, minimum);
        }
}

// Of a format whose rows have one scale each.
template <Format F>
inline void row_scale(const uint8_t* panel, int blocks, float* to) {
    V scale = zero(), minimum = zero();
    load_scale<F>(panel, 0, 0, blocks, scale, minimum);
    store(to, scale);
}

// What the sums of n rows begin with in K-blocks first .. first + blocks - 1.
template <Format F>
inline void start_sums(const IntRows& x, int first, int all, int blocks, int n, Starts& to) {
    constexpr const Layout& l = layout(F);
    constexpr int per_block = l.scales == 2 ? 2 : 1;
    const auto join = [&](int r, int unit, int32_t sum) {
        if constexpr (l.minima) to.sums[r][unit] = static_cast<float>(sum);
        else to.whole[r][unit] = -offset_of(F) * sum;
    };
    for (int r = 0; r < n; ++r) {
        const int32_t* row = x.sums + static_cast<size_t>(r) * x.sums_stride;
        const int32_t* sums = row + (per_block == 2 ? all : 0) + first * per_block;
        if constexpr (per_block == 2 || l.span <= 1) {
            for (int unit = 0; unit < blocks * per_block; ++unit) join(r, unit, sums[unit]);
            continue;
        }
        for (int b = 0, unit = 0; b < blocks; ++unit) {
            const int end = b + unit_blocks(F, blocks - b);
            int32_t sum = 0;
            for (; b < end; ++b) sum += sums[b];
            join(r, unit, sum);
        }
    }
}

// rows: 1 .. INT_ROWS; numbers between take two calls.
template <int MOST, Ends ENDS, int UNIT, int P>
void product_of_tile(const Bytes& b, IntTile& t, int rows) {
    if (rows == INT_ROWS)
        return product_of_bytes<MOST, ENDS, UNIT, INT_ROWS, P>(b, t);
    while (rows > 0) {
        const int now = rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
        if (now == 4)
            product_of_bytes<MOST, ENDS, UNIT, 4, P>(b, t);
        else if (now == 2)
            product_of_bytes<MOST, ENDS, UNIT, 2, P>(b, t);
        else
            product_of_bytes<MOST, ENDS, UNIT, 1, P>(b, t);
        rows -= now;
        t.advance(now);
    }
}

template <Format F, int P>
void product_in_ranges(const IntStrip& s, size_t panel_stride, int rows) {
    constexpr const Layout& l = layout(F);
    constexpr int whole_blocks = l.nested ? NESTED_BLOCKS : INT_GROUP, most = most_of(F);
    constexpr Ends ends = l.span == 0 ? Ends::whole : l.minima ? Ends::minimum : Ends::scale;
    constexpr int unit = l.scales == 2 ? WORDS / 2 : l.span == 0 ? WORDS : l.span * WORDS;
    static_assert(!l.minima || offset_of(F) == 0);
    Bytes bytes;
    Starts starts;
    const int ranges = (s.blocks + INT_BLOCKS - 1) / INT_BLOCKS, share = (s.blocks + ranges - 1) / ranges;
    const int per = (share + whole_blocks - 1) / whole_blocks * whole_blocks;
    for (int first = 0; first < s.blocks; first += per) {
        const int blocks = s.blocks - first < per ? s.blocks - first : per;
        bytes.all_words = blocks * WORDS;
        bytes.resumes = first > 0;
        bytes.ends = first + blocks == s.blocks;
        for (int p = 0; p < P; ++p) expand_bytes<F>(s.panel + p * panel_stride, first, blocks, p, bytes);
        if (l.span == 0)
            for (int p = 0; p < P; ++p)
                row_scale<F>(s.panel + p * panel_stride, s.blocks, bytes.scales[p]);
        const int8_t* x = (in_fours(F) ? s.x.fours : s.x.eights) + first * BLOCK;
        IntTile t{x, s.x.stride, s.x.scales + first / INT_GROUP, s.x.scales_stride, s.out, s.out_stride, starts.whole, starts.sums};
        IntRows left = s.x;
        for (int r = 0; r < rows; r += INT_ROWS) {
            const int n = rows - r < INT_ROWS ? rows - r : INT_ROWS;
            start_sums<F>(left, first, s.blocks, blocks, n, starts);
            IntTile now = t;
            product_of_tile<most, ends, unit, P>(bytes, now, n);
            t.advance(n);
            t.starts = starts.whole;
            t.sums = starts.sums;
            left.sums += static_cast<size_t>(n) * left.sums_stride;
        }
    }
}
