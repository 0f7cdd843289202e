// The kernels of CPUs that multiply pairs of bf16: those of avx512_vnni, but for products of rows that are bf16, and of K and V.
// What it is not: another order, see matmul/weights.inl. Few rows of most formats are the fp32 kernels', which unpack
// weights in fewer steps; the bits are the same, so either may be taken.
#include "../kernels.h"
#include "simd.h"

namespace pelton::PELTON_NS {

#include "matmul.inl"

// Numbers that are bf16 in pairs: of each four k + 2, k, k + 3, k + 1. n: a multiple of 32.
static void narrow(const float* from, int n, uint16_t* to) {
    alignas(64) uint16_t places[32];
    for (int i = 0; i < 32; i += 4) {
        const int k = 2 * i + 1;  // the upper half of a number
        places[i] = static_cast<uint16_t>(k + 4), places[i + 1] = static_cast<uint16_t>(k);
        places[i + 2] = static_cast<uint16_t>(k + 6), places[i + 3] = static_cast<uint16_t>(k + 2);
    }
    const __m512i upper = _mm512_load_si512(places);
    auto quiet = [](V x) { return floats({_mm512_or_si512(bits(x).v, _mm512_set1_epi32(0x400000))}); };
    for (int i = 0; i < n; i += 32) {
        V first = load(from + i), second = load(from + i + PANEL);
        first = where_nan(first, quiet(first), first);  // perhaps only by its lower half
        second = where_nan(second, quiet(second), second);
        _mm512_storeu_si512(to + i, _mm512_permutex2var_epi16(bits(first).v, upper, bits(second).v));
    }
}

// Fewer rows than this are the base's: their weights are unpacked to fp32 in fewer steps than to pairs.
constexpr int least_rows(Format format) { return layout(format).codes == Codes::bf16 ? 2 : 3; }

static void matmul_pairs(const MatmulArgs& a) {
    const Matrix& m = *a.matrix;
    by_format(m.format, [&](auto format) {
        constexpr Codes codes = layout(format).codes;
        if constexpr (codes == Codes::f32 || codes == Codes::f16) kernels_avx512_vnni().matmul(a);
        else if (!a.x16 || (m.values && m.exact) || a.rows < least_rows(format)) kernels_avx512_vnni().matmul(a);
        else matmul_of<format>(a);
    });
}

// q of one row, in its own place. dims: a multiple of 4.
inline void attend_narrow(float* q, int dims) {
    const int whole = dims / BLOCK * BLOCK;
    narrow(q, whole, reinterpret_cast<uint16_t*>(q));  // which reads ahead of what it writes
    for (int d = whole; d < dims; d += 4) {
        const uint16_t four[] = {to_bf16(q[d + 2]), to_bf16(q[d]), to_bf16(q[d + 3]), to_bf16(q[d + 1])};
        std::memcpy(q + d / 2, four, sizeof four);
    }
}

#include "attend.inl"

// Enough rows with bf16 K and V; the others are the base's: few pairs of them cost more to be made ready than they save.
static void attend_tiles_pairs(const AttendArgs& args, int first, int last, bool resume) {
    if (!args.kv.bf16 || args.kv.key_dim % 4 || args.num_rows * args.group < ATTEND_PAIRS) return kernels_avx512_vnni().attend_tiles(args, first, last, resume);
    attend_any<AttendBf16>(args, first, last, resume);
}

}  // namespace pelton::PELTON_NS

namespace pelton {

const Kernels& kernels_avx512_bf16() {
    static const Kernels table = [] {
        Kernels made = kernels_avx512_vnni();
        made.name = "avx512_bf16";
        made.matmul = avx512_bf16::matmul_pairs;
        made.attend_tiles = avx512_bf16::attend_tiles_pairs;
        made.narrow = avx512_bf16::narrow;
        return made;
    }();
    return table;
}

}  // namespace pelton
