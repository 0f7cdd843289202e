// Many rows: a few adjacent panels are cut along K into strips, which are expanded to fp32 once and stay near while all
// rows pass by; out carries the accumulators from strip to strip.
// What it is not: another order. It is also the way of the values form, for any number of rows.

// The chains of MANY_ROWS times MANY_PANELS fill the registers: both of a unit and the accumulators, or, with IN_TURN,
// only those of even k and then those of odd k, since fewer registers hold too few of everything.
#if defined(PELTON_ISA_AVX512)
constexpr int MANY_ROWS = 4, MANY_PANELS = 2;
constexpr bool IN_TURN = false;
#elif defined(PELTON_ISA_AVX2)
constexpr int MANY_ROWS = 6, MANY_PANELS = 1;
constexpr bool IN_TURN = true;
#else
constexpr int MANY_ROWS = 4, MANY_PANELS = 1;
constexpr bool IN_TURN = false;
#endif
constexpr int STRIP_BLOCKS = 8; // K-blocks of a strip

// Weights or codes of some K-blocks of P panels, [k][P][16], or pairs of them as numbers of x are; their scales and minima,
// [units][P][16].
struct Strip {
    alignas(64) float weights[STRIP_BLOCKS * BLOCK_CODES * MANY_PANELS / K_OF_NUMBER];
    alignas(64) float scales[STRIP_BLOCKS * 2 * PANEL * MANY_PANELS];
    alignas(64) float minima[STRIP_BLOCKS * 2 * PANEL * MANY_PANELS];
    int panels, blocks;
    Join join; // none in the values form
    int span;
    bool first, last; // of the row
    const uint8_t* ahead; // the packed bytes of the next strip's first panel
    size_t ahead_bytes, panel_bytes;
};

// Rows of x from the strip's first k on, sums of x from its first unit on.
struct Rows {
    const Number* x;
    size_t x_stride;
    const float* sums;
    size_t sums_stride;
    float* out;
    size_t out_stride;
    int group, groups; // the first of them, of how many
};

// ---- a strip's weights ----

// K-blocks [first, first + to.blocks) of a panel, number p of the strip: codes, or weights of the values form.
template <Format F>
void expand_panel(const Matrix& m, const uint8_t* panel, int first, int p, Strip& to) {
    constexpr int per_block = join_of(F).units(), turns = 4 / K_OF_NUMBER;
    const int step = to.panels * PANEL;
    const bool values = join_of(F).scales > 0 && m.values;
    V scale = zero(), minimum = zero();
    for (int b = 0; b < to.blocks; ++b) {
        const uint8_t* block = block_at<F>(panel, first + b);
        float* weights = to.weights + b * BLOCK / K_OF_NUMBER * step + p * PANEL;
        for (int eighth = 0; eighth < 4; ++eighth) {
            if (values)
                load_scale<F>(panel, first + b, eighth * per_block / 4, m.blocks, scale, minimum);
            repeat<turns>([&](auto turn) {
                Weights<1> w;
                if (values)
                    w.expand<F, turn>(block, eighth, 0, [&](V c) { return value_of<F>(c, scale, minimum, !m.exact); });
                else
                    w.expand<F, turn>(block, eighth, 0);
                w.store(weights + (turns * eighth + turn) * 2 * step, 0, step);
            });
        }
    }
}

// Their scales and minima.
template <Format F>
void expand_strip_scales(const Matrix& m, const uint8_t* panel, int first, int p, Strip& to) {
    constexpr int per_block = join_of(F).units(), span = span_of(F);
    const int step = to.panels * PANEL;
    for (int b = 0; b < to.blocks; b += span ? span : STRIP_BLOCKS)
        for (int half = 0; half < per_block; ++half) {
            V scale = zero(), minimum = zero();
            load_scale<F>(panel, first + b, half, m.blocks, scale, minimum);
            const int unit = span ? b / (span ? span : 1) * per_block + half : 0;
            store(to.scales + unit * step + p * PANEL, scale);
            store(to.minima + unit * step + p * PANEL, minimum);
        }
}

template <Format F>
void expand_strip(const Matrix& m, int panel, int first, Strip& to) {
    const bool scaled = join_of(F).scales > 0 && !m.values;
    to.join = scaled ? join_of(F) : Join{0, false};
    to.span = scaled ? span_of(F) : 1;
    for (int p = 0; p < to.panels; ++p) {
        const uint8_t* from = m.data + static_cast<size_t>(panel + p) * m.panel_bytes;
        expand_panel<F>(m, from, first, p, to);
        if constexpr (join_of(F).scales > 0)
            if (scaled)
                expand_strip_scales<F>(m, from, first, p, to);
    }
}

// ---- its products ----

template <int N>
struct Vectors {
    V v[N];
};

// Chains of every second k.
template <int R, int P>
[[gnu::always_inline]] inline Vectors<R * P> chains_of(const float* x, size_t x_stride, const float* weights,
                                                       int count) {
    Vectors<R * P> chains;
    repeat<R * P>([&](auto i) { chains.v[i] = zero(); });
    for (int i = 0; i < count; ++i, x += 2, weights += 2 * P * PANEL) {
        V w[P];
        repeat<P>([&](auto p) { w[p] = load(weights + p * PANEL); });
        repeat<R>([&](auto r) {
            const V from = set1(x[r * x_stride]);
            repeat<P>([&](auto p) { chains.v[r * P + p] = fma(from, w[p], chains.v[r * P + p]); });
        });
    }
    return chains;
}

// Sums of one unit: `pairs` times two numbers of x.
template <int R, int P>
[[gnu::always_inline]] inline Vectors<R * P> sums_of(const Number* x, size_t x_stride, const float* weights, int pairs) {
    constexpr int step = P * PANEL, unrolled = 4;
    if constexpr (IN_TURN) {
        const Vectors<R * P> even = chains_of<R, P>(x, x_stride, weights, pairs);
        const Vectors<R * P> odd = chains_of<R, P>(x + 1, x_stride, weights + step, pairs);
        Vectors<R * P> sums;
        repeat<R * P>([&](auto i) { sums.v[i] = add(even.v[i], odd.v[i]); });
        return sums;
    }
    V even[R * P], odd[R * P];
    repeat<R * P>([&](auto i) { even[i] = odd[i] = zero(); });
    for (int i = 0; i < pairs; i += unrolled, x += 2 * unrolled, weights += 2 * unrolled * step)
        repeat<unrolled>([&](auto pair) {
            Weights<P> w;
            repeat<P>([&](auto p) { w.load(weights + 2 * pair * step + p * PANEL, p); });
            repeat<R>([&](auto r) {
                const Number* from = x + r * x_stride + 2 * pair;
                repeat<P>([&](auto p) {
                    even[r * P + p] = w.times_even(from[0], p, even[r * P + p]);
                    odd[r * P + p] = w.times_odd(from[1], p, odd[r * P + p]);
                });
            });
        });
    Vectors<R * P> sums;
    repeat<R * P>([&](auto i) { sums.v[i] = add(even[i], odd[i]); });
    return sums;
}

// What R rows have of P panels so far.
template <int R, int P>
struct State {
    V acc[R * P], group[R * P]; // group: where a scale is of several K-blocks
    float of_x[R];              // likewise
};

// How a unit's sums reach the accumulators: as they are; with a scale; with a minimum, too; those of a group, without a
// minimum or with one.
enum class Way { plain, scaled, lifted, grouped, grouped_lifted };

inline Way way_of(const Strip& s) {
    if (s.join.scales == 0 || s.span == 0)
        return Way::plain;
    if (s.span > 1)
        return s.join.minima ? Way::grouped_lifted : Way::grouped;
    return s.join.minima ? Way::lifted : Way::scaled;
}

// Takes sums that have scale number `unit` of the strip, and of_x, the sums of x.
template <int R, int P, bool MINIMA>
[[gnu::always_inline]] inline void join_sums(const Strip& s, int unit, const V* sums, const float* of_x,
                                             size_t of_x_stride, State<R, P>& to) {
    repeat<P>([&](auto p) __attribute__((always_inline)) {
        const V scale = load(s.scales + (unit * P + p) * PANEL);
        repeat<R>([&](auto r) { to.acc[r * P + p] = fma(scale, sums[r * P + p], to.acc[r * P + p]); });
        if constexpr (MINIMA) {
            const V minimum = load(s.minima + (unit * P + p) * PANEL);
            repeat<R>([&](auto r) {
                const V x = set1(of_x[r * of_x_stride]);
                to.acc[r * P + p] = fma(minimum, x, to.acc[r * P + p]);
            });
        }
    });
}

// Takes the sums of one of several K-blocks that share a scale.
template <int R, int P, bool MINIMA>
[[gnu::always_inline]] inline void join_group(const Strip& s, const Rows& rows, int b, const V* sums,
                                              State<R, P>& to) {
    repeat<R * P>([&](auto i) { to.group[i] = add(to.group[i], sums[i]); });
    if constexpr (MINIMA)
        repeat<R>([&](auto r) { to.of_x[r] += rows.sums[r * rows.sums_stride + static_cast<size_t>(b)]; });
    if (b % s.span != s.span - 1 && b != s.blocks - 1)
        return;
    join_sums<R, P, MINIMA>(s, b / s.span, to.group, to.of_x, 1, to);
    repeat<R * P>([&](auto i) { to.group[i] = zero(); });
    repeat<R>([&](auto r) { to.of_x[r] = 0.0f; });
}

template <int R, int P, Way W>
[[gnu::always_inline]] inline void strip_of_rows(const Strip& s, const Rows& rows) {
    State<R, P> state;
    const int per_block = s.join.units(), units = s.blocks * per_block, pairs = BLOCK / 2 / K_OF_NUMBER / per_block;
    repeat<R * P>([&](auto i) {
        state.group[i] = zero();
        state.acc[i] = s.first ? zero() : load(rows.out + i / P * rows.out_stride + i % P * PANEL);
    });
    repeat<R>([&](auto r) { state.of_x[r] = 0.0f; });
    const Number* x = rows.x;
    const float* weights = s.weights;
    for (int unit = 0; unit < units; ++unit, x += 2 * pairs, weights += 2 * pairs * P * PANEL) {
        const Vectors<R * P> sums = sums_of<R, P>(x, rows.x_stride, weights, pairs);
        if constexpr (W == Way::plain)
            repeat<R * P>([&](auto i) { state.acc[i] = add(state.acc[i], sums.v[i]); });
        else if constexpr (W == Way::scaled || W == Way::lifted)
            join_sums<R, P, W == Way::lifted>(s, unit, sums.v, rows.sums + unit, rows.sums_stride, state);
        else
            join_group<R, P, W == Way::grouped_lifted>(s, rows, unit, sums.v, state);
    }
    const bool scaled = s.span == 0 && s.last;
    repeat<P>([&](auto p) {
        const V scale = scaled ? load(s.scales + p * PANEL) : zero();
        repeat<R>([&](auto r) {
            const V y = state.acc[r * P + p];
            store(rows.out + r * rows.out_stride + p * PANEL, scaled ? mul(scale, y) : y);
        });
    });
}

// Groups of R rows, one after the other. Each asks for its part of the next strip, so that memory does not rest while this
// one is multiplied. (A function that does nothing else would be dropped by gcc.)
template <int R, int P, Way W>
void strip_of_groups(const Strip& s, Rows rows, int groups) {
    constexpr size_t line = 64;
    const size_t lines = s.ahead_bytes / line, parts = static_cast<size_t>(rows.groups);
    for (; groups > 0; --groups, ++rows.group) {
        const size_t part = static_cast<size_t>(rows.group);
        for (size_t i = lines * part / parts; i < lines * (part + 1) / parts; ++i)
            for (int p = 0; p < P; ++p)
                __builtin_prefetch(s.ahead + static_cast<size_t>(p) * s.panel_bytes + i * line);
        strip_of_rows<R, P, W>(s, rows);
        rows.x += R * rows.x_stride;
        if constexpr (W == Way::lifted || W == Way::grouped_lifted)
            rows.sums += R * rows.sums_stride;
        rows.out += R * rows.out_stride;
    }
}

// size: rows of a group, 1 .. MANY_ROWS.
template <int P, int R = MANY_ROWS>
void strip_of_size(const Strip& s, const Rows& rows, int size, int groups) {
    if constexpr (R > 1)
        if (size < R)
            return strip_of_size<P, R - 1>(s, rows, size, groups);
    constexpr void (*ways[])(const Strip&, Rows, int) = {
        strip_of_groups<R, P, Way::plain>, strip_of_groups<R, P, Way::scaled>, strip_of_groups<R, P, Way::lifted>,
        strip_of_groups<R, P, Way::grouped>, strip_of_groups<R, P, Way::grouped_lifted>,
    };
    ways[static_cast<int>(way_of(s))](s, rows, groups);
}

// Any number of rows, in groups as equal as they can be.
inline void strip_of_all(const Strip& s, Rows rows, int count) {
    const int groups = (count + MANY_ROWS - 1) / MANY_ROWS, size = count / groups, larger = count % groups;
    rows.groups = groups;
    const auto part = [&](int rows_each, int number) {
        if (s.panels == 1)
            strip_of_size<1>(s, rows, rows_each, number);
        else
            strip_of_size<MANY_PANELS>(s, rows, rows_each, number);
    };
    if (larger > 0)
        part(size + 1, larger);
    const size_t done = static_cast<size_t>(larger * (size + 1));
    rows.x += done * rows.x_stride;
    if (s.join.minima)
        rows.sums += done * rows.sums_stride;
    rows.out += done * rows.out_stride;
    rows.group = larger;
    part(size, groups - larger);
}

// ---- all of it ----

using ExpandStrip = void (*)(const Matrix&, int panel, int first, Strip&);

// x, x_stride: of the rows, as numbers.
static void many(const MatmulArgs& a, const Number* x, size_t x_stride, ExpandStrip expand_into) {
    const Matrix& m = *a.matrix;
    Strip s;
    s.panel_bytes = m.panel_bytes;
    for (int p = 0; p < a.panels; p += s.panels) {
        s.panels = a.panels - p < MANY_PANELS ? 1 : MANY_PANELS;
        for (int first = 0; first < m.blocks; first += STRIP_BLOCKS) {
            s.blocks = m.blocks - first < STRIP_BLOCKS ? m.blocks - first : STRIP_BLOCKS;
            s.first = first == 0;
            s.last = first + s.blocks == m.blocks;
            const int after = first + s.blocks, next = s.last ? p + s.panels : p; // where the next strip begins
            s.ahead = m.data + static_cast<size_t>(a.panel + next) * m.panel_bytes + m.panel_bytes * static_cast<size_t>(s.last ? 0 : after) / static_cast<size_t>(m.blocks);
            s.ahead_bytes = m.panel_bytes * STRIP_BLOCKS / static_cast<size_t>(m.blocks);
            expand_into(m, a.panel + p, first, s);
            Rows rows{x + first * BLOCK / K_OF_NUMBER, x_stride, a.sums, a.sums_stride, a.out + p * PANEL, a.out_stride, 0, 1};
            if (s.join.minima)
                rows.sums += (m.uses_half_sums() ? m.blocks : 0) + first * s.join.units();
            strip_of_all(s, rows, a.rows);
        }
    }
}
