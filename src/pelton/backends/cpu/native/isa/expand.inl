// Weights of some K-blocks as bf16 pairs with their scales beside them: what a matmul that is not of this ISA works on.
// What it is not: arithmetic on rows. Codes are exact in bf16, so nothing is lost.

// Scales (and minima) of K-blocks [first, first + blocks); of a row's one scale always.
template <Format F> inline void expand_scales(const uint8_t* panel, int first, int blocks, int all_blocks, const Expansion& to) {
    constexpr Join join = join_of(F);
    constexpr int span = span_of(F);
    for (int b = 0; b < (span ? blocks : 1); b += span ? span : 1)
        for (int half = 0; half < join.units(); ++half) {
            const int unit = b / (span ? span : 1) * join.units() + half;
            V scale = zero(), minimum = zero();
            load_scale<F>(panel, first + b, half, all_blocks, scale, minimum);
            store(to.scales + unit * PANEL, scale);
            if constexpr (join.minima) store(to.minima + unit * PANEL, minimum);
        }
}

template <Format F> inline void expand_pairs(const Matrix& m, const uint8_t* panel, int b, uint16_t* codes) {
    const uint8_t* block = block_at<F>(panel, b);
    const bool values = layout(F).scales > 0 && m.values;
    V scale = zero(), minimum = zero();
    for (int eighth = 0; eighth < 4; ++eighth) {
        if (values) load_scale<F>(panel, b, eighth * join_of(F).units() / 4, m.blocks, scale, minimum);
        repeat<4>([&](auto pair) {
            V even, odd;
            expand<F, pair>(block, eighth, even, odd);
            if (values) {
                even = value_of<F>(even, scale, minimum, true);
                odd = value_of<F>(odd, scale, minimum, true);
            }
            store_pairs(codes + (eighth * 8 + pair * 2) * PANEL, even, odd);
        });
    }
}

static void expand_blocks(const Matrix& m, int panel, int first, int blocks, const Expansion& to) {
    by_format(m.format, [&](auto format) {
        constexpr Codes codes = layout(format).codes;
        if constexpr (codes != Codes::f32 && codes != Codes::f16) {
            const uint8_t* from = m.data + static_cast<size_t>(panel) * m.panel_bytes;
            for (int b = 0; b < blocks; ++b) expand_pairs<format>(m, from, first + b, to.codes + b * BLOCK_CODES);
            if constexpr (layout(format).scales > 0)
                if (to.scales && !m.values) expand_scales<format>(from, first, blocks, m.blocks, to);
        }
    });
}
