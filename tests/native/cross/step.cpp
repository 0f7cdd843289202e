// One small model's steps through the whole executable with the kernels of one instruction set: its logits on the standard
// output, as hexadecimal floats. What it is not: a test; tests/native/test_whole_step.py compares. Argument: the set's number.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "step/exec.h"
#include "tables.h"

namespace {

using namespace pelton;

constexpr int HIDDEN = 64, INNER = 96, VOCAB = 80, TOKENS = 40, HEADS = 4, KV_HEADS = 2, DIM = 32;

struct Model {
    Model(const Kernels& kernels, bool exact, bool int8) : executable(kernels, {-1, -1}, TOKENS, TOKENS, VOCAB, exact) {
        const Format coded = Format::q4m, dense = exact ? Format::f32 : Format::bf16;
        const int table = matrix(dense, VOCAB, HIDDEN), q = matrix(dense, HEADS * DIM, HIDDEN), k = matrix(coded, KV_HEADS * DIM, HIDDEN),
                  v = matrix(coded, KV_HEADS * DIM, HIDDEN), o = matrix(dense, HIDDEN, HEADS * DIM), gate = matrix(coded, INNER, HIDDEN),
                  up = matrix(coded, INNER, HIDDEN), down = matrix(coded, HIDDEN, INNER);
        std::vector<float> ones(HIDDEN, 0.8f), bias(HEADS * DIM, 0.01f);
        gain = executable.add_vector(ones.data(), ones.size());
        const float* biased = executable.add_vector(bias.data(), bias.size());
        executable.add_state(1, KV_HEADS, DIM, DIM, 0);
        const Slot x = slot(HIDDEN), qs = slot(HEADS * DIM), ks = slot(KV_HEADS * DIM), vs = slot(KV_HEADS * DIM), mixed = slot(HEADS * DIM),
                   between = slot(HIDDEN), inner = slot(INNER), last = slot(HIDDEN);
        op(Kind::embed, {}, {x}, {table});
        OpRecord& qkv = op(Kind::linear, {x}, {qs, ks, vs}, {q, k, v});
        qkv.gain = gain, qkv.biases = {biased, nullptr, nullptr};
        op(Kind::kv_write, {ks, vs}, {}, {}).state = 0;
        OpRecord& attend = op(Kind::attend, {qs}, {mixed}, {});
        attend.state = 0, attend.scale = 0.2f;
        op(Kind::linear, {mixed, x}, {between}, {o}).residual = true;
        OpRecord& gated = op(Kind::linear, {between}, {inner}, {gate, up});
        gated.gain = gain, gated.activation = 0, gated.int8 = int8;
        OpRecord& back = op(Kind::linear, {inner, between}, {last}, {down});
        back.residual = true, back.int8 = int8;
        op(Kind::head, {last}, {}, {table}).gain = gain;
        for (OpRecord& record : ops) executable.add_op(record);
        executable.finish(floats);
        executable.allocate({8});
    }

    uint32_t next() { return static_cast<uint32_t>((state = state * 6364136223846793005u + 1442695040888963407u) >> 32); }

    // Dense: fp32 of the file; codes: blocks of Q4_1, a scale and a minimum of half precision and 32 nibbles.
    int matrix(Format format, int rows, int cols) {
        std::vector<uint8_t> raw;
        const bool coded = format == Format::q4m;
        for (int i = 0; i < rows * cols / (coded ? 32 : 1); ++i) {
            if (coded) {
                const uint16_t numbers[2] = {static_cast<uint16_t>(0x2800 + next() % 0x400), static_cast<uint16_t>(0xac00 + next() % 0x400)};
                raw.insert(raw.end(), reinterpret_cast<const uint8_t*>(numbers), reinterpret_cast<const uint8_t*>(numbers) + 4);
                for (int b = 0; b < 16; ++b) raw.push_back(static_cast<uint8_t>(next() >> 8));
            } else {
                const float x = (static_cast<float>(next() >> 8) * 0x1p-23f - 1.0f) * 0.2f;
                raw.insert(raw.end(), reinterpret_cast<const uint8_t*>(&x), reinterpret_cast<const uint8_t*>(&x) + 4);
            }
        }
        return executable.add_matrix(format, coded ? "Q4_1" : "F32", raw.data(), rows, cols, nullptr);
    }

    Slot slot(int width) {
        const Slot made{floats, width};
        floats += static_cast<size_t>(width) * TOKENS;
        return made;
    }

    OpRecord& op(Kind kind, std::vector<Slot> inputs, std::vector<Slot> outputs, std::vector<int> matrices) {
        OpRecord record;
        record.kind = kind, record.inputs = inputs, record.outputs = outputs, record.matrices = matrices;
        record.biases.assign(matrices.size(), nullptr);
        record.eps = 1e-5f, record.heads = HEADS, record.kv_heads = KV_HEADS;
        ops.push_back(record);
        return ops.back();
    }

    // Tokens [first, first + count) of the sequence; prints all their logits.
    void step(int first, int count) {
        std::vector<int32_t> tokens, positions, rows, out(3 * TOKENS), tables = {5, 2, 7, 1};
        for (int i = 0; i < count; ++i) tokens.push_back((first + i) * 31 % VOCAB), positions.push_back(first + i), rows.push_back(i);
        Sampling wish{};
        wish.target = -1, wish.top_p = 1, wish.repetition = 1, wish.logprobs = -1;
        std::vector<Sampling> sampling(TOKENS, wish);
        std::vector<float> logprobs(TOKENS), logits(static_cast<size_t>(count) * VOCAB);
        const int32_t starts[] = {first}, counts[] = {count}, offsets[] = {0, 4};
        Step s{};
        s.tokens = tokens.data(), s.positions = positions.data(), s.starts = starts, s.counts = counts, s.tables = tables.data();
        s.table_offsets = offsets, s.logit_rows = rows.data(), s.sampling = sampling.data();
        s.num_tokens = count, s.num_sequences = 1, s.num_rows = count;
        s.out_tokens = out.data(), s.out_ranks = out.data() + TOKENS, s.out_faults = out.data() + 2 * TOKENS, s.out_logprobs = logprobs.data();
        s.logits = logits.data();
        executable.run(s);
        for (float x : logits) std::printf("%a\n", static_cast<double>(x));
    }

    Executable executable;
    uint64_t state = 99;
    size_t floats = 0;
    const float* gain = nullptr;
    std::vector<OpRecord> ops = reserved();
    static std::vector<OpRecord> reserved() {
        std::vector<OpRecord> room;
        room.reserve(16);
        return room;
    }
};

}  // namespace

int main(int, char** words) {
    const Kernels& kernels = kernels_at(std::atoi(words[1]));
    for (auto [exact, int8] : {std::pair{false, false}, {false, true}, {true, false}}) {
        Model model(kernels, exact, int8);
        model.step(0, 33);
        model.step(33, 1);
        model.step(34, 5);
    }
    return 0;
}
