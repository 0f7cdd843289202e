// Attention, first half: how K and V lie, scores of one tile for some pairs (row, query head), and the softmax step that
// turns them into weights. What it is not: it knows no rows, no sequences and no masks but a span of visible columns.
// Invariant: a pair's scores, weights, m and l depend on its q and its visible columns alone, to the bit.

#if defined(PELTON_MATRIX_UNIT)
constexpr int ATTEND_PAIRS = 16;   // rows of a tile register
constexpr int ATTEND_VECTORS = 1;
#elif defined(PELTON_ISA_AVX512)
constexpr int ATTEND_PAIRS = 6;    // pairs held in registers at once
constexpr int ATTEND_VECTORS = 2;  // token vectors beside them while scores are made
#if defined(PELTON_ISA_AVX512_BF16)
constexpr int attend_dim_vectors(int pairs) { return pairs <= 2 ? 4 : 2; }
#else
constexpr int attend_dim_vectors(int pairs) { return pairs <= 3 ? 4 : 2; }
#endif
#else
constexpr int ATTEND_PAIRS = 3;
constexpr int ATTEND_VECTORS = 1;
constexpr int attend_dim_vectors(int pairs) { return pairs == 1 ? 2 : 1; }
#endif
constexpr int ATTEND_Q = 8192;     // floats of q prepared at once, on the stack
constexpr int ATTEND_BATCH = 192;  // and pairs, at most; both a multiple of ATTEND_PAIRS in use
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

// Whether all pairs of the group see all of the block.
inline bool attend_whole(const AttendReach& reach) { return reach.all_first == 0 && reach.all_last == BLOCK / 2; }

// Where a tile's two blocks lie; null where no row of the call sees anything of a block.
struct AttendTile {
    const uint8_t* key[2];
    const uint8_t* value[2];
#if defined(PELTON_ISA_AVX512_BF16)
    const uint8_t* key_fours[2];    // null where they were not made
    const uint8_t* value_fours[2];
#endif
};

// What a group's pairs see of a tile, and where its first column stands from each pair's own index.
struct AttendPairs {
    AttendSpan spans[ATTEND_PAIRS];
    int distance[ATTEND_PAIRS];
    float slope[ATTEND_PAIRS];   // set where the call has slopes
    float* states[ATTEND_PAIRS];
};

// What stays the same for all tiles of a call.
struct AttendCall {
    const AttendArgs& args;
    int tail;  // value dims behind the last whole vector
};

// f(p, n) for all p < P and n < N. As constants, arrays of vectors indexed by them live in registers; where vectors are
// arrays themselves, or need no help, that would only take the compiler minutes.
template <int P, int N, class F>
[[gnu::always_inline]] inline void attend_each(F f) {
#if defined(PELTON_ISA_AVX512_BF16)
    repeat<P>([&](auto p) __attribute__((always_inline)) { repeat<N>([&](auto n) __attribute__((always_inline)) { f(p, n); }); });
#else
    for (int p = 0; p < P; ++p)
        for (int n = 0; n < N; ++n) f(p, n);
#endif
}

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
    // Always inline: by itself a function that does nothing else has no effect for the compiler, which drops its calls.
    [[gnu::always_inline]] static void prefetch(const uint8_t* block, int pair, int width, int lane) {
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
    [[gnu::always_inline]] static void prefetch(const uint8_t* block, int pair, int width, int lane) {
        __builtin_prefetch(at(block, pair, width, lane));
        __builtin_prefetch(at(block, pair, width, lane) + static_cast<size_t>(width) * 4);
    }
};

#if defined(PELTON_ISA_AVX512_BF16)
// ---- fours ----------------------------------------------------------------------------------------------------------

// K and V as products take them (Weights): of each four dims (K) or tokens (V) a vector of two side by side and one of the
// other two, for each run of 16 lanes. Made once of a tile that many groups of pairs look at; then a group need not put
// them together itself, which costs it as many instructions as half of its products.
constexpr int FOURS_DIMS = 512;  // key and value dims of the largest tiles of which they are made
constexpr int FOURS_GROUPS = 3;  // groups of pairs that make it worth while
constexpr size_t FOUR = 2 * LANES * sizeof(float);

inline size_t attend_four_at(int four, int vectors, int vector) { return (static_cast<size_t>(four) * vectors + vector) * FOUR; }

template <int N>
[[gnu::always_inline]] inline void attend_load_four(Weights<N>& into, int n, const uint8_t* fours, int four, int vectors, int vector) {
    const uint8_t* at = fours + attend_four_at(four, vectors, vector);
    into.even[n] = uload(at), into.odd[n] = uload(at + FOUR / 2);
}

// Of `pairs` rows of pairs, a multiple of 2, of `vectors` runs of lanes each.
inline void attend_make_fours(const uint8_t* side, const uint8_t* ahead, int pairs, int vectors, uint8_t* fours) {
    for (int pair = 0; pair < pairs; pair += 2) {
        for (int i = 0; i < vectors; ++i) {
            AttendBf16::prefetch(ahead, pair, vectors * LANES, i * LANES);
            AttendBf16::prefetch(ahead, pair + 1, vectors * LANES, i * LANES);
            Weights<1> made;
            made.load_fours(AttendBf16::at(side, pair, vectors * LANES, i * LANES), AttendBf16::at(side, pair + 1, vectors * LANES, i * LANES), 0);
            uint8_t* at = fours + attend_four_at(pair / 2, vectors, i);
            store(reinterpret_cast<float*>(at), floats(made.even[0]));
            store(reinterpret_cast<float*>(at + FOUR / 2), floats(made.odd[0]));
        }
    }
}
#endif

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

// scores[pair][0..32) = order-1 products of P rows of q with a block's K; lanes are tokens. multiply(even, odd, d, token)
// adds STEP dims from d on to the chains of T vectors of tokens. A last block of fewer than 32 dims stops early: its
// missing terms are fma(0, 0, chain), which is chain + 0.
template <int P, int STEP, class Multiply>
[[gnu::always_inline]] inline void attend_products(int key_dim, float* scores, Multiply multiply) {
    constexpr int T = ATTEND_VECTORS;
    for (int token = 0; token < BLOCK; token += T * LANES) {
        for (int start = 0; start < key_dim; start += BLOCK) {
            V even[P][T], odd[P][T];
            attend_each<P, T>([&](auto p, auto t) { even[p][t] = odd[p][t] = zero(); });
            const int end = start + BLOCK < key_dim ? start + BLOCK : key_dim;
            for (int d = start; d < end; d += STEP) multiply(even, odd, d, token);
            if (end - start < BLOCK)
                attend_each<P, T>([&](auto p, auto t) { even[p][t] = add(even[p][t], zero()), odd[p][t] = add(odd[p][t], zero()); });
            attend_each<P, T>([&](auto p, auto t) {
                float* place = scores + p * TILE + token + t * LANES;
                store(place, add(start ? load(place) : zero(), add(even[p][t], odd[p][t])));
            });
        }
    }
}

#if defined(PELTON_ISA_AVX512_BF16)
// Four dims of K from number d on. q: pairs as `narrow` makes them, each row in its own place.
template <int P, int T>
[[gnu::always_inline]] inline void attend_four_dims(V (&even)[P][T], V (&odd)[P][T], const float* q, int key_dim, const Weights<T>& k, int d) {
    for (int p = 0; p < P; ++p) {
        Number from[2];
        std::memcpy(from, q + p * key_dim + d / 2, sizeof from);
        for (int t = 0; t < T; ++t) {
            even[p][t] = k.times_even(from[0], t, even[p][t]);
            odd[p][t] = k.times_odd(from[1], t, odd[p][t]);
        }
    }
}

template <class S, int P>
[[gnu::noinline]] void attend_scores(const float* q, int key_dim, const uint8_t* key, const uint8_t* ahead, float* scores) {
    constexpr int T = ATTEND_VECTORS;
    attend_products<P, 4>(key_dim, scores, [&](auto& even, auto& odd, int d, int token) __attribute__((always_inline)) {
        Weights<T> k;
        for (int t = 0; t < T; ++t) {
            S::prefetch(ahead, d / 2, BLOCK, token + t * LANES);
            S::prefetch(ahead, d / 2 + 1, BLOCK, token + t * LANES);
            k.load_fours(S::at(key, d / 2, BLOCK, token + t * LANES), S::at(key, d / 2 + 1, BLOCK, token + t * LANES), t);
        }
        attend_four_dims<P, T>(even, odd, q, key_dim, k, d);
    });
}

// The same of a block's fours.
template <int P>
[[gnu::noinline]] void attend_scores_fours(const float* q, int key_dim, const uint8_t* fours, float* scores) {
    constexpr int T = ATTEND_VECTORS;
    attend_products<P, 4>(key_dim, scores, [&](auto& even, auto& odd, int d, int token) __attribute__((always_inline)) {
        Weights<T> k;
        for (int t = 0; t < T; ++t) attend_load_four(k, t, fours, d / 4, BLOCK / LANES, token / LANES + t);
        attend_four_dims<P, T>(even, odd, q, key_dim, k, d);
    });
}
#else
template <class S, int P>
[[gnu::noinline]] void attend_scores(const float* q, int key_dim, const uint8_t* key, const uint8_t* ahead,
                                     float* scores) {
    constexpr int T = ATTEND_VECTORS;
    attend_products<P, 2>(key_dim, scores, [&](auto& even, auto& odd, int d, int token) __attribute__((always_inline)) {
        for (int t = 0; t < T; ++t) S::prefetch(ahead, d / 2, BLOCK, token + t * LANES);
        attend_dims<S, P, T, 0>(even, q + d, key_dim, key, d / 2, token);
        attend_dims<S, P, T, 1>(odd, q + d + 1, key_dim, key, d / 2, token);
    });
}
#endif

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

#if defined(PELTON_ISA_AVX512_BF16)
// Whether attend_softmax_whole may take the place of attend_softmax, where all pairs see all of a tile.
inline bool attend_plain(const AttendArgs& args) { return args.softcap == 0.0f && !args.slopes && args.scale > 0.0f; }

// Each row's eight quads become one quad of each of eight vectors.
inline void attend_transpose(__m512i (&rows)[8]) {
    __m512i two[8], four[8];
    for (int i = 0; i < 8; i += 2) {
        two[i] = _mm512_unpacklo_epi64(rows[i], rows[i + 1]);      // quads 0, 2, 4, 6 of both
        two[i + 1] = _mm512_unpackhi_epi64(rows[i], rows[i + 1]);  // 1, 3, 5, 7
    }
    for (int i = 0; i < 8; i += 4) {
        for (int odd = 0; odd < 2; ++odd) {
            four[i + odd] = _mm512_shuffle_i64x2(two[i + odd], two[i + 2 + odd], 0x88);      // 0 and 4 (1 and 5) of four
            four[i + 2 + odd] = _mm512_shuffle_i64x2(two[i + odd], two[i + 2 + odd], 0xdd);  // 2 and 6 (3 and 7)
        }
    }
    for (int i = 0; i < 4; ++i) {
        rows[i] = _mm512_shuffle_i64x2(four[i], four[4 + i], 0x88);
        rows[4 + i] = _mm512_shuffle_i64x2(four[i], four[4 + i], 0xdd);
    }
}

// Order-1 sums of the weights of P pairs, which see all 64 of a tile: sums[2 pair + block] = (even, odd).
template <int P>
inline void attend_sums_whole(const Number* weights, float (*sums)[2]) {
    constexpr int ROWS = 2 * P;  // a row: the 32 weights of one block, of each four two and two side by side
    const __m512i ones = _mm512_set1_epi32(0x3f803f80);
    for (int first = 0; first < ROWS; first += 8) {
        __m512i rows[8];
        for (int i = 0; i < 8; ++i)
            rows[i] = first + i < ROWS ? _mm512_load_si512(weights + (first + i) * (BLOCK / 2)) : _mm512_setzero_si512();
        attend_transpose(rows);
        __m512 chains = _mm512_setzero_ps();
        for (int i = 0; i < 8; ++i) chains = _mm512_dpbf16_ps(chains, (__m512bh)rows[i], (__m512bh)ones);
        _mm512_store_ps(sums[first], chains);
    }
}

// attend_softmax of P pairs that see all of a tile, with plain scores: the same bits. weights: [P][32], as `narrow` makes
// them. The largest score is that of the largest product, since a positive factor and rounding keep their order.
template <int P>
inline void attend_softmax_whole(const AttendCall& call, const AttendPairs& pairs, const float* scores, float* alpha, Number* weights) {
    float top[P], change[LANES] = {};
    const V scale = set1(call.args.scale);
    for (int p = 0; p < P; ++p) {
        const float* own = scores + p * TILE;
        const V most = max(max(load(own), load(own + LANES)), max(load(own + 2 * LANES), load(own + 3 * LANES)));
        const float largest = _mm512_reduce_max_ps(most.v) * call.args.scale, before = pairs.states[p][0];
        top[p] = largest > before ? largest : before;
        change[p] = before - top[p];
    }
    store(alpha, attend_decay(load(change)));
    alignas(64) uint16_t places[32];
    for (int i = 0; i < 32; i += 4) {
        places[i] = static_cast<uint16_t>(i + 2), places[i + 1] = static_cast<uint16_t>(i);
        places[i + 2] = static_cast<uint16_t>(i + 3), places[i + 3] = static_cast<uint16_t>(i + 1);
    }
    const __m512i order = _mm512_load_si512(places);
    for (int p = 0; p < P; ++p) {
        const V largest = set1(top[p]);
        for (int b = 0; b < 2; ++b) {
            const float* own = scores + p * TILE + b * BLOCK;
            const V low = attend_decay(sub(mul(load(own), scale), largest));
            const V high = attend_decay(sub(mul(load(own + LANES), scale), largest));
            const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(high.v, low.v);
            _mm512_store_si512(weights + p * TILE / 2 + b * BLOCK / 2, _mm512_permutexvar_epi16(order, rounded));
        }
    }
    alignas(64) float sums[(2 * P + 7) / 8 * 8][2];
    attend_sums_whole<P>(weights, sums);
    for (int p = 0; p < P; ++p) {
        float* state = pairs.states[p];
        const float first = sums[2 * p][0] + sums[2 * p][1], second = sums[2 * p + 1][0] + sums[2 * p + 1][1];
        state[1] = (state[1] * alpha[p] + first) + second;
        state[0] = state[1] != state[1] ? state[1] : top[p];
    }
}
#endif

// One tile's softmax step for `count` pairs: scores become weights, m and l of the states move on, alpha[pair] is what
// the sums of earlier tiles are worth now. A NaN among the visible scores makes m and l NaN for good, so that the state
// cannot pass for an empty one.
template <bool ROUNDED>
inline void attend_softmax(const AttendCall& call, const AttendPairs& pairs, int count, float* scores, float* alpha) {
    float lanes[ATTEND_PAIRS][LANES], top[ATTEND_PAIRS], change[LANES] = {};
    for (int p = 0; p < count; ++p) attend_scale(call.args, pairs, p, scores + p * TILE, lanes[p]);
    for (int p = 0; p < count; ++p) {
        const float before = pairs.states[p][0], largest = attend_largest(lanes[p]);
        top[p] = largest > before ? largest : before;
        change[p] = before - top[p];
    }
    store(alpha, attend_decay(load(change)));
    for (int p = 0; p < count; ++p) attend_exp<ROUNDED>(pairs.spans[p], top[p], scores + p * TILE);
    for (int p = 0; p < count; ++p) {
        float* state = pairs.states[p];
        state[1] = attend_sum(scores + p * TILE, state[1] * alpha[p]);
        state[0] = state[1] != state[1] ? state[1] : top[p];
    }
}
