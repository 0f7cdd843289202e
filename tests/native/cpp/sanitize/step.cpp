// Steps of a small executable with few and with more threads than cores: prefill, decoding, several sequences with a common
// prefix, a tree, column sums, traces, several steps in a call. For ThreadSanitizer (what workers hand one another) and
// AddressSanitizer. Every run must give the bits of the run with one thread. What it is not: a model.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sanitize/model.h"

using namespace pelton;

namespace {

void keep(std::vector<float>& all, const Asked& asked) {
    all.insert(all.end(), asked.logits.begin(), asked.logits.end());
    for (int32_t token : asked.ints) all.push_back(static_cast<float>(token));
}

// Five decode steps in one call.
void decode_many(Model& model, int round, std::vector<float>& all) {
    constexpr int STEPS = 5;
    const int32_t stops[] = {VOCAB - 1}, offsets[] = {0, 1, 1};
    Asked asked;
    asked.sequence(64 + round % 7, 1, {1, 2, 9}, 1);
    asked.sequence(32 + round % 5, 1, {10, 11}, 1);
    model.executable.run_many(asked.step(STEPS), {STEPS, stops, offsets, -1});
    keep(all, asked);
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
