// Steps of a small executable with few and with more threads than cores: prefill, decoding, several sequences with a common
// prefix, a tree, column sums, traces, several steps in a call, calls that are cancelled. For ThreadSanitizer (what workers
// hand one another) and AddressSanitizer. Every run must give the bits of the run with one thread. What it is not: a model.
#include <cstring>
#include <thread>

#include "sanitize/exact.h"
#include "step/exec.h"

using namespace pelton;

namespace {

constexpr int DIM = 64, HEADS = 4, KV_HEADS = 2, HEAD = 16, HIDDEN = 96, VOCAB = 5003, LAYERS = 2, TOKENS = 40, BLOCKS = 24;
constexpr int QKV = (HEADS + 2 * KV_HEADS) * HEAD;

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

void keep(std::vector<float>& all, const Asked& asked) {
    all.insert(all.end(), asked.logits.begin(), asked.logits.end());
    for (int32_t token : asked.ints) all.push_back(static_cast<float>(token));
}

// Five decode steps in one call, and such calls that another thread may cancel at any moment.
void decode_many(Model& model, int round, std::vector<float>& all) {
    constexpr int STEPS = 5;
    const int32_t stops[] = {VOCAB - 1}, offsets[] = {0, 1, 1};
    for (bool cancelled : {false, true}) {
        Asked asked;
        asked.sequence(64 + round % 7, 1, {1, 2, 9}, 1);
        asked.sequence(32 + round % 5, 1, {10, 11}, 1);
        const Step step = asked.step(STEPS);
        model.executable.begin();
        std::thread other([&] {
            if (cancelled) model.executable.cancel();
        });
        model.executable.run_many(step, {STEPS, stops, offsets, -1});
        other.join();
        if (!cancelled) keep(all, asked);
    }
    model.executable.begin();
}

// Everything that the steps gave.
std::vector<float> results(int threads, int rounds) {
    Model model(threads);
    std::vector<float> all;
    const std::vector<int32_t> first{1, 2, 3, 4}, second{1, 2, 5, 6}, third{7, 8};
    for (int start : {0, 40, 80}) {
        Asked prefill;
        prefill.sequence(start, TOKENS - (start == 80 ? 13 : 0), first, 1);
        model.executable.run(prefill.step());
        keep(all, prefill);
    }
    const BlockOp copies[] = {{COPY_BLOCK, 0, 3, 5}, {SCRUB_BLOCK, 0, 0, 8}};
    for (int round = 0; round < rounds; ++round) {
        Asked batch;
        batch.sequence(107 + round % 12, 1, first, 1);
        batch.sequence(70, 6, second, 6);  // shares two blocks with the first
        batch.sequence(0, 1 + round % 33, third, 1);
        Step step = batch.step();
        step.block_ops = copies, step.num_block_ops = 2;
        std::vector<int32_t> parents;
        for (int count : batch.counts)
            for (int i = 0; i < count; ++i) parents.push_back(round % 2 && count == 6 ? i / 2 - (i < 2) : i - 1);
        step.parents = parents.data();
        std::vector<uint64_t> trace(model.executable.ops() * batch.tokens.size());
        if (round % 3 == 2) step.trace = trace.data();
        exact::Array<float> sums(KV_HEADS * 128);
        const Columns columns{0, 0, 1, 0, sums.data(), 128};
        if (round % 2 == 0) step.columns = &columns, step.num_columns = 1;
        model.executable.run(step);
        keep(all, batch);
        for (size_t i = 0; i < sums.size(); ++i) all.push_back(sums[i]);
        decode_many(model, round, all);
    }
    return all;
}

}  // namespace

int main(int, char** words) {
    const int rounds = words[1] ? std::atoi(words[1]) : 6;
    const std::vector<float> alone = results(1, rounds);
    for (int threads : {2, 3, 8}) {
        const std::vector<float> found = results(threads, rounds);
        if (found.size() != alone.size() || std::memcmp(found.data(), alone.data(), alone.size() * sizeof(float)) != 0)
            return std::printf("%d threads give other bits than one\n", threads), 1;
    }
    std::printf("%zu numbers\n", alone.size());
    return 0;
}
