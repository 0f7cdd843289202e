#include "step.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace pelton {

namespace {

constexpr int ROW_PIECE = 4;  // rows a worker takes at a time in stages that go by rows

int pieces_of(int rows) { return (rows + ROW_PIECE - 1) / ROW_PIECE; }

// Panels a worker takes at a time. Few rows: long runs, because weights stream from memory and prefetch crosses panels;
// many rows: short ones, because a panel is then work enough, and unequal cores shall end together.
int panels_per_piece(int panels, int rows, size_t panel_bytes, int threads) {
    constexpr size_t RUN_BYTES = size_t{512} << 10;
    const int share = panels / (threads * (rows <= 8 ? 2 : 8));
    return std::clamp(share, 1, std::max(1, static_cast<int>(RUN_BYTES / panel_bytes)));
}

uint64_t u(int n) { return static_cast<uint64_t>(n); }

// A 64-bit hash of a run of 32-bit words, the same on every machine. No step loses what came before it: two runs that
// differ in one word never have the same hash.
class Hash {
   public:
    void word(uint32_t w) {
        state_ ^= w * 0x9E3779B185EBCA87u;
        state_ = (state_ << 23 | state_ >> 41) * 0xC2B2AE3D27D4EB4Fu + 0x165667B19E3779F9u;
    }
    void floats(const float* x, size_t n, size_t stride = 1) {
        for (size_t i = 0; i < n; ++i) word(__builtin_bit_cast(uint32_t, x[i * stride]));
    }
    uint64_t value() const {
        uint64_t h = state_;
        h = (h ^ h >> 33) * 0xC2B2AE3D27D4EB4Fu;
        h = (h ^ h >> 29) * 0x165667B19E3779F9u;
        return h ^ h >> 32;
    }

   private:
    uint64_t state_ = 0x27D4EB2F165667C5u;
};

// One token's K and V of one head, as they stand in the pool.
void hash_kv(Hash& hash, const KVView& kv, Place place, int head) {
    const uint8_t* k = kv.pool + static_cast<size_t>(place.block) * kv.block_bytes + kv.layer_offset + static_cast<size_t>(head) * kv.head_bytes;
    const size_t slot = static_cast<size_t>(place.slot), keys = static_cast<size_t>(kv.key_dim), values = static_cast<size_t>(kv.value_dim);
    if (!kv.bf16) {
        const float* numbers = reinterpret_cast<const float*>(k);
        hash.floats(numbers + slot, keys, BLOCK);
        hash.floats(numbers + keys * BLOCK + slot * values, values);
        return;
    }
    const uint16_t* numbers = reinterpret_cast<const uint16_t*>(k);
    for (size_t d = 0; d < keys; ++d) hash.word(numbers[(d / 2 * BLOCK + slot) * 2 + d % 2]);
    numbers += keys * BLOCK;
    for (size_t d = 0; d < values; ++d) hash.word(numbers[(slot / 2 * values + d) * 2 + slot % 2]);
}

}  // namespace

// A stage is over when its pieces are done, not when every worker was there: one that was not running (another process
// had its core) holds up nobody unless it holds a piece, and catches up through the stages it missed.
template <class F>
void Worker::parallel(int pieces, F work) {
    Stage& at = x.stages_[stage++];
    const uint32_t total = static_cast<uint32_t>(pieces);
    for (uint32_t i = at.taken.fetch_add(1, std::memory_order_relaxed); i < total; i = at.taken.fetch_add(1, std::memory_order_relaxed)) {
        work(static_cast<int>(i));
        if (at.done.fetch_add(1, std::memory_order_acq_rel) + 1 == total) at.done.notify_all();
    }
    await_value(at.done, total);
}

float* Worker::at(const Slot& slot, int row) const {
    return x.arena_.floats() + slot.offset + static_cast<size_t>(row) * static_cast<size_t>(slot.width);
}

float* Worker::scratch() const { return x.scratch_[static_cast<size_t>(id)].floats(); }

Work& Worker::count(Kind kind, uint64_t flops, uint64_t read, uint64_t written) {
    auto& work = tally.kinds[static_cast<size_t>(kind)];
    work.flops += flops;
    work.read += read;
    work.written += written;
    return work;
}

void Worker::run() {
    for (const auto& op : x.ops_) {
        switch (op.kind) {
            case Kind::embed: embed(op); break;
            case Kind::rms_norm:
            case Kind::layer_norm: norm(op); break;
            case Kind::linear: linear(op); break;
            case Kind::gated:
            case Kind::activate:
            case Kind::add: elementwise(op); break;
            case Kind::rope_table: rope_table(op); break;
            case Kind::rope: rope(op); break;
            case Kind::kv_write: kv_write(op); break;
            case Kind::rope_kv: rope_kv(op); break;
            case Kind::attend: attend(op); break;
            case Kind::head: head(op); break;
            case Kind::count: break;
        }
        if (step.trace) trace(op);
    }
}

void Worker::embed(const OpRecord& op) {
    const Matrix& table = x.matrices_[static_cast<size_t>(op.matrices[0])];
    uint64_t row_bytes = table.panel_bytes / PANEL;
    parallel(pieces_of(step.num_tokens), [&](int piece) {
        for (int t = piece * ROW_PIECE; t < std::min(step.num_tokens, (piece + 1) * ROW_PIECE); ++t) {
            x.kernels_.gather_row(table, step.tokens[t], op.scale, at(op.outputs[0], t));
            count(op.kind, u(table.cols), row_bytes + 4, u(table.cols) * 4);
        }
    });
}

void Worker::norm(const OpRecord& op) {
    const bool centred = op.kind == Kind::layer_norm;
    const int width = op.inputs[0].width, parts = std::max(1, op.heads), n = width / parts;
    const float* bias = op.biases.empty() ? nullptr : op.biases[0];
    parallel(pieces_of(step.num_tokens), [&](int piece) {
        if (piece == 0) count(op.kind, 0, u(n) * (bias ? 8 : 4), 0);
        for (int t = piece * ROW_PIECE; t < std::min(step.num_tokens, (piece + 1) * ROW_PIECE); ++t) {
            const float* from = at(op.inputs[0], t);
            float* to = at(op.outputs[0], t);
            if (centred) x.kernels_.layer_norm(from, op.gain, bias, op.eps, n, to);
            else
                for (int i = 0; i < width; i += n) x.kernels_.rms_norm(from + i, op.gain, op.eps, n, to + i);
            count(op.kind, (centred ? LAYER_NORM_FLOPS : NORM_FLOPS) * u(width), u(width) * 4, u(width) * 4);
        }
    });
}

// Rows of the op's input, normalised and rounded, into the shared buffer that matmul reads. `from`: which rows (null: all).
void Worker::prepare_rows(const OpRecord& op, int rows, const int32_t* from) {
    int n = op.inputs[0].width, width = padded(n);
    auto any = [&](auto uses) {
        return std::any_of(op.matrices.begin(), op.matrices.end(), [&](int m) { return (x.matrices_[static_cast<size_t>(m)].*uses)(); });
    };
    bool sums = any(&Matrix::uses_sums), halves = any(&Matrix::uses_half_sums);
    parallel(pieces_of(rows), [&](int piece) {
        if (piece == 0 && op.gain) count(op.kind, 0, u(n) * 4, 0);
        for (int r = piece * ROW_PIECE; r < std::min(rows, (piece + 1) * ROW_PIECE); ++r) {
            float* out = x.prepared_.floats() + static_cast<size_t>(r) * static_cast<size_t>(width);
            float* row_sums = sums ? x.sums_.floats() + static_cast<size_t>(r) * sums_of_row(width / BLOCK) : nullptr;
            x.kernels_.prepare(at(op.inputs[0], from ? from[r] : r), op.gain, op.eps, n, !x.exact_, out, row_sums, halves);
            count(op.kind, op.gain ? NORM_FLOPS * u(n) : 0, u(n) * 4, 0);
        }
    });
}

void Worker::multiply(const Matrix& matrix, int panel, int rows, float* out, size_t stride, Kind kind) {
    int width = padded(matrix.cols);
    MatmulArgs args{&matrix, panel, x.prepared_.floats(), static_cast<size_t>(width), x.sums_.floats(),
                    sums_of_row(matrix.blocks), rows, out, stride};
    x.kernels_.matmul(args);
    tally.weight_bytes += matrix.panel_bytes;
    count(kind, 2 * u(rows) * u(width) * PANEL, matrix.panel_bytes, 0);
}

void Worker::linear(const OpRecord& op) {
    prepare_rows(op, step.num_tokens, nullptr);
    int total = 0;
    if (op.activation >= 0) total = x.matrices_[static_cast<size_t>(op.matrices[0])].panels;
    else
        for (int m : op.matrices) total += x.matrices_[static_cast<size_t>(m)].panels;
    const size_t panel_bytes = x.matrices_[static_cast<size_t>(op.matrices[0])].panel_bytes;
    int per = panels_per_piece(total, step.num_tokens, panel_bytes, x.threads());
    parallel((total + per - 1) / per, [&](int piece) {
        for (int p = piece * per; p < std::min(total, (piece + 1) * per); ++p) {
            size_t which = 0;
            int panel = p;
            if (op.activation < 0)
                while (panel >= x.matrices_[static_cast<size_t>(op.matrices[which])].panels)
                    panel -= x.matrices_[static_cast<size_t>(op.matrices[which++])].panels;
            linear_panel(op, which, panel);
        }
    });
}

void Worker::bias_strip(const OpRecord& op, size_t which, int panel, int rows, float* strip) {
    const float* bias = op.biases[which];
    if (!bias) return;
    for (int r = 0; r < rows; ++r) x.kernels_.add(strip + r * PANEL, bias + panel * PANEL, PANEL, strip + r * PANEL);
    count(op.kind, u(rows) * PANEL, PANEL * 4, 0);
}

// One panel of outputs for all rows, with what is fused behind the product: bias, gated activation, residual.
void Worker::linear_panel(const OpRecord& op, size_t which, int panel) {
    int rows = step.num_tokens;
    const Matrix& matrix = x.matrices_[static_cast<size_t>(op.matrices[which])];
    const Slot& target = op.outputs[op.activation >= 0 ? 0 : which];
    int width = std::min(PANEL, matrix.rows - panel * PANEL);
    float* out = at(target) + panel * PANEL;
    count(op.kind, 0, 0, u(rows) * u(width) * 4);
    if (op.activation < 0 && !op.residual && !op.biases[which] && width == PANEL)
        return multiply(matrix, panel, rows, out, static_cast<size_t>(target.width), op.kind);
    float* strip = scratch();
    multiply(matrix, panel, rows, strip, PANEL, op.kind);
    bias_strip(op, which, panel, rows, strip);
    if (op.activation >= 0) {
        float* up = strip + static_cast<size_t>(rows) * PANEL;
        multiply(x.matrices_[static_cast<size_t>(op.matrices[1])], panel, rows, up, PANEL, op.kind);
        bias_strip(op, 1, panel, rows, up);
        x.kernels_.gated(strip, up, static_cast<size_t>(rows) * PANEL, op.activation, strip);
        count(op.kind, (ACTIVATION_FLOPS + 1) * u(rows) * PANEL, 0, 0);
    }
    for (int r = 0; r < rows; ++r) {
        float* to = out + static_cast<size_t>(r) * static_cast<size_t>(target.width);
        const float* y = strip + r * PANEL;
        if (op.residual) x.kernels_.add(y, at(op.inputs[1], r) + panel * PANEL, static_cast<size_t>(width), to);
        else std::memcpy(to, y, static_cast<size_t>(width) * 4);
    }
    if (op.residual) count(op.kind, u(rows) * u(width), u(rows) * u(width) * 4, 0);
}

void Worker::elementwise(const OpRecord& op) {
    size_t width = static_cast<size_t>(op.inputs[0].width);
    parallel(pieces_of(step.num_tokens), [&](int piece) {
        int first = piece * ROW_PIECE, rows = std::min(step.num_tokens, first + ROW_PIECE) - first;
        const float *a = at(op.inputs[0], first), *b = op.inputs.size() > 1 ? at(op.inputs[1], first) : nullptr;
        float* out = at(op.outputs[0], first);
        size_t n = static_cast<size_t>(rows) * width;
        if (op.kind == Kind::add) x.kernels_.add(a, b, n, out);
        else if (op.kind == Kind::gated) x.kernels_.gated(a, b, n, op.activation, out);
        else x.kernels_.activate(a, n, op.activation, out);
        count(op.kind, n * ((op.kind == Kind::add ? 0 : ACTIVATION_FLOPS) + (b ? 1 : 0)), n * (b ? 8 : 4), n * 4);
    });
}

void Worker::rope_table(const OpRecord& op) {
    int n = static_cast<int>(op.frequencies.size());
    parallel(pieces_of(step.num_tokens), [&](int piece) {
        for (int t = piece * ROW_PIECE; t < std::min(step.num_tokens, (piece + 1) * ROW_PIECE); ++t) {
            x.kernels_.rope_angles(step.positions[t], op.frequencies.data(), n, op.factor, at(op.outputs[0], t));
            count(op.kind, TABLE_FLOPS * u(n), 4, u(n) * 8);
        }
    });
}

void Worker::rope(const OpRecord& op) {
    const Slot &in = op.inputs[0], &table = op.inputs[1];
    parallel(pieces_of(step.num_tokens), [&](int piece) {
        for (int t = piece * ROW_PIECE; t < std::min(step.num_tokens, (piece + 1) * ROW_PIECE); ++t) {
            x.kernels_.rope(at(in, t), at(table, t), table.width / 2, op.heads, in.width / op.heads, op.interleaved, at(op.outputs[0], t));
            count(op.kind, 3 * u(table.width) * u(op.heads), u(in.width + table.width) * 4, u(in.width) * 4);
        }
    });
}

KVView Worker::view(const OpRecord& op) const {
    const auto& state = x.states_[static_cast<size_t>(op.state)];
    size_t layer = static_cast<size_t>(op.layer * state.heads) * state.head_bytes;
    return {state.kv.data(), state.block_bytes, layer, state.head_bytes, state.key_dim, state.value_dim, !x.exact_};
}

void Worker::store_token(const OpRecord& op, int token, const float* k, const float* v) {
    const auto& state = x.states_[static_cast<size_t>(op.state)];
    const Place& place = x.place(op.state, token);
    KVView kv = view(op);
    for (int h = 0; h < state.heads; ++h)
        x.kernels_.kv_write(kv, place.block, place.slot, h, k + h * state.key_dim, v + h * state.value_dim);
    count(op.kind, 0, 0, u(state.heads * (state.key_dim + state.value_dim)) * (x.exact_ ? 4 : 2));
}

void Worker::kv_write(const OpRecord& op) {
    parallel(pieces_of(step.num_tokens), [&](int piece) {
        for (int t = piece * ROW_PIECE; t < std::min(step.num_tokens, (piece + 1) * ROW_PIECE); ++t) {
            store_token(op, t, at(op.inputs[0], t), at(op.inputs[1], t));
            count(op.kind, 0, u(op.inputs[0].width + op.inputs[1].width) * 4, 0);
        }
    });
}

void Worker::rope_kv(const OpRecord& op) {
    const Slot &q = op.inputs[0], &k = op.inputs[1], &v = op.inputs[2], &table = op.inputs[3];
    int n = table.width / 2;
    parallel(pieces_of(step.num_tokens), [&](int piece) {
        for (int t = piece * ROW_PIECE; t < std::min(step.num_tokens, (piece + 1) * ROW_PIECE); ++t) {
            const float* angles = at(table, t);
            x.kernels_.rope(at(q, t), angles, n, op.heads, q.width / op.heads, op.interleaved, at(op.outputs[0], t));
            x.kernels_.rope(at(k, t), angles, n, op.kv_heads, k.width / op.kv_heads, op.interleaved, scratch());
            store_token(op, t, scratch(), at(v, t));
            count(op.kind, 3 * u(table.width) * u(op.heads + op.kv_heads), u(q.width + k.width + v.width + table.width) * 4, u(q.width) * 4);
        }
    });
}

void Worker::attend_out(const OpRecord& op, const AttendItem& item, const float* states) {
    const auto& state = x.states_[static_cast<size_t>(op.state)];
    int group = op.heads / state.heads;
    for (int r = 0; r < item.rows; ++r)
        for (int g = 0; g < group; ++g, states += partial_floats(state.value_dim))
            x.kernels_.attend_finish(states, state.value_dim,
                                     at(op.outputs[0], item.token + r) + (item.kv_head * group + g) * state.value_dim);
    count(op.kind, 0, 0, u(item.rows * group * state.value_dim) * 4);
}

void Worker::attend_item(const OpRecord& op, const AttendItem& item) {
    const auto& state = x.states_[static_cast<size_t>(op.state)];
    int group = op.heads / state.heads, states = item.rows * group;
    AttendArgs args{view(op), step.table(static_cast<size_t>(op.state), item.sequence), at(op.inputs[0], item.token),
                    static_cast<size_t>(op.inputs[0].width), item.rows, item.first_index, item.kv_head, group,
                    state.window, op.scale, op.softcap, op.slopes.empty() ? nullptr : op.slopes.data() + item.kv_head * group};
    const uint64_t pair_flops = 2 * u(state.key_dim + state.value_dim) + SOFTMAX_FLOPS + (op.softcap != 0 ? SOFTCAP_FLOPS : 0) +
                                (op.slopes.empty() ? 0 : SLOPE_FLOPS);
    int lowest = state.lowest_seen(item.first_index), last_index = item.first_index + item.rows - 1;
    int first = item.chunk >= 0 ? item.chunk : lowest / CHUNK, last = item.chunk >= 0 ? item.chunk : last_index / CHUNK;
    size_t floats = static_cast<size_t>(states) * partial_floats(state.value_dim);
    float* into = item.chunk >= 0 ? x.partials_.floats() + item.partial : scratch();
    for (int chunk = first; chunk <= last; ++chunk) {
        float* partial = chunk == first ? into : into + floats;
        x.kernels_.attend_chunk(args, chunk, partial);
        if (chunk > first) x.kernels_.attend_merge(into, partial, states, state.value_dim);
        int from = std::max(lowest, chunk * CHUNK) / BLOCK, to = std::min(last_index, chunk * CHUNK + CHUNK - 1) / BLOCK;
        uint64_t pairs = 0;
        for (int i = item.first_index; i <= last_index; ++i) {
            int low = std::max(state.lowest_seen(i), chunk * CHUNK), high = std::min(i, chunk * CHUNK + CHUNK - 1);
            if (low <= high) pairs += u(high / BLOCK - low / BLOCK + 1) * BLOCK;
        }
        count(op.kind, pairs * u(group) * pair_flops, u(to - from + 1) * state.head_bytes, 0);
    }
    if (item.chunk < 0) attend_out(op, item, into);
    if (item.chunk < 0 || item.chunk == last_index / CHUNK) count(op.kind, 0, u(item.rows * group * state.key_dim) * 4, 0);
}

void Worker::attend(const OpRecord& op) {
    const auto& work = x.attention_[static_cast<size_t>(op.state)];
    const auto& state = x.states_[static_cast<size_t>(op.state)];
    parallel(static_cast<int>(work.items.size()), [&](int i) { attend_item(op, work.items[static_cast<size_t>(i)]); });
    if (work.merges.empty()) return;
    parallel(static_cast<int>(work.merges.size()), [&](int i) {
        const auto& item = work.merges[static_cast<size_t>(i)];
        int states = item.rows * (op.heads / state.heads);
        float* into = x.partials_.floats() + item.partial;
        for (int c = 1; c < item.chunks; ++c) x.kernels_.attend_merge(into, into + static_cast<size_t>(c) * item.stride, states, state.value_dim);
        attend_out(op, item, into);
    });
}

void Worker::head(const OpRecord& op) {
    for (int first = 0; first < step.num_rows; first += HEAD_ROWS) head_group(op, first, std::min(HEAD_ROWS, step.num_rows - first));
}

void Worker::head_group(const OpRecord& op, int first, int rows) {
    const Matrix& matrix = x.matrices_[static_cast<size_t>(op.matrices[0])];
    size_t stride = static_cast<size_t>(matrix.panels) * PANEL;
    float* logits = x.logits_.floats();
    prepare_rows(op, rows, step.logit_rows + first);
    int per = panels_per_piece(matrix.panels, rows, matrix.panel_bytes, x.threads());
    const bool capped = op.scale != 1 || op.softcap != 0;
    const uint64_t cap_flops = (op.scale != 1 ? 1 : 0) + (op.softcap != 0 ? SOFTCAP_FLOPS : 0);
    parallel((matrix.panels + per - 1) / per, [&](int piece) {
        for (int p = piece * per; p < std::min(matrix.panels, (piece + 1) * per); ++p) {
            float* panel = logits + p * PANEL;
            multiply(matrix, p, rows, panel, stride, op.kind);
            for (int r = 0; capped && r < rows; ++r)
                x.kernels_.cap_logits(panel + static_cast<size_t>(r) * stride, PANEL, op.scale, op.softcap);
            count(op.kind, cap_flops * u(rows) * PANEL, 0, u(rows) * PANEL * 4);
        }
    });
    int chunks = (x.vocab_ + VOCAB_CHUNK - 1) / VOCAB_CHUNK;
    parallel(rows * chunks, [&](int i) {
        int row = i / chunks, from = i % chunks * VOCAB_CHUNK, n = std::min(VOCAB_CHUNK, x.vocab_ - from);
        x.stats_[static_cast<size_t>(i)] = x.kernels_.vocab_stats(logits + static_cast<size_t>(row) * stride, from, n);
        count(op.kind, CHOICE_FLOPS * u(n), u(n) * 4, 0);
    });
    parallel(rows, [&](int i) {
        int r = first + i;
        size_t place = static_cast<size_t>(r) * static_cast<size_t>(step.top), vocab = static_cast<size_t>(x.vocab_);
        const float* row = logits + static_cast<size_t>(i) * stride;
        for (int k = 0; k < step.top; ++k) {
            step.top_ids[place + static_cast<size_t>(k)] = -1;
            step.top_logprobs[place + static_cast<size_t>(k)] = -__builtin_inff();
        }
        Edits edits;
        if (step.edits) edits = {step.edits + step.edit_offsets[r], step.edit_offsets[r + 1] - step.edit_offsets[r]};
        Choice choice = x.kernels_.choose(row, x.vocab_, x.stats_.data() + i * chunks, step.sampling[r], edits, step.top_ids + place,
                                          step.top_logprobs + place, scratch());
        step.out_tokens[r] = choice.token;
        step.out_logprobs[r] = choice.logprob;
        step.out_ranks[r] = choice.rank;
        step.out_faults[r] = choice.fault;
        if (step.logits) std::memcpy(step.logits + static_cast<size_t>(r) * vocab, row, vocab * 4);
        if (step.trace) {
            Hash hash;
            hash.floats(row, vocab);
            // Two rows may be the same token's.
            std::atomic_ref<uint64_t>(traced(op)[step.logit_rows[r]]).store(hash.value(), std::memory_order_relaxed);
        }
    });
}

// Where the op's hashes go.
uint64_t* Worker::traced(const OpRecord& op) const {
    return step.trace + static_cast<size_t>(&op - x.ops_.data()) * static_cast<size_t>(step.num_tokens);
}

// Hashes what the op gave for each token: its output rows, and K and V where it stored them. The head sees to itself,
// since the logits of all rows never stand side by side.
void Worker::trace(const OpRecord& op) {
    const bool stores = op.kind == Kind::kv_write || op.kind == Kind::rope_kv;
    if (op.kind == Kind::head) return;
    parallel(pieces_of(step.num_tokens), [&](int piece) {
        for (int t = piece * ROW_PIECE; t < std::min(step.num_tokens, (piece + 1) * ROW_PIECE); ++t) {
            Hash hash;
            for (const Slot& slot : op.outputs) hash.floats(at(slot, t), static_cast<size_t>(slot.width));
            for (int head = 0; stores && head < x.states_[static_cast<size_t>(op.state)].heads; ++head)
                hash_kv(hash, view(op), x.place(op.state, t), head);
            traced(op)[t] = hash.value();
        }
    });
}

}  // namespace pelton
