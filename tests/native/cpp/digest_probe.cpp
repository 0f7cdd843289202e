// All kernels of one instruction set on the same made-up inputs, each result boiled down to a number: for comparing machines
// that cannot load each other's libraries. What it is not: part of the package, or a check of what the results should be.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tables.h"

namespace {

using namespace pelton;

class Numbers {
   public:
    explicit Numbers(uint64_t seed) : state_(seed * 2 + 1) {}
    uint32_t next() { return static_cast<uint32_t>((state_ = state_ * 6364136223846793005u + 1442695040888963407u) >> 32); }
    // From -size to size, but one in sixteen is so small that its products vanish, or is a denormal number.
    float real(float size = 1.0f) {
        const float x = (static_cast<float>(next() >> 8) * 0x1p-23f - 1.0f) * size;
        const uint32_t kind = next() & 63;
        return kind == 0 ? x * 0x1p-130f : kind < 4 ? x * 0x1p-70f : x;
    }
    std::vector<float> reals(size_t n, float size = 1.0f) {
        std::vector<float> out(n);
        for (float& x : out) x = real(size);
        return out;
    }

   private:
    uint64_t state_;
};

// FNV-1a; one NaN is as good as another.
class Digest {
   public:
    void bytes(const void* from, size_t n) {
        for (size_t i = 0; i < n; ++i) hash_ = (hash_ ^ static_cast<const uint8_t*>(from)[i]) * 1099511628211u;
    }
    void floats(const float* from, size_t n) {
        for (size_t i = 0; i < n; ++i) {
            const float x = std::isnan(from[i]) ? __builtin_nanf("") : from[i];
            bytes(&x, sizeof x);
        }
    }
    void floats(const std::vector<float>& v) { floats(v.data(), v.size()); }
    uint64_t value() const { return hash_; }

   private:
    uint64_t hash_ = 14695981039346656037u;
};

struct Report {
    std::string text;
    void line(const std::string& name, const Digest& digest) {
        char hash[20];
        std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(digest.value()));
        text += name + " " + hash + "\n";
    }
};

// Random bits that are numbers in the format: no exponent is the largest.
struct Weights {
    Weights(Format format, int blocks, int panels, Numbers& random) : memory(panel_bytes(format, blocks) * static_cast<size_t>(panels) + 16384) {
        uint8_t* start = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
        matrix = {format, panels * PANEL - 3, blocks * BLOCK, blocks, panels, panel_bytes(format, blocks), start};
        const bool floats = layout(format).codes == Codes::f32 || layout(format).span == 0;
        for (size_t i = 0; i + 4 <= matrix.panel_bytes * static_cast<size_t>(panels); i += 4) {
            uint32_t word = random.next() & 0xbbffbbffu;
            const float x = random.real();
            if (floats && layout(format).codes == Codes::f32) std::memcpy(&word, &x, 4);
            std::memcpy(start + i, &word, 4);
        }
        for (int p = 0; p < panels && layout(format).span == 0; ++p)
            for (size_t i = 0; i < PANEL; ++i) {
                const float scale = random.real();
                std::memcpy(start + static_cast<size_t>(p + 1) * matrix.panel_bytes - (PANEL - i) * 4, &scale, 4);
            }
    }
    std::vector<uint8_t> memory;
    Matrix matrix;
};

void products(const Kernels& k, Report& report) {
    constexpr int blocks = 24, groups = int_groups(blocks), panels = 2, cols = blocks * BLOCK, width = panels * PANEL;
    for (size_t f = 0; f < sizeof(LAYOUTS) / sizeof(LAYOUTS[0]); ++f) {
        Numbers random(f + 1);
        const Weights weights(static_cast<Format>(f), blocks, panels, random);
        Digest products, integers, gathered;
        for (int rows : {1, 2, 3, 5, 8, 9, 16, 17, 33}) {
            const size_t n = static_cast<size_t>(rows);
            std::vector<float> x(n * cols), sums(n * sums_of_row(blocks)), out(n * width);
            std::vector<int8_t> fours(n * cols), eights(n * cols);
            std::vector<int32_t> int_sums(n * sums_of_row(blocks));
            std::vector<float> scales(n * groups);
            for (size_t r = 0; r < n; ++r) {
                const std::vector<float> row = random.reals(cols);
                k.prepare(row.data(), nullptr, 0, cols, rows % 2, &x[r * cols], &sums[r * sums_of_row(blocks)], true);
                k.prepare_int8(row.data(), nullptr, 0, cols, {&fours[r * cols], &eights[r * cols], &scales[r * groups], &int_sums[r * sums_of_row(blocks)]});
            }
            MatmulArgs args{&weights.matrix, 0, x.data(), cols, sums.data(), sums_of_row(blocks), rows, out.data(), width};
            args.panels = panels;
            k.matmul(args);
            products.floats(out);
            if (!layout(static_cast<Format>(f)).scales) continue;
            k.matmul_int8({&weights.matrix, 0, panels, {fours.data(), eights.data(), cols, scales.data(), groups, int_sums.data(), sums_of_row(blocks)}, rows, out.data(), width});
            integers.floats(out);
        }
        std::vector<float> row(cols);
        for (int r : {0, 5, 28}) k.gather_row(weights.matrix, r, 0.75f, row.data()), gathered.floats(row);
        const std::string name = LAYOUTS[f].name;
        report.line("product " + name, products);
        report.line("integers " + name, integers);
        report.line("row " + name, gathered);
    }
}

void rows(const Kernels& k, Report& report) {
    for (int n : {1, 16, 31, 64, 100, 576}) {
        Numbers random(static_cast<uint64_t>(n) + 100);
        const size_t count = static_cast<size_t>(n);
        const std::vector<float> x = random.reals(count, 9), y = random.reals(count, 9), gain = random.reals(count + PANEL);
        std::vector<float> out(count);
        Digest digest;
        k.rms_norm(x.data(), gain.data(), 1e-5f, n, out.data()), digest.floats(out);
        k.layer_norm(x.data(), gain.data(), y.data(), 1e-5f, n, out.data()), digest.floats(out);
        k.add(x.data(), y.data(), count, out.data()), digest.floats(out);
        for (int activation : {0, 1}) {
            k.gated(x.data(), y.data(), count, activation, out.data()), digest.floats(out);
            k.activate(x.data(), count, activation, out.data()), digest.floats(out);
        }
        out = x;
        k.cap_logits(out.data(), count, 0.3f, 5.0f), digest.floats(out);
        report.line("rows of " + std::to_string(n), digest);
    }
    Digest turned;
    for (int position : {0, 1, 77, 8191, 1000000}) {
        std::vector<double> frequencies;
        for (int i = 0; i < 24; ++i) frequencies.push_back(1.0 / (1 + i * i * 37));
        std::vector<float> angles(48), heads = Numbers(7).reals(3 * 64), out(3 * 64);
        k.rope_angles(position, frequencies.data(), 24, 1.25, angles.data()), turned.floats(angles);
        for (bool interleaved : {false, true}) k.rope(heads.data(), angles.data(), 24, 3, 64, interleaved, out.data()), turned.floats(out);
    }
    report.line("rotation", turned);
}

struct AttendShape {
    int key_dim, value_dim, group, window;
    float softcap;
    bool bf16, sloped;
};

void attention(const Kernels& k, Report& report, const AttendShape& shape, int number) {
    constexpr int tokens = 700, blocks = (tokens + BLOCK - 1) / BLOCK, first = 620, count = 23;
    Numbers random(static_cast<uint64_t>(number) + 500);
    const size_t head_bytes = static_cast<size_t>(BLOCK * (shape.key_dim + shape.value_dim)) * (shape.bf16 ? 2 : 4), floats = partial_floats(shape.value_dim);
    std::vector<uint8_t> pool(head_bytes * blocks);
    const KVView kv{pool.data(), head_bytes, 0, head_bytes, shape.key_dim, shape.value_dim, shape.bf16};
    std::vector<int32_t> table(blocks);
    for (int b = 0; b < blocks; ++b) table[static_cast<size_t>(b)] = blocks - 1 - b;
    for (int t = 0; t < tokens; ++t) {
        const std::vector<float> key = random.reals(static_cast<size_t>(shape.key_dim)), value = random.reals(static_cast<size_t>(shape.value_dim));
        k.kv_write(kv, table[static_cast<size_t>(t / BLOCK)], t % BLOCK, 0, key.data(), value.data());
    }
    Digest digest;
    digest.bytes(pool.data(), pool.size());
    const size_t group = static_cast<size_t>(shape.group), width = group * static_cast<size_t>(shape.key_dim);
    const std::vector<float> q = random.reals(width * count), slopes = random.reals(group, 0.1f);
    std::vector<float> states(count * group * floats), merged(states.size()), lse(count * group), columns(CHUNK);
    std::vector<AttendRow> rows;
    for (int i = 0; i < count; ++i) rows.push_back({&q[static_cast<size_t>(i) * width], &states[static_cast<size_t>(i) * group * floats], first + i});
    AttendArgs args{kv, table.data(), rows.data(), count, 0, shape.group, shape.window, 0.2f, shape.softcap, shape.sloped ? slopes.data() : nullptr, nullptr, 0};
    const int tiles = CHUNK / TILE, last = (first + count - 1) / TILE + 1;
    k.attend_tiles(args, 0, tiles, false);
    merged = states;
    digest.floats(states);
    k.attend_tiles(args, tiles, last, false);
    digest.floats(states);
    k.attend_merge(merged.data(), states.data(), static_cast<int>(count * group), shape.value_dim);
    k.attend_lse(merged.data(), static_cast<int>(count * group), shape.value_dim, lse.data());
    digest.floats(merged), digest.floats(lse);
    std::vector<float> out(static_cast<size_t>(shape.value_dim));
    for (size_t i = 0; i < count * group; ++i) k.attend_finish(&merged[i * floats], shape.value_dim, out.data()), digest.floats(out);
    for (int i = 0; i < count; ++i) rows[static_cast<size_t>(i)].state = &lse[static_cast<size_t>(i) * group];
    k.attend_columns(args, tiles, last, columns.data());
    digest.floats(columns);
    report.line("attention " + std::to_string(number), digest);
}

void choices(const Kernels& k, Report& report) {
    constexpr int vocab = 5000;
    const std::vector<float> logits = Numbers(9).reals(vocab, 12);
    std::vector<ChunkStats> stats;
    Digest digest;
    for (int at = 0; at < vocab; at += VOCAB_CHUNK) {
        stats.push_back(k.vocab_stats(logits.data(), at, vocab - at < VOCAB_CHUNK ? vocab - at : VOCAB_CHUNK));
        digest.floats(&stats.back().max, 1), digest.floats(&stats.back().sum, 1), digest.bytes(&stats.back().argmax, 4);
    }
    std::vector<uint64_t> scratch(choose_scratch_bytes(vocab) / 8 + 1);
    for (uint32_t place = 0; place < 40; ++place) {
        Sampling wish{place * 77, 0.3f + 0.1f * static_cast<float>(place % 9), place % 3 ? 0.9f : 1.0f, place % 4 ? 0.0f : 0.02f,
                      place % 5 ? 0 : 30, place, place % 2, 2, 0, 1.1f, 0.2f, 0.1f, -1};
        const Edit edits[] = {{11, 0.5f, 2, SEEN}, {70, -__builtin_inff(), 0, 0}};
        int32_t ids[2];
        float logprobs[2];
        const Choice choice = k.choose(logits.data(), vocab, stats.data(), wish, {edits, 2}, ids, logprobs, scratch.data());
        digest.bytes(&choice.token, 4), digest.floats(&choice.logprob, 1), digest.bytes(&choice.rank, 4);
        digest.bytes(ids, sizeof ids), digest.floats(logprobs, 2);
    }
    report.line("choices", digest);
}

}  // namespace

// Lines of a name and a number. The text lives until the thread asks again.
extern "C" __attribute__((visibility("default"))) const char* probe_digests(int isa) {
    static thread_local Report report;
    report.text.clear();
    FlushDenormals flush;
    const Kernels& k = kernels_at(isa);
    products(k, report);
    rows(k, report);
    const AttendShape shapes[] = {{64, 64, 3, 0, 0, true, false},  {64, 64, 1, 100, 0, true, false}, {40, 24, 2, 0, 0, true, true},
                                  {128, 80, 1, 0, 30, true, false}, {64, 64, 2, 0, 0, false, false}, {18, 50, 4, 33, 20, false, true}};
    int number = 0;
    for (const AttendShape& shape : shapes) attention(k, report, shape, number++);
    choices(k, report);
    return report.text.c_str();
}
