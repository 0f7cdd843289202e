// Building an executable and starting its steps; the step itself is in step.cpp, linear.cpp and attention.cpp.
#include "step/exec.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "pack/pack.h"
#include "step/step.h"

namespace pelton {

namespace {

int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

Executable::Executable(const Kernels& kernels, const std::vector<int>& cores, int max_tokens, int max_rows, int vocab, bool exact)
    : kernels_(kernels), max_tokens_(max_tokens), max_rows_(max_rows), vocab_(vocab), exact_(exact), pool_(cores) {
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
    return adopt(to, rows, cols, std::move(memory));
}

int Executable::add_packed(Format to, int rows, int cols, int file, size_t offset) {
    return adopt(to, rows, cols, Memory(file, offset, packed_bytes(to, rows, cols)));
}

int Executable::adopt(Format format, int rows, int cols, Memory memory) {
    Matrix matrix{format, rows, cols, ceil_div(cols, BLOCK), ceil_div(rows, PANEL), 0, memory.data()};
    matrix.panel_bytes = panel_bytes(format, matrix.blocks);
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

void Executable::add_op(OpRecord op) {
    if (op.kind == Kind::attend) {
        op.number = num_attends_++;
        StateRecord& state = states_[static_cast<size_t>(op.state)];
        state.group = std::max(state.group, op.heads / state.heads);
        lse_width_ = std::max(lse_width_, op.heads);
    }
    ops_.push_back(std::move(op));
}

const OpRecord* Executable::attend_op(int number) const {
    for (const auto& op : ops_)
        if (op.kind == Kind::attend && op.number == number) return &op;
    return nullptr;
}

void Executable::finish(size_t arena_floats) {
    size_t width = 0, sums = 0, state_floats = 0, key_floats = 0;
    num_stages_ = 4 * (static_cast<size_t>(ceil_div(max_rows_, HEAD_ROWS)) + 1);
    for (const auto& op : ops_) {
        num_stages_ += op.kind == Kind::attend ? 3 + MAX_COLUMNS : 3;
        if (op.kind == Kind::linear || op.kind == Kind::head) {
            width = std::max(width, static_cast<size_t>(padded(op.inputs[0].width)));
            sums = std::max(sums, sums_of_row(ceil_div(op.inputs[0].width, BLOCK)));
        }
        if (op.kind == Kind::attend) {
            const auto& state = states_[static_cast<size_t>(op.state)];
            const size_t states = 2 * static_cast<size_t>(ATTEND_ROWS * state.group) * partial_floats(state.value_dim);
            const size_t path = static_cast<size_t>(MAX_TREE / BLOCK + 1) * state.head_bytes / sizeof(float);
            state_floats = std::max(state_floats, states + path);
        }
        if (op.kind == Kind::rope_kv) key_floats = std::max(key_floats, static_cast<size_t>(op.inputs[1].width));
    }
    size_t strips = 2 * STRIP_FLOATS;
    size_t scratch = std::max({strips * 4, state_floats * 4, key_floats * 4, choose_scratch_bytes(vocab_)}) + 64;
    arena_ = Memory(arena_floats * sizeof(float));
    for (int i = 0; i <= pool_.threads(); ++i) {
        const size_t rows = static_cast<size_t>(i ? ROW_PIECE : std::max(HEAD_ROWS, max_tokens_)), numbers = rows * width;
        const bool sixteen = kernels_.narrow && !exact_;
        prepared_.push_back({Memory(numbers * sizeof(float)), Memory(sixteen ? numbers * sizeof(uint16_t) : 0), Memory(rows * sums * sizeof(float))});
    }
    logits_ = Memory(static_cast<size_t>(HEAD_ROWS) * static_cast<size_t>(ceil_div(vocab_, PANEL) * PANEL) * sizeof(float));
    stats_.resize(static_cast<size_t>(HEAD_ROWS * ceil_div(vocab_, VOCAB_CHUNK)));
    for (int i = 0; i < pool_.threads(); ++i) scratch_.emplace_back(scratch);
    attention_.resize(states_.size());
    lse_ = Memory(static_cast<size_t>(max_tokens_) * static_cast<size_t>(lse_width_) * sizeof(float));
    indices_.resize(static_cast<size_t>(max_tokens_));
    branching_.resize(static_cast<size_t>(max_tokens_));
    const size_t decoding = static_cast<size_t>(std::min(max_rows_, max_tokens_));
    for (auto* moving : {&tokens_, &positions_, &starts_}) moving->reserve(decoding);
    sampling_.reserve(decoding);
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
    size_t floats = 0;
    for (const auto& state : states_) {
        const size_t chunks = static_cast<size_t>(state.blocks) * BLOCK / CHUNK + 2, row = static_cast<size_t>(state.group) * partial_floats(state.value_dim);
        const size_t split = chunks * static_cast<size_t>(4 * pool_.threads() * SPLIT_ROWS);  // of as many lanes as are ever split
        const size_t shared = static_cast<size_t>(state.heads) * std::min<size_t>(KEPT_STATES, chunks * static_cast<size_t>(max_tokens_));
        floats = std::max(floats, (split + shared) * row);
    }
    partials_ = Memory(floats * sizeof(float));
    allocated_ = true;
}

void Executable::reserve(const std::vector<int>& slots) {
    for (size_t i = 0; i < states_.size(); ++i) {
        states_[i].slots = 0;
        states_[i].host = Memory(static_cast<size_t>(slots[i]) * states_[i].block_bytes);
        states_[i].slots = slots[i];
    }
}

size_t Executable::working_bytes() const {
    size_t bytes = arena_.size() + logits_.size() + partials_.size() + lse_.size() + stats_.size() * sizeof(ChunkStats);
    for (const auto& scratch : scratch_) bytes += scratch.size();
    for (const auto& prepared : prepared_) bytes += prepared.bytes();
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

namespace {
struct MoveJob {
    const std::vector<StateRecord>& states;
    const BlockOp* ops;
    int count;
    std::atomic<int> next{0};
};

void move_worker(void* context, int) {
    auto& job = *static_cast<MoveJob*>(context);
    for (int i = job.next.fetch_add(1); i < job.count; i = job.next.fetch_add(1)) {
        const BlockOp& op = job.ops[i];
        const StateRecord& group = job.states[static_cast<size_t>(op.group)];
        if (op.kind == SAVE_BLOCK) std::memcpy(group.slot(op.target), group.block(op.source), group.block_bytes);
        else std::memcpy(group.block(op.target), group.slot(op.source), group.block_bytes);
    }
}
}  // namespace

// Operations of one kind with different targets.
void Executable::move_blocks(const BlockOp* ops, int count) {
    const uint64_t began = now_ns();
    MoveJob job{states_, ops, count, {}};
    if (count > 1) pool_.run(move_worker, &job);
    else move_worker(&job, 0);
    moved_ns_ += now_ns() - began;
}

void Executable::operate(const BlockOp* ops, int count) {
    for (int i = 0; i < count;) {
        const BlockOp& op = ops[i];
        int end = i + 1;
        if (op.kind == COPY_BLOCK) copy_block(op.group, op.source, op.target);
        else if (op.kind == SCRUB_BLOCK) scrub_block(op.group, op.target);
        else {
            while (end < count && ops[end].kind == op.kind) ++end;
            move_blocks(ops + i, end - i);
        }
        i = end;
    }
}

void Executable::run(const Step& step) {
    operate(step.block_ops, step.num_block_ops);
    for (size_t i = 0; i < num_stages_ + (step.trace ? ops_.size() : 0); ++i) {
        stages_[i].taken.store(0, std::memory_order_relaxed);
        stages_[i].firsts.store(0, std::memory_order_relaxed);
        stages_[i].begun = stages_[i].done.load(std::memory_order_relaxed);
    }
    place_rows(step);
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
        sum.shared_tiles += tally.shared_tiles;
        for (size_t i = 0; i < sum.formats.size(); ++i) sum.formats[i] += tally.formats[i];
        sum.ran_ns += tally.ran_ns;
        sum.waited_ns += tally.waited_ns;
        for (size_t i = 0; i < sum.kinds.size(); ++i) {
            sum.kinds[i].flops += tally.kinds[i].flops;
            sum.kinds[i].read += tally.kinds[i].read;
            sum.kinds[i].written += tally.kinds[i].written;
        }
    }
    return sum;
}

}  // namespace pelton
