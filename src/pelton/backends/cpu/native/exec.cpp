// Building an executable and planning one step's attention; the step itself is in step.cpp.
#include "exec.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "pack.h"
#include "step.h"

namespace pelton {

namespace {

constexpr int SPLIT_ROWS = 4;  // query rows up to which chunks of one sequence are worth spreading over threads

int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

Executable::Executable(const Kernels& kernels, const std::vector<int>& cores, int max_tokens, int max_rows, int vocab, bool exact)
    : kernels_(kernels), pool_(cores), max_tokens_(max_tokens), max_rows_(max_rows), vocab_(vocab), exact_(exact) {
    tallies_.resize(cores.size());
}

namespace {
struct PackJob {
    Format to;
    const char* from;
    const uint8_t* raw;
    int rows, cols, panels;
    const int32_t* row_order;
    uint8_t* out;
    std::atomic<int> next{0};
};

void pack_worker(void* context, int) {
    auto& job = *static_cast<PackJob*>(context);
    constexpr int GROUP = 8;
    for (int first = job.next.fetch_add(GROUP); first < job.panels; first = job.next.fetch_add(GROUP))
        pack_panels(job.to, job.from, job.raw, job.rows, job.cols, job.row_order, first, std::min(first + GROUP, job.panels), job.out);
}
}  // namespace

int Executable::add_matrix(Format to, const std::string& from, const uint8_t* raw, int rows, int cols, const int32_t* row_order) {
    Memory memory(packed_bytes(to, rows, cols));
    PackJob job{to, from.c_str(), raw, rows, cols, ceil_div(rows, PANEL), row_order, memory.data(), {}};
    if (rows > 0) pack_panels(to, job.from, raw, rows, cols, row_order, 0, 0, memory.data());  // refuses here, not in a worker
    pool_.run(pack_worker, &job);
    Matrix matrix{to, rows, cols, ceil_div(cols, BLOCK), job.panels, 0, memory.data()};
    matrix.panel_bytes = panel_bytes(to, matrix.blocks);
    packed_.push_back(std::move(memory));
    matrices_.push_back(matrix);
    return static_cast<int>(matrices_.size()) - 1;
}

const float* Executable::add_vector(const float* values, size_t n) {
    Memory memory((n + PANEL) * sizeof(float));  // zeros behind, so that whole lanes may be read
    std::memcpy(memory.data(), values, n * sizeof(float));
    vectors_.push_back(std::move(memory));
    return vectors_.back().floats();
}

int Executable::add_state(int layers, int heads, int key_dim, int value_dim, int window) {
    const size_t head_bytes = static_cast<size_t>(BLOCK) * static_cast<size_t>(key_dim + value_dim) * (exact_ ? 4 : 2);
    states_.push_back({layers, heads, key_dim, value_dim, window, head_bytes, head_bytes * static_cast<size_t>(heads * layers)});
    return static_cast<int>(states_.size()) - 1;
}

void Executable::add_op(OpRecord op) { ops_.push_back(std::move(op)); }

void Executable::finish(size_t arena_floats) {
    size_t prepared = 0, sums = 0, state_floats = 0, key_floats = 0;
    num_stages_ = 4 * (static_cast<size_t>(ceil_div(max_rows_, HEAD_ROWS)) + 1);
    for (const auto& op : ops_) {
        num_stages_ += 3;
        if (op.kind == Kind::linear || op.kind == Kind::head) {
            size_t rows = static_cast<size_t>(op.kind == Kind::head ? std::max(HEAD_ROWS, max_tokens_) : max_tokens_);
            prepared = std::max(prepared, rows * static_cast<size_t>(padded(op.inputs[0].width)));
            sums = std::max(sums, rows * sums_of_row(ceil_div(op.inputs[0].width, BLOCK)));
        }
        if (op.kind == Kind::attend) {
            const auto& state = states_[static_cast<size_t>(op.state)];
            size_t group = static_cast<size_t>(op.heads / state.heads);
            state_floats = std::max(state_floats, 2 * static_cast<size_t>(ATTEND_ROWS) * group * partial_floats(state.value_dim));
        }
        if (op.kind == Kind::rope_kv) key_floats = std::max(key_floats, static_cast<size_t>(op.inputs[1].width));
    }
    size_t strips = 2 * static_cast<size_t>(std::max(max_tokens_, HEAD_ROWS)) * PANEL;
    size_t scratch = std::max({strips * 4, state_floats * 4, key_floats * 4, choose_scratch_bytes(vocab_)}) + 64;
    arena_ = Memory(arena_floats * sizeof(float));
    prepared_ = Memory(prepared * sizeof(float));
    sums_ = Memory(sums * sizeof(float));
    logits_ = Memory(static_cast<size_t>(HEAD_ROWS) * static_cast<size_t>(ceil_div(vocab_, PANEL) * PANEL) * sizeof(float));
    stats_.resize(static_cast<size_t>(HEAD_ROWS * ceil_div(vocab_, VOCAB_CHUNK)));
    for (int i = 0; i < pool_.threads(); ++i) scratch_.emplace_back(scratch);
    attention_.resize(states_.size());
    places_.resize(states_.size() * static_cast<size_t>(max_tokens_));
    stages_ = std::make_unique<Stage[]>(num_stages_ + ops_.size());
}

void Executable::allocate(const std::vector<int>& blocks) {
    allocated_ = false;
    for (size_t i = 0; i < states_.size(); ++i) {
        states_[i].blocks = 0;
        states_[i].kv = Memory(static_cast<size_t>(blocks[i]) * states_[i].block_bytes);
        states_[i].blocks = blocks[i];
    }
    size_t floats = 0;  // of one row group's states in all chunks that it can see
    for (const auto& op : ops_) {
        if (op.kind != Kind::attend) continue;
        const auto& state = states_[static_cast<size_t>(op.state)];
        const size_t chunks = static_cast<size_t>(state.blocks) * BLOCK / CHUNK + 2;
        floats = std::max(floats, chunks * static_cast<size_t>(SPLIT_ROWS * op.heads / state.heads) * partial_floats(state.value_dim));
    }
    partials_ = Memory(floats * 4 * static_cast<size_t>(pool_.threads()) * sizeof(float));
    allocated_ = true;
}

void Executable::plan_state(const Step& step, size_t index) {
    const auto& state = states_[index];
    auto& work = attention_[index];
    work.items.clear();
    work.merges.clear();
    std::vector<AttendItem>& items = work.items;
    int token = 0;
    for (int s = 0; s < step.num_sequences; ++s) {
        for (int done = 0; done < step.counts[s]; done += ATTEND_ROWS) {
            int rows = std::min(ATTEND_ROWS, step.counts[s] - done), first = step.starts[s] + done;
            for (int head = 0; head < state.heads; ++head) items.push_back({s, token + done, rows, first, head, -1, 0, 0, 0});
        }
        token += step.counts[s];
    }
    if (items.size() >= static_cast<size_t>(4 * pool_.threads()) || pool_.threads() == 1) return;
    // Few items: spread the chunks of short row groups over the threads. The merge order, and so every bit, stays the same.
    auto& whole = work.whole;  // keeps its room from step to step
    whole.clear();
    whole.swap(items);
    int group = 1;
    for (const auto& op : ops_)
        if (op.kind == Kind::attend && op.state == static_cast<int>(index)) group = std::max(group, op.heads / state.heads);
    size_t offset = 0;
    for (auto item : whole) {
        int first = state.lowest_seen(item.first_index) / CHUNK, last = (item.first_index + item.rows - 1) / CHUNK;
        if (item.rows > SPLIT_ROWS || first == last) {
            items.push_back(item);
            continue;
        }
        size_t size = static_cast<size_t>(item.rows * group) * partial_floats(state.value_dim);
        item.chunk = first;
        item.chunks = last - first + 1;
        item.partial = offset;
        item.stride = size;
        work.merges.push_back(item);
        for (int chunk = first; chunk <= last; ++chunk, offset += size) {
            item.chunk = chunk;
            item.partial = offset;
            items.push_back(item);
        }
    }
}

size_t Executable::working_bytes() const {
    size_t bytes = arena_.size() + prepared_.size() + sums_.size() + logits_.size() + partials_.size() + stats_.size() * sizeof(ChunkStats);
    for (const auto& scratch : scratch_) bytes += scratch.size();
    return bytes;
}

size_t Executable::held_bytes() const {
    size_t bytes = 0;
    for (const auto& memory : packed_) bytes += memory.size();
    for (const auto& memory : vectors_) bytes += memory.size();
    return bytes;
}

void Executable::place_tokens(const Step& step, size_t state) {
    Place* place = places_.data() + state * static_cast<size_t>(max_tokens_);
    for (int s = 0; s < step.num_sequences; ++s) {
        const int32_t* table = step.table(state, s);
        for (int i = step.starts[s]; i < step.starts[s] + step.counts[s]; ++i) *place++ = {table[i / BLOCK], i % BLOCK};
    }
}

void Executable::copy_block(int state, int source, int target) {
    const StateRecord& group = states_[static_cast<size_t>(state)];
    if (source != target) std::memcpy(group.block(target), group.block(source), group.block_bytes);
}

void Executable::scrub_block(int state, int id) {
    const StateRecord& group = states_[static_cast<size_t>(state)];
    std::memset(group.block(id), 0, group.block_bytes);
}

void Executable::run(const Step& step) {
    for (int i = 0; i < step.num_block_ops; ++i) {
        const BlockOp& op = step.block_ops[i];
        if (op.kind == COPY_BLOCK) copy_block(op.group, op.source, op.target);
        else scrub_block(op.group, op.target);
    }
    for (size_t i = 0; i < num_stages_ + (step.trace ? ops_.size() : 0); ++i) {
        stages_[i].taken.store(0, std::memory_order_relaxed);
        stages_[i].done.store(0, std::memory_order_relaxed);
    }
    for (size_t i = 0; i < states_.size(); ++i) {
        plan_state(step, i);
        place_tokens(step, i);
    }
    struct Context {
        Executable& executable;
        const Step& step;
    } context{*this, step};
    pool_.run([](void* p, int id) {
        auto& c = *static_cast<Context*>(p);
        Worker{c.executable, c.step, id, c.executable.tallies_[static_cast<size_t>(id)]}.run();
    }, &context);
    ++steps_;
}

Tally Executable::total() const {
    Tally sum;
    for (const auto& tally : tallies_) {
        sum.weight_bytes += tally.weight_bytes;
        for (size_t i = 0; i < sum.kinds.size(); ++i) {
            sum.kinds[i].flops += tally.kinds[i].flops;
            sum.kinds[i].read += tally.kinds[i].read;
            sum.kinds[i].written += tally.kinds[i].written;
        }
    }
    return sum;
}

}  // namespace pelton
