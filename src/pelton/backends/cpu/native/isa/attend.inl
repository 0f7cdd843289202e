// Attention: the online softmax of some query rows over some tiles of their cache, and the merge of chunks.
// What it is not: it plans nothing and knows no masks but causal and window. Tiles are the outer loop and pairs of
// (row, query head) the inner one, so that each K/V block comes from memory once however many pairs read it. Invariant:
// a pair's state depends on its q and its visible columns alone, to the bit, never on which pairs share its registers,
// nor on how many calls its tiles are spread over.
//
// A kernel with a matrix unit takes the place of attend_group: scores are order-1 products of up to 16 pairs with a block's
// K [key_dim / 2][32 tokens][2], the weighted sum such products of the rounded weights with V [16][value_dim][2] (one
// K-block of 32 each, from accumulators of 0), added to sums * alpha as attend_close does. What lies between, attend_softmax,
// is the same; so are the loops below, which only need to hand out more pairs at a time.

#include "attend_scores.inl"
#include "attend_values.inl"

// ---- one group of pairs, one tile -----------------------------------------------------------------------------------

inline AttendReach attend_reach(const AttendSpan* spans, int count) {
    int first = BLOCK, last = 0, all_first = 0, all_last = BLOCK;
    for (int p = 0; p < count; ++p) {
        if (!spans[p].empty()) {
            first = spans[p].first < first ? spans[p].first : first;
            last = spans[p].last > last ? spans[p].last : last;
        }
        all_first = spans[p].first > all_first ? spans[p].first : all_first;
        all_last = spans[p].last < all_last ? spans[p].last : all_last;
    }
    if (first >= last) return {0, 0, 0, 0};
    AttendReach reach = {first / 2, (all_first + 1) / 2, all_last / 2, (last + 1) / 2};
    if (reach.all_first > reach.last) reach.all_first = reach.last;
    if (reach.all_last < reach.all_first) reach.all_last = reach.all_first;
    return reach;
}

#if defined(PELTON_MATRIX_UNIT)
#include "amx/attend.inl"
#else
template <class S, int P>
void attend_group(const AttendCall& call, const AttendTile (&tiles)[3], const float* q, const AttendPairs& pairs) {
    constexpr int D = attend_dim_vectors(P);
    const auto& [tile, ahead, tail] = tiles;
    alignas(64) float weights[P * TILE];
    alignas(64) float alpha[LANES];
    AttendSpan parts[2][ATTEND_PAIRS];
#if defined(PELTON_ISA_AVX512_BF16)
    alignas(64) Number weight_pairs[P * TILE / 2];
    AttendSums job = {weights, weight_pairs, alpha, parts, {}, pairs.states};
#else
    AttendSums job = {weights, alpha, parts, {}, pairs.states};
#endif
    for (int b = 0; b < 2; ++b) {
        for (int p = 0; p < P; ++p) parts[b][p] = attend_part(pairs.spans[p], b);
        job.reach[b] = attend_reach(parts[b], P);
        if (!job.reach[b].last) continue;
#if defined(PELTON_ISA_AVX512_BF16)
        if (tile.key_fours[b]) {
            attend_scores_fours<P>(q, call.args.kv.key_dim, tile.key_fours[b], weights + b * BLOCK);
            continue;
        }
#endif
        const uint8_t* next = ahead.key[b] ? ahead.key[b] : tile.key[b];
        attend_scores<S, P>(q, call.args.kv.key_dim, tile.key[b], next, weights + b * BLOCK);
    }
#if defined(PELTON_ISA_AVX512_BF16)
    if (attend_plain(call.args) && attend_whole(job.reach[0]) && attend_whole(job.reach[1])) {
        attend_softmax_whole<P>(call, pairs, weights, alpha, weight_pairs);
    } else {
        attend_softmax<S::ROUNDED>(call, pairs, P, weights, alpha);
        narrow(weights, P * TILE, reinterpret_cast<uint16_t*>(weight_pairs));
    }
#else
    attend_softmax<S::ROUNDED>(call, pairs, P, weights, alpha);
#endif
    const int width = call.args.kv.value_dim, whole = width - call.tail;
    AttendDims dims = {{}, {}, width, 0, LANES};
    for (; dims.dim + D * LANES <= whole; dims.dim += D * LANES)
        attend_values<S, P, D>(job, tile, ahead, dims, dims.dim);
    for (; dims.dim < whole; dims.dim += LANES) attend_values<S, P, 1>(job, tile, ahead, dims, dims.dim);
    if (call.tail) attend_values<S, P, 1>(job, tail, tail, {{}, {}, LANES, whole, call.tail}, 0);
}

template <class S>
void attend_groups(int count, const AttendCall& call, const AttendTile (&tiles)[3], const float* q,
                   const AttendPairs& pairs) {
    switch (count) {
        case 1: return attend_group<S, 1>(call, tiles, q, pairs);
        case 2: return attend_group<S, 2>(call, tiles, q, pairs);
        case 3: return attend_group<S, 3>(call, tiles, q, pairs);
    }
    if constexpr (ATTEND_PAIRS == 6) {
        switch (count) {
            case 4: return attend_group<S, 4>(call, tiles, q, pairs);
            case 5: return attend_group<S, 5>(call, tiles, q, pairs);
            case 6: return attend_group<S, 6>(call, tiles, q, pairs);
        }
    }
}
#endif

// ---- rows and tiles --------------------------------------------------------------------------------------------------

// A pair of the batch whose q is prepared.
struct AttendPair {
    float* state;
    int index;
    float slope;
};

// Columns of the tile at `start` that the row at `index` sees: j <= index and, with a window, j > index - window.
inline AttendSpan attend_visible(const AttendArgs& args, int index, int start) {
    const int from = args.window && index >= args.window ? index - args.window + 1 : 0;
    const int first = from > start ? from - start : 0, last = index - start < TILE ? index + 1 - start : TILE;
    return {first, last};
}

template <class S> inline AttendTile attend_locate(const AttendArgs& args, int start, AttendSpan seen) {
    AttendTile tile = {};
    for (int b = 0; b < 2; ++b) {
        if (seen.empty() || attend_part(seen, b).empty()) continue;
        const int number = start / BLOCK + b;
        if (args.tail && number >= args.tail_block) {
            tile.key[b] = args.tail + static_cast<size_t>(number - args.tail_block) * args.kv.head_bytes;
        } else {
            const size_t block = static_cast<size_t>(args.table[number]) * args.kv.block_bytes;
            tile.key[b] = args.kv.pool + block + args.kv.layer_offset + args.kv_head * args.kv.head_bytes;
        }
        tile.value[b] = tile.key[b] + static_cast<size_t>(BLOCK) * args.kv.key_dim * S::SIZE;
    }
    return tile;
}

// Copies the dims behind the last whole vector into rows of 16, so that no load runs over the end of a block.
template <class S> inline AttendTile attend_tail(const AttendCall& call, const AttendTile& tile, uint8_t* copy) {
    AttendTile tail = {};
    const int width = call.args.kv.value_dim, rows = static_cast<int>(BLOCK * S::SIZE / 4);
    for (int b = 0; b < 2; ++b) {
        if (!tile.value[b]) continue;
        uint8_t* out = copy + b * BLOCK * LANES * 4;
        tail.value[b] = out;
        for (int j = 0; j < rows; ++j)
            std::memcpy(out + j * LANES * 4, S::at(tile.value[b], 0, 0, (j + 1) * width - call.tail), call.tail * 4);
    }
    return tail;
}

// Pairs [from, to) of a batch that see something of a tile: since rows ascend, those that do not stand at its ends.
struct AttendRange {
    int from, to;
    AttendSpan seen;  // by any of them
};

inline AttendRange attend_range(const AttendArgs& args, const AttendPair* batch, int count, int start, int end) {
    AttendRange range = {0, count, {0, 0}};
    if (start >= end) return {0, 0, {0, 0}};
    while (range.from < range.to && attend_visible(args, batch[range.from].index, start).last <= 0) ++range.from;
    while (range.from < range.to && attend_visible(args, batch[range.to - 1].index, start).first >= TILE) --range.to;
    if (range.from < range.to)
        range.seen = {attend_visible(args, batch[range.from].index, start).first,
                      attend_visible(args, batch[range.to - 1].index, start).last};
    return range;
}

// The next group of a range, of at most ATTEND_PAIRS and as even as they can be; `pair` moves on.
inline int attend_next(const AttendArgs& args, const AttendPair* batch, const AttendRange& range, int start, int& pair,
                       AttendPairs& pairs) {
    const int left = range.to - pair, groups = (left + ATTEND_PAIRS - 1) / ATTEND_PAIRS;
    const int count = (left + groups - 1) / groups;
    for (int p = 0; p < count; ++p) {
        const AttendPair& one = batch[pair + p];
        pairs.spans[p] = attend_visible(args, one.index, start);
        pairs.distance[p] = start - one.index;
        pairs.slope[p] = one.slope;
        pairs.states[p] = one.state;
    }
    pair += count;
    return count;
}

#if defined(PELTON_ISA_AVX512_BF16)
// Makes a tile's fours, where there is room for them; asks for what is ahead.
inline void attend_fours(const AttendCall& call, AttendTile& tile, const AttendTile& ahead, uint8_t* fours) {
    const int keys = call.args.kv.key_dim, values = call.args.kv.value_dim;
    if (keys + values > FOURS_DIMS || call.tail) return;
    const size_t key_bytes = attend_four_at(keys / 4, BLOCK / LANES, 0), value_bytes = attend_four_at(BLOCK / 4, values / LANES, 0);
    for (int b = 0; b < 2; ++b) {
        if (!tile.key[b]) continue;
        uint8_t* own = fours + b * (key_bytes + value_bytes);
        attend_make_fours(tile.key[b], ahead.key[b] ? ahead.key[b] : tile.key[b], keys / 2, BLOCK / LANES, own);
        attend_make_fours(tile.value[b], ahead.value[b] ? ahead.value[b] : tile.value[b], BLOCK / 2, values / LANES, own + key_bytes);
        tile.key_fours[b] = own;
        tile.value_fours[b] = own + key_bytes;
    }
}
#endif

// A batch over tiles [first, last). q: prepared, [count][key_dim].
template <class S>
void attend_batch(const AttendCall& call, int first, int last, const AttendPair* batch, int count, const float* q) {
    const AttendArgs& args = call.args;
    alignas(64) uint8_t copy[2 * BLOCK * LANES * 4];
    if (call.tail) std::memset(copy, 0, sizeof(copy));
#if defined(PELTON_ISA_AVX512_BF16)
    alignas(64) uint8_t fours[2 * FOURS_DIMS * LANES * sizeof(float)];
#endif
    const int end = last * TILE;
    AttendRange range = attend_range(args, batch, count, first * TILE, end);
    for (int start = first * TILE; start < end; start += TILE) {
        const AttendRange next = attend_range(args, batch, count, start + TILE, end);
        AttendTile tiles[3] = {attend_locate<S>(args, start, range.seen), attend_locate<S>(args, start + TILE, next.seen), {}};
        if (call.tail) tiles[2] = attend_tail<S>(call, tiles[0], copy);
#if defined(PELTON_ISA_AVX512_BF16)
        if (range.to - range.from > (FOURS_GROUPS - 1) * ATTEND_PAIRS) attend_fours(call, tiles[0], tiles[1], fours);
#endif
        for (int pair = range.from; pair < range.to;) {
            AttendPairs pairs;
            const float* rows = q + static_cast<size_t>(pair) * args.kv.key_dim;
            attend_groups<S>(attend_next(args, batch, range, start, pair, pairs), call, tiles, rows, pairs);
            tiles[1] = tiles[0];  // one group is enough to fetch the next tile
        }
        range = next;
    }
}

// Calls work(batch, count, q) for all pairs in order, so many at a time as fit; q is rounded where K and V are. A row's
// pairs have `floats` of its state each.
template <class S, class F> inline void attend_batches(const AttendArgs& args, size_t floats, F work) {
    const int key_dim = args.kv.key_dim, group = args.group, pairs = args.num_rows * group;
    int most = ATTEND_Q / key_dim / ATTEND_PAIRS * ATTEND_PAIRS;
    if (most > ATTEND_BATCH) most = ATTEND_BATCH;
    alignas(64) float q[ATTEND_Q];
    AttendPair batch[ATTEND_BATCH];
    for (int begin = 0; begin < pairs; begin += most) {
        const int count = pairs - begin < most ? pairs - begin : most;
        for (int i = 0; i < count; ++i) {
            const AttendRow& row = args.rows[(begin + i) / group];
            const int head = (begin + i) % group;
            batch[i] = {row.state + static_cast<size_t>(head) * floats, row.index, args.slopes ? args.slopes[head] : 0.0f};
            const float* from = row.q + static_cast<size_t>(args.kv_head * group + head) * key_dim;
            float* to = q + static_cast<size_t>(i) * key_dim;
            for (int d = 0; d < key_dim; d += LANES) {
                const V x = load_part(from + d, key_dim - d);
                store_part(to + d, S::ROUNDED ? round_bf16(x) : x, key_dim - d);
            }
        }
        work(batch, count, q);
    }
}

template <class S> void attend_any(const AttendArgs& args, int first, int last, bool resume) {
    const AttendCall call = {args, args.kv.value_dim % LANES};
    const size_t floats = partial_floats(args.kv.value_dim);
    for (int r = 0; r < args.num_rows && !resume; ++r) {
        std::memset(args.rows[r].state, 0, args.group * floats * sizeof(float));
        for (int head = 0; head < args.group; ++head) args.rows[r].state[head * floats] = ATTEND_EMPTY;
    }
    attend_batches<S>(args, floats, [&](const AttendPair* batch, int count, float* q) {
#if defined(PELTON_MATRIX_UNIT)
        amx_narrow(q, count, args.kv.key_dim);
#elif defined(PELTON_ISA_AVX512_BF16)
        for (int i = 0; i < count; ++i) attend_narrow(q + static_cast<size_t>(i) * args.kv.key_dim, args.kv.key_dim);
#endif
        attend_batch<S>(call, first, last, batch, count, q);
    });
}

#if !defined(PELTON_MATRIX_UNIT) && !defined(PELTON_ISA_AVX512_BF16)
void attend_tiles(const AttendArgs& args, int first, int last, bool resume) {
    if (args.kv.bf16)
        attend_any<AttendBf16>(args, first, last, resume);
    else
        attend_any<AttendF32>(args, first, last, resume);
}
#endif

#if !defined(PELTON_ISA_AVX512_BF16)
// ---- merge and finish -----------------------------------------------------------------------------------------------

void attend_merge(float* into, const float* later, int count, int value_dim) {
    const size_t stride = partial_floats(value_dim);
    for (int i = 0; i < count; ++i, into += stride, later += stride) {
        if (later[0] == ATTEND_EMPTY) continue;
        if (into[0] == ATTEND_EMPTY) {
            std::memcpy(into, later, stride * sizeof(float));
            continue;
        }
        const float top = later[0] > into[0] ? later[0] : into[0];
        const V a = attend_decay(set1(into[0] - top)), b = attend_decay(set1(later[0] - top));
        into[0] = top;
        for (int k = 1; k < static_cast<int>(stride); k += LANES) {  // l and the sums follow the same rule
            const int lanes = static_cast<int>(stride) - k;
            store_part(into + k, fma(load_part(later + k, lanes), b, mul(load_part(into + k, lanes), a)), lanes);
        }
    }
}

void attend_finish(const float* state, int value_dim, float* out) {
    const V l = set1(state[1]);
    for (int d = 0; d < value_dim; d += LANES) {
        const int lanes = value_dim - d;
        store_part(out + d, state[1] == 0.0f ? zero() : div(load_part(state + 2 + d, lanes), l), lanes);
    }
}
#endif
