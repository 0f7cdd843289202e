// What attention was worth: the logarithm of a row's softmax sum, and how much weight each key had from some rows.
// What it is not: no attention by itself; the LSEs come from it. Invariant: a key's sum takes rows in ascending order and
// a row's query heads in ascending order, one rounded addition each, however the rows are spread over calls.

// out[i] = m + log(l), in fp64, rounded once; -infinity for a state that saw nothing.
void attend_lse(const float* states, int count, int value_dim, float* out) {
    for (int i = 0; i < count; ++i, states += partial_floats(value_dim)) {
        const float m = states[0], l = states[1];
        out[i] = l > 0.0f ? static_cast<float>(static_cast<double>(m) + log_double(static_cast<double>(l))) : l == 0.0f ? ATTEND_EMPTY : l;
    }
}

// sums[0..64) += exp(score - lse) in the visible columns of one pair.
inline void attend_weigh(AttendSpan span, const float* scores, float lse, float* sums) {
    for (int c = 0; c < TILE; c += LANES) {
        if (span.first >= c + LANES || span.last <= c) continue;
        V p = exp(sub(load(scores + c), set1(lse)));
        if (!attend_covers(span, c)) p = where_lanes(span.first - c, span.last - c, p, zero());
        store(sums + c, add(load(sums + c), p));
    }
}

template <class S, int P>
void attend_column_group(const AttendArgs& args, const AttendTile& tile, const float* q, const AttendPairs& pairs, float* sums) {
    alignas(64) float scores[P * TILE];
    float top[LANES];
    for (int b = 0; b < 2; ++b)
        if (tile.key[b]) attend_scores<S, P>(q, args.kv.key_dim, tile.key[b], tile.key[b], scores + b * BLOCK);
    for (int p = 0; p < P; ++p) {
        attend_scale(args, pairs, p, scores + p * TILE, top);
        attend_weigh(pairs.spans[p], scores + p * TILE, *pairs.states[p], sums);
    }
}

template <class S>
void attend_columns_any(const AttendArgs& args, int first, int last, float* sums) {
    attend_batches<S>(args, 1, [&](AttendPair* batch, int count, const float* q) {
        for (int start = first * TILE; start < last * TILE; start += TILE) {
            const AttendRange range = attend_range(args, batch, count, start, last * TILE);
            const AttendTile tile = attend_locate<S>(args, start, range.seen);
            float* place = sums + (start - first * TILE);
            for (int pair = range.from; pair < range.to;) {
                AttendPairs pairs;
                const float* rows = q + static_cast<size_t>(pair) * args.kv.key_dim;
                if (range.to - pair >= 3) {
                    attend_next(args, batch, {pair, pair + 3, {}}, start, pair, pairs);
                    attend_column_group<S, 3>(args, tile, rows, pairs, place);
                } else {
                    attend_next(args, batch, {pair, pair + 1, {}}, start, pair, pairs);
                    attend_column_group<S, 1>(args, tile, rows, pairs, place);
                }
            }
        }
    });
}

void attend_columns(const AttendArgs& args, int first, int last, float* sums) {
    if (args.kv.bf16)
        attend_columns_any<AttendBf16>(args, first, last, sums);
    else
        attend_columns_any<AttendF32>(args, first, last, sums);
}
