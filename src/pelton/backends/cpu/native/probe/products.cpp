// How fast the matmul kernel of an instruction set goes through packed weights that lie in the L2 cache.
#include <algorithm>

#include "probe.h"

namespace pelton {

namespace {

// Bytes of which every two make a normal bf16 and half and every four a normal float, whatever a format takes them for:
// the rate must depend on none of them being a NaN or too small.
void fill(uint8_t* to, size_t bytes, uint32_t seed) {
    for (size_t i = 0; i < bytes; ++i) {
        seed = seed * 1664525u + 1013904223u;
        to[i] = static_cast<uint8_t>(0x3A + (seed >> 24) % 4);
    }
}

constexpr int COLS = PRODUCT_BLOCKS * BLOCK;
constexpr size_t SLACK = size_t{64} << 10;  // behind the weights: kernels ask for lines beyond their end

// What one worker multiplies: weights, and rows in all forms that a kernel may read.
struct Work {
    Work(Format format, int count, int rows)
        : weights(panel_bytes(format, PRODUCT_BLOCKS) * static_cast<size_t>(count) + SLACK), x(of_rows(rows, COLS * 4)), x16(of_rows(rows, COLS * 2)),
          fours(of_rows(rows, COLS)), eights(of_rows(rows, COLS)), scales(of_rows(rows, size_t{4} * int_groups(PRODUCT_BLOCKS))), sums(of_rows(rows, sums_of_row(PRODUCT_BLOCKS) * 4)),
          out(of_rows(rows, static_cast<size_t>(count) * PANEL * 4)) {
        matrix.format = format;
        matrix.rows = count * PANEL;
        matrix.cols = COLS;
        matrix.blocks = PRODUCT_BLOCKS;
        matrix.panels = count;
        matrix.panel_bytes = panel_bytes(format, PRODUCT_BLOCKS);
        matrix.data = weights.data();
    }

    static size_t of_rows(int rows, size_t bytes) { return static_cast<size_t>(rows) * bytes; }

    void fill_all(uint32_t seed) {
        for (Memory* memory : {&weights, &x, &x16, &fours, &eights, &scales, &sums}) fill(memory->data(), memory->size(), ++seed);
    }

    // All panels, as a step has them: one call for each run.
    void multiply(const Kernels& kernels, int rows) const {
        MatmulArgs args{};
        args.matrix = &matrix;
        args.x = x.floats();
        args.x_stride = COLS;
        args.sums = sums.floats();
        args.sums_stride = sums_of_row(PRODUCT_BLOCKS);
        args.rows = rows;
        args.out = out.floats();
        args.out_stride = static_cast<size_t>(matrix.panels) * PANEL;
        args.panels = matrix.panels;
        if (kernels.narrow) {
            args.x16 = reinterpret_cast<const uint16_t*>(x16.data());
            args.x16_stride = COLS;
        }
        kernels.matmul(args);
    }

    void multiply_int8(const Kernels& kernels, int rows) const {
        IntArgs args{};
        args.matrix = &matrix;
        args.panels = matrix.panels;
        args.x.fours = reinterpret_cast<const int8_t*>(fours.data());
        args.x.eights = reinterpret_cast<const int8_t*>(eights.data());
        args.x.stride = COLS;
        args.x.scales = scales.floats();
        args.x.scales_stride = static_cast<size_t>(int_groups(PRODUCT_BLOCKS));
        args.x.sums = reinterpret_cast<const int32_t*>(sums.data());
        args.x.sums_stride = sums_of_row(PRODUCT_BLOCKS);
        args.rows = rows;
        args.out = out.floats();
        args.out_stride = static_cast<size_t>(matrix.panels) * PANEL;
        kernels.matmul_int8(args);
    }

    Memory weights, x, x16, fours, eights, scales, sums, out;
    Matrix matrix{};
};

}  // namespace

std::vector<double> Probe::products(const Kernels& kernels, Format format, int rows, bool int8, double seconds) {
    const int panels = std::max(1, static_cast<int>(PRODUCT_BYTES / panel_bytes(format, PRODUCT_BLOCKS)));
    std::vector<Work> works;
    works.reserve(static_cast<size_t>(threads()));
    for (int i = 0; i < threads(); ++i) works.emplace_back(format, panels, rows);
    each([&](int worker) { works[static_cast<size_t>(worker)].fill_all(static_cast<uint32_t>(worker) * 100); });
    return rates(seconds, [&](int worker, double until) {
        const Work& work = works[static_cast<size_t>(worker)];
        const double start = probe_seconds();
        double now = start;
        uint64_t blocks = 0;
        do {
            if (int8) work.multiply_int8(kernels, rows);
            else work.multiply(kernels, rows);
            blocks += static_cast<uint64_t>(panels) * PRODUCT_BLOCKS;
            now = probe_seconds();
        } while (now < until);
        return static_cast<double>(blocks) / (now - start);
    });
}

}  // namespace pelton
