// One worker's way through a step but for its products, its attention and its trace: dispatch and ops that go by rows.
#include "step/step.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace pelton {

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
    uint64_t* timing = id == 0 ? step.timing : nullptr;
    for (const auto& op : x.ops_) {
        if (late) return;
        const uint64_t began = timing ? now_ns() : 0, waited = tally.waited_ns;
        compute(op);
        if (step.trace) trace(op);
        if (timing) {
            *timing++ += now_ns() - began;
            *timing++ += tally.waited_ns - waited;
        }
    }
    if (!late) tally.ran_ns += now_ns() - since;
}

// The end of a stage: goes on when all its pieces are done.
void Worker::meet(const std::atomic<uint32_t>& done, uint32_t end) {
    if (reached(done.load(std::memory_order_acquire), end)) return;
    const uint64_t began = now_ns();
    tally.ran_ns += began - since;
    since = began;
    x.pool_.leave(id);
    constexpr size_t LINE = 64, AT_ONCE = 16 * LINE;
    for (; ahead_bytes && !reached(done.load(std::memory_order_acquire), end); ahead += AT_ONCE, ahead_bytes -= AT_ONCE)
        for (size_t line = 0; line < AT_ONCE; line += LINE) __builtin_prefetch(ahead + line, 0, 2);
    await_count(done, end, step.num_tokens < MANY_ROWS ? SPIN_NS : MANY_ROWS_SPIN_NS);
    late = !x.pool_.enter(id);
    if (!late) tally.waited_ns += now_ns() - began;
}

void Worker::compute(const OpRecord& op) {
    switch (op.kind) {
        case Kind::embed: return embed(op);
        case Kind::rms_norm:
        case Kind::layer_norm: return norm(op);
        case Kind::linear: return linear(op);
        case Kind::gated:
        case Kind::activate:
        case Kind::add: return elementwise(op);
        case Kind::rope_table: return rope_table(op);
        case Kind::rope: return rope(op);
        case Kind::kv_write: return kv_write(op);
        case Kind::rope_kv: return rope_kv(op);
        case Kind::attend: return attend(op);
        case Kind::head: return head(op);
        case Kind::count: return;
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

}  // namespace pelton
