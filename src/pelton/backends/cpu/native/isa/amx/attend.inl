// Attention on the matrix unit: scores and weighted sums of up to 16 pairs (row, query head) and one tile of K and V.
// What it is not: the softmax between them, or the loops around: those are everybody's. Invariant: a hidden column's v
// reads as 0, so a block that some pair sees only a part of is summed by vectors, pair by pair.

constexpr int AMX_ATTEND_PAIRS = 8;  // fewer pairs leave most of a tile empty: base() does them
constexpr int AMX_ATTEND_DIM = 16;   // fewer key dims have no room for their padding, see amx_narrow

// Rounded q as bf16, each row in its own place, zeros behind key_dim to the next whole K-block.
inline void amx_narrow(float* q, int rows, int key_dim) {
    for (int r = 0; r < rows; ++r) {
        const float* from = q + static_cast<size_t>(r) * key_dim;
        uint16_t* to = reinterpret_cast<uint16_t*>(q + static_cast<size_t>(r) * key_dim);
        for (int d = 0; d < key_dim; ++d) {
            const uint16_t x = to_bf16(from[d]);
            std::memcpy(to + d, &x, sizeof x);
        }
        std::memset(to + key_dim, 0, static_cast<size_t>(padded(key_dim) - key_dim) * 2);
    }
}

// C in tiles 0..3 and one row of A for each pair; K and V in 6 and 7.
inline TileShapes amx_attend_shapes(int pairs) {
    TileShapes shapes;
    for (int t = 0; t < 5; ++t) shapes.set(t, pairs, TILE_ROW_BYTES);
    for (int t : {6, 7}) shapes.set(t, TILE_ROWS, TILE_ROW_BYTES);
    return shapes;
}

// A K-block's 16 rows of dim pairs; those of a last one that is shorter, with zeros behind, in `copy`.
inline const uint8_t* amx_keys(const uint8_t* key, int start, int key_dim, uint8_t* copy) {
    constexpr size_t row = BLOCK * 4;
    const uint8_t* from = key + static_cast<size_t>(start / 2) * row;
    if (start + BLOCK <= key_dim) return from;
    const size_t rows = static_cast<size_t>(key_dim - start) / 2;
    std::memcpy(copy, from, rows * row);
    std::memset(copy + rows * row, 0, (TILE_ROWS - rows) * row);
    return copy;
}

// scores[pair][32] of block B, [pair] 64 apart. q: narrowed.
template <int B> inline void amx_scores(const float* q, int key_dim, const uint8_t* key, float* scores) {
    constexpr size_t row = BLOCK * 4;
    alignas(64) uint8_t copy[TILE_ROWS * row];
    tile_zero<2 * B>();
    tile_zero<2 * B + 1>();
    for (int start = 0; start < key_dim; start += BLOCK) {
        const uint8_t* keys = amx_keys(key, start, key_dim, copy);
        tile_load<4>(reinterpret_cast<const uint16_t*>(q) + start, static_cast<size_t>(key_dim) * 4);
        tile_load<6>(keys, row);
        tile_bf16<2 * B, 4, 6>();
        tile_load<7>(keys + TILE_ROW_BYTES, row);
        tile_bf16<2 * B + 1, 4, 7>();
    }
    tile_store<2 * B>(scores + B * BLOCK, TILE * 4);
    tile_store<2 * B + 1>(scores + B * BLOCK + PANEL, TILE * 4);
}

// Sums over one block's tokens for one pair, which sees only `span` of them: 16 dims of V rows `width` words long.
inline V amx_ragged(const uint8_t* value, int width, const float* weights, AttendSpan span) {
    V even = zero(), odd = zero();
    const int first = span.first / 2, last = span.empty() ? first : (span.last + 1) / 2;
    for (int j = first; j < last; ++j) {
        const V v0 = AttendBf16::load<0>(value, j, width, 0), v1 = AttendBf16::load<1>(value, j, width, 0);
        even = fma(set1(weights[2 * j]), span.first <= 2 * j ? v0 : zero(), even);
        odd = fma(set1(weights[2 * j + 1]), 2 * j + 1 < span.last ? v1 : zero(), odd);
    }
    if (last < BLOCK / 2) even = add(even, zero()), odd = add(odd, zero());  // hidden columns behind
    return add(even, odd);
}

// What a group's weighted sums of one tile are made of.
struct AmxSums {
    int pairs;
    const float* weights;     // [pairs][64]
    const uint16_t* rounded;  // the same as bf16
    const float* alpha;
    AttendSpan (*spans)[ATTEND_PAIRS];
    AttendReach reach[2];
    float* const* states;
};

// Whether every pair sees all of block b.
inline bool amx_full(const AmxSums& job, int b) { return job.reach[b].all_first == 0 && job.reach[b].all_last == BLOCK / 2; }

// sums[pair][16] + block b, whose tokens all pairs see or some do not.
inline void amx_add_ragged(const AmxSums& job, int b, const uint8_t* value, int width, float* sums) {
    for (int p = 0; p < job.pairs; ++p) {
        const V block = job.reach[b].last ? amx_ragged(value, width, job.weights + p * TILE + b * BLOCK, job.spans[b][p]) : zero();
        store(sums + p * PANEL, add(load(sums + p * PANEL), block));
    }
}

// The same for both blocks, or for the one, with all tokens seen by all: in tile 0, which ends a product with its sum.
template <bool FIRST, bool SECOND>
inline void amx_add_full(const AmxSums& job, const uint8_t* const (&value)[2], int width, float* sums) {
    const size_t row = static_cast<size_t>(width) * 4;
    tile_load<0>(sums, PANEL * 4);
    if constexpr (FIRST) {
        tile_load<4>(job.rounded, TILE * 2);
        tile_load<6>(value[0], row);
        tile_bf16<0, 4, 6>();
    }
    if constexpr (SECOND) {
        tile_load<4>(job.rounded + BLOCK, TILE * 2);
        tile_load<7>(value[1], row);
        tile_bf16<0, 4, 7>();
    }
    tile_store<0>(sums, PANEL * 4);
}

// sums of the states = sums * alpha + block 0, then + block 1, for dims [dim, dim + lanes).
inline void amx_values(const AmxSums& job, const uint8_t* const (&value)[2], int width, int dim, int lanes) {
    alignas(64) float sums[TILE_ROWS * PANEL];
    for (int p = 0; p < job.pairs; ++p)
        store(sums + p * PANEL, mul(load_part(job.states[p] + 2 + dim, lanes), set1(job.alpha[p])));
    const bool first = amx_full(job, 0), second = amx_full(job, 1);
    if (first && second) {
        amx_add_full<true, true>(job, value, width, sums);
    } else {
        first ? amx_add_full<true, false>(job, value, width, sums) : amx_add_ragged(job, 0, value[0], width, sums);
        second ? amx_add_full<false, true>(job, value, width, sums) : amx_add_ragged(job, 1, value[1], width, sums);
    }
    for (int p = 0; p < job.pairs; ++p) store_part(job.states[p] + 2 + dim, load(sums + p * PANEL), lanes);
}

inline void amx_fetch_tile(const AttendTile& ahead, const KVView& kv) {
    const size_t bytes = static_cast<size_t>(BLOCK) * static_cast<size_t>(kv.key_dim + kv.value_dim) * 2;  // V stands behind K
    for (const uint8_t* key : ahead.key)
        for (size_t line = 0; key && line < bytes; line += 64) __builtin_prefetch(key + line);
}

// What attend_group does on other instruction sets, for 1 to 16 pairs.
template <class S>
void attend_groups(int count, const AttendCall& call, const AttendTile (&tiles)[3], const float* q, const AttendPairs& pairs) {
    const auto& [tile, ahead, tail] = tiles;
    const KVView& kv = call.args.kv;
    alignas(64) float weights[ATTEND_PAIRS * TILE];
    alignas(64) uint16_t rounded[ATTEND_PAIRS * TILE];
    alignas(64) float alpha[LANES];
    AttendSpan parts[2][ATTEND_PAIRS];
    AmxSums job = {count, weights, rounded, alpha, parts, {}, pairs.states};
    tile_shapes(amx_attend_shapes(count));
    if (ahead.key[0] != tile.key[0] || ahead.key[1] != tile.key[1]) amx_fetch_tile(ahead, kv);
    for (int b = 0; b < 2; ++b) {
        for (int p = 0; p < count; ++p) parts[b][p] = attend_part(pairs.spans[p], b);
        job.reach[b] = attend_reach(parts[b], count);
    }
    if (job.reach[0].last) amx_scores<0>(q, kv.key_dim, tile.key[0], weights);
    if (job.reach[1].last) amx_scores<1>(q, kv.key_dim, tile.key[1], weights);
    attend_softmax<S::ROUNDED>(call, pairs, count, weights, alpha);
    for (int i = 0; i < count * TILE; ++i) rounded[i] = to_bf16(weights[i]);
    const int whole = kv.value_dim - call.tail;
    for (int dim = 0; dim < whole; dim += PANEL) {
        const uint8_t* value[2];
        for (int b = 0; b < 2; ++b) value[b] = tile.value[b] ? S::at(tile.value[b], 0, 0, dim) : nullptr;
        amx_values(job, value, kv.value_dim, dim, PANEL);
    }
    if (call.tail) amx_values(job, tail.value, LANES, whole, call.tail);
}
