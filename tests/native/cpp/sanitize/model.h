// A small executable for steps with portable kernels, and what a step is asked. What it is not: a model that says something.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sanitize/exact.h"
#include "step/exec.h"

namespace pelton {

constexpr int DIM = 64, HEADS = 4, KV_HEADS = 2, HEAD = 16, HIDDEN = 96, VOCAB = 5003, LAYERS = 2, TOKENS = 40, BLOCKS = 24;

class Model {
   public:
    explicit Model(int threads) : executable(kernels_portable(), std::vector<int>(static_cast<size_t>(threads), -1), TOKENS, TOKENS, VOCAB, false) {
        const Slot x = slot(DIM), normed = slot(DIM), q = slot(HEADS * HEAD), k = slot(KV_HEADS * HEAD), v = slot(KV_HEADS * HEAD),
                   attended = slot(HEADS * HEAD), gate = slot(HIDDEN), up = slot(HIDDEN), hidden = slot(HIDDEN), angles = slot(HEAD);
        const int table = matrix(VOCAB, DIM);
        const int state = executable.add_state(LAYERS, KV_HEADS, HEAD, HEAD, 0);
        OpRecord op = record(Kind::embed, {}, {x});
        op.matrices = {table};
        executable.add_op(op);
        op = record(Kind::rope_table, {}, {angles});
        for (int i = 0; i < HEAD / 2; ++i) op.frequencies.push_back(1.0 / (1 + i));
        executable.add_op(op);
        for (int layer = 0; layer < LAYERS; ++layer) {
            executable.add_op(normalised(x, normed));
            linear({normed}, {q, k, v});
            for (const Slot& turned : {q, k}) {
                op = record(Kind::rope, {turned, angles}, {turned});
                op.heads = turned.width / HEAD;
                executable.add_op(op);
            }
            op = record(Kind::kv_write, {k, v}, {});
            op.state = state, op.layer = layer, op.kv_heads = KV_HEADS;
            executable.add_op(op);
            op = record(Kind::attend, {q}, {attended});
            op.state = state, op.layer = layer, op.heads = HEADS, op.kv_heads = KV_HEADS, op.scale = 0.25f;
            executable.add_op(op);
            linear({attended}, {normed});
            op = record(Kind::add, {normed, x}, {x});
            executable.add_op(op);
            executable.add_op(normalised(x, normed));
            linear({normed}, {gate, up});
            op = record(Kind::gated, {gate, up}, {hidden});
            op.activation = 0;
            executable.add_op(op);
            linear({hidden}, {normed});
            op = record(Kind::add, {normed, x}, {x});
            executable.add_op(op);
        }
        op = record(Kind::head, {x}, {});
        op.matrices = {table};
        op.gain = ones();
        op.eps = 1e-5f;
        executable.add_op(op);
        executable.finish(floats_ * TOKENS);
        executable.allocate({BLOCKS});
    }

    Executable executable;

   private:
    Slot slot(int width) {
        const Slot made{floats_ * TOKENS, width};
        floats_ += static_cast<size_t>(width);
        return made;
    }

    static OpRecord record(Kind kind, std::vector<Slot> inputs, std::vector<Slot> outputs) {
        OpRecord op;
        op.kind = kind;
        op.inputs = std::move(inputs);
        op.outputs = std::move(outputs);
        return op;
    }

    int matrix(int rows, int cols) {
        exact::Array<float> raw(static_cast<size_t>(rows) * static_cast<size_t>(cols));
        exact::fill(raw, random_);
        return executable.add_matrix(Format::bf16, "F32", reinterpret_cast<const uint8_t*>(raw.data()), rows, cols, nullptr);
    }

    const float* ones() {
        const std::vector<float> gain(DIM, 1.0f);
        return executable.add_vector(gain.data(), gain.size());
    }

    OpRecord normalised(const Slot& from, const Slot& to) {
        OpRecord op = record(Kind::rms_norm, {from}, {to});
        op.gain = ones();
        op.eps = 1e-5f;
        return op;
    }

    void linear(std::vector<Slot> inputs, std::vector<Slot> outputs) {
        OpRecord op = record(Kind::linear, std::move(inputs), std::move(outputs));
        for (const Slot& out : op.outputs) {
            op.matrices.push_back(matrix(out.width, op.inputs[0].width));
            op.biases.push_back(nullptr);
        }
        executable.add_op(op);
    }

    size_t floats_ = 0;
    exact::Random random_;
};

// What a step is asked, and room for what it gives.
struct Asked {
    std::vector<int32_t> tokens, positions, starts, counts, offsets{0}, rows, tables;
    std::vector<Sampling> sampling;
    std::vector<int32_t> ints, top_ids;
    std::vector<float> logprobs, top_logprobs, logits;

    void sequence(int start, int count, const std::vector<int32_t>& blocks, int answers) {
        starts.push_back(start), counts.push_back(count);
        for (int i = 0; i < count; ++i) {
            tokens.push_back((start + i) * 37 % VOCAB);
            positions.push_back(start + i);
            if (i >= count - answers) rows.push_back(static_cast<int32_t>(tokens.size()) - 1);
        }
        tables.insert(tables.end(), blocks.begin(), blocks.end());
        offsets.push_back(static_cast<int32_t>(tables.size()));
    }

    Step step(size_t repeat = 1) {
        const size_t n = rows.size();
        sampling.assign(n, Sampling{7, 0.8f, 0.95f, 0, 0, 1, 0, 3, 0, 1, 0, 0, -1});
        const size_t all = n * repeat;
        ints.assign(3 * all, 0), top_ids.assign(3 * all, 0);
        logprobs.assign(all, 0), top_logprobs.assign(3 * all, 0), logits.assign(n * VOCAB, 0);
        Step step{};
        step.tokens = tokens.data(), step.positions = positions.data(), step.starts = starts.data(), step.counts = counts.data();
        step.tables = tables.data(), step.table_offsets = offsets.data(), step.logit_rows = rows.data(), step.sampling = sampling.data();
        step.num_tokens = static_cast<int>(tokens.size()), step.num_sequences = static_cast<int>(starts.size()), step.num_rows = static_cast<int>(n);
        step.out_tokens = ints.data(), step.out_ranks = ints.data() + all, step.out_faults = ints.data() + 2 * all;
        step.out_logprobs = logprobs.data(), step.top = 3, step.top_ids = top_ids.data(), step.top_logprobs = top_logprobs.data();
        if (repeat == 1) step.logits = logits.data();
        return step;
    }
};

}  // namespace pelton
