// Order-1 products on the matrix unit, whose bf16 product of one K-block is order 1 to the last rounding.
// What it is not: a kernel for fp32 rows, fp32 or fp16 weights, or for few rows of codes: base() does those. Dense weights
// stay in the tile for all K-blocks; codes leave it for each unit, since the accumulator is a fused product with the scale.
// Rows, panels and K-blocks are grouped for speed only.

// From so many rows on codes go through the tiles: their sums must leave a tile for each unit, so with one row the vector
// kernel reads weights nearly twice as fast, while with many the tiles do five times its products.
constexpr int AMX_CODES_ROWS = 16;
constexpr int AMX_STRIP = 16;                         // K-blocks of a strip that are expanded at once
constexpr int AMX_PLAIN_STRIP = 20;                   // K-blocks of two panels that leave room in the L1 cache
constexpr size_t AMX_ROWS_BYTES = size_t{512} << 10;  // of rows that stay in the L2 cache while panels pass by
constexpr int AMX_AHEAD = 8;                          // K-blocks that weights are asked for ahead of the products
constexpr int AMX_BLOCK_BYTES = BLOCK * PANEL * 2;
constexpr int AMX_UNITS = 4;  // units whose sums are in tiles at once

// ---- dense weights ---------------------------------------------------------------------------------------------------

// One or two row groups of 16 times one or two panels, over some K-blocks.
struct AmxDense {
    const uint16_t* x;
    size_t x_stride;           // elements
    const uint8_t* weights[2]; // the panels' first K-blocks
    size_t next;               // bytes from there to the weights that follow; 0: they are not fetched
    float* out;
    size_t out_stride;
    int blocks;
    bool resumes; // out holds the sums of the blocks before
};

// The shapes for `rows` rows of x and K-blocks or halves of them: C in tiles 0..3, A in 4 and 5, B in 6 and 7.
inline TileShapes amx_shapes(int rows) {
    TileShapes shapes;
    const int low = rows < TILE_ROWS ? rows : TILE_ROWS, high = rows - low;
    for (int t : {0, 1, 4}) shapes.set(t, low, TILE_ROW_BYTES);
    for (int t : {2, 3, 5}) shapes.set(t, high, high ? TILE_ROW_BYTES : 0);
    for (int t : {6, 7}) shapes.set(t, TILE_ROWS, TILE_ROW_BYTES);
    return shapes;
}

inline void amx_fetch(const AmxDense& d, const uint8_t* weights, int block) {
    if (!d.next) return;
    const int at = block + AMX_AHEAD;
    const uint8_t* from = at < d.blocks ? weights + at * AMX_BLOCK_BYTES : weights + d.next + (at - d.blocks) * AMX_BLOCK_BYTES;
    for (int line = 0; line < AMX_BLOCK_BYTES; line += 64) __builtin_prefetch(from + line);
}

template <int M, int N> void amx_dense(const AmxDense& d) {
    const size_t x_bytes = d.x_stride * 2, out_bytes = d.out_stride * 4;
    float* const high = d.out + TILE_ROWS * d.out_stride;
    if (d.resumes) {
        tile_load<0>(d.out, out_bytes);
        if constexpr (N > 1) tile_load<1>(d.out + PANEL, out_bytes);
        if constexpr (M > 1) tile_load<2>(high, out_bytes);
        if constexpr (M > 1 && N > 1) tile_load<3>(high + PANEL, out_bytes);
    } else {
        tile_zero<0>();
        if constexpr (N > 1) tile_zero<1>();
        if constexpr (M > 1) tile_zero<2>();
        if constexpr (M > 1 && N > 1) tile_zero<3>();
    }
    for (int b = 0; b < d.blocks; ++b) {
        const uint16_t* x = d.x + b * BLOCK;
        tile_load<6>(d.weights[0] + b * AMX_BLOCK_BYTES, TILE_ROW_BYTES);
        amx_fetch(d, d.weights[0], b);
        tile_load<4>(x, x_bytes);
        tile_bf16<0, 4, 6>();
        if constexpr (N > 1) {
            tile_load<7>(d.weights[1] + b * AMX_BLOCK_BYTES, TILE_ROW_BYTES);
            amx_fetch(d, d.weights[1], b);
            tile_bf16<1, 4, 7>();
        }
        if constexpr (M > 1) {
            tile_load<5>(x + TILE_ROWS * d.x_stride, x_bytes);
            tile_bf16<2, 5, 6>();
            if constexpr (N > 1) tile_bf16<3, 5, 7>();
        }
    }
    tile_store<0>(d.out, out_bytes);
    if constexpr (N > 1) tile_store<1>(d.out + PANEL, out_bytes);
    if constexpr (M > 1) tile_store<2>(high, out_bytes);
    if constexpr (M > 1 && N > 1) tile_store<3>(high + PANEL, out_bytes);
}

// All rows times one or two panels.
void amx_dense_rows(AmxDense d, int rows, int panels) {
    for (int shaped = 0; rows > 0; rows -= 2 * TILE_ROWS) {
        const int now = rows < 2 * TILE_ROWS ? rows : 2 * TILE_ROWS;
        if (now != shaped) tile_shapes(amx_shapes(shaped = now));
        if (now > TILE_ROWS)
            panels > 1 ? amx_dense<2, 2>(d) : amx_dense<2, 1>(d);
        else
            panels > 1 ? amx_dense<1, 2>(d) : amx_dense<1, 1>(d);
        d.x += 2 * TILE_ROWS * d.x_stride;
        d.out += 2 * TILE_ROWS * d.out_stride;
        d.next = 0;
    }
}

// Two panels at a time; with many rows they are cut along K into strips that stay in the L1 cache while all rows use them.
void amx_matmul_dense(const MatmulArgs& a) {
    const Matrix& m = *a.matrix;
    const bool plain = m.format == Format::bf16;
    const int strips = a.rows <= 2 * TILE_ROWS ? 1 : (m.blocks + AMX_PLAIN_STRIP - 1) / AMX_PLAIN_STRIP;
    const int strip = plain ? (m.blocks + strips - 1) / strips : AMX_STRIP;
    alignas(64) uint16_t expanded[2][AMX_STRIP * BLOCK * PANEL];
    alignas(64) float scales[PANEL];  // of whole rows; amx_scale_rows uses them
    for (int p = 0; p < a.panels; p += 2) {
        const int count = a.panels - p < 2 ? 1 : 2;
        for (int first = 0; first < m.blocks; first += strip) {
            AmxDense d{a.x16 + first * BLOCK, a.x16_stride, {}, 0, a.out + p * PANEL, a.out_stride, m.blocks - first, first > 0};
            if (d.blocks > strip) d.blocks = strip;
            for (int i = 0; i < count; ++i) {
                const int panel = a.panel + p + i;
                d.weights[i] = m.data + static_cast<size_t>(panel) * m.panel_bytes + static_cast<size_t>(first) * AMX_BLOCK_BYTES;
                if (plain) continue;
                base().expand(m, panel, first, d.blocks, {expanded[i], scales, nullptr});
                d.weights[i] = reinterpret_cast<const uint8_t*>(expanded[i]);
            }
            if (a.rows <= 2 * TILE_ROWS && plain) d.next = count * m.panel_bytes;
            amx_dense_rows(d, a.rows, count);
        }
    }
}

// ---- codes -----------------------------------------------------------------------------------------------------------

// What a unit is: `blocks` K-blocks, or with `halves` half of one.
struct AmxUnit {
    int blocks;
    bool halves, minima;
};

// Some rows, at most 16, of a strip.
struct AmxCodes {
    const uint16_t* x;
    size_t x_stride;
    const uint16_t* codes;
    const float *scales, *minima;
    const float* sums; // of x, of the strip's first unit
    size_t sums_stride;
    float* out;
    size_t out_stride;
    int rows, units, blocks;
    bool resumes;
};

// What a unit of one block starts from: -0 + x is x, and +0 + x is not where x is -0.
alignas(64) constexpr float AMX_NOTHING[PANEL] = {-0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f,
                                                  -0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f};

// Sums of one unit, in tile C.
template <int C> inline void amx_unit(const AmxCodes& c, AmxUnit kind, int unit) {
    if (kind.blocks == 1) tile_load<C>(AMX_NOTHING, 0);  // each row the same
    else tile_zero<C>();
    if (kind.halves) {
        tile_load<4>(c.x + unit * (BLOCK / 2), c.x_stride * 2);
        tile_load<6>(c.codes + unit * (BLOCK / 2 * PANEL), TILE_ROW_BYTES);
        tile_bf16<C, 4, 6>();
        return;
    }
    const int end = (unit + 1) * kind.blocks;
    for (int b = unit * kind.blocks; b < end && b < c.blocks; ++b) {
        tile_load<4>(c.x + b * BLOCK, c.x_stride * 2);
        tile_load<6>(c.codes + b * (BLOCK * PANEL), TILE_ROW_BYTES);
        tile_bf16<C, 4, 6>();
    }
}

// Sum of x over a unit.
inline float amx_sum_of_x(const AmxCodes& c, AmxUnit kind, int row, int unit) {
    const float* sums = c.sums + static_cast<size_t>(row) * c.sums_stride;
    if (kind.blocks == 1) return sums[unit];
    float sum = 0.0f;
    for (int b = unit * kind.blocks; b < (unit + 1) * kind.blocks && b < c.blocks; ++b) sum += sums[b];
    return sum;
}

// Accumulators of the rows take `count` units' sums[unit][16][16].
template <bool MINIMA> inline void amx_join(const AmxCodes& c, AmxUnit kind, int first, int count, const float* sums) {
    V scale[AMX_UNITS], minimum[AMX_UNITS];
    for (int u = 0; u < count; ++u) {
        scale[u] = load(c.scales + (first + u) * PANEL);
        minimum[u] = MINIMA ? load(c.minima + (first + u) * PANEL) : zero();
    }
    for (int r = 0; r < c.rows; ++r) {
        float* out = c.out + static_cast<size_t>(r) * c.out_stride;
        V acc = c.resumes || first ? load(out) : zero();
        for (int u = 0; u < count; ++u) {
            acc = fma(scale[u], load(sums + (u * TILE_ROWS + r) * PANEL), acc);
            if constexpr (MINIMA) acc = fma(minimum[u], set1(amx_sum_of_x(c, kind, r, first + u)), acc);
        }
        store(out, acc);
    }
}

// All units of a strip for some rows: sums of a few leave their tiles while those of the next few are made.
template <bool MINIMA> void amx_codes(const AmxCodes& c, AmxUnit kind) {
    alignas(64) float sums[2][AMX_UNITS * TILE_ROWS * PANEL];
    constexpr size_t bytes = PANEL * 4, tile = TILE_ROWS * PANEL;
    for (int first = 0, turn = 0; first < c.units; first += AMX_UNITS, turn ^= 1) {
        const int count = c.units - first < AMX_UNITS ? c.units - first : AMX_UNITS;
        amx_unit<0>(c, kind, first);
        if (count > 1) amx_unit<1>(c, kind, first + 1);
        if (count > 2) amx_unit<2>(c, kind, first + 2);
        if (count > 3) amx_unit<3>(c, kind, first + 3);
        tile_store<0>(sums[turn], bytes);
        if (count > 1) tile_store<1>(sums[turn] + tile, bytes);
        if (count > 2) tile_store<2>(sums[turn] + 2 * tile, bytes);
        if (count > 3) tile_store<3>(sums[turn] + 3 * tile, bytes);
        amx_join<MINIMA>(c, kind, first, count, sums[turn]);
    }
}

// The shapes for `rows` rows of units: sums in tiles 0..3, x in 4, codes in 6.
inline TileShapes amx_unit_shapes(int rows, bool halves) {
    TileShapes shapes;
    for (int t = 0; t < AMX_UNITS; ++t) shapes.set(t, rows, TILE_ROW_BYTES);
    shapes.set(4, rows, halves ? TILE_ROW_BYTES / 2 : TILE_ROW_BYTES);
    shapes.set(6, halves ? TILE_ROWS / 2 : TILE_ROWS, TILE_ROW_BYTES);
    return shapes;
}

void amx_matmul_codes(const MatmulArgs& a) {
    const Matrix& m = *a.matrix;
    const Layout& l = layout(m.format);
    const AmxUnit kind{l.scales == 2 ? 1 : l.span, l.scales == 2, l.minima};
    const int per_block = kind.halves ? 2 : 1;
    const float* all_sums = m.uses_half_sums() ? a.sums + m.blocks : a.sums;
    alignas(64) uint16_t codes[AMX_STRIP * BLOCK * PANEL];
    alignas(64) float scales[AMX_STRIP * 2 * PANEL], minima[AMX_STRIP * 2 * PANEL];
    for (int p = 0; p < a.panels; ++p) {
        for (int first = 0; first < m.blocks; first += AMX_STRIP) {
            const int blocks = m.blocks - first < AMX_STRIP ? m.blocks - first : AMX_STRIP;
            base().expand(m, a.panel + p, first, blocks, {codes, scales, minima});
            const int units = (blocks + kind.blocks - 1) / kind.blocks * per_block;
            for (int r = 0, shaped = 0; r < a.rows; r += TILE_ROWS) {
                const int rows = a.rows - r < TILE_ROWS ? a.rows - r : TILE_ROWS;
                if (rows != shaped) tile_shapes(amx_unit_shapes(shaped = rows, kind.halves));
                const size_t row = static_cast<size_t>(r);
                const float* sums = l.minima ? all_sums + row * a.sums_stride + first * per_block : nullptr;
                const AmxCodes c{a.x16 + row * a.x16_stride + first * BLOCK, a.x16_stride, codes, scales, minima, sums, a.sums_stride,
                                 a.out + row * a.out_stride + p * PANEL, a.out_stride, rows, units, blocks, first > 0};
                l.minima ? amx_codes<true>(c, kind) : amx_codes<false>(c, kind);
            }
        }
    }
}

// ---- the choice ------------------------------------------------------------------------------------------------------

// What the rows' whole scales are worth, where a row of the matrix has one: out = sum * scale.
inline void amx_scale_rows(const MatmulArgs& a) {
    alignas(64) float scales[PANEL];
    for (int p = 0; p < a.panels; ++p) {
        base().expand(*a.matrix, a.panel + p, 0, 0, {nullptr, scales, nullptr});
        for (int r = 0; r < a.rows; ++r) {
            float* out = a.out + static_cast<size_t>(r) * a.out_stride + p * PANEL;
            store(out, mul(load(out), load(scales)));
        }
    }
}

void amx_matmul(const MatmulArgs& a) {
    const Matrix& m = *a.matrix;
    const Layout& l = layout(m.format);
    const bool coded = l.scales && !m.values;
    if (!a.x16 || m.exact || l.codes == Codes::f32 || l.codes == Codes::f16 || (coded && a.rows < AMX_CODES_ROWS)) return base().matmul(a);
    const size_t row_bytes = static_cast<size_t>(m.blocks) * BLOCK * 2, most = AMX_ROWS_BYTES / row_bytes / (2 * TILE_ROWS) * (2 * TILE_ROWS);
    MatmulArgs part = a;
    for (int left = a.rows; left > 0; left -= part.rows) {
        part.rows = most && a.panels > 2 && static_cast<size_t>(left) > most ? static_cast<int>(most) : left;
        coded && l.span ? amx_matmul_codes(part) : amx_matmul_dense(part);
        if (coded && !l.span) amx_scale_rows(part);
        const size_t rows = static_cast<size_t>(part.rows);
        part.x16 += rows * a.x16_stride;
        if (a.sums) part.sums += rows * a.sums_stride;
        part.out += rows * a.out_stride;
    }
    tile_release();
}
