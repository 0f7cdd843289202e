// The executable: a compiled Program on the CPU. Built once by the add_* calls, then one `run` per step.
// It owns packed weights, the arena of activations, the KV blocks and the worker threads; kernels allocate nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "pool.h"

namespace pelton {

enum class Kind : int {
    embed, rms_norm, layer_norm, linear, gated, activate, add, rope_table, rope, kv_write, rope_kv, attend, head, count
};

constexpr std::array<const char*, static_cast<size_t>(Kind::count)> KIND_NAMES = {
    "embed", "rms_norm", "layer_norm", "linear", "gated", "activate", "add", "rope_table", "rope", "kv_write", "rope_kv", "attend", "head"};

// A value: its place in the arena (in floats, for the largest step) and its width (floats per token).
struct Slot {
    size_t offset = 0;
    int width = 0;
};

struct OpRecord {
    Kind kind{};
    std::vector<Slot> inputs, outputs;
    std::vector<int> matrices;         // places in `matrices`
    std::vector<const float*> biases;  // per matrix, null: none; of a layer_norm: one or none
    const float* gain = nullptr;
    float eps = 0, scale = 1, softcap = 0;
    int activation = -1;
    int state = -1, layer = 0, heads = 0, kv_heads = 0;
    bool interleaved = false, residual = false;
    double factor = 1;
    std::vector<double> frequencies;
    std::vector<float> slopes;  // of the query heads, or none
};

// A KV group: layers of one geometry, with blocks of their own.
struct StateRecord {
    int layers, heads, key_dim, value_dim, window;
    size_t head_bytes;
    size_t block_bytes;  // of all layers
    Memory kv{};
    int blocks = 0;

    uint8_t* block(int id) const { return kv.data() + static_cast<size_t>(id) * block_bytes; }
    int lowest_seen(int index) const { return window && index >= window ? index - window + 1 : 0; }
};

// Work on KV blocks; mirrors a line of block_ops in backends/backend.py.
struct BlockOp {
    int32_t kind, group, source, target;  // COPY_BLOCK: source to target; SCRUB_BLOCK: target becomes zero
};
constexpr int32_t COPY_BLOCK = 0, SCRUB_BLOCK = 1;

// One step's arguments; arrays belong to the caller (see StepInputs and StepOutputs in backends/backend.py).
struct Step {
    const int32_t *tokens, *positions, *starts, *counts, *table_offsets, *logit_rows;
    const int32_t* tables;  // [states][table_offsets[num_sequences]]
    const Sampling* sampling;
    int num_tokens, num_sequences, num_rows;
    int32_t *out_tokens, *out_ranks, *out_faults, *top_ids;
    float *out_logprobs, *top_logprobs;
    int top;         // entries per row in top_ids and top_logprobs
    float* logits;   // [rows][vocab] or null
    const Edit* edits;            // row r's at [edit_offsets[r], edit_offsets[r + 1]); null: no row has any
    const int32_t* edit_offsets;
    const BlockOp* block_ops;     // carried out in order before anything else
    int num_block_ops;
    uint64_t* trace;              // [ops][tokens], zeros, or null: a hash of what each op gave for each token

    const int32_t* table(size_t state, int sequence) const {
        return tables + state * static_cast<size_t>(table_offsets[num_sequences]) + table_offsets[sequence];
    }
};

// Work done, counted where kernels are called with the sizes they are given.
struct Work {
    uint64_t flops = 0, read = 0, written = 0;
};
struct alignas(64) Tally {
    std::array<Work, static_cast<size_t>(Kind::count)> kinds{};
    uint64_t weight_bytes = 0;
};

// Pieces of a stage that were taken and that are done.
struct alignas(64) Stage {
    std::atomic<uint32_t> taken{0}, done{0};
};

// Where a token's K and V go.
struct Place {
    int32_t block, slot;
};

// Some query rows of one sequence for one KV head; chunk -1: all chunks in a row. Else its states stand at `partial`, and
// those of the next chunk `stride` floats behind.
struct AttendItem {
    int sequence, token, rows, first_index, kv_head, chunk, chunks;
    size_t partial, stride;
};
struct AttendWork {
    std::vector<AttendItem> items, merges, whole;
};

class Executable {
   public:
    Executable(const Kernels& kernels, const std::vector<int>& cores, int max_tokens, int max_rows, int vocab, bool exact);

    int add_matrix(Format to, const std::string& from, const uint8_t* raw, int rows, int cols, const int32_t* row_order);
    const float* add_vector(const float* values, size_t n);
    int add_state(int layers, int heads, int key_dim, int value_dim, int window);
    void add_op(OpRecord op);
    void finish(size_t arena_floats);
    void allocate(const std::vector<int>& blocks);  // of each state

    void run(const Step& step);

    const std::vector<StateRecord>& states() const { return states_; }
    bool allocated() const { return allocated_; }
    int vocab() const { return vocab_; }
    int max_tokens() const { return max_tokens_; }
    int max_rows() const { return max_rows_; }
    int threads() const { return pool_.threads(); }
    uint64_t steps() const { return steps_; }
    Tally total() const;
    size_t ops() const { return ops_.size(); }
    size_t working_bytes() const;  // of the largest step
    size_t held_bytes() const;     // of the weights, as they are packed
    void copy_block(int state, int source, int target);
    void scrub_block(int state, int id);

   private:
    friend struct Worker;
    void plan_state(const Step& step, size_t state);
    void place_tokens(const Step& step, size_t state);
    const Place& place(int state, int token) const {
        return places_[static_cast<size_t>(state) * static_cast<size_t>(max_tokens_) + static_cast<size_t>(token)];
    }

    const Kernels& kernels_;
    Pool pool_;
    int max_tokens_, max_rows_, vocab_;
    bool exact_;
    std::vector<Matrix> matrices_;
    std::vector<Memory> packed_;
    std::vector<Memory> vectors_;
    std::vector<StateRecord> states_;
    std::vector<OpRecord> ops_;
    bool allocated_ = false;
    uint64_t steps_ = 0;

    Memory arena_, prepared_, sums_, logits_, partials_;
    std::vector<Memory> scratch_;  // per worker
    std::vector<ChunkStats> stats_;
    std::vector<AttendWork> attention_;  // per state, for the step
    std::vector<Place> places_;          // [states][max_tokens] of the step's tokens
    std::unique_ptr<Stage[]> stages_;
    size_t num_stages_ = 0;  // of a step that is not traced; each op has one more where it is
    std::vector<Tally> tallies_;
};

}  // namespace pelton
