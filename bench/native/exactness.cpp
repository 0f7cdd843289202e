// What pinned arithmetic costs: one step's bf16 products of a small model by the shipped kernels (order 1), and by variants
// that may add in any order, in turns on the same weights and threads. Compiled and read by exactness.py.
// What it is not: a kernel of the product. The variants share the packed layout and the way work is handed out; they have
// several accumulators of fp32 FMA, or two bf16 products at a time (dpbf16ps), or split K between the threads.
#include <atomic>
#include <chrono>
#include <cstdio>

#include "cases.h"
#include "isa/simd.h"
#include "memory.h"
#include "threads/pool.h"

using namespace pelton;
using namespace pelton::PELTON_NS;
using cases::Array;

namespace {

constexpr int MOST_ROWS = 64, PIECE = 8;  // panels handed out at once

struct Shape {
    int outputs, cols;
};
// SmolLM2-135M: q, k and v together, out, gate and up together, down; 30 layers.
constexpr Shape LAYER[] = {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}};
constexpr int LAYERS = 30;

struct Weights {
    Matrix matrix;
    const uint8_t* panel(int i) const { return matrix.data + static_cast<size_t>(i) * matrix.panel_bytes; }
};

struct Rows {
    const float* x;
    const uint16_t* x16;
    const uint16_t* narrowed;  // as the shipped kernels want them
    int count;
    size_t stride;
};

using Multiply = void (*)(const Weights&, const Rows&, int panel, int panels, int first, int blocks, float* out, size_t stride);

const Kernels& shipped() {
#if defined(WITH_AMX)
    return kernels_amx();
#elif defined(WITH_BF16)
    return kernels_avx512_bf16();
#elif defined(PELTON_ISA_AVX512)
    return kernels_avx512();
#else
    return kernels_avx2();
#endif
}

void exact(const Weights& w, const Rows& rows, int panel, int panels, int, int, float* out, size_t stride) {
    MatmulArgs args{&w.matrix, panel, rows.x, rows.stride, nullptr, 0, rows.count, out + panel * PANEL, stride};
    args.panels = panels;
    if (shipped().narrow) args.x16 = rows.narrowed, args.x16_stride = rows.stride;
    shipped().matmul(args);
}

// R rows by P panels over K-blocks [first, first + blocks): every product of a lane goes to one of its two accumulators.
template <int R, int P> void free_tile(const Weights& w, const Rows& rows, int row, int panel, int first, int blocks, float* out, size_t stride) {
    V even[R][P], odd[R][P];
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p) even[r][p] = odd[r][p] = zero();
    const uint16_t* from[P];
    for (int p = 0; p < P; ++p) from[p] = reinterpret_cast<const uint16_t*>(w.panel(panel + p)) + static_cast<size_t>(first) * BLOCK * PANEL;
    const float* x = rows.x + static_cast<size_t>(row) * rows.stride + first * BLOCK;
    for (int k = 0; k < blocks * BLOCK; k += 2) {
        V low[P], high[P];
        for (int p = 0; p < P; ++p) load_pairs(from[p] + k * PANEL, low[p], high[p]);
        for (int r = 0; r < R; ++r) {
            const V a = set1(x[static_cast<size_t>(r) * rows.stride + static_cast<size_t>(k)]);
            const V b = set1(x[static_cast<size_t>(r) * rows.stride + static_cast<size_t>(k) + 1]);
            for (int p = 0; p < P; ++p) {
                even[r][p] = PELTON_NS::fma(a, low[p], even[r][p]);
                odd[r][p] = PELTON_NS::fma(b, high[p], odd[r][p]);
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p) store(out + static_cast<size_t>(row + r) * stride + (panel + p) * PANEL, add(even[r][p], odd[r][p]));
}

#if defined(__AVX512BF16__)
template <int R, int P> void pair_tile(const Weights& w, const Rows& rows, int row, int panel, int first, int blocks, float* out, size_t stride) {
    __m512 sums[2][R][P];
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p) sums[0][r][p] = sums[1][r][p] = _mm512_setzero_ps();
    const uint16_t* from[P];
    for (int p = 0; p < P; ++p) from[p] = reinterpret_cast<const uint16_t*>(w.panel(panel + p)) + static_cast<size_t>(first) * BLOCK * PANEL;
    const uint16_t* x = rows.x16 + static_cast<size_t>(row) * rows.stride + first * BLOCK;
    for (int k = 0; k < blocks * BLOCK; k += 4)
        for (int half = 0; half < 2; ++half) {
            __m512bh weights[P];
            for (int p = 0; p < P; ++p) {
                const __m512i bits = _mm512_loadu_si512(from[p] + (k + 2 * half) * PANEL);
                std::memcpy(&weights[p], &bits, sizeof bits);
            }
            for (int r = 0; r < R; ++r) {
                int pair;
                std::memcpy(&pair, x + static_cast<size_t>(r) * rows.stride + k + 2 * half, 4);
                const __m512i both = _mm512_set1_epi32(pair);
                __m512bh a;
                std::memcpy(&a, &both, sizeof a);
                for (int p = 0; p < P; ++p) sums[half][r][p] = _mm512_dpbf16_ps(sums[half][r][p], a, weights[p]);
            }
        }
    for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p)
            _mm512_storeu_ps(out + static_cast<size_t>(row + r) * stride + (panel + p) * PANEL, _mm512_add_ps(sums[0][r][p], sums[1][r][p]));
}
#endif

// Rows in tiles of 4, 2 and 1; few rows take more panels at once, so that enough sums are under way.
#define BY_TILES(name, tile)                                                                                                       \
    void name(const Weights& w, const Rows& rows, int panel, int panels, int first, int blocks, float* out, size_t stride) {      \
        for (int p = 0; p < panels;) {                                                                                             \
            const int left = panels - p, at = panel + p, wide = left >= 4 && rows.count < 4 ? 4 : left >= 2 ? 2 : 1;               \
            for (int r = 0; r < rows.count;) {                                                                                     \
                const int more = rows.count - r;                                                                                   \
                if (wide == 4 && more >= 2) tile<2, 4>(w, rows, r, at, first, blocks, out, stride), r += 2;                        \
                else if (wide == 4) tile<1, 4>(w, rows, r, at, first, blocks, out, stride), r += 1;                                \
                else if (wide == 2 && more >= 4) tile<4, 2>(w, rows, r, at, first, blocks, out, stride), r += 4;                   \
                else if (wide == 2) tile<1, 2>(w, rows, r, at, first, blocks, out, stride), r += 1;                                \
                else if (more >= 4) tile<4, 1>(w, rows, r, at, first, blocks, out, stride), r += 4;                                \
                else tile<1, 1>(w, rows, r, at, first, blocks, out, stride), r += 1;                                               \
            }                                                                                                                      \
            p += wide;                                                                                                             \
        }                                                                                                                          \
    }

BY_TILES(free_fma, free_tile)
#if defined(__AVX512BF16__)
BY_TILES(free_pairs, pair_tile)
#endif

struct Step {
    const std::vector<Weights>& weights;
    Rows rows;
    Multiply multiply;
    bool split;  // of K between two threads, and the halves added
    float* out;
    float* second;
    const Weights* now = nullptr;
    std::atomic<int> next{0}, joined{0};
};

void by_panels(void* context, int) {
    Step& s = *static_cast<Step*>(context);
    const int panels = s.now->matrix.panels;
    const size_t stride = static_cast<size_t>(panels) * PANEL;
    for (int p = s.next.fetch_add(PIECE); p < panels; p = s.next.fetch_add(PIECE))
        s.multiply(*s.now, s.rows, p, std::min(PIECE, panels - p), 0, s.now->matrix.blocks, s.out, stride);
}

void by_halves(void* context, int) {
    Step& s = *static_cast<Step*>(context);
    const Matrix& m = s.now->matrix;
    const size_t stride = static_cast<size_t>(m.panels) * PANEL;
    const int pieces = (m.panels + PIECE - 1) / PIECE, half = m.blocks / 2;
    for (int i = s.next.fetch_add(1); i < 2 * pieces; i = s.next.fetch_add(1)) {
        const int p = i / 2 * PIECE;
        s.multiply(*s.now, s.rows, p, std::min(PIECE, m.panels - p), i % 2 ? half : 0, i % 2 ? m.blocks - half : half, i % 2 ? s.second : s.out, stride);
    }
}

void add_halves(void* context, int) {
    Step& s = *static_cast<Step*>(context);
    const int panels = s.now->matrix.panels;
    const size_t stride = static_cast<size_t>(panels) * PANEL;
    for (int p = s.joined.fetch_add(16); p < panels; p = s.joined.fetch_add(16))
        for (int r = 0; r < s.rows.count; ++r)
            for (int i = p; i < std::min(p + 16, panels); ++i) {
                float* out = s.out + static_cast<size_t>(r) * stride + i * PANEL;
                store(out, add(load(out), load(s.second + (out - s.out))));
            }
}

double seconds(Pool& pool, Step& step) {
    const auto start = std::chrono::steady_clock::now();
    for (const Weights& weights : step.weights) {
        step.now = &weights;
        step.next = step.joined = 0;
        pool.run(step.split ? by_halves : by_panels, &step);
        if (step.split) pool.run(add_halves, &step);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Variant {
    const char* name;
    Multiply multiply;
    bool split;
};

constexpr Variant VARIANTS[] = {
    {"exact", exact, false},
    {"fma", free_fma, false},
    {"fma, split K", free_fma, true},
#if defined(__AVX512BF16__)
    {"dpbf16", free_pairs, false},
    {"dpbf16, split K", free_pairs, true},
#endif
};

}  // namespace

// exactness BLOCKS CORE...: "rows variant seconds seconds ..." a line, blocks in turns.
int main(int count, char** words) {
    const int blocks = std::atoi(words[1]);
    std::vector<int> cores;
    for (int i = 2; i < count; ++i) cores.push_back(std::atoi(words[i]));
    FlushDenormals flush;
    cases::Random random;
    std::vector<Weights> weights;
    size_t all = 0;
    for (const Shape& shape : LAYER) all += LAYERS * panel_bytes(Format::bf16, padded(shape.cols) / BLOCK) * static_cast<size_t>(shape.outputs / PANEL);
    const Memory memory(all);  // in large pages where the system has them, as the file is that a second start maps
    for (size_t i = 0; i < all; i += 2) {
        const uint16_t half = random.half();
        std::memcpy(memory.data() + i, &half, 2);
    }
    size_t at = 0;
    for (int layer = 0; layer < LAYERS; ++layer)
        for (const Shape& shape : LAYER) {
            const int k = padded(shape.cols) / BLOCK, panels = shape.outputs / PANEL;
            const size_t bytes = panel_bytes(Format::bf16, k);
            weights.push_back({{Format::bf16, shape.outputs, shape.cols, k, panels, bytes, memory.data() + at}});
            at += bytes * static_cast<size_t>(panels);
        }
    constexpr size_t WIDEST = 3072, DEEPEST = 1536;
    Array<float> x(MOST_ROWS * DEEPEST), out(MOST_ROWS * WIDEST), second(MOST_ROWS * WIDEST);
    Array<uint16_t> x16(x.size()), narrowed(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
        x16[i] = to_bf16(random.number());
        x[i] = from_bf16(x16[i]);
    }
    if (shipped().narrow) shipped().narrow(x.data(), static_cast<int>(x.size()), narrowed.data());
    Pool pool(cores);
    for (int rows : {1, 2, 4, 8, 16, 64}) {
        std::vector<std::vector<double>> taken(std::size(VARIANTS));
        for (int block = -1; block < blocks; ++block)  // the first does not count
            for (size_t v = 0; v < std::size(VARIANTS); ++v) {
                Step step{weights, {x.data(), x16.data(), narrowed.data(), rows, DEEPEST}, VARIANTS[v].multiply, VARIANTS[v].split, out.data(), second.data()};
                const double now = seconds(pool, step);
                if (block >= 0) taken[v].push_back(now);
            }
        for (size_t v = 0; v < std::size(VARIANTS); ++v) {
            std::printf("%d\t%s", rows, VARIANTS[v].name);
            for (double s : taken[v]) std::printf("\t%.9f", s);
            std::printf("\n");
        }
    }
}
