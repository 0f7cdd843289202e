// The executable: a compiled Program on the CPU. Built once by the add_* calls, then one `run` per step.
// It owns packed weights, the arena of activations, the KV blocks and the worker threads; kernels allocate nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "step/attend_plan.h"
#include "threads/pool.h"

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
    bool int8 = false;  // rows are rounded to 8 bits, and products are those of integers
    double factor = 1;
    std::vector<double> frequencies;
    std::vector<float> slopes;  // of the query heads, or none
    int number = 0;             // of an attend among those of the executable
};

// A KV group: layers of one geometry, with blocks of their own.
struct StateRecord {
    int layers, heads, key_dim, value_dim, window;
    size_t head_bytes;
    size_t block_bytes;  // of all layers
    Memory kv{};
    int blocks = 0;
    Memory host{};  // slots beside the blocks, of the same size: where a block waits until it is wanted again
    int slots = 0;
    int group = 1;  // query heads of a KV head; the most that an op has

    uint8_t* block(int id) const { return kv.data() + static_cast<size_t>(id) * block_bytes; }
    uint8_t* slot(int id) const { return host.data() + static_cast<size_t>(id) * block_bytes; }
    int lowest_seen(int index) const { return window && index >= window ? index - window + 1 : 0; }
};

// Work on KV blocks; mirrors a line of block_ops in backends/backend.py.
struct BlockOp {
    // COPY_BLOCK: source to target; SCRUB_BLOCK: target becomes zero; SAVE_BLOCK: block to host slot; LOAD_BLOCK: slot to block
    int32_t kind, group, source, target;
};
constexpr int32_t COPY_BLOCK = 0, SCRUB_BLOCK = 1, SAVE_BLOCK = 2, LOAD_BLOCK = 3;

// What `rows` rows from `first` on, of one sequence, give to each key in attend op number `layer`: added to sums [heads][width].
struct Columns {
    int layer, first, rows, sequence;
    float* sums;
    size_t width;
};

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
    const int32_t* parents;       // [tokens] place of each row's parent within its sequence's rows, -1: before them; null: chains
    const Columns* columns;
    int num_columns;
    uint64_t* trace;              // [ops][tokens], zeros, or null: a hash of what each op gave for each token
    uint64_t* timing;             // [ops][2] or null: added are each op's nanoseconds and worker 0's waiting among them

    const int32_t* table(size_t state, int sequence) const {
        return tables + state * static_cast<size_t>(table_offsets[num_sequences]) + table_offsets[sequence];
    }
};

// Several decode steps in one call, see step/repeat.cpp. Outputs of the step have room for all of them, one after the other.
struct Repeat {
    int steps;                            // at most
    const int32_t *stops, *stop_offsets;  // tokens that end row r at [stop_offsets[r], stop_offsets[r + 1])
    int wake;                             // no further step begins once this file descriptor is readable; -1: none
};

// Work done, counted where kernels are called with the sizes they are given.
struct Work {
    uint64_t flops = 0, read = 0, written = 0;
};
struct alignas(64) Tally {
    std::array<Work, static_cast<size_t>(Kind::count)> kinds{};
    uint64_t weight_bytes = 0;
    uint64_t shared_tiles = 0;  // of one layer and KV head, taken in one pass for several sequences
    std::array<uint64_t, std::size(LAYOUTS)> formats{};  // weight_bytes of each packed format
    uint64_t ran_ns = 0, waited_ns = 0;  // in steps, and how much of that for others
};

// Pieces of a stage that were taken, in this step, and that are done, in all steps: `begun` before this one. So whoever waits
// for a step's pieces sees that they are done however late it looks.
struct alignas(64) Stage {
    std::atomic<uint32_t> taken{0}, done{0};
    uint32_t begun = 0;
    std::atomic<uint64_t> firsts{0};  // workers whose first run of pieces is taken, a bit each
};

// Rows ready for products: fp32, perhaps a copy in bf16, and their sums; or in 8 bits.
struct Prepared {
    Memory rows, rows16, sums;
    size_t bytes() const { return rows.size() + rows16.size() + sums.size(); }
};

// Where a token's K and V go.
struct Place {
    int32_t block, slot;
};

class Executable {
   public:
    Executable(const Kernels& kernels, const std::vector<int>& cores, int max_tokens, int max_rows, int vocab, bool exact);

    int add_matrix(Format to, const std::string& from, const uint8_t* raw, int rows, int cols, const int32_t* row_order);
    // The same matrix out of a file that has as many bytes of it, from a page's start at `offset` on, as packed_bytes says.
    int add_packed(Format to, int rows, int cols, int file, size_t offset);
    // Products with a coded matrix are computed in the values form (kernels.h) from now on.
    void use_values(size_t matrix) {
        matrices_[matrix].values = true;
        matrices_[matrix].exact = exact_;
    }
    const Memory& packed(int matrix) const { return packed_[static_cast<size_t>(matrix)]; }
    size_t matrices() const { return matrices_.size(); }
    const float* add_vector(const float* values, size_t n);
    int add_state(int layers, int heads, int key_dim, int value_dim, int window);
    void add_op(OpRecord op);
    void finish(size_t arena_floats);
    void allocate(const std::vector<int>& blocks);  // of each state
    void reserve(const std::vector<int>& slots);     // host slots of each state; what was in them is gone

    void run(const Step& step);
    // How many steps were done. Every row of the step decodes: one token each, whose logits are wanted.
    int run_many(const Step& first, const Repeat& repeat);

    const std::vector<StateRecord>& states() const { return states_; }
    bool allocated() const { return allocated_; }
    int vocab() const { return vocab_; }
    int max_tokens() const { return max_tokens_; }
    int max_rows() const { return max_rows_; }
    int threads() const { return pool_.threads(); }
    uint64_t steps() const { return steps_; }
    Tally total() const;
    size_t ops() const { return ops_.size(); }
    int attends() const { return num_attends_; }
    const OpRecord* attend_op(int number) const;
    size_t working_bytes() const;  // of the largest step
    size_t held_bytes() const;     // of the weights, as they are packed
    void copy_block(int state, int source, int target);
    void scrub_block(int state, int id);
    uint64_t moved_ns() const { return moved_ns_; }  // in saving and loading blocks, so far

   private:
    friend struct Worker;
    void operate(const BlockOp* ops, int count);
    void move_blocks(const BlockOp* ops, int count);
    int adopt(Format format, int rows, int cols, Memory memory);
    void place_rows(const Step& step);
    void plan_state(const Step& step, size_t state);
    void place_tokens(const Step& step, size_t state);
    const Place& place(int state, int token) const {
        return places_[static_cast<size_t>(state) * static_cast<size_t>(max_tokens_) + static_cast<size_t>(token)];
    }

    const Kernels& kernels_;
    int max_tokens_, max_rows_, vocab_;
    bool exact_;
    std::vector<Matrix> matrices_;
    std::vector<Memory> packed_;
    std::vector<Memory> vectors_;
    std::vector<StateRecord> states_;
    std::vector<OpRecord> ops_;
    bool allocated_ = false;
    uint64_t steps_ = 0, moved_ns_ = 0;
    int num_attends_ = 0, lse_width_ = 0;

    Memory arena_, logits_, partials_, lse_;
    std::vector<Prepared> prepared_;  // what all share; then each worker's own
    std::vector<Memory> scratch_;  // per worker
    std::vector<ChunkStats> stats_;
    std::vector<AttendPlan> attention_;  // per state, for the step
    std::vector<int32_t> indices_;       // [max_tokens] of the step's rows, each on its own path
    std::vector<uint8_t> branching_;     // [max_tokens] which of the step's sequences are trees
    std::vector<Place> places_;          // [states][max_tokens] of the step's tokens
    std::unique_ptr<Stage[]> stages_;
    size_t num_stages_ = 0;  // of a step that is not traced; each op has one more where it is
    std::vector<Tally> tallies_;
    std::vector<int32_t> tokens_, positions_, starts_;  // of the present one of several steps
    std::vector<Sampling> sampling_;
    Pool pool_;  // the last, which ends first: a late worker still looks at the stages
};

}  // namespace pelton
