// Attention, second half: a tile's weighted sum of V for some pairs. What it is not: it makes no weights and moves neither
// m nor l. Invariant: in hidden columns v reads as 0, whatever is stored there, and they change nothing but -0 into +0.

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

#if defined(PELTON_ISA_AVX512_BF16)
// Two pairs of tokens, from number j on, which all see. pairs: the weights of the block's first tokens, two by two.
template <int P, int D>
[[gnu::always_inline]] inline void attend_four_tokens(V (&even)[P][D], V (&odd)[P][D], const Weights<D>& v, int j, const Number* pairs) {
    for (int p = 0; p < P; ++p)
        for (int d = 0; d < D; ++d) {
            even[p][d] = v.times_even(pairs[p * TILE / 2 + j], d, even[p][d]);
            odd[p][d] = v.times_odd(pairs[p * TILE / 2 + j + 1], d, odd[p][d]);
        }
}
#endif

// What one group of pairs needs for its weighted sums of a tile.
struct AttendSums {
    const float* weights;               // [P][64]
#if defined(PELTON_ISA_AVX512_BF16)
    const Number* pairs;                // the same, [P][32], as `narrow` makes them
#endif
    const float* alpha;                 // [P]
    AttendSpan (*spans)[ATTEND_PAIRS];  // [2 blocks][P]
    AttendReach reach[2];
    float* const* states;               // [P]
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
        float* place = job.states[p] + 2 + dims.dim;
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
    for (int j = job.reach[b].first; j < last;) {
#if defined(PELTON_ISA_AVX512_BF16)
        if (j % 2 == 0 && j + 1 < last) {
            Weights<D> v;
            for (int d = 0; d < D; ++d) {
                S::prefetch(ahead, j, width, d * LANES);
                S::prefetch(ahead, j + 1, width, d * LANES);
                v.load_fours(S::at(value, j, width, d * LANES), S::at(value, j + 1, width, d * LANES), d);
            }
            attend_four_tokens<P, D>(even, odd, v, j, job.pairs + b * BLOCK / 2);
            j += 2;
            continue;
        }
#endif
        for (int d = 0; d < D; ++d) S::prefetch(ahead, j, width, d * LANES);
        attend_step<S, P, D>(even, odd, value, width, j++, weights, nullptr);
    }
    attend_close<P, D>(even, odd, job, dims, b);
}

#if defined(PELTON_ISA_AVX512_BF16)
// A block that all P see all of, from its fours.
template <int P, int D, bool FIRST>
[[gnu::noinline]] void attend_whole_block(const AttendSums& job, const AttendDims& dims, const uint8_t* fours) {
    V even[P][D], odd[P][D];
    attend_each<P, D>([&](auto p, auto d) { even[p][d] = odd[p][d] = zero(); });
    const int vectors = dims.width / LANES;
    const uint8_t* four = fours + attend_four_at(0, vectors, dims.dim / LANES);
    const size_t step = attend_four_at(1, vectors, 0);
    const Number* pairs = job.pairs + (FIRST ? 0 : BLOCK / 2);
    for (int j = 0; j < BLOCK / 2; j += 2, four += step) {
        Weights<D> v;
        repeat<D>([&](auto d) { attend_load_four(v, d, four, 0, vectors, d); });
        repeat<P>([&](auto p) __attribute__((always_inline)) {
            const Number first = pairs[p * TILE / 2 + j], second = pairs[p * TILE / 2 + j + 1];
            repeat<D>([&](auto d) { even[p][d] = v.times_even(first, d, even[p][d]); });
            repeat<D>([&](auto d) { odd[p][d] = v.times_odd(second, d, odd[p][d]); });
        });
    }
    attend_each<P, D>([&](auto p, auto d) {
        float* place = job.states[p] + 2 + dims.dim + d * LANES;
        const V before = load(place), block = add(even[p][d], odd[p][d]);
        store(place, add(FIRST ? mul(before, set1(job.alpha[p])) : before, block));
    });
}
#endif

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
#if defined(PELTON_ISA_AVX512_BF16)
        if (tile.value_fours[b] && attend_whole(reach)) {
            if (b) attend_whole_block<P, D, false>(job, dims, tile.value_fours[b]);
            else attend_whole_block<P, D, true>(job, dims, tile.value_fours[b]);
            continue;
        }
#endif
        dims.ahead[b] = ahead.value[b] ? S::at(ahead.value[b], 0, 0, from) : dims.value[b];
        if (reach.first == reach.all_first && reach.last == reach.all_last)
            attend_even_block<S, P, D>(job, dims, b);
        else
            attend_ragged_block<S, P, D>(job, dims, b);
    }
}
