// Doors through which tests/native/test_choose*.py reach the choice of a token of one ISA by ctypes.
// What it is not: part of the package. Denormals are flushed inside every call, as in the executable.
#include <vector>

#include "tables.h"

namespace {

const pelton::Kernels& choose_kernels(int isa) { return pelton::kernels_at(isa); }

std::vector<pelton::ChunkStats> row_stats(int isa, const float* logits, int vocab) {
    std::vector<pelton::ChunkStats> stats;
    for (int first = 0; first < vocab; first += pelton::VOCAB_CHUNK) {
        int count = vocab - first < pelton::VOCAB_CHUNK ? vocab - first : pelton::VOCAB_CHUNK;
        stats.push_back(choose_kernels(isa).vocab_stats(logits, first, count));
    }
    return stats;
}

// Scratch memory full of NaN, at the 8-byte border the kernel may count on, with a guard behind it.
class Scratch {
   public:
    explicit Scratch(int vocab) : bytes_(pelton::choose_scratch_bytes(vocab)), memory_(bytes_ / 8 + 9, GUARD) {}
    void* data() { return memory_.data(); }
    bool intact() const {
        const unsigned char* end = reinterpret_cast<const unsigned char*>(memory_.data()) + bytes_;
        for (int i = 0; i < 64; ++i)
            if (end[i] != 0xff) return false;
        return true;
    }

   private:
    static constexpr uint64_t GUARD = ~uint64_t{0};
    size_t bytes_;
    std::vector<uint64_t> memory_;
};

}  // namespace

extern "C" {

void choose_probe_stats(int isa, const float* logits, int first, int count, pelton::ChunkStats* stats) {
    pelton::FlushDenormals guard;
    *stats = choose_kernels(isa).vocab_stats(logits, first, count);
}

// Returns whether the kernel stayed within its scratch memory.
int choose_probe_choose(int isa, const float* logits, int vocab, const pelton::Sampling* wish, const pelton::Edit* edits,
                        int num_edits, pelton::Choice* choice, int32_t* top_ids, float* top_logprobs) {
    pelton::FlushDenormals guard;
    Scratch scratch(vocab);
    std::vector<pelton::ChunkStats> stats = row_stats(isa, logits, vocab);
    *choice = choose_kernels(isa).choose(logits, vocab, stats.data(), *wish, {edits, num_edits}, top_ids, top_logprobs,
                                         scratch.data());
    return scratch.intact();
}

// Draws at `count` places, from that of the record on.
void choose_probe_draws(int isa, const float* logits, int vocab, const pelton::Sampling* wish, int count,
                        int32_t* tokens) {
    pelton::FlushDenormals guard;
    Scratch scratch(vocab);
    std::vector<pelton::ChunkStats> stats = row_stats(isa, logits, vocab);
    pelton::Sampling here = *wish;
    here.logprobs = -1;
    const pelton::Kernels& kernels = choose_kernels(isa);
    for (int i = 0; i < count; ++i, ++here.place)
        tokens[i] = kernels.choose(logits, vocab, stats.data(), here, {}, nullptr, nullptr, scratch.data()).token;
}
}
