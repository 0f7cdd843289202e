// Attention: the online softmax of some rows of one sequence over one chunk of its cache, and the merge of chunks.
// What it is not: it plans nothing and knows no masks but causal and window. Tiles are the outer loop and pairs of
// (row, query head) the inner one, so that each K/V block comes from memory once however many pairs read it. Invariant:
// a pair's state depends on its q and its visible columns alone, to the bit, never on which pairs share its registers.

#if defined(PELTON_ISA_AVX512)
constexpr int ATTEND_PAIRS = 6;    // pairs held in registers at once
constexpr int ATTEND_VECTORS = 2;  // token vectors beside them while scores are made
constexpr int attend_dim_vectors(int pairs) { return pairs <= 3 ? 4 : 2; }
#else
constexpr int ATTEND_PAIRS = 3;
constexpr int ATTEND_VECTORS = 1;
constexpr int attend_dim_vectors(int pairs) { return pairs == 1 ? 2 : 1; }
#endif
constexpr int ATTEND_Q = 8192;  // floats of q prepared at once, on the stack
constexpr float ATTEND_EMPTY = -__builtin_inff();

// Columns [first, last) of a tile.
struct AttendSpan {
    int first, last;
    bool empty() const { return first >= last; }
};

// The part of a span that lies in 32-token block b, counted from the block's start.
inline AttendSpan attend_part(AttendSpan span, int b) {
    auto clamp = [&](int x) { return x < b * BLOCK ? 0 : x > (b + 1) * BLOCK ? BLOCK : x - b * BLOCK; };
    return {clamp(span.first), clamp(span.last)};
}

// Token pairs of a block: some pair of the group sees [first, last), all of them see [all_first, all_last).
struct AttendReach {
    int first, all_first, all_last, last;
};

// Where a tile's two blocks lie; null where no row of the call sees anything of a block.
struct AttendTile {
    const uint8_t* key[2];
    const uint8_t* value[2];
};

// What a group's pairs see of a tile, and where its first column stands from each pair's own index.
struct AttendPairs {
    AttendSpan spans[ATTEND_PAIRS];
    int distance[ATTEND_PAIRS];
    float slope[ATTEND_PAIRS];  // set where the call has slopes
};

// What stays the same for all tiles of a call.
struct AttendCall {
    const AttendArgs& args;
    size_t stride;  // floats of one state
    int tail;       // value dims behind the last whole vector
};

// ---- storage --------------------------------------------------------------------------------------------------------

// A side of a block is rows of token pairs (V) or dim pairs (K), `width` lanes to a row. load: 16 lanes of row `pair`
// from `lane` on, and of these the first (SIDE 0) or the second (SIDE 1) member of each pair.
struct AttendBf16 {
    static constexpr size_t SIZE = 2;
    static constexpr bool ROUNDED = true;
    static const uint8_t* at(const uint8_t* block, int pair, int width, int lane) {
        return block + (static_cast<size_t>(pair) * width + lane) * 4;
    }
    template <int SIDE> static V load(const uint8_t* block, int pair, int width, int lane) {
        const U both = uload(at(block, pair, width, lane));
        return floats(SIDE ? uand(both, uset1(0xffff0000u)) : shl<16>(both));
    }
    static void prefetch(const uint8_t* block, int pair, int width, int lane) {
        __builtin_prefetch(at(block, pair, width, lane));
    }
};

struct AttendF32 {
    static constexpr size_t SIZE = 4;
    static constexpr bool ROUNDED = false;
    static const uint8_t* at(const uint8_t* block, int pair, int width, int lane) {
        return block + (static_cast<size_t>(2 * pair) * width + lane) * 4;
    }
    template <int SIDE> static V load(const uint8_t* block, int pair, int width, int lane) {
        return pelton::PELTON_NS::load(reinterpret_cast<const float*>(at(block, pair, width, lane)) + SIDE * width);
    }
    static void prefetch(const uint8_t* block, int pair, int width, int lane) {
        __builtin_prefetch(at(block, pair, width, lane));
        __builtin_prefetch(at(block, pair, width, lane) + static_cast<size_t>(width) * 4);
    }
};

// ---- scores ---------------------------------------------------------------------------------------------------------

// One dim of K for P queries: chain = q * k + chain.
template <class S, int P, int T, int SIDE>
[[gnu::always_inline]] inline void attend_dims(V (&chain)[P][T], const float* q, int key_dim, const uint8_t* key,
                                               int pair, int token) {
    V k[T];
    for (int t = 0; t < T; ++t) k[t] = S::template load<SIDE>(key, pair, BLOCK, token + t * LANES);
    for (int p = 0; p < P; ++p)
        for (int t = 0; t < T; ++t) chain[p][t] = fma(set1(q[p * key_dim]), k[t], chain[p][t]);
}

// scores[pair][0..32) = order-1 products of P rows of q with the block's K; lanes are tokens. A last block of fewer
// than 32 dims stops early: its missing terms are fma(0, 0, chain), which is chain + 0.
template <class S, int P>
[[gnu::noinline]] void attend_scores(const float* q, int key_dim, const uint8_t* key, const uint8_t* ahead,
                                     float* scores) {
    constexpr int T = ATTEND_VECTORS;
    for (int token = 0; token < BLOCK; token += T * LANES) {
        for (int start = 0; start < key_dim; start += BLOCK) {
            V even[P][T], odd[P][T];
            for (int p = 0; p < P; ++p)
                for (int t = 0; t < T; ++t) even[p][t] = odd[p][t] = zero();
            const int end = start + BLOCK < key_dim ? start + BLOCK : key_dim;
            for (int d = start; d < end; d += 2) {
                for (int t = 0; t < T; ++t) S::prefetch(ahead, d / 2, BLOCK, token + t * LANES);
                attend_dims<S, P, T, 0>(even, q + d, key_dim, key, d / 2, token);
                attend_dims<S, P, T, 1>(odd, q + d + 1, key_dim, key, d / 2, token);
            }
            const bool padded_block = end - start < BLOCK;
            for (int p = 0; p < P; ++p) {
                for (int t = 0; t < T; ++t) {
                    float* place = scores + p * TILE + token + t * LANES;
                    V e = even[p][t], o = odd[p][t];
                    if (padded_block) e = add(e, zero()), o = add(o, zero());
                    store(place, add(start ? load(place) : zero(), add(e, o)));
                }
            }
        }
    }
}

// tanh to about 1 ulp: odd polynomial below 0.625, else 1 - 2 / (e^2x + 1), with the sign of x; NaN stays NaN.
inline V attend_tanh(V x) {
    const V size = floats(uand(bits(x), uset1(0x7fffffffu)));
    V square = mul(x, x), p = set1(-5.70498872745e-3f);
    p = fma(p, square, set1(2.06390887954e-2f));
    p = fma(p, square, set1(-5.37397155531e-2f));
    p = fma(p, square, set1(1.33314422036e-1f));
    p = fma(p, square, set1(-3.33332819422e-1f));
    const V low = fma(mul(p, square), x, x);
    const V high = sub(set1(1.0f), div(set1(2.0f), add(exp(add(size, size)), set1(1.0f))));
    const V signed_high = where_less(x, zero(), sub(zero(), high), high);
    return where_nan(x, x, where_less(size, set1(0.625f), low, signed_high));
}

// softcap * tanh(x / softcap).
inline V attend_cap(V x, float softcap) { return mul(set1(softcap), attend_tanh(div(x, set1(softcap)))); }

// ---- softmax --------------------------------------------------------------------------------------------------------

// Four floats of whatever the compiler has for them: for what crosses lanes, in an order that is written out here.
typedef float AttendFour __attribute__((vector_size(16)));

inline AttendFour attend_four(const float* low, const float* high) {  // low[0], low[1], high[0], high[1]
    typedef double Halves __attribute__((vector_size(16)));
    double halves[2];
    std::memcpy(&halves[0], low, 8);
    std::memcpy(&halves[1], high, 8);
    return reinterpret_cast<AttendFour>(Halves{halves[0], halves[1]});
}

inline float attend_largest(const float* v) {
    AttendFour top = attend_four(v, v + 2);
    for (int i = 4; i < LANES; i += 4) {
        const AttendFour x = attend_four(v + i, v + i + 2);
        top = x > top ? x : top;
    }
    const float a = top[1] > top[0] ? top[1] : top[0], b = top[3] > top[2] ? top[3] : top[2];
    return b > a ? b : a;
}

// exp for x <= 0 or NaN, the same bits as exp.
inline V attend_decay(V x) {
    const V low = set1(-87.33654f), magic = set1(12582912.0f);
    const V c = max(low, x);  // of NaN: NaN
    const V shifted = fma(c, set1(1.44269504f), magic), n = sub(shifted, magic);
    V r = fma(n, set1(-0.693145752f), c);
    r = fma(n, set1(-1.42860677e-6f), r);
    V p = set1(1.38888889e-3f);
    p = fma(p, r, set1(8.33333333e-3f));
    p = fma(p, r, set1(4.16666667e-2f));
    p = fma(p, r, set1(1.66666667e-1f));
    p = fma(p, r, set1(0.5f));
    p = fma(p, r, set1(1.0f));
    p = fma(p, r, set1(1.0f));
    return where_less(x, low, zero(), mul(p, floats(shl<23>(uadd(bits(shifted), uset1(127))))));
}

inline bool attend_covers(AttendSpan span, int column) { return span.first <= column && column + LANES <= span.last; }

// Makes scores of pair p's products, in place; top[16]: the largest visible ones by lane. A NaN may or may not show
// there.
inline void attend_scale(const AttendArgs& args, const AttendPairs& pairs, int p, float* scores, float* top) {
    static constexpr float COLUMNS[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const AttendSpan span = pairs.spans[p];
    const V empty = set1(ATTEND_EMPTY);
    V best = empty;
    for (int c = 0; c < TILE; c += LANES) {
        if (span.first >= c + LANES || span.last <= c) continue;
        V s = mul(load(scores + c), set1(args.scale));
        if (args.softcap != 0.0f) s = attend_cap(s, args.softcap);
        if (args.slopes) {
            const V from = add(set1(static_cast<float>(pairs.distance[p] + c)), load(COLUMNS));
            s = fma(set1(pairs.slope[p]), from, s);
        }
        store(scores + c, s);
        best = max(attend_covers(span, c) ? s : where_lanes(span.first - c, span.last - c, s, empty), best);
    }
    store(top, best);
}

// Scores of one pair become p = exp(s - top), +0 in hidden columns.
template <bool ROUNDED> inline void attend_exp(AttendSpan span, float top, float* scores) {
    for (int c = 0; c < TILE; c += LANES) {
        V p = zero();
        if (span.first < c + LANES && span.last > c) {
            p = attend_decay(sub(load(scores + c), set1(top)));
            if constexpr (ROUNDED) p = round_bf16(p);
            if (!attend_covers(span, c)) p = where_lanes(span.first - c, span.last - c, p, zero());
        }
        store(scores + c, p);
    }
}

// Adds the order-1 sum of 64 weights to l, block by block. Weights are never negative, so hidden zeros change nothing.
inline float attend_sum(const float* p, float l) {
    AttendFour chain = {};  // even and odd of block 0, of block 1
    for (int i = 0; i < BLOCK; i += 2) chain += attend_four(p + i, p + BLOCK + i);
    l += chain[0] + chain[1];
    return l + (chain[2] + chain[3]);
}

// One tile's softmax step for `count` pairs: scores become weights, m and l of the states move on, alpha[pair] is what
// the sums of earlier tiles are worth now. A NaN among the visible scores makes m and l NaN for good, so that the state
// cannot pass for an empty one.
template <bool ROUNDED>
inline void attend_softmax(const AttendCall& call, const AttendPairs& pairs, int count, float* scores, float* states,
                           float* alpha) {
    float lanes[ATTEND_PAIRS][LANES], top[ATTEND_PAIRS], change[LANES] = {};
    for (int p = 0; p < count; ++p) attend_scale(call.args, pairs, p, scores + p * TILE, lanes[p]);
    for (int p = 0; p < count; ++p) {
        const float before = states[p * call.stride], largest = attend_largest(lanes[p]);
        top[p] = largest > before ? largest : before;
        change[p] = before - top[p];
    }
    store(alpha, attend_decay(load(change)));
    for (int p = 0; p < count; ++p) attend_exp<ROUNDED>(pairs.spans[p], top[p], scores + p * TILE);
    for (int p = 0; p < count; ++p) {
        float* state = states + p * call.stride;
        state[1] = attend_sum(scores + p * TILE, state[1] * alpha[p]);
        state[0] = state[1] != state[1] ? state[1] : top[p];
    }
}

// ---- weighted sum of V ----------------------------------------------------------------------------------------------

// One token of V for P pairs and D vectors of dims: chain = w * v + chain. With spans, who does not see it reads v as
// 0.
template <class S, int P, int D, int SIDE>
[[gnu::always_inline]] inline void attend_token(V (&chain)[P][D], const uint8_t* value, int width, int j,
                                                const float* weights, const AttendSpan* spans) {
    V v[D];
    for (int d = 0; d < D; ++d) v[d] = S::template load<SIDE>(value, j, width, d * LANES);
    for (int p = 0; p < P; ++p) {
        const bool seen = !spans || (spans[p].first <= 2 * j + SIDE && 2 * j + SIDE < spans[p].last);
        const V w = set1(weights[p * TILE + 2 * j + SIDE]);
        for (int d = 0; d < D; ++d) chain[p][d] = fma(w, seen ? v[d] : zero(), chain[p][d]);
    }
}

template <class S, int P, int D>
[[gnu::always_inline]] inline void attend_step(V (&even)[P][D], V (&odd)[P][D], const uint8_t* value, int width, int j,
                                               const float* weights, const AttendSpan* spans) {
    attend_token<S, P, D, 0>(even, value, width, j, weights, spans);
    attend_token<S, P, D, 1>(odd, value, width, j, weights, spans);
}

// What one group of pairs needs for its weighted sums of a tile.
struct AttendSums {
    const float* weights;               // [P][64]
    const float* alpha;                 // [P]
    AttendSpan (*spans)[ATTEND_PAIRS];  // [2 blocks][P]
    AttendReach reach[2];
    float* states;
    size_t stride;
};

// A run of dims of one group's sums.
struct AttendDims {
    const uint8_t* value[2];  // the blocks' V at the first of them
    const uint8_t* ahead[2];  // what to prefetch while at it
    int width;                // dims of a token's row
    int dim, lanes;           // place in the states; lanes < 16 only in the tail
};

// sums = sums * alpha + (even + odd) after block 0, sums * 1 + (even + odd) after block 1.
template <int P, int D>
[[gnu::always_inline]] inline void attend_close(V (&even)[P][D], V (&odd)[P][D], const AttendSums& job,
                                                const AttendDims& dims, int b) {
    if (job.reach[b].last < BLOCK / 2) {  // hidden columns behind
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
            for (int d = 0; d < D; ++d) even[p][d] = add(even[p][d], zero()), odd[p][d] = add(odd[p][d], zero());
    }
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
        const V alpha = set1(b ? 1.0f : job.alpha[p]);
        float* place = job.states + p * job.stride + 2 + dims.dim;
#pragma GCC unroll 8
        for (int d = 0; d < D; ++d, place += LANES) {
            const V block = add(even[p][d], odd[p][d]);
            if constexpr (D == 1)
                store_part(place, add(mul(load_part(place, dims.lanes), alpha), block), dims.lanes);
            else
                store(place, add(mul(load(place), alpha), block));
        }
    }
}

// A block whose visible token pairs are the same for all P.
template <class S, int P, int D>
[[gnu::noinline]] void attend_even_block(const AttendSums& job, const AttendDims& dims, int b) {
    V even[P][D], odd[P][D];
    for (int p = 0; p < P; ++p)
        for (int d = 0; d < D; ++d) even[p][d] = odd[p][d] = zero();
    const uint8_t *value = dims.value[b], *ahead = dims.ahead[b];
    const float* weights = job.weights + b * BLOCK;
    const int width = dims.width, last = job.reach[b].last;
    for (int j = job.reach[b].first; j < last; ++j) {
        for (int d = 0; d < D; ++d) S::prefetch(ahead, j, width, d * LANES);
        attend_step<S, P, D>(even, odd, value, width, j, weights, nullptr);
    }
    attend_close<P, D>(even, odd, job, dims, b);
}

// A block that some of the P see less of than others, or whose first or last token pair is half visible.
template <class S, int P, int D>
[[gnu::noinline]] void attend_ragged_block(const AttendSums& job, const AttendDims& dims, int b) {
    V even[P][D], odd[P][D];
    for (int p = 0; p < P; ++p)
        for (int d = 0; d < D; ++d) even[p][d] = odd[p][d] = zero();
    const AttendReach reach = job.reach[b];
    const AttendSpan* spans = job.spans[b];
    const uint8_t* value = dims.value[b];
    const float* weights = job.weights + b * BLOCK;
    const int width = dims.width;
    int j = reach.first;
    for (; j < reach.all_first; ++j) attend_step<S, P, D>(even, odd, value, width, j, weights, spans);
    for (; j < reach.all_last; ++j) attend_step<S, P, D>(even, odd, value, width, j, weights, nullptr);
    for (; j < reach.last; ++j) attend_step<S, P, D>(even, odd, value, width, j, weights, spans);
    attend_close<P, D>(even, odd, job, dims, b);
}

// Adds a tile's two blocks to dims [dim, dim + 16 D) of the sums; V's dim `from` belongs to the first of them.
template <class S, int P, int D>
inline void attend_values(const AttendSums& job, const AttendTile& tile, const AttendTile& ahead, AttendDims dims,
                          int from) {
    for (int b = 0; b < 2; ++b) {
        const AttendReach& reach = job.reach[b];
        if (tile.value[b]) dims.value[b] = S::at(tile.value[b], 0, 0, from);
        dims.ahead[b] = ahead.value[b] ? S::at(ahead.value[b], 0, 0, from) : dims.value[b];
        if (reach.first == reach.all_first && reach.last == reach.all_last)
            attend_even_block<S, P, D>(job, dims, b);
        else
            attend_ragged_block<S, P, D>(job, dims, b);
    }
}

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

template <class S, int P>
void attend_group(const AttendCall& call, const AttendTile (&tiles)[3], const float* q, const AttendPairs& pairs,
                  float* states) {
    constexpr int D = attend_dim_vectors(P);
    const auto& [tile, ahead, tail] = tiles;
    alignas(64) float weights[P * TILE];
    alignas(64) float alpha[LANES];
    AttendSpan parts[2][ATTEND_PAIRS];
    AttendSums job = {weights, alpha, parts, {}, states, call.stride};
    for (int b = 0; b < 2; ++b) {
        for (int p = 0; p < P; ++p) parts[b][p] = attend_part(pairs.spans[p], b);
        job.reach[b] = attend_reach(parts[b], P);
        if (!job.reach[b].last) continue;
        const uint8_t* next = ahead.key[b] ? ahead.key[b] : tile.key[b];
        attend_scores<S, P>(q, call.args.kv.key_dim, tile.key[b], next, weights + b * BLOCK);
    }
    attend_softmax<S::ROUNDED>(call, pairs, P, weights, states, alpha);
    const int width = call.args.kv.value_dim, whole = width - call.tail;
    AttendDims dims = {{}, {}, width, 0, LANES};
    for (; dims.dim + D * LANES <= whole; dims.dim += D * LANES)
        attend_values<S, P, D>(job, tile, ahead, dims, dims.dim);
    for (; dims.dim < whole; dims.dim += LANES) attend_values<S, P, 1>(job, tile, ahead, dims, dims.dim);
    if (call.tail) attend_values<S, P, 1>(job, tail, tail, {{}, {}, LANES, whole, call.tail}, 0);
}

template <class S>
void attend_groups(int count, const AttendCall& call, const AttendTile (&tiles)[3], const float* q,
                   const AttendPairs& pairs, float* states) {
    switch (count) {
        case 1: return attend_group<S, 1>(call, tiles, q, pairs, states);
        case 2: return attend_group<S, 2>(call, tiles, q, pairs, states);
        case 3: return attend_group<S, 3>(call, tiles, q, pairs, states);
    }
    if constexpr (ATTEND_PAIRS == 6) {
        switch (count) {
            case 4: return attend_group<S, 4>(call, tiles, q, pairs, states);
            case 5: return attend_group<S, 5>(call, tiles, q, pairs, states);
            case 6: return attend_group<S, 6>(call, tiles, q, pairs, states);
        }
    }
}

// ---- the chunk ------------------------------------------------------------------------------------------------------

// Columns of the tile at `start` that the row at `index` sees: j <= index and, with a window, j > index - window.
inline AttendSpan attend_visible(const AttendArgs& args, int row, int start) {
    const int index = args.first_index + row, from = args.window ? index - args.window + 1 : 0;
    const int first = from > start ? from - start : 0, last = index + 1 - start < TILE ? index + 1 - start : TILE;
    return {first, last};
}

template <class S> inline AttendTile attend_locate(const AttendArgs& args, int start, AttendSpan seen) {
    AttendTile tile = {};
    for (int b = 0; b < 2; ++b) {
        if (seen.empty() || attend_part(seen, b).empty()) continue;
        const size_t block = static_cast<size_t>(args.table[start / BLOCK + b]) * args.kv.block_bytes;
        tile.key[b] = args.kv.pool + block + args.kv.layer_offset + args.kv_head * args.kv.head_bytes;
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

// Pairs [begin, end) of the call (pair = row * group + head) over the whole chunk. q: theirs, prepared.
template <class S>
void attend_pairs(const AttendCall& call, int chunk, int begin, int end, const float* q, float* partial) {
    const AttendArgs& args = call.args;
    alignas(64) uint8_t copy[2 * BLOCK * LANES * 4] = {};
    const int first_row = begin / args.group, last_row = (end - 1) / args.group;
    auto seen = [&](int start) {  // of the tile, by any row: both ends of a span only grow with the row
        AttendSpan span = {attend_visible(args, first_row, start).first, attend_visible(args, last_row, start).last};
        return start < (chunk + 1) * CHUNK && span.last > 0 && span.first < TILE ? span : AttendSpan{0, 0};
    };
    for (int start = chunk * CHUNK; start < (chunk + 1) * CHUNK; start += TILE) {
        if (seen(start).empty()) continue;
        int from = begin, to = end, group = args.group;  // rows that see nothing of the tile skip it
        while (attend_visible(args, from / group, start).last <= 0) from = (from / group + 1) * group;
        while (attend_visible(args, (to - 1) / group, start).first >= TILE) to = (to - 1) / group * group;
        AttendTile tiles[3] = {attend_locate<S>(args, start, seen(start)),
                               attend_locate<S>(args, start + TILE, seen(start + TILE)), {}};
        if (call.tail) tiles[2] = attend_tail<S>(call, tiles[0], copy);
        for (int pair = from, groups = (to - from + ATTEND_PAIRS - 1) / ATTEND_PAIRS; pair < to; --groups) {
            const int count = (to - pair + groups - 1) / groups;
            AttendPairs pairs;
            for (int p = 0; p < count; ++p) {
                const int row = (pair + p) / group;
                pairs.spans[p] = attend_visible(args, row, start);
                pairs.distance[p] = start - args.first_index - row;
                pairs.slope[p] = args.slopes ? args.slopes[(pair + p) % group] : 0.0f;
            }
            const float* rows = q + static_cast<size_t>(pair - begin) * args.kv.key_dim;
            attend_groups<S>(count, call, tiles, rows, pairs, partial + pair * call.stride);
            tiles[1] = tiles[0];  // one group is enough to fetch the next tile
            pair += count;
        }
    }
}

template <class S> void attend_any(const AttendArgs& args, int chunk, float* partial) {
    const AttendCall call = {args, partial_floats(args.kv.value_dim), args.kv.value_dim % LANES};
    const int pairs = args.rows * args.group, key_dim = args.kv.key_dim;
    const int most = ATTEND_Q / key_dim / ATTEND_PAIRS * ATTEND_PAIRS;
    for (int pair = 0; pair < pairs; ++pair) {
        float* state = partial + pair * call.stride;
        std::memset(state, 0, call.stride * sizeof(float));
        state[0] = ATTEND_EMPTY;
    }
    alignas(64) float q[ATTEND_Q];
    for (int begin = 0; begin < pairs; begin += most) {
        const int end = begin + most < pairs ? begin + most : pairs;
        for (int pair = begin; pair < end; ++pair) {
            const float* from = args.q + (pair / args.group) * args.q_stride +
                                static_cast<size_t>(args.kv_head * args.group + pair % args.group) * key_dim;
            float* to = q + static_cast<size_t>(pair - begin) * key_dim;
            for (int d = 0; d < key_dim; d += LANES) {
                const V x = load_part(from + d, key_dim - d);
                store_part(to + d, S::ROUNDED ? round_bf16(x) : x, key_dim - d);
            }
        }
        attend_pairs<S>(call, chunk, begin, end, q, partial);
    }
}

void attend_chunk(const AttendArgs& args, int chunk, float* partial) {
    if (args.kv.bf16)
        attend_any<AttendBf16>(args, chunk, partial);
    else
        attend_any<AttendF32>(args, chunk, partial);
}

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
