// Fixed cases of the kernels, the same on every machine: what counts.cpp counts and a kernel change is seen by.
// What it is not: a test of numbers, or a measure of time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"

namespace cases {

using namespace pelton;

struct Random {
    uint64_t state = 20240607;

    uint32_t next() { return static_cast<uint32_t>((state = state * 6364136223846793005u + 1442695040888963407u) >> 33); }
    float number() { return static_cast<float>(static_cast<int>(next() % 4001) - 2000) / 1000.0f; }
    uint16_t half() { return static_cast<uint16_t>(next() & 0xbbff); }  // below 2 in size: good as bits of codes and of bf16, too
};

// At a 64-byte border, of zeros.
template <class T>
class Array {
   public:
    explicit Array(size_t count) : size_(count), data_(static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 127) / 64 * 64))) {
        std::memset(static_cast<void*>(data_.get()), 0, count * sizeof(T));
    }
    T* data() const { return data_.get(); }
    T& operator[](size_t i) const { return data_.get()[i]; }
    size_t size() const { return size_; }

   private:
    struct Free {
        void operator()(T* p) const { std::free(p); }
    };
    size_t size_;
    std::unique_ptr<T, Free> data_;
};

inline void fill(const Array<float>& array, Random& random) {
    for (size_t i = 0; i < array.size(); ++i) array[i] = random.number();
}

// A matrix of random weights in a packed format, and prepared rows for it.
struct Product {
    Product(const Kernels& kernels, Format format, int outputs, int cols, int rows, bool values = false)
        : blocks(padded(cols) / BLOCK), panels((outputs + PANEL - 1) / PANEL), rows(rows), stride(static_cast<size_t>(padded(cols))),
          packed(panel_bytes(format, blocks) * static_cast<size_t>(panels)), x(stride * static_cast<size_t>(rows)), x16(x.size()),
          sums(sums_of_row(blocks) * static_cast<size_t>(rows)), out(static_cast<size_t>(panels * PANEL * rows)),
          matrix{format, outputs, cols, blocks, panels, panel_bytes(format, blocks), packed.data(), values} {
        Random random;
        for (size_t i = 0; i + 1 < packed.size(); i += 2) {
            const uint16_t half = random.half();
            std::memcpy(packed.data() + i, &half, 2);
        }
        Array<float> row(static_cast<size_t>(cols));
        for (int r = 0; r < rows; ++r) {
            fill(row, random);
            kernels.prepare(row.data(), nullptr, 0, cols, true, x.data() + static_cast<size_t>(r) * stride,
                            sums.data() + static_cast<size_t>(r) * sums_of_row(blocks), true);
        }
        for (size_t row = 0; kernels.narrow && row < x.size(); row += stride) kernels.narrow(x.data() + row, static_cast<int>(stride), x16.data() + row);
    }

    void multiply(const Kernels& kernels) const {
        MatmulArgs args{&matrix, 0, x.data(), stride, sums.data(), sums_of_row(blocks), rows, out.data(), static_cast<size_t>(panels * PANEL)};
        args.panels = panels;
        if (kernels.narrow) args.x16 = x16.data(), args.x16_stride = stride;
        kernels.matmul(args);
    }

    int blocks, panels, rows;
    size_t stride;
    Array<uint8_t> packed;
    Array<float> x;
    Array<uint16_t> x16;
    Array<float> sums, out;
    Matrix matrix;
};

// The same product of rows rounded to 8 bits.
struct IntProduct {
    IntProduct(const Kernels& kernels, Format format, int outputs, int cols, int rows)
        : product(kernels, format, outputs, cols, 1), rows(rows), fours(product.stride * static_cast<size_t>(rows)), eights(fours.size()),
          groups(static_cast<size_t>(int_groups(product.blocks))), scales(groups * static_cast<size_t>(rows)),
          sums(sums_of_row(product.blocks) * static_cast<size_t>(rows)),
          out(static_cast<size_t>(product.panels * PANEL * rows)) {
        Random random;
        Array<float> row(static_cast<size_t>(cols));
        for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
            fill(row, random);
            kernels.prepare_int8(row.data(), nullptr, 0, cols,
                                 {fours.data() + r * product.stride, eights.data() + r * product.stride, scales.data() + r * groups,
                                  sums.data() + r * sums_of_row(product.blocks)});
        }
    }

    void multiply(const Kernels& kernels) const {
        kernels.matmul_int8({&product.matrix, 0, product.panels,
                             {fours.data(), eights.data(), product.stride, scales.data(), groups, sums.data(), sums_of_row(product.blocks)},
                             rows, out.data(), static_cast<size_t>(product.panels * PANEL)});
    }

    Product product;
    int rows;
    Array<int8_t> fours, eights;
    size_t groups;
    Array<float> scales;
    Array<int32_t> sums;
    Array<float> out;
};

// One sequence of `tokens` in its cache, `rows` query rows at its end, one KV head with a group of 3.
struct Attention {
    static constexpr int DIM = 64, GROUP = 3;

    Attention(const Kernels& kernels, int tokens, int rows)
        : tokens(tokens), blocks((tokens + BLOCK - 1) / BLOCK), head_bytes(static_cast<size_t>(BLOCK) * 2 * DIM * 2),
          pool(head_bytes * static_cast<size_t>(blocks)), q(static_cast<size_t>(rows * GROUP * DIM)),
          states(static_cast<size_t>(rows * GROUP) * partial_floats(DIM)) {
        Random random;
        fill(q, random);
        for (int b = 0; b < blocks; ++b) table.push_back(b);
        kv = {pool.data(), head_bytes, 0, head_bytes, DIM, DIM, true};
        Array<float> k(DIM), v(DIM);
        for (int t = 0; t < tokens; ++t) {
            fill(k, random), fill(v, random);
            kernels.kv_write(kv, t / BLOCK, t % BLOCK, 0, k.data(), v.data());
        }
        for (int r = 0; r < rows; ++r)
            at.push_back({q.data() + r * GROUP * DIM, states.data() + static_cast<size_t>(r * GROUP) * partial_floats(DIM), tokens - rows + r});
    }

    void attend(const Kernels& kernels) const {
        const AttendArgs args{kv, table.data(), at.data(), static_cast<int>(at.size()), 0, GROUP, 0, 0.125f, 0, nullptr, nullptr, 0};
        for (int first = 0, end = (tokens - 1) / TILE + 1; first < end; first += CHUNK / TILE)
            kernels.attend_tiles(args, first, std::min(end, first + CHUNK / TILE), false);
    }

    int tokens, blocks;
    size_t head_bytes;
    Array<uint8_t> pool;
    Array<float> q, states;
    std::vector<int32_t> table;
    std::vector<AttendRow> at;
    KVView kv{};
};

struct Choosing {
    explicit Choosing(int vocab) : vocab(vocab), logits(static_cast<size_t>(vocab)), scratch(choose_scratch_bytes(vocab) / 8 + 1) {
        Random random;
        fill(logits, random);
    }

    void choose(const Kernels& kernels, float temperature, float top_p) const {
        std::vector<ChunkStats> stats;
        for (int first = 0; first < vocab; first += VOCAB_CHUNK)
            stats.push_back(kernels.vocab_stats(logits.data(), first, std::min(VOCAB_CHUNK, vocab - first)));
        const Sampling wish{7, temperature, top_p, 0, 0, 1, 0, -1, 0, 1, 0, 0, -1};
        kernels.choose(logits.data(), vocab, stats.data(), wish, {}, nullptr, nullptr, scratch.data());
    }

    int vocab;
    Array<float> logits;
    Array<uint64_t> scratch;
};

using Case = std::pair<std::string, std::function<void()>>;

// Calls `each(name, run)` for every case, one after the other, so that only one is in memory at a time.
inline void every(const Kernels& kernels, const std::function<void(const std::string&, const std::function<void()>&)>& each) {
    constexpr int OUTPUTS = 64;
    for (size_t i = 0; i < std::size(LAYOUTS); ++i) {
        const Format format = static_cast<Format>(i);
        const int cols = LAYOUTS[i].nested ? 512 : 576;
        const std::string name = LAYOUTS[i].name;
        for (int rows : {1, 4, 32}) {
            const Product product(kernels, format, OUTPUTS, cols, rows);
            each("matmul " + name + " rows " + std::to_string(rows), [&] { product.multiply(kernels); });
        }
        if (!LAYOUTS[i].scales) continue;
        const Product values(kernels, format, OUTPUTS, cols, 32, true);
        each("values " + name + " rows 32", [&] { values.multiply(kernels); });
        if (!kernels.matmul_int8) continue;
        for (int rows : {1, 32}) {
            const IntProduct product(kernels, format, OUTPUTS, cols, rows);
            each("int8 " + name + " rows " + std::to_string(rows), [&] { product.multiply(kernels); });
        }
    }
    for (int rows : {1, 64}) {
        const Attention attention(kernels, 600, rows);
        each("attend 600 rows " + std::to_string(rows), [&] { attention.attend(kernels); });
    }
    const Choosing choosing(49152);
    each("choose greedy", [&] { choosing.choose(kernels, 0, 1); });
    each("choose sampled", [&] { choosing.choose(kernels, 0.8f, 1); });
    each("choose top-p", [&] { choosing.choose(kernels, 0.8f, 0.9f); });
    Random random;
    Array<float> x(576), gain(576 + PANEL), out(576), sums(sums_of_row(18));
    fill(x, random), fill(gain, random);
    each("prepare 576", [&] { kernels.prepare(x.data(), gain.data(), 1e-5f, 576, true, out.data(), sums.data(), false); });
    each("gated 576", [&] { kernels.gated(x.data(), gain.data(), 576, 0, out.data()); });
}

}  // namespace cases
