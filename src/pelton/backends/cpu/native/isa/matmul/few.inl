// Few rows: weights go from the packed panel through registers into the products, once for each group of rows.
// What it is not: another order. Rows, panels and units are taken together only to hide the latency of fma, to share what
// is loaded and to keep memory busy.

// ROW_GROUP times PANELS_AT_ONCE: so many chains of each kind fit the registers beside the weights. CHAINS: so many at once
// hide the latency of fma; fewer rows take several units together to reach it. STREAM_ROWS: with up to so many rows,
// weights of 16 bits and more come slower than they are multiplied.
#if defined(PELTON_ISA_AVX512_BF16)
constexpr int ROW_GROUP = 8, CHAINS = 8, PANELS_AT_ONCE = 1, STREAM_ROWS = 8;
#elif defined(PELTON_ISA_AVX512)
constexpr int ROW_GROUP = 4, CHAINS = 8, PANELS_AT_ONCE = 2, STREAM_ROWS = 8;
#elif defined(PELTON_ISA_AVX2)
constexpr int ROW_GROUP = 2, CHAINS = 4, PANELS_AT_ONCE = 1, STREAM_ROWS = 2;
#else
constexpr int ROW_GROUP = 2, CHAINS = 2, PANELS_AT_ONCE = 1, STREAM_ROWS = 2;
#endif

constexpr size_t FETCH_AHEAD = size_t{8} << 10; // how far ahead of the products weights are asked for, as measured
constexpr size_t SET_BYTES = size_t{256} << 10; // panels of so many bytes stay in the L2 cache beside the next ones

// Up to so many rows go with one panel after the other, as memory likes it best.
constexpr int one_panel_rows(Format format) {
    const Codes codes = layout(format).codes;
    if (codes == Codes::f32 || codes == Codes::bf16 || codes == Codes::f16)
        return STREAM_ROWS;
    return codes == Codes::int8 ? ROW_GROUP : 2;
}

// Rows of a group.
constexpr int most_rows(Format format, int panels) {
    return panels == 1 && one_panel_rows(format) > ROW_GROUP ? one_panel_rows(format) : ROW_GROUP;
}

// What the products of some rows and adjacent panels read and write.
struct Few {
    const uint8_t* panel; // the first of them
    size_t panel_bytes;
    int blocks;
    int part, parts; // which group of rows, of how many
    bool more;       // panels follow these
    const Number* x; // of the first row
    size_t x_stride;
    const float* sums;
    size_t sums_stride;
    float* out;
    size_t out_stride;
};

// What is asked for while the K-blocks at `at` bytes into a panel are multiplied: later ones; or, where these panels are
// gone through by several groups of rows, the same of the next panels, by each group in its turns, so that memory never
// rests. Without anything to ask for it is what is read now.
template <int P>
[[gnu::always_inline]] inline const uint8_t* next_of(const Few& f, size_t at, int turn) {
    const uint8_t* now = f.panel + at;
    if (f.parts > 1 && P * f.panel_bytes <= SET_BYTES)
        return f.more && turn % f.parts == f.part ? now + P * f.panel_bytes : now;
    if (f.part > 0)
        return now;
    constexpr size_t distance = FETCH_AHEAD / P;
    if (P > 1 && f.panel_bytes < distance)
        return now + P * f.panel_bytes;
    return now + distance + (at + distance < f.panel_bytes ? 0 : (P - 1) * f.panel_bytes);
}

// Sums of B units from `unit` on, of R rows and P panels: sums[(unit * R + row) * P + panel]. B > 1 starts with a K-block.
// `next`: what to ask for meanwhile, a few lines at a time. (A lambda that does nothing else would be dropped by gcc.)
template <Format F, int R, int P, int B>
[[gnu::always_inline]] inline void sums_of_units(const Few& f, int unit, const uint8_t* next, V* sums) {
    constexpr int per_block = join_of(F).units(), eighths = 4 / per_block, size = BLOCK / per_block;
    const uint8_t* block = block_at<F>(f.panel, unit / per_block);
    const int first_half = B > 1 ? 0 : unit % per_block;
    const Number* x = f.x + static_cast<size_t>(unit) * (size / K_OF_NUMBER);
    V even[B * R * P], odd[B * R * P];
    repeat<B * R * P>([&](auto i) { even[i] = odd[i] = zero(); });
    constexpr size_t bytes = B * block_bytes(F) / (per_block * eighths);
    constexpr int lines = static_cast<int>((bytes + 63) / 64), turns = 4 / K_OF_NUMBER;
    for (int eighth = 0; eighth < eighths; ++eighth, x += 8 / K_OF_NUMBER, next += bytes)
        repeat<turns>([&](auto turn) {
            for (int line = turn * lines / turns; line < (turn + 1) * lines / turns; ++line)
                for (int p = 0; p < P; ++p)
                    __builtin_prefetch(next + static_cast<size_t>(p) * f.panel_bytes + line * 64);
            repeat<B>([&](auto i) {
                const int at = (first_half + i % per_block) * eighths + eighth;
                Weights<P> w;
                repeat<P>([&](auto p) {
                    w.template expand<F, turn>(block + p * f.panel_bytes + i / per_block * block_bytes(F), at, p);
                });
                repeat<R>([&](auto r) {
                    const Number* from = x + static_cast<size_t>(r) * f.x_stride + i * (size / K_OF_NUMBER) + turn * 2;
                    repeat<P>([&](auto p) {
                        constexpr int c = (i * R + r) * P + p;
                        even[c] = w.times_even(from[0], p, even[c]);
                        odd[c] = w.times_odd(from[1], p, odd[c]);
                    });
                });
            });
        });
    repeat<B * R * P>([&](auto i) { sums[i] = add(even[i], odd[i]); });
}

// The accumulators and, where a scale is of several K-blocks, the sums of the group that is under way.
template <int R, int P>
struct Sums {
    V acc[R * P], group[R * P];
    float of_x[R];
};

// Takes the sums of one unit.
template <Format F, int R, int P>
[[gnu::always_inline]] inline void join_unit(const Few& f, int unit, const V* sums, Sums<R, P>& to) {
    constexpr Join join = join_of(F);
    constexpr int span = span_of(F), per_block = join.units();
    if constexpr (join.scales == 0 || span == 0) {
        repeat<R * P>([&](auto i) { to.acc[i] = add(to.acc[i], sums[i]); });
        return;
    }
    if constexpr (span > 1) {
        repeat<R * P>([&](auto i) { to.group[i] = add(to.group[i], sums[i]); });
        if constexpr (join.minima)
            repeat<R>([&](auto r) { to.of_x[r] += f.sums[r * f.sums_stride + static_cast<size_t>(unit)]; });
        if (unit % (span ? span : 1) != span - 1 && unit != f.blocks - 1)
            return;
    }
    repeat<P>([&](auto p) __attribute__((always_inline)) {
        V scale = zero(), minimum = zero();
        load_scale<F>(f.panel + p * f.panel_bytes, unit / per_block, unit % per_block, f.blocks, scale, minimum);
        repeat<R>([&](auto r) {
            constexpr int c = r * P + p;
            to.acc[c] = fma(scale, span > 1 ? to.group[c] : sums[c], to.acc[c]);
            if constexpr (join.minima) {
                const float* of_x = f.sums + r * f.sums_stride + static_cast<size_t>(unit);
                to.acc[c] = fma(minimum, set1(span > 1 ? to.of_x[r] : *of_x), to.acc[c]);
            }
        });
    });
    if constexpr (span > 1) {
        repeat<R * P>([&](auto i) { to.group[i] = zero(); });
        repeat<R>([&](auto r) { to.of_x[r] = 0.0f; });
    }
}

// Units from `unit` on, B at a time, as long as there are so many.
template <Format F, int R, int P, int B>
[[gnu::always_inline]] inline int few_units(const Few& f, int unit, Sums<R, P>& state) {
    constexpr int per_block = join_of(F).units();
    constexpr size_t bytes = block_bytes(F) * B / per_block;
    for (; unit + B <= f.blocks * per_block; unit += B) {
        const size_t at = static_cast<size_t>(block_at<F>(f.panel, unit / per_block) - f.panel);
        const uint8_t* next = next_of<P>(f, at + unit % per_block * bytes, unit / B);
        V sums[B * R * P];
        sums_of_units<F, R, P, B>(f, unit, next, sums);
        repeat<B>([&](auto i) __attribute__((always_inline)) {
            join_unit<F, R, P>(f, unit + i, sums + i * R * P, state);
        });
    }
    return unit;
}

template <Format F, int R, int P>
[[gnu::always_inline]] inline void few_rows(const Few& f) {
    // Units taken together are of K-blocks without anything between them.
    constexpr int per_block = join_of(F).units(), adjacent = head_blocks(F) ? head_blocks(F) * per_block : CHAINS;
    constexpr int wanted = CHAINS / (2 * R * P), together = wanted < 1 ? 1 : wanted < adjacent ? wanted : adjacent;
    static_assert(adjacent % together == 0);
    Sums<R, P> state;
    repeat<R * P>([&](auto i) { state.acc[i] = state.group[i] = zero(); });
    repeat<R>([&](auto r) { state.of_x[r] = 0.0f; });
    int unit = few_units<F, R, P, together>(f, 0, state);
    if constexpr (together > 2)
        unit = few_units<F, R, P, 2>(f, unit, state);
    if constexpr (together > 1)
        few_units<F, R, P, 1>(f, unit, state);
    repeat<P>([&](auto p) {
        V scale = zero(), unused = zero();
        if constexpr (span_of(F) == 0)
            load_scale<F>(f.panel + p * f.panel_bytes, 0, 0, f.blocks, scale, unused);
        repeat<R>([&](auto r) {
            const V y = state.acc[r * P + p];
            store(f.out + r * f.out_stride + p * PANEL, span_of(F) == 0 ? mul(scale, y) : y);
        });
    });
}

// Groups of R rows, one after the other, for `sets` times P panels. Of each the first group brings the weights near.
template <Format F, int R, int P>
void few_groups(Few f, int groups, int sets) {
    for (; sets > 0; --sets, f.panel += P * f.panel_bytes, f.out += P * PANEL) {
        Few g = f;
        g.more = f.more || sets > 1;
        for (int left = groups; left > 0; --left) {
            few_rows<F, R, P>(g);
            ++g.part;
            g.x += R * g.x_stride;
            if constexpr (join_of(F).minima)
                g.sums += R * g.sums_stride;
            g.out += R * g.out_stride;
        }
    }
}

// size: rows of a group, 1 .. R.
template <Format F, int P, int R = most_rows(F, P)>
void few_of_size(const Few& f, int size, int groups, int sets) {
    if (size == R)
        return few_groups<F, R, P>(f, groups, sets);
    if constexpr (R > 1)
        few_of_size<F, P, R - 1>(f, size, groups, sets);
}

// Any number of rows, in groups as equal as they can be, of P panels at a time.
template <Format F, int P>
void few_panels(Few f, int rows, int sets) {
    constexpr int most = most_rows(F, P);
    const int groups = (rows + most - 1) / most, size = rows / groups, larger = rows % groups;
    f.parts = groups;
    if (larger == 0)
        return few_of_size<F, P>(f, size, groups, sets);
    const size_t done = static_cast<size_t>(larger * (size + 1));
    for (; sets > 0; --sets, f.panel += P * f.panel_bytes, f.out += P * PANEL) {
        Few g = f;
        g.more = sets > 1;
        few_of_size<F, P>(g, size + 1, larger, 1);
        g.part += larger;
        g.x += done * g.x_stride;
        g.sums += join_of(F).minima ? done * g.sums_stride : 0;
        g.out += done * g.out_stride;
        few_of_size<F, P>(g, size, groups - larger, 1);
    }
}

template <Format F>
void few(Few f, int rows, int panels) {
    if (PANELS_AT_ONCE > 1 && rows > one_panel_rows(F)) {
        const int sets = panels / PANELS_AT_ONCE;
        few_panels<F, PANELS_AT_ONCE>(f, rows, sets);
        panels -= sets * PANELS_AT_ONCE;
        f.panel += static_cast<size_t>(sets * PANELS_AT_ONCE) * f.panel_bytes;
        f.out += sets * PANELS_AT_ONCE * PANEL;
    }
    few_panels<F, 1>(f, rows, panels);
}
