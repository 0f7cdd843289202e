// Hashes of what each op gave for each token (docs/numerics.md, section 9).
#include "step/trace.h"

#include <algorithm>

#include "step/step.h"

namespace pelton {

namespace {

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
