// C wrappers around the kernels for tests through ctypes, and order 1 written a second time, as plainly as it can be.
// What it is not: part of the product. Every call runs with denormals flushed, as the executable runs its kernels.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "pack/pack.h"
#include "tables.h"

using namespace pelton;

namespace {

// Sum of x[k] * w[k] over `size` k from `first` on.
float block(const float* x, const float* w, int first, int size, int cols) {
    float chain[2] = {0.0f, 0.0f};
    for (int k = first; k < first + size; ++k)
        chain[k % 2] = std::fma(k < cols ? x[k] : 0.0f, k < cols ? w[k] : 0.0f, chain[k % 2]);
    return chain[0] + chain[1];
}

// Sum over k of x[k] * w[k] in blocks of 32, or of `unit` where each has its scale (and minimum): one block, or several
// whose sums are added first. unit 0: the row has one scale. sums: those of x.
float order1(const float* x, const float* w, int cols, const float* scale, const float* minimum, const float* sums,
             int unit) {
    float acc = 0.0f;
    if (unit == 0 || !scale) {
        for (int first = 0; first < cols; first += BLOCK)
            acc += block(x, w, first, BLOCK, cols);
        return scale ? scale[0] * acc : acc;
    }
    const int size = std::min(unit, BLOCK);
    for (int u = 0; u * unit < cols; ++u) {
        float sum = 0.0f, of_x = 0.0f;
        for (int first = u * unit; first < (u + 1) * unit && first < cols; first += size) {
            const float one = block(x, w, first, size, cols);
            sum = unit > BLOCK ? sum + one : one;
            if (minimum)
                of_x = unit > BLOCK ? of_x + sums[first / size] : sums[first / size];
        }
        acc = std::fma(scale[u], sum, acc);
        if (minimum)
            acc = std::fma(minimum[u], of_x, acc);
    }
    return acc;
}

} // namespace

#define PROBE extern "C" __attribute__((visibility("default")))

PROBE int probe_supports(int isa) {
    return isa_supported(isa);
}

PROBE const char* probe_name(int isa) {
    return ISA_NAMES[isa];
}

PROBE const char* probe_base(int isa) {
    return isa_base(isa);
}

PROBE int probe_products_agree(int isa) {
    return products_agree(kernels_at(isa));
}

// The same of kernels whose last bit is wrong in one place.
PROBE int probe_wrong_products_agree() {
    Kernels wrong = kernels_portable();
    wrong.matmul = [](const MatmulArgs& a) {
        kernels_portable().matmul(a);
        uint32_t bits;
        std::memcpy(&bits, a.out + 17, sizeof bits);
        bits ^= 1;
        std::memcpy(a.out + 17, &bits, sizeof bits);
    };
    return products_agree(wrong);
}

PROBE int probe_tiles_released() {
#if defined(__x86_64__)
    return amx_emulated_released();
#else
    return 1;
#endif
}

PROBE uint64_t probe_tile_products() {
#if defined(__x86_64__)
    return amx_emulated_products();
#else
    return 0;
#endif
}

PROBE size_t probe_packed_bytes(int format, int rows, int cols) {
    return packed_bytes(static_cast<Format>(format), rows, cols);
}

// Empty, or what the packing had to say against it.
PROBE const char* probe_pack(int format, const char* from, const uint8_t* raw, int rows, int cols, const int32_t* order,
                             int first, int last, uint8_t* out) {
    static thread_local std::string message;
    message.clear();
    try {
        pack_panels(static_cast<Format>(format), from, raw, rows, cols, order, first, last, out);
    } catch (const std::invalid_argument& error) {
        message = error.what();
    }
    return message.c_str();
}

static Matrix matrix_of(int format, int rows, int cols, const uint8_t* data) {
    const int blocks = padded(cols) / BLOCK;
    return {static_cast<Format>(format),
            rows,
            cols,
            blocks,
            (rows + PANEL - 1) / PANEL,
            panel_bytes(static_cast<Format>(format), blocks),
            data};
}

// All panels, `together` of them at a time; x and sums as prepare made them (rounded: to bf16), out [x_rows][panels * 16].
// form: 0 codes, 1 values, 2 values that are not rounded.
PROBE void probe_matmul(int isa, int format, int rows, int cols, const uint8_t* data, const float* x, size_t x_stride,
                        const float* sums, size_t sums_stride, int x_rows, float* out, size_t out_stride, int rounded,
                        int together, int form) {
    FlushDenormals flush;
    Matrix m = matrix_of(format, rows, cols, data);
    m.values = form > 0;
    m.exact = form > 1;
    const Kernels& kernels = kernels_at(isa);
    std::vector<uint16_t> x16(rounded && kernels.narrow ? static_cast<size_t>(x_rows) * x_stride : 0);
    for (size_t row = 0; row < x16.size(); row += x_stride) kernels.narrow(x + row, m.blocks * BLOCK, x16.data() + row);
    for (int panel = 0; panel < m.panels; panel += together) {
        MatmulArgs args{&m, panel, x, x_stride, sums, sums_stride, x_rows, out + panel * PANEL, out_stride};
        args.panels = std::min(together, m.panels - panel);
        if (!x16.empty()) args.x16 = x16.data(), args.x16_stride = x_stride;
        kernels.matmul(args);
    }
}

// The oracle: w [rows][cols] weights or codes; scale, minimum [rows][units] or null; sums as prepare made them.
PROBE void probe_order1(int rows, int cols, const float* w, const float* scale, const float* minimum, const float* x,
                        size_t x_stride, const float* sums, size_t sums_stride, int x_rows, float* out,
                        size_t out_stride, int unit) {
    FlushDenormals flush;
    const size_t units = unit ? static_cast<size_t>((cols + unit - 1) / unit) : 1;
    const float* first = sums && unit && unit < BLOCK ? sums + padded(cols) / BLOCK : sums;
    for (size_t t = 0; t < static_cast<size_t>(x_rows); ++t)
        for (size_t r = 0; r < static_cast<size_t>(rows); ++r)
            out[t * out_stride + r] =
                order1(x + t * x_stride, w + r * static_cast<size_t>(cols), cols, scale ? scale + r * units : nullptr,
                       minimum ? minimum + r * units : nullptr, sums ? first + t * sums_stride : nullptr, unit);
}

PROBE void probe_gather_row(int isa, int format, int rows, int cols, const uint8_t* data, int row, float scale,
                            float* out) {
    FlushDenormals flush;
    kernels_at(isa).gather_row(matrix_of(format, rows, cols, data), row, scale, out);
}

PROBE void probe_prepare(int isa, const float* x, const float* gain, float eps, int n, int round, float* out,
                         float* sums, int halves) {
    FlushDenormals flush;
    kernels_at(isa).prepare(x, gain, eps, n, round != 0, out, sums, halves != 0);
}

PROBE void probe_rms_norm(int isa, const float* x, const float* gain, float eps, int n, float* out) {
    FlushDenormals flush;
    kernels_at(isa).rms_norm(x, gain, eps, n, out);
}

PROBE void probe_layer_norm(int isa, const float* x, const float* gain, const float* bias, float eps, int n, float* out) {
    FlushDenormals flush;
    kernels_at(isa).layer_norm(x, gain, bias, eps, n, out);
}

PROBE void probe_add(int isa, const float* x, const float* residual, size_t n, float* out) {
    FlushDenormals flush;
    kernels_at(isa).add(x, residual, n, out);
}

PROBE void probe_gated(int isa, const float* gate, const float* up, size_t n, int activation, float* out) {
    FlushDenormals flush;
    kernels_at(isa).gated(gate, up, n, activation, out);
}

PROBE void probe_activate(int isa, const float* x, size_t n, int activation, float* out) {
    FlushDenormals flush;
    kernels_at(isa).activate(x, n, activation, out);
}

PROBE void probe_cap_logits(int isa, float* logits, size_t n, float scale, float softcap) {
    FlushDenormals flush;
    kernels_at(isa).cap_logits(logits, n, scale, softcap);
}

PROBE void probe_rope_angles(int isa, int32_t position, const double* frequency, int n, double factor, float* out) {
    FlushDenormals flush;
    kernels_at(isa).rope_angles(position, frequency, n, factor, out);
}

PROBE void probe_rope(int isa, const float* x, const float* cos_sin, int n, int heads, int dim, int interleaved,
                      float* out) {
    FlushDenormals flush;
    kernels_at(isa).rope(x, cos_sin, n, heads, dim, interleaved != 0, out);
}

PROBE void probe_kv_write(int isa, uint8_t* pool, size_t block_bytes, size_t layer_offset, int key_dim, int value_dim,
                          int bf16, int block, int place, int head, const float* k, const float* v) {
    FlushDenormals flush;
    const size_t head_bytes = static_cast<size_t>(BLOCK * (key_dim + value_dim)) * (bf16 ? 2 : 4);
    const KVView kv{pool, block_bytes, layer_offset, head_bytes, key_dim, value_dim, bf16 != 0};
    kernels_at(isa).kv_write(kv, block, place, head, k, v);
}
