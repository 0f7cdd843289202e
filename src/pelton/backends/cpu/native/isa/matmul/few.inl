// Few rows: weights go from the packed panel through registers into the products, once for up to ROW_GROUP rows.
// What it is not: another order. Rows, panels and units are taken together only to hide the latency of fma and to share
// what is loaded.

// ROW_GROUP: the chains of so many rows fit the registers beside the weights. CHAINS: so many chains at once hide the
// latency of fma; fewer rows take several panels, then several units together to reach it.
#if defined(PELTON_ISA_AVX512)
constexpr int ROW_GROUP = 4, CHAINS = 8, PANELS_AT_ONCE = 2;
#elif defined(PELTON_ISA_AVX2)
constexpr int ROW_GROUP = 2, CHAINS = 4, PANELS_AT_ONCE = 1;
#else
constexpr int ROW_GROUP = 2, CHAINS = 2, PANELS_AT_ONCE = 1;
#endif

// What the products of some rows and adjacent panels read and write.
struct Few {
    const uint8_t* panel; // the first of them
    size_t panel_bytes;
    int blocks;
    bool fetches;   // asks for weights ahead
    const float* x; // of the first row
    size_t x_stride;
    const float* sums;
    size_t sums_stride;
    float* out;
    size_t out_stride;
};

// Asks for what these panels, or the next ones, will be read from. `at`: bytes into a panel. No lambda here: gcc drops the
// call of one that does nothing but prefetch.
template <Format F, int P>
[[gnu::always_inline]] inline void fetch_ahead(const Few& f, size_t at, size_t bytes) {
    const size_t ahead = f.panel_bytes < prefetch_bytes(F) ? f.panel_bytes : prefetch_bytes(F);
    const size_t target = at + ahead + (at + ahead < f.panel_bytes ? 0 : (P - 1) * f.panel_bytes);
    for (size_t line = 0; line < bytes; line += 64)
        for (int p = 0; p < P; ++p)
            __builtin_prefetch(f.panel + static_cast<size_t>(p) * f.panel_bytes + target + line);
}

// The chains of B units from `unit` on, of R rows and P panels; sums[(unit * R + row) * P + panel]. B > 1 starts with a
// K-block.
template <Format F, int R, int P, int B>
[[gnu::always_inline]] inline void sums_of_units(const Few& f, int unit, V* sums) {
    constexpr int per_block = join_of(F).units(), eighths = 4 / per_block, size = BLOCK / per_block;
    const uint8_t* block = block_at<F>(f.panel, unit / per_block);
    const int first_half = B > 1 ? 0 : unit % per_block;
    const float* x = f.x + static_cast<size_t>(unit) * size;
    V even[B * R * P], odd[B * R * P];
    repeat<B * R * P>([&](auto i) { even[i] = odd[i] = zero(); });
    for (int eighth = 0; eighth < eighths; ++eighth, x += 8)
        repeat<4>([&](auto pair) {
            repeat<B>([&](auto i) {
                const int at = (first_half + i % per_block) * eighths + eighth;
                V w0[P], w1[P];
                repeat<P>([&](auto p) {
                    expand<F, pair>(block + p * f.panel_bytes + i / per_block * block_bytes(F), at, w0[p], w1[p]);
                });
                repeat<R>([&](auto r) {
                    const float* from = x + static_cast<size_t>(r) * f.x_stride + i * size + pair * 2;
                    const V x0 = set1(from[0]), x1 = set1(from[1]);
                    repeat<P>([&](auto p) {
                        constexpr int c = (i * R + r) * P + p;
                        even[c] = fma(x0, w0[p], even[c]);
                        odd[c] = fma(x1, w1[p], odd[c]);
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

template <Format F, int R, int P>
[[gnu::always_inline]] inline void few_rows(const Few& f) {
    constexpr int per_block = join_of(F).units(), adjacent = head_blocks(F) ? head_blocks(F) * per_block : CHAINS;
    constexpr int wanted = CHAINS / (2 * R * P), together = wanted < 1 ? 1 : wanted < adjacent ? wanted : adjacent;
    static_assert(adjacent % together == 0);
    const int units = f.blocks * per_block;
    Sums<R, P> state;
    repeat<R * P>([&](auto i) { state.acc[i] = state.group[i] = zero(); });
    repeat<R>([&](auto r) { state.of_x[r] = 0.0f; });
    V sums[together * R * P];
    int unit = 0;
    for (; unit + together <= units; unit += together) {
        constexpr size_t bytes = block_bytes(F) * together / per_block;
        const size_t at = static_cast<size_t>(block_at<F>(f.panel, unit / per_block) - f.panel);
        if (f.fetches)
            fetch_ahead<F, P>(f, at + unit % per_block * bytes, bytes);
        sums_of_units<F, R, P, together>(f, unit, sums);
        repeat<together>([&](auto i) __attribute__((always_inline)) {
            join_unit<F, R, P>(f, unit + i, sums + i * R * P, state);
        });
    }
    if constexpr (together > 1)
        for (; unit < units; ++unit) {
            sums_of_units<F, R, P, 1>(f, unit, sums);
            join_unit<F, R, P>(f, unit, sums, state);
        }
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

// Groups of R rows, one after the other; the first brings the weights near.
template <Format F, int R, int P>
void few_groups(Few f, int groups) {
    for (; groups > 0; --groups) {
        few_rows<F, R, P>(f);
        f.fetches = false;
        f.x += R * f.x_stride;
        if constexpr (join_of(F).minima)
            f.sums += R * f.sums_stride;
        f.out += R * f.out_stride;
    }
}

// size: rows of a group, 1 .. ROW_GROUP.
template <Format F, int P, int R = ROW_GROUP>
void few_of_size(const Few& f, int size, int groups) {
    if (size == R)
        return few_groups<F, R, P>(f, groups);
    if constexpr (R > 1)
        few_of_size<F, P, R - 1>(f, size, groups);
}

// Any number of rows, in groups as equal as they can be.
template <Format F>
void few(Few f, int rows, int panels) {
    const int groups = (rows + ROW_GROUP - 1) / ROW_GROUP, size = rows / groups, larger = rows % groups;
    const size_t done = static_cast<size_t>(larger * (size + 1));
    for (int now; panels > 0; panels -= now) {
        now = panels < PANELS_AT_ONCE ? 1 : PANELS_AT_ONCE;
        const auto part = [&](const Few& g, int rows_each, int number) {
            if (now == PANELS_AT_ONCE)
                few_of_size<F, PANELS_AT_ONCE>(g, rows_each, number);
            else
                few_of_size<F, 1>(g, rows_each, number);
        };
        Few g = f;
        if (larger > 0) {
            part(g, size + 1, larger);
            g.fetches = false;
            g.x += done * g.x_stride;
            g.sums += join_of(F).minima ? done * g.sums_stride : 0;
            g.out += done * g.out_stride;
        }
        part(g, size, groups - larger);
        f.panel += static_cast<size_t>(now) * f.panel_bytes;
        f.out += now * PANEL;
    }
}
