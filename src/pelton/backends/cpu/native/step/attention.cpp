// Attention of a step: tiles that rows of several sequences, or of a tree, share; then each sequence's own; then merges.
// How the work is cut is attend_plan.cpp's.
#include "step/step.h"

#include <algorithm>
#include <cstring>

namespace pelton {

namespace {

template <class T>
void copy_strided(const T* from, size_t from_step, T* to, size_t to_step, int count) {
    for (int i = 0; i < count; ++i, from += from_step, to += to_step) *to = *from;
}

// Copies one token's K and V of one head between blocks; pointers to the head's part of them.
void copy_token(const KVView& kv, const uint8_t* from, int from_place, uint8_t* to, int to_place) {
    const size_t key_bytes = static_cast<size_t>(kv.key_dim) * BLOCK * (kv.bf16 ? 2 : 4), width = static_cast<size_t>(kv.value_dim);
    const int words = kv.bf16 ? kv.key_dim / 2 : kv.key_dim;  // of 32 bits, in rows of 32 tokens
    copy_strided(reinterpret_cast<const uint32_t*>(from) + from_place, BLOCK, reinterpret_cast<uint32_t*>(to) + to_place, BLOCK, words);
    from += key_bytes, to += key_bytes;
    if (!kv.bf16) {
        std::memcpy(to + static_cast<size_t>(to_place) * width * 4, from + static_cast<size_t>(from_place) * width * 4, width * 4);
        return;
    }
    auto place = [&](int token) { return static_cast<size_t>(token / 2) * width * 2 + static_cast<size_t>(token % 2); };
    copy_strided(reinterpret_cast<const uint16_t*>(from) + place(from_place), 2, reinterpret_cast<uint16_t*>(to) + place(to_place), 2,
                 kv.value_dim);
}

}  // namespace

// ---- before the step -------------------------------------------------------------------------------------------------

// Each row's index on its own path, and which sequences are trees.
void Executable::place_rows(const Step& step) {
    int token = 0;
    for (int s = 0; s < step.num_sequences; token += step.counts[s++]) {
        branching_[static_cast<size_t>(s)] = 0;
        int32_t* index = indices_.data() + token;
        for (int i = 0; i < step.counts[s]; ++i) {
            const int parent = step.parents ? step.parents[token + i] : i - 1;
            index[i] = parent < 0 ? step.starts[s] : index[parent] + 1;
            if (parent != i - 1) branching_[static_cast<size_t>(s)] = 1;
        }
    }
}

void Executable::plan_state(const Step& step, size_t index) {
    const StateRecord& state = states_[index];
    const AttendShape shape{state.window, state.heads, state.group, partial_floats(state.value_dim), pool_.threads(),
                            partials_.size() / sizeof(float)};
    attention_[index].make(shape, {step.num_sequences, step.starts, step.counts, indices_.data(), step.table_offsets,
                                   step.tables + index * static_cast<size_t>(step.table_offsets[step.num_sequences]),
                                   step.parents ? branching_.data() : nullptr});
}

// ---- passes over tiles -----------------------------------------------------------------------------------------------

AttendArgs Worker::attend_args(const OpRecord& op, int sequence, int kv_head, const AttendRow* rows, int count) const {
    const StateRecord& state = x.states_[static_cast<size_t>(op.state)];
    const int group = op.heads / state.heads;
    return {view(op), step.table(static_cast<size_t>(op.state), sequence), rows, count, kv_head, group, state.window, op.scale,
            op.softcap, op.slopes.empty() ? nullptr : op.slopes.data() + kv_head * group, nullptr, 0};
}

void Worker::attend_pass(const OpRecord& op, const AttendArgs& args, int first, int last, bool resume) {
    x.kernels_.attend_tiles(args, first, last, resume);
    const StateRecord& state = x.states_[static_cast<size_t>(op.state)];
    const uint64_t pair_flops = 2 * u(state.key_dim + state.value_dim) + SOFTMAX_FLOPS + (op.softcap != 0 ? SOFTCAP_FLOPS : 0) +
                                (op.slopes.empty() ? 0 : SLOPE_FLOPS);
    uint64_t blocks = 0;
    int from = INT32_MAX, to = -1;
    for (int r = 0; r < args.num_rows; ++r) {
        const int index = args.rows[r].index, low = std::max(state.lowest_seen(index), first * TILE) / BLOCK;
        const int high = std::min(index / BLOCK, last * TILE / BLOCK - 1);
        if (low > high) continue;
        blocks += u(high - low + 1);
        from = std::min(from, low), to = std::max(to, high);
    }
    if (to >= 0) count(op.kind, blocks * BLOCK * u(args.group) * pair_flops, u(to - from + 1) * state.head_bytes, 0);
}

void Worker::attend_shared(const OpRecord& op, const AttendItem& item) {
    const AttendPlan& plan = x.attention_[static_cast<size_t>(op.state)];
    const AttendSet& set = plan.sets[static_cast<size_t>(item.which)];
    AttendRow rows[ATTEND_ROWS];
    for (int r = item.from; r < item.to; ++r) {
        const AttendPlace& place = plan.rows[set.rows + static_cast<size_t>(r)];
        rows[r - item.from] = {at(op.inputs[0], place.token),
                               x.partials_.floats() + place.state + static_cast<size_t>(item.kv_head) * place.head_step, place.index};
    }
    attend_pass(op, attend_args(op, set.sequence, item.kv_head, rows, item.to - item.from), set.first, set.last, false);
    if (set.sequences > 1) tally.shared_tiles += u(set.last - set.first);
}

// ---- a sequence's own tiles ------------------------------------------------------------------------------------------

// States of rows [item.from, item.to) in one chunk, once what is missing of it is done; `fresh`: where they go if nothing is kept.
float* Worker::attend_chunk(const OpRecord& op, const AttendItem& item, int chunk, float* fresh, const uint8_t* tail) {
    const AttendPlan& plan = x.attention_[static_cast<size_t>(op.state)];
    const AttendLane& lane = plan.lanes[static_cast<size_t>(item.which)];
    const AttendPart& part = plan.part(lane, chunk);
    const size_t floats = lane.stride / static_cast<size_t>(lane.rows);  // of a row
    if (part.slot >= 0)
        fresh = x.partials_.floats() + lane.kept + static_cast<size_t>(item.kv_head) * lane.head_step() +
                static_cast<size_t>(part.slot) * lane.stride + static_cast<size_t>(item.from) * floats;
    const int last_index = x.indices_[static_cast<size_t>(lane.token + item.to - 1)];
    const int end = std::min((chunk + 1) * CHUNK_TILES, last_index / TILE + 1);
    if (part.tile >= end) return fresh;
    AttendRow rows[ATTEND_ROWS];
    for (int r = item.from; r < item.to; ++r)
        rows[r - item.from] = {at(op.inputs[0], lane.token + r), fresh + static_cast<size_t>(r - item.from) * floats,
                               x.indices_[static_cast<size_t>(lane.token + r)]};
    AttendArgs args = attend_args(op, lane.sequence, item.kv_head, rows, item.to - item.from);
    args.tail = tail;
    args.tail_block = lane.start / BLOCK;
    attend_pass(op, args, part.tile, end, part.tile > chunk * CHUNK_TILES);
    return fresh;
}

// All chunks of some rows, merged in order.
void Worker::attend_rows(const OpRecord& op, const AttendItem& item, const uint8_t* tail) {
    const AttendPlan& plan = x.attention_[static_cast<size_t>(op.state)];
    const AttendLane& lane = plan.lanes[static_cast<size_t>(item.which)];
    const int states = (item.to - item.from) * plan.shape().group, value_dim = x.states_[static_cast<size_t>(op.state)].value_dim;
    const int last = x.indices_[static_cast<size_t>(lane.token + item.to - 1)] / CHUNK;
    float *first = scratch(), *second = first + static_cast<size_t>(states) * partial_floats(value_dim), *into = nullptr;
    for (int chunk = lane.first_chunk; chunk <= last; ++chunk) {
        float* found = attend_chunk(op, item, chunk, into == first ? second : first, tail);
        if (into) x.kernels_.attend_merge(into, found, states, value_dim);
        else into = found;
    }
    attend_out(op, lane.token + item.from, item.to - item.from, item.kv_head, into);
}

// A tree's rows one by one, each behind the rows of its path: where these do not stand in the order of the path, their K and
// V are copied behind the committed ones. `path`: what stands there now, by depth.
void Worker::attend_tree(const OpRecord& op, const AttendItem& item) {
    const StateRecord& state = x.states_[static_cast<size_t>(op.state)];
    const AttendLane& lane = x.attention_[static_cast<size_t>(op.state)].lanes[static_cast<size_t>(item.which)];
    const KVView kv = view(op);
    const int start = step.starts[lane.sequence], first = lane.token - lane.first_row, gap = start % BLOCK;
    const size_t head = kv.layer_offset + static_cast<size_t>(item.kv_head) * kv.head_bytes;
    uint8_t* tail = reinterpret_cast<uint8_t*>(scratch() + 2 * static_cast<size_t>(ATTEND_ROWS * state.group) * partial_floats(state.value_dim));
    int path[MAX_TREE];
    std::fill(path, path + MAX_TREE, -1);
    const int32_t block = step.table(static_cast<size_t>(op.state), lane.sequence)[start / BLOCK];
    if (gap) std::memcpy(tail, kv.pool + static_cast<size_t>(block) * kv.block_bytes + head, kv.head_bytes);
    for (int r = item.from; r < item.to; ++r) {
        const int token = lane.token + r, depth = x.indices_[static_cast<size_t>(token)] - start;
        const bool straight = depth == token - first;  // all rows up to this one are its path
        for (int d = depth, node = token - first; !straight && d >= 0; node = step.parents[first + node], --d) {
            if (path[d] == node) continue;
            const Place& place = x.place(op.state, first + node);
            const int to = gap + d;
            copy_token(kv, kv.pool + static_cast<size_t>(place.block) * kv.block_bytes + head, place.slot,
                       tail + static_cast<size_t>(to / BLOCK) * kv.head_bytes, to % BLOCK);
            path[d] = node;
        }
        attend_rows(op, {item.which, item.kv_head, -1, r, r + 1}, straight ? nullptr : tail);
    }
}

void Worker::attend_own(const OpRecord& op, const AttendItem& item) {
    if (x.attention_[static_cast<size_t>(op.state)].lanes[static_cast<size_t>(item.which)].tree) attend_tree(op, item);
    else if (item.chunk < 0) attend_rows(op, item, nullptr);
    else attend_chunk(op, item, item.chunk, nullptr, nullptr);
}

// ---- what comes out --------------------------------------------------------------------------------------------------

void Worker::attend_merge(const OpRecord& op, const AttendItem& item) {
    const AttendPlan& plan = x.attention_[static_cast<size_t>(op.state)];
    const AttendLane& lane = plan.lanes[static_cast<size_t>(item.which)];
    float* into = x.partials_.floats() + lane.kept + static_cast<size_t>(item.kv_head) * lane.head_step();
    for (int slot = 1; slot < lane.slots; ++slot)
        x.kernels_.attend_merge(into, into + static_cast<size_t>(slot) * lane.stride, lane.rows * plan.shape().group,
                                x.states_[static_cast<size_t>(op.state)].value_dim);
    attend_out(op, lane.token, lane.rows, item.kv_head, into);
}

// Rows from `token` on, whose states are [rows][group of the plan].
void Worker::attend_out(const OpRecord& op, int token, int rows, int kv_head, const float* states) {
    const StateRecord& state = x.states_[static_cast<size_t>(op.state)];
    const int group = op.heads / state.heads;
    const size_t floats = partial_floats(state.value_dim);
    for (int r = 0; r < rows; ++r, states += static_cast<size_t>(state.group) * floats) {
        float* out = at(op.outputs[0], token + r) + kv_head * group * state.value_dim;
        for (int g = 0; g < group; ++g)
            x.kernels_.attend_finish(states + static_cast<size_t>(g) * floats, state.value_dim, out + g * state.value_dim);
        if (float* lse = lse_of(op, token + r)) x.kernels_.attend_lse(states, group, state.value_dim, lse + kv_head * group);
    }
    count(op.kind, 0, u(rows * group * state.key_dim) * 4, u(rows * group) * (u(state.value_dim) + (op.outputs.size() > 1)) * 4);
}

// Where a row's LSEs go: to the op's second output, or to what column sums need, or nowhere.
float* Worker::lse_of(const OpRecord& op, int token) const {
    if (op.outputs.size() > 1) return at(op.outputs[1], token);
    return step.num_columns ? x.lse_.floats() + static_cast<size_t>(token) * static_cast<size_t>(op.heads) : nullptr;
}

void Worker::attend(const OpRecord& op) {
    const AttendPlan& plan = x.attention_[static_cast<size_t>(op.state)];
    auto stage = [&](const std::vector<AttendItem>& items, void (Worker::*work)(const OpRecord&, const AttendItem&)) {
        if (late || items.empty()) return;
        parallel(static_cast<int>(items.size()), [&](int i) { (this->*work)(op, items[static_cast<size_t>(i)]); });
    };
    stage(plan.shared, &Worker::attend_shared);
    stage(plan.own, &Worker::attend_own);
    stage(plan.merges, &Worker::attend_merge);
    if (step.num_columns) columns(op);
}

// ---- column sums -----------------------------------------------------------------------------------------------------

// What the step's requests ask of this op: each piece is one KV head in one chunk, its rows in ascending order.
void Worker::columns(const OpRecord& op) {
    const StateRecord& state = x.states_[static_cast<size_t>(op.state)];
    for (int i = 0; i < step.num_columns && !late; ++i) {
        const Columns& wanted = step.columns[i];
        if (wanted.layer != op.number) continue;
        const int last = x.indices_[static_cast<size_t>(wanted.first + wanted.rows - 1)];
        const int from = state.lowest_seen(x.indices_[static_cast<size_t>(wanted.first)]) / CHUNK, chunks = last / CHUNK - from + 1;
        parallel(chunks * state.heads, [&](int piece) { column_chunk(op, wanted, from + piece / state.heads, piece % state.heads); });
    }
}

void Worker::column_chunk(const OpRecord& op, const Columns& wanted, int chunk, int kv_head) {
    const StateRecord& state = x.states_[static_cast<size_t>(op.state)];
    const int group = op.heads / state.heads;
    AttendRow rows[ATTEND_ROWS];
    float sums[CHUNK] = {};
    float* place = wanted.sums + static_cast<size_t>(kv_head) * wanted.width + static_cast<size_t>(chunk) * CHUNK;
    const size_t size = std::min(static_cast<size_t>(CHUNK), wanted.width - static_cast<size_t>(chunk) * CHUNK) * sizeof(float);
    std::memcpy(sums, place, size);
    for (int done = 0; done < wanted.rows; done += ATTEND_ROWS) {
        const int n = std::min(ATTEND_ROWS, wanted.rows - done), token = wanted.first + done;
        for (int r = 0; r < n; ++r)
            rows[r] = {at(op.inputs[0], token + r), lse_of(op, token + r) + kv_head * group, x.indices_[static_cast<size_t>(token + r)]};
        const int first = std::max(state.lowest_seen(rows[0].index) / TILE, chunk * CHUNK_TILES);
        const int last = std::min(rows[n - 1].index / TILE + 1, (chunk + 1) * CHUNK_TILES);
        if (first >= last) continue;
        x.kernels_.attend_columns(attend_args(op, wanted.sequence, kv_head, rows, n), first, last, sums + first * TILE - chunk * CHUNK);
        count(op.kind, u((last - first) * TILE * n * group) * (2 * u(state.key_dim) + SOFTMAX_FLOPS),
              u((last - first) * 2) * (state.head_bytes - u(BLOCK * state.value_dim) * (x.exact_ ? 4 : 2)), 0);
    }
    std::memcpy(place, sums, size);
}

}  // namespace pelton
