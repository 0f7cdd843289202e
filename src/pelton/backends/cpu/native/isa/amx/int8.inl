// Products of 8-bit rows with integer codes on the matrix unit, 64 of them at a time for each output.
// What it is not: another arithmetic. Sums are whole numbers, so their order is free; what follows a unit (the codes that
// share a scale) and a group of x is that of every ISA. Few rows are the vectors', which need not bring each unit's sums out of a tile.

// Codes of a strip as signed bytes, [blocks][8 words][16][4].
struct AmxBytes {
    static_assert(AMX_STRIP % INT_GROUP == 0);
    alignas(64) int8_t codes[AMX_STRIP * BLOCK * PANEL];
    alignas(64) float scales[AMX_STRIP * 2 * PANEL], minima[AMX_STRIP * 2 * PANEL];
    int offset;  // what all codes have too much
};

// Some rows, at most 16, of a strip of one panel.
struct AmxInts {
    const AmxBytes& bytes;
    const int8_t* x;
    size_t x_stride;
    const int32_t* sums;  // of x, of the strip's first K-block or half
    size_t sums_stride;
    const float* x_scales;  // of the strip's first group
    size_t x_scales_stride;
    float* out;
    size_t out_stride;
    int rows, units, blocks;
    bool resumes, ends;  // blocks are not the row's first, are its last
    bool whole;          // codes have one scale for all of the row, which waits until its end
};

// Sums in tiles 0..3; x and codes of one K-block or half in 4 and 6, of two K-blocks in 5 and 7.
inline TileShapes amx_int_shapes(int rows, bool halves) {
    TileShapes shapes;
    const int bytes = halves ? BLOCK / 2 : BLOCK;
    for (int t = 0; t < AMX_UNITS; ++t) shapes.set(t, rows, TILE_ROW_BYTES);
    shapes.set(4, rows, bytes);
    shapes.set(5, rows, 2 * BLOCK);
    shapes.set(6, bytes / 4, TILE_ROW_BYTES);
    shapes.set(7, TILE_ROWS, TILE_ROW_BYTES);
    return shapes;
}

// Onto tile C: products of K-blocks [b, end) of the strip.
template <int C> inline void amx_int_blocks(const AmxInts& a, int b, int end) {
    constexpr int block_codes = BLOCK * PANEL;
    for (; b + 2 <= end; b += 2) {
        tile_load<5>(a.x + b * BLOCK, a.x_stride);
        tile_load<7>(a.bytes.codes + b * block_codes, TILE_ROW_BYTES);
        tile_int8<C, 5, 7>();
    }
    if (b == end) return;
    tile_load<4>(a.x + b * BLOCK, a.x_stride);
    tile_load<6>(a.bytes.codes + b * block_codes, TILE_ROW_BYTES);
    tile_int8<C, 4, 6>();
}

template <int C> inline void amx_int_unit(const AmxInts& a, AmxUnit kind, int unit) {
    tile_zero<C>();
    if (kind.halves) {
        tile_load<4>(a.x + unit * (BLOCK / 2), a.x_stride);
        tile_load<6>(a.bytes.codes + unit * (BLOCK / 2 * PANEL), TILE_ROW_BYTES);
        return tile_int8<C, 4, 6>();
    }
    const int first = unit * kind.blocks, end = first + kind.blocks;
    amx_int_blocks<C>(a, first, end < a.blocks ? end : a.blocks);
}

inline int32_t amx_int_sum_of_x(const AmxInts& a, AmxUnit kind, int row, int unit) {
    const int32_t* sums = a.sums + static_cast<size_t>(row) * a.sums_stride;
    int32_t sum = 0;
    for (int b = unit * kind.blocks; b < (unit + 1) * kind.blocks && (kind.halves || b < a.blocks); ++b) sum += sums[b];
    return sum;
}

// Sums less what the codes' offset has made of them, as fp32.
inline V amx_whole(const int32_t* sums, int32_t too_much) {
    alignas(64) float whole[PANEL];
    for (int i = 0; i < PANEL; ++i) whole[i] = static_cast<float>(sums[i] - too_much);
    return load(whole);
}

// A group of x goes onto the outputs; `last`: the strip's.
inline void amx_int_group(const AmxInts& a, int row, int group, bool last, V acc) {
    const size_t r = static_cast<size_t>(row);
    float* out = a.out + r * a.out_stride;
    const V scale = set1(a.x_scales[r * a.x_scales_stride + static_cast<size_t>(group)]);
    V total = fma(scale, acc, a.resumes || group ? load(out) : zero());
    if (a.whole && a.ends && last) total = mul(total, load(a.bytes.scales));
    store(out, total);
}

// accs: where a group goes on behind these units, what it has so far.
inline void amx_int_join(const AmxInts& a, AmxUnit kind, int first, int count, const int32_t* sums, float* accs) {
    const int of_group = kind.halves ? 2 * INT_GROUP : INT_GROUP / kind.blocks;
    for (int r = 0; r < a.rows; ++r) {
        V acc = first % of_group ? load(accs + r * PANEL) : zero();
        for (int u = 0; u < count; ++u) {
            const int unit = first + u, sum_x = amx_int_sum_of_x(a, kind, r, unit);
            const V sum = amx_whole(sums + (u * TILE_ROWS + r) * PANEL, a.bytes.offset * sum_x);
            acc = a.whole ? sum : fma(load(a.bytes.scales + unit * PANEL), sum, acc);
            if (kind.minima) acc = fma(load(a.bytes.minima + unit * PANEL), set1(static_cast<float>(sum_x)), acc);
            const bool last = unit + 1 == a.units;
            if (!last && (unit + 1) % of_group) continue;
            amx_int_group(a, r, unit / of_group, last, acc);
            acc = zero();
        }
        store(accs + r * PANEL, acc);
    }
}

inline void amx_int_units(const AmxInts& a, AmxUnit kind) {
    alignas(64) int32_t sums[2][AMX_UNITS * TILE_ROWS * PANEL];
    alignas(64) float accs[TILE_ROWS * PANEL];
    constexpr size_t bytes = PANEL * 4, tile = TILE_ROWS * PANEL;
    for (int first = 0, turn = 0; first < a.units; first += AMX_UNITS, turn ^= 1) {
        const int count = a.units - first < AMX_UNITS ? a.units - first : AMX_UNITS;
        amx_int_unit<0>(a, kind, first);
        if (count > 1) amx_int_unit<1>(a, kind, first + 1);
        if (count > 2) amx_int_unit<2>(a, kind, first + 2);
        if (count > 3) amx_int_unit<3>(a, kind, first + 3);
        tile_store<0>(sums[turn], bytes);
        if (count > 1) tile_store<1>(sums[turn] + tile, bytes);
        if (count > 2) tile_store<2>(sums[turn] + 2 * tile, bytes);
        if (count > 3) tile_store<3>(sums[turn] + 3 * tile, bytes);
        amx_int_join(a, kind, first, count, sums[turn], accs);
    }
}

inline void amx_int_panel(const IntArgs& a, int panel, float* panel_out) {
    const Matrix& m = *a.matrix;
    const Layout& l = layout(m.format);
    const bool halves = l.scales == 2;
    const AmxUnit kind{halves ? 1 : l.span ? l.span : INT_GROUP, halves, l.minima};
    const int8_t* x = l.codes == Codes::int8 ? a.x.fours : a.x.eights;
    AmxBytes bytes;
    for (int first = 0; first < m.blocks; first += AMX_STRIP) {
        const int blocks = m.blocks - first < AMX_STRIP ? m.blocks - first : AMX_STRIP;
        bytes.offset = base().expand_int8(m, panel, first, blocks, {bytes.codes, bytes.scales, bytes.minima});
        const int units = halves ? 2 * blocks : (blocks + kind.blocks - 1) / kind.blocks;
        for (int r = 0, shaped = 0; r < a.rows; r += TILE_ROWS) {
            const int rows = a.rows - r < TILE_ROWS ? a.rows - r : TILE_ROWS;
            if (rows != shaped) tile_shapes(amx_int_shapes(shaped = rows, halves));
            const size_t row = static_cast<size_t>(r);
            const int32_t* sums = a.x.sums + row * a.x.sums_stride + (halves ? m.blocks + 2 * first : first);
            const float* scales = a.x.scales + row * a.x.scales_stride + first / INT_GROUP;
            amx_int_units({bytes, x + row * a.x.stride + first * BLOCK, a.x.stride, sums, a.x.sums_stride, scales, a.x.scales_stride,
                           panel_out + row * a.out_stride, a.out_stride, rows, units, blocks, first > 0, first + blocks == m.blocks, l.span == 0},
                          kind);
        }
    }
}

static void amx_matmul_int8(const IntArgs& a) {
    if (a.rows < AMX_CODES_ROWS) return few_rows_int8(a);
    for (int p = 0; p < a.panels; ++p) amx_int_panel(a, a.panel + p, a.out + p * PANEL);
    tile_release();
}
