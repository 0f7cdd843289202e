// Products of rows that were rounded to 8 bits with the integer codes of weight panels (16 outputs, one per lane).
// What it is not: order 1. Sums of integer products are exact in 32 bits, so their order is free and every ISA takes
// the one it is quick in; only what follows a unit (the codes that share a scale) is pinned: acc = fma(scale,
// float(sum), acc), then with a minimum acc = fma(minimum, float(sum of x), acc), units ascending; and what follows a
// group of x: total = fma(scale of x, acc, total).

#include "../kernels.h"
#include "simd.h"

namespace pelton::PELTON_NS {

#include "matmul/weights.inl"

#include "int8/dots.inl"
#include "int8/words.inl"

#include "int8/few.inl"
#include "int8/many.inl"

template <Format F>
void int8_panels(const IntArgs& a) {
    const Matrix& m = *a.matrix;
    IntStrip s{m.data + static_cast<size_t>(a.panel) * m.panel_bytes, m.blocks, a.x, a.out, a.out_stride};
    for (int p = 0; p < a.panels;) {
        const int now = a.rows > PACKED_ROWS && a.panels - p >= INT_PANELS ? INT_PANELS : 1;
        if (a.rows <= PACKED_ROWS) product_of_few<F>(s, a.rows);
        else if (now == INT_PANELS) product_in_ranges<F, INT_PANELS>(s, m.panel_bytes, a.rows);
        else product_in_ranges<F, 1>(s, m.panel_bytes, a.rows);
        p += now;
        s.panel += static_cast<size_t>(now) * m.panel_bytes;
        s.out += now * PANEL;
    }
}

void matmul_int8(const IntArgs& a) {
    by_format(a.matrix->format, [&](auto format) {
        if constexpr (layout(format).scales > 0) int8_panels<format>(a);
    });
}

// For a matrix unit, which wants words of signed bytes; of a row of one scale the last blocks give it.
#if !defined(PELTON_ISA_AVX512_VNNI)
template <Format F>
inline int expand_panel_int8(const uint8_t* panel, int first, int blocks, const IntExpansion& to) {
    constexpr const Layout& l = layout(F);
    static_assert(WIDE_OFFSET == 0);
    for (int b = 0; b < blocks; ++b) {
        float* words = reinterpret_cast<float*>(to.codes + b * BLOCK_CODES);
        repeat<4>([&](auto eighth) {
            U w[2];
            words_of<F, eighth>(block_at<F>(panel, first + b), w[0], w[1]);
            store(words + 2 * eighth * PANEL, floats(w[0]));
            store(words + (2 * eighth + 1) * PANEL, floats(w[1]));
        });
    }
    if constexpr (l.span == 0) {  // behind the row's last blocks
        store(to.scales, load(reinterpret_cast<const float*>(panel + blocks_bytes(F, first + blocks))));
        return offset_of(F);
    }
    int unit = 0;
    for (int b = first; b < first + blocks; b += unit_blocks(F, first + blocks - b))
        for (int half = 0; half < (l.scales == 2 ? 2 : 1); ++half, ++unit) {
            V scale = zero(), minimum = zero();
            load_scale<F>(panel, b, half, 0, scale, minimum);
            store(to.scales + unit * PANEL, scale);
            store(to.minima + unit * PANEL, minimum);
        }
    return offset_of(F);
}

int expand_int8(const Matrix& m, int panel, int first, int blocks, const IntExpansion& to) {
    int offset = 0;
    by_format(m.format, [&](auto format) {
        if constexpr (layout(format).scales > 0)
            offset = expand_panel_int8<format>(m.data + static_cast<size_t>(panel) * m.panel_bytes, first, blocks, to);
    });
    return offset;
}
#endif

} // namespace pelton::PELTON_NS

#if defined(PELTON_ISA_AVX512_VNNI)
namespace pelton {

const Kernels& kernels_avx512_vnni() {
    static const Kernels table = [] {
        Kernels made = kernels_avx512();
        made.name = "avx512_vnni";
        made.matmul_int8 = avx512_vnni::matmul_int8;
        return made;
    }();
    return table;
}

} // namespace pelton
#endif
