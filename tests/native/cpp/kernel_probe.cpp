// C wrappers around the kernels for tests through ctypes, and order 1 written a second time, as plainly as it can be.
// What it is not: part of the product. Every call runs with denormals flushed, as the executable runs its kernels.
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels.h"
#include "pack.h"

using namespace pelton;

namespace {

const Kernels* const TABLES[] = {
    &kernels_portable(),
#if defined(__x86_64__)
    &kernels_avx2(),
    &kernels_avx512(),
#endif
};

// Sum over k of x[k] * w[k] in blocks of 32, or of `unit` where each has its scale (and minimum); sums: those of x.
float order1(const float* x, const float* w, int cols, const float* scale, const float* minimum, const float* sums,
             int unit) {
    float acc = 0.0f;
    for (int b = 0; b * unit < cols; ++b) {
        float chain[2] = {0.0f, 0.0f};
        for (int k = b * unit; k < (b + 1) * unit; ++k)
            chain[k % 2] = std::fma(k < cols ? x[k] : 0.0f, k < cols ? w[k] : 0.0f, chain[k % 2]);
        float sum = chain[0] + chain[1];
        acc = scale ? std::fma(scale[b], sum, acc) : acc + sum;
        if (minimum)
            acc = std::fma(minimum[b], sums[b], acc);
    }
    return acc;
}

} // namespace

#define PROBE extern "C" __attribute__((visibility("default")))

PROBE int probe_supports(int isa) {
    if (isa == 0)
        return 1;
#if defined(__x86_64__)
    if (isa == 1)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (isa == 2)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return 0;
}

PROBE const char* probe_name(int isa) {
    return TABLES[isa]->name;
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

// All panels; x and sums as prepare made them, out [x_rows][panels * 16].
PROBE void probe_matmul(int isa, int format, int rows, int cols, const uint8_t* data, const float* x, size_t x_stride,
                        const float* sums, size_t sums_stride, int x_rows, float* out, size_t out_stride) {
    FlushDenormals flush;
    const Matrix m = matrix_of(format, rows, cols, data);
    for (int panel = 0; panel < m.panels; ++panel)
        TABLES[isa]->matmul({&m, panel, x, x_stride, sums, sums_stride, x_rows, out + panel * PANEL, out_stride});
}

// The oracle: w [rows][cols] weights or codes; scale, minimum [rows][units] or null; sums as prepare made them.
PROBE void probe_order1(int rows, int cols, const float* w, const float* scale, const float* minimum, const float* x,
                        size_t x_stride, const float* sums, size_t sums_stride, int x_rows, float* out,
                        size_t out_stride, int unit) {
    FlushDenormals flush;
    const size_t units = static_cast<size_t>(padded(cols) / unit);
    const float* first = sums && unit < BLOCK ? sums + padded(cols) / BLOCK : sums;
    for (size_t t = 0; t < static_cast<size_t>(x_rows); ++t)
        for (size_t r = 0; r < static_cast<size_t>(rows); ++r)
            out[t * out_stride + r] =
                order1(x + t * x_stride, w + r * static_cast<size_t>(cols), cols, scale ? scale + r * units : nullptr,
                       minimum ? minimum + r * units : nullptr, sums ? first + t * sums_stride : nullptr, unit);
}

PROBE void probe_gather_row(int isa, int format, int rows, int cols, const uint8_t* data, int row, float scale,
                            float* out) {
    FlushDenormals flush;
    TABLES[isa]->gather_row(matrix_of(format, rows, cols, data), row, scale, out);
}

PROBE void probe_prepare(int isa, const float* x, const float* gain, float eps, int n, int round, float* out,
                         float* sums, int halves) {
    FlushDenormals flush;
    TABLES[isa]->prepare(x, gain, eps, n, round != 0, out, sums, halves != 0);
}

PROBE void probe_rms_norm(int isa, const float* x, const float* gain, float eps, int n, float* out) {
    FlushDenormals flush;
    TABLES[isa]->rms_norm(x, gain, eps, n, out);
}

PROBE void probe_layer_norm(int isa, const float* x, const float* gain, const float* bias, float eps, int n, float* out) {
    FlushDenormals flush;
    TABLES[isa]->layer_norm(x, gain, bias, eps, n, out);
}

PROBE void probe_add(int isa, const float* x, const float* residual, size_t n, float* out) {
    FlushDenormals flush;
    TABLES[isa]->add(x, residual, n, out);
}

PROBE void probe_gated(int isa, const float* gate, const float* up, size_t n, int activation, float* out) {
    FlushDenormals flush;
    TABLES[isa]->gated(gate, up, n, activation, out);
}

PROBE void probe_activate(int isa, const float* x, size_t n, int activation, float* out) {
    FlushDenormals flush;
    TABLES[isa]->activate(x, n, activation, out);
}

PROBE void probe_cap_logits(int isa, float* logits, size_t n, float scale, float softcap) {
    FlushDenormals flush;
    TABLES[isa]->cap_logits(logits, n, scale, softcap);
}

PROBE void probe_rope_angles(int isa, int32_t position, const double* frequency, int n, double factor, float* out) {
    FlushDenormals flush;
    TABLES[isa]->rope_angles(position, frequency, n, factor, out);
}

PROBE void probe_rope(int isa, const float* x, const float* cos_sin, int n, int heads, int dim, int interleaved,
                      float* out) {
    FlushDenormals flush;
    TABLES[isa]->rope(x, cos_sin, n, heads, dim, interleaved != 0, out);
}

PROBE void probe_kv_write(int isa, uint8_t* pool, size_t block_bytes, size_t layer_offset, int key_dim, int value_dim,
                          int bf16, int block, int place, int head, const float* k, const float* v) {
    FlushDenormals flush;
    const size_t head_bytes = static_cast<size_t>(BLOCK * (key_dim + value_dim)) * (bf16 ? 2 : 4);
    const KVView kv{pool, block_bytes, layer_offset, head_bytes, key_dim, value_dim, bf16 != 0};
    TABLES[isa]->kv_write(kv, block, place, head, k, v);
}
