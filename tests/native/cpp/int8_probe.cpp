// Doors through which tests/native/test_int8.py reach the integer products of one ISA by ctypes.
// What it is not: part of the package. Denormals are flushed inside every call, as in the executable.
#include "tables.h"

using namespace pelton;

extern "C" {

// One row; any of fours and eights may be null.
void int8_probe_prepare(int isa, const float* x, const float* gain, float eps, int n, int8_t* fours, int8_t* eights, float* scales,
                        int32_t* sums) {
    FlushDenormals guard;
    kernels_at(isa).prepare_int8(x, gain, eps, n, {fours, eights, scales, sums});
}

// Panels first .. first + panels - 1 in one call.
void int8_probe_matmul(int isa, int format, int rows, int cols, const uint8_t* data, int first, int panels, const int8_t* fours,
                       const int8_t* eights, size_t stride, const float* scales, size_t scales_stride, const int32_t* sums, size_t sums_stride, int x_rows,
                       float* out, size_t out_stride) {
    FlushDenormals guard;
    const Format packed = static_cast<Format>(format);
    const int blocks = padded(cols) / BLOCK;
    const Matrix matrix{packed, rows, cols, blocks, (rows + PANEL - 1) / PANEL, panel_bytes(packed, blocks), data};
    kernels_at(isa).matmul_int8({&matrix, first, panels, {fours, eights, stride, scales, scales_stride, sums, sums_stride}, x_rows,
                                 out, out_stride});
}
}
