// Order-1 products of weight panels (16 outputs, one per lane) with rows, for all packed formats.
// What it is not: a choice of threads or panels. Per K-block and output: two chains from +0 of x[k] * w[k], even k and
// odd k ascending; even + odd; then into the accumulator. Where scales are those of half blocks, each half is a sum of
// its own. Rows, panels and blocks are grouped for speed only: no grouping changes the order of one output's operations,
// so none changes its bits.

#include "matmul/weights.inl"
#include "matmul/few.inl"
#include "matmul/many.inl"

// Up to so many rows, weights that are unpacked again for each group of rows cost less than those kept unpacked.
constexpr int few_rows_of(Format format) {
#if defined(PELTON_ISA_AVX512_BF16)
    return layout(format).codes == Codes::bf16 ? 2 * ROW_GROUP : ROW_GROUP;
#elif defined(PELTON_ISA_AVX512)
    const Codes codes = layout(format).codes;
    return codes == Codes::fives || codes == Codes::sixes || codes == Codes::threes ? 8 : 32;
#else
    return layout(format).scales ? ROW_GROUP : 4 * ROW_GROUP;
#endif
}

#if defined(PELTON_ISA_AVX512_BF16)
inline const Number* numbers(const MatmulArgs& a) { return reinterpret_cast<const Number*>(a.x16); }
inline size_t numbers_stride(const MatmulArgs& a) { return a.x16_stride / K_OF_NUMBER; }
#else
inline const Number* numbers(const MatmulArgs& a) { return a.x; }
inline size_t numbers_stride(const MatmulArgs& a) { return a.x_stride; }
#endif

template <Format F>
void matmul_of(const MatmulArgs& a) {
    const Matrix& m = *a.matrix;
    if (a.rows <= 0)
        return;
    if (a.rows > few_rows_of(F) || (m.values && join_of(F).scales > 0))
        return many(a, numbers(a), numbers_stride(a), expand_strip<F>);
    const uint8_t* panel = m.data + static_cast<size_t>(a.panel) * m.panel_bytes;
    const float* sums = m.uses_half_sums() ? a.sums + m.blocks : a.sums;
    const Few f{panel, m.panel_bytes, m.blocks, 0, 1, false, numbers(a), numbers_stride(a), sums, a.sums_stride, a.out, a.out_stride};
    few<F>(f, a.rows, a.panels);
}

#if !defined(PELTON_ISA_AVX512_BF16) // which has not all of them, see bf16.cpp
static void matmul(const MatmulArgs& a) {
    by_format(a.matrix->format, [&](auto format) { matmul_of<format>(a); });
}
#endif
