// Every kernel of every instruction set that runs here, on memory of exactly the size that kernels.h says, for row counts
// and widths around the borders of lanes, blocks and panels. Compiled with AddressSanitizer and UBSan, it fails by itself.
// What it is not: a check of numbers. Invariant: it needs nothing but kernels.h and a row of numbers.
#include "sanitize/exact.h"
#include "tables.h"

using namespace pelton;
using exact::Array;
using exact::Random;

namespace {

constexpr int ROWS[] = {1, 2, 15, 16, 17, 31, 33};
constexpr int WIDTHS[] = {1, 15, 16, 17, 31, 32, 33, 63, 95};
constexpr int OUTPUTS[] = {1, 16, 17, 47};

Format format_at(size_t i) { return static_cast<Format>(i); }

// Widths that rows of a format can have: nested ones and those with a scale of several blocks want whole eights of blocks.
std::vector<int> widths_of(Format format) {
    const Layout& l = layout(format);
    if (l.nested) return {256, 512};
    std::vector<int> widths(std::begin(WIDTHS), std::end(WIDTHS));
    widths.push_back(8 * BLOCK + 7);
    return widths;
}

struct Weights {
    Weights(Format format, int rows, int cols, Random& random, bool values, bool precise)
        : blocks(padded(cols) / BLOCK), panels((rows + PANEL - 1) / PANEL),
          packed(panel_bytes(format, blocks) * static_cast<size_t>(panels)),
          matrix{format, rows, cols, blocks, panels, panel_bytes(format, blocks), packed.data(), values, precise} {
        exact::fill(packed, random);
    }
    int blocks, panels;
    Array<uint8_t> packed;
    Matrix matrix;
};

void multiply(const Kernels& kernels, const Matrix& matrix, int rows, Random& random) {
    const size_t stride = static_cast<size_t>(padded(matrix.cols)), sums_stride = sums_of_row(matrix.blocks);
    Array<float> x(stride * static_cast<size_t>(rows)), sums(sums_stride * static_cast<size_t>(rows));
    Array<uint16_t> x16(x.size());
    for (int r = 0; r < rows; ++r) {
        Array<float> row(static_cast<size_t>(matrix.cols));
        exact::fill(row, random);
        kernels.prepare(row.data(), nullptr, 0, matrix.cols, !matrix.exact, x.data() + static_cast<size_t>(r) * stride,
                        sums.data() + static_cast<size_t>(r) * sums_stride, true);
    }
    for (size_t row = 0; kernels.narrow && row < x.size(); row += stride) kernels.narrow(x.data() + row, static_cast<int>(stride), x16.data() + row);
    const size_t width = static_cast<size_t>(matrix.panels) * PANEL;
    Array<float> out(width * static_cast<size_t>(rows));
    for (int at_once : {1, matrix.panels})
        for (int panel = 0; panel + at_once <= matrix.panels; panel += at_once) {
            MatmulArgs args{&matrix, panel, x.data(), stride, sums.data(), sums_stride, rows, out.data() + panel * PANEL, width};
            args.panels = at_once;
            if (kernels.narrow && !matrix.exact) args.x16 = x16.data(), args.x16_stride = stride;
            kernels.matmul(args);
        }
    Array<float> line(static_cast<size_t>(matrix.cols));
    for (int row : {0, matrix.rows - 1}) kernels.gather_row(matrix, row, 1.5f, line.data());
}

void multiply_int8(const Kernels& kernels, const Matrix& matrix, int rows, Random& random) {
    const size_t stride = static_cast<size_t>(padded(matrix.cols)), sums_stride = sums_of_row(matrix.blocks), n = static_cast<size_t>(rows);
    const size_t groups = static_cast<size_t>(int_groups(matrix.blocks));
    Array<int8_t> fours(stride * n), eights(stride * n);
    Array<float> scales(groups * n);
    Array<int32_t> sums(sums_stride * n);
    Array<float> row(static_cast<size_t>(matrix.cols));
    for (size_t r = 0; r < n; ++r) {
        exact::fill(row, random);
        kernels.prepare_int8(row.data(), nullptr, 0, matrix.cols,
                             {fours.data() + r * stride, eights.data() + r * stride, scales.data() + r * groups, sums.data() + r * sums_stride});
    }
    const size_t width = static_cast<size_t>(matrix.panels) * PANEL;
    Array<float> out(width * n);
    kernels.matmul_int8({&matrix, 0, matrix.panels, {fours.data(), eights.data(), stride, scales.data(), groups, sums.data(), sums_stride},
                         rows, out.data(), width});
}

void products(const Kernels& kernels, Random& random) {
    for (size_t i = 0; i < std::size(LAYOUTS); ++i) {
        const Format format = format_at(i);
        const bool dense = LAYOUTS[i].codes == Codes::f32 || LAYOUTS[i].codes == Codes::f16 || LAYOUTS[i].codes == Codes::bf16;
        for (int width : widths_of(format))
            for (int outputs : OUTPUTS)
                for (int form = 0; form < (dense ? 1 : 3); ++form) {
                    const Weights weights(format, outputs, width, random, form > 0, form == 2 || LAYOUTS[i].codes == Codes::f32);
                    for (int rows : ROWS) {
                        multiply(kernels, weights.matrix, rows, random);
                        if (!dense && form == 0 && kernels.matmul_int8) multiply_int8(kernels, weights.matrix, rows, random);
                    }
                }
    }
}

void row_functions(const Kernels& kernels, Random& random) {
    for (int n : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 576}) {
        const size_t size = static_cast<size_t>(n);
        Array<float> x(size), y(size), out(size);
        // A vector of the executable has whole lanes of zeros behind it (Executable::add_vector).
        Array<float> gain(size + PANEL);
        exact::fill(x, random), exact::fill(y, random), exact::fill(gain, random);
        Array<float> prepared(static_cast<size_t>(padded(n))), sums(sums_of_row(padded(n) / BLOCK));
        kernels.prepare(x.data(), gain.data(), 1e-5f, n, true, prepared.data(), sums.data(), true);
        kernels.prepare(x.data(), nullptr, 1e-5f, n, false, prepared.data(), nullptr, false);
        kernels.rms_norm(x.data(), gain.data(), 1e-5f, n, out.data());
        kernels.layer_norm(x.data(), gain.data(), gain.data(), 1e-5f, n, out.data());
        kernels.layer_norm(x.data(), gain.data(), nullptr, 1e-5f, n, out.data());
        kernels.add(x.data(), y.data(), size, out.data());
        for (int activation : {0, 1}) {
            kernels.gated(x.data(), y.data(), size, activation, out.data());
            kernels.activate(x.data(), size, activation, out.data());
        }
        kernels.cap_logits(out.data(), size, 0.5f, 30.0f);
        Array<double> frequencies(size, 0.01);
        Array<float> angles(2 * size);
        kernels.rope_angles(7000, frequencies.data(), n, 1.0, angles.data());
        for (int dim : {2 * n, 2 * n + 6}) {
            Array<float> heads(3 * static_cast<size_t>(dim)), turned(heads.size());
            exact::fill(heads, random);
            for (bool interleaved : {false, true}) {
                kernels.rope(heads.data(), angles.data(), n, 3, dim, interleaved, turned.data());
                kernels.rope(heads.data(), angles.data(), n, 3, dim, interleaved, heads.data());
            }
        }
    }
}

// One sequence of `tokens` in scattered blocks, `rows` query rows at its end.
void attention(const Kernels& kernels, Random& random, int key_dim, int value_dim, bool bf16, int tokens, int rows, int window) {
    constexpr int HEADS = 2, GROUP = 3;
    const int blocks = (tokens + BLOCK - 1) / BLOCK;
    const size_t head_bytes = static_cast<size_t>(BLOCK * (key_dim + value_dim)) * (bf16 ? 2 : 4), block_bytes = HEADS * head_bytes;
    Array<uint8_t> pool(block_bytes * static_cast<size_t>(blocks));
    Array<int32_t> table(static_cast<size_t>(blocks));
    for (int b = 0; b < blocks; ++b) table[static_cast<size_t>(b)] = (b * 7 + 3) % blocks;
    if (blocks % 7 == 0)
        for (int b = 0; b < blocks; ++b) table[static_cast<size_t>(b)] = blocks - 1 - b;
    const KVView kv{pool.data(), block_bytes, 0, head_bytes, key_dim, value_dim, bf16};
    Array<float> k(static_cast<size_t>(key_dim)), v(static_cast<size_t>(value_dim));
    for (int t = 0; t < tokens; ++t)
        for (int head = 0; head < HEADS; ++head) {
            exact::fill(k, random), exact::fill(v, random);
            kernels.kv_write(kv, table[static_cast<size_t>(t / BLOCK)], t % BLOCK, head, k.data(), v.data());
        }
    const size_t floats = partial_floats(value_dim), n = static_cast<size_t>(rows);
    Array<float> q(n * HEADS * GROUP * static_cast<size_t>(key_dim)), states(n * GROUP * floats), later(n * GROUP * floats);
    exact::fill(q, random);
    Array<float> out(static_cast<size_t>(value_dim)), lse(n * GROUP), slopes(GROUP, 0.1f);
    std::vector<AttendRow> at;
    for (int r = 0; r < rows; ++r)
        at.push_back({q.data() + static_cast<size_t>(r) * HEADS * GROUP * static_cast<size_t>(key_dim),
                      states.data() + static_cast<size_t>(r) * GROUP * floats, tokens - rows + r});
    for (int head = 0; head < HEADS; ++head) {
        AttendArgs args{kv, table.data(), at.data(), rows, head, GROUP, window, 0.125f, window ? 20.0f : 0.0f,
                        bf16 ? nullptr : slopes.data(), nullptr, 0};
        const int end = (tokens - 1) / TILE + 1, chunk_tiles = CHUNK / TILE;
        const int seen = window && tokens - rows >= window ? (tokens - rows - window + 1) / TILE : 0;
        for (int first = seen; first < end;) {
            const int last = std::min(end, (first / chunk_tiles + 1) * chunk_tiles), middle = first + (last - first) / 2;
            kernels.attend_tiles(args, first, last, false);
            if (middle > first) {
                kernels.attend_tiles(args, first, middle, false);
                kernels.attend_tiles(args, middle, last, true);
            }
            std::memcpy(later.data(), states.data(), states.size() * sizeof(float));
            kernels.attend_merge(states.data(), later.data(), rows * GROUP, value_dim);
            first = last;
        }
        kernels.attend_finish(states.data(), value_dim, out.data());
        kernels.attend_lse(states.data(), rows * GROUP, value_dim, lse.data());
        for (int r = 0; r < rows; ++r) at[static_cast<size_t>(r)].state = lse.data() + r * GROUP;
        for (int first = seen; first < end;) {
            const int last = std::min(end, (first / chunk_tiles + 1) * chunk_tiles);
            Array<float> sums(static_cast<size_t>(TILE * (last - first)));
            kernels.attend_columns(args, first, last, sums.data());
            first = last;
        }
        for (int r = 0; r < rows; ++r) at[static_cast<size_t>(r)].state = states.data() + static_cast<size_t>(r) * GROUP * floats;
    }
}

void attentions(const Kernels& kernels, Random& random) {
    constexpr int DIMS[][2] = {{2, 2}, {16, 16}, {64, 64}, {96, 34}, {128, 128}};
    for (auto [key_dim, value_dim] : DIMS)
        for (bool bf16 : {true, false})
            for (int window : {0, 40}) {
                attention(kernels, random, key_dim, value_dim, bf16, 1, 1, window);
                attention(kernels, random, key_dim, value_dim, bf16, 70, 17, window);
                attention(kernels, random, key_dim, value_dim, bf16, 600, 1, window);
            }
    for (int rows : {15, 16, 31, 33}) attention(kernels, random, 64, 64, true, 130, rows, 0);
}

void choices(const Kernels& kernels, Random& random) {
    for (int vocab : {1, 63, 64, 65, 4096, 4097, 5003}) {
        const size_t size = static_cast<size_t>(vocab);
        Array<float> logits(size);
        exact::fill(logits, random);
        std::vector<ChunkStats> stats;
        for (int first = 0; first < vocab; first += VOCAB_CHUNK)
            stats.push_back(kernels.vocab_stats(logits.data(), first, std::min(VOCAB_CHUNK, vocab - first)));
        Array<uint64_t> scratch((choose_scratch_bytes(vocab) + 7) / 8);
        for (int top : {-1, 0, 1, 20})
            for (float temperature : {0.0f, 0.8f}) {
                const int wanted = top < 0 ? 0 : std::min(top, vocab);
                Array<int32_t> ids(static_cast<size_t>(wanted));
                Array<float> logprobs(static_cast<size_t>(wanted));
                Sampling wish{7, temperature, 0.9f, 0.05f, 40, 3, 0, top < 0 ? -1 : wanted, 0, 1.1f, 0.2f, 0.1f, -1};
                const Edit edits[] = {{0, 1.0f, 2, SEEN}, {vocab - 1, -INFINITY, 0, vocab > 1 ? 0 : SEEN}};
                kernels.choose(logits.data(), vocab, stats.data(), wish, {}, ids.data(), logprobs.data(), scratch.data());
                kernels.choose(logits.data(), vocab, stats.data(), wish, {edits, vocab > 1 ? 2 : 1}, ids.data(), logprobs.data(), scratch.data());
                wish.flags = ONLY_ALLOWED, wish.top_p = 1, wish.top_k = 0, wish.min_p = 0;
                kernels.choose(logits.data(), vocab, stats.data(), wish, {edits, 1}, ids.data(), logprobs.data(), scratch.data());
                wish.target = vocab - 1;
                kernels.choose(logits.data(), vocab, stats.data(), wish, {}, ids.data(), logprobs.data(), scratch.data());
            }
    }
}

}  // namespace

int main() {
    int tried = 0;
    for (int isa = 0; isa < static_cast<int>(std::size(ISA_NAMES)); ++isa) {
        if (!isa_supported(isa)) continue;
        const Kernels& kernels = kernels_at(isa);
        FlushDenormals flush;
        Random random;
        products(kernels, random);
        row_functions(kernels, random);
        attentions(kernels, random);
        choices(kernels, random);
        std::printf("%s\n", ISA_NAMES[isa]);
        ++tried;
    }
    return tried ? 0 : 1;
}
