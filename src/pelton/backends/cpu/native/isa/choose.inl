// The choice of a token from one row of logits: logsumexp per vocabulary chunk, log-probabilities, filters, the draw.
// Not a sorter: every filter ends as one threshold on the scaled logits, found by counting or summing from a value on.
//
// Arithmetic. Beyond vocab_stats all is fp64 from + - x / in the order written (no libm; contraction is off; the fma
// below is the only one), or integer sums, whose order cannot matter; so the bits are the same on every ISA.
//  * Chunk: max; lowest argmax; sum of exp(x - max) in fp32 with the exp of simd.h: lane j of 16 adds x[first + j],
//    x[first + j + 16], ... ascending (lanes behind the end add +0), then lane j += lane j + 8, + 4, + 2, + 1.
//  * logsumexp: chunks in order; (m, s) from the first; then m' = max(m, cm) and
//    s = fma(cs, exp(cm - m'), s * exp(m - m')); at the end lse = m + log(s). A chunk of -inf only (all masked) adds
//    nothing; a row of such chunks, a NaN or +inf is a fault. logprob = fp32(logit - lse), from the raw logits.
//  * Edits, in fp32 and in this order, each rounded: + bias; a seen token times (below 0) or divided by the repetition
//    penalty; - (frequency * count); a token with a count - presence. NaN, which only infinities give, is -inf. Where
//    there are any, everything below is done on the edited row; nothing above.
//  * Greedy (temperature below 1e-5 in fp32, or a scaled maximum that is not finite): the lowest argmax.
//  * Scaled x = logit / temperature in fp32. min_p keeps x >= xmax + log(min_p), top_k then x >= the k-th largest (ties
//    kept). top_p then goes down by x, ties by lower id, and keeps a token while the mass before it is below top_p
//    times the mass of all that is kept so far: the shortest prefix that reaches it, never empty. A token's mass is
//    exp(x - xmax) * 2^44 rounded to an integer (ties to even), for vocabularies below 2^19.
//  * Draw: among the kept the largest x + g, ties to the lower id. Philox4x32-10 with key = seed (low, high word) and
//    counter (place, id / 4, child, 0); w = output word id mod 4; u = (w + 0.5) / 2^32; E = -log(1 - u); g = -log(E).

// ---- fp64 exponential and logarithm ----

// e^x to about 1 ulp for x up to 700; 0 below -700.
inline double exp_double(double x) {
    const double magic = 0x1.8p52;
    double shifted = x * 0x1.71547652b82fep+0 + magic;  // n = nearest integer to x / ln 2, in the low mantissa bits
    double n = shifted - magic;
    double r = (x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    uint64_t power = (__builtin_bit_cast(uint64_t, shifted) << 52) + 0x3ff0000000000000u;  // 2^n
    double y = p * __builtin_bit_cast(double, power);
    return x < -700.0 ? 0.0 : y;
}

// ln x to about 2 ulp, relative also near 1, for positive normal x = 2^e m: ln m = 2 artanh((m - 1) / (m + 1)).
inline double log_double(double x) {
    uint64_t bits = __builtin_bit_cast(uint64_t, x);
    int64_t e = static_cast<int64_t>(bits - 0x3fe6a09e667f3bcdu) >> 52;  // m in [sqrt(1/2), sqrt(2))
    double f = __builtin_bit_cast(double, bits - (static_cast<uint64_t>(e) << 52)) - 1.0, k = static_cast<double>(e);
    double s = f / (2.0 + f), z = s * s;
    double p = 1.0 / 21.0;
    p = p * z + 1.0 / 19.0;
    p = p * z + 1.0 / 17.0;
    p = p * z + 1.0 / 15.0;
    p = p * z + 1.0 / 13.0;
    p = p * z + 1.0 / 11.0;
    p = p * z + 1.0 / 9.0;
    p = p * z + 1.0 / 7.0;
    p = p * z + 1.0 / 5.0;
    p = p * z + 1.0 / 3.0;
    s += s;
    return k * 0x1.62e42fee00000p-1 + (s + (s * z * p + k * 0x1.a39ef35793c76p-33));
}

// ---- statistics of a chunk and of a row ----

constexpr float INF = __builtin_inff();

struct Peak {
    float max;
    int argmax;  // lowest index that holds it
    bool nan;
};

// Of up to 2^24 numbers, the largest.
inline Peak peak_of(const float* x, int count) {
    const V outside = set1(-INF), one = set1(1.0f), step = set1(16.0f);
    float index[16], lanes[16], at[16], wrong[16];
    for (int j = 0; j < 16; ++j) index[j] = static_cast<float>(j);
    V best = outside, where = load(index), here = where, nan = zero();
    for (int i = 0; i < count; i += 16) {
        V v = count - i >= 16 ? load(x + i) : where_lanes(0, count - i, load_part(x + i, count - i), outside);
        nan = where_nan(v, one, nan);
        where = where_less(best, v, here, where);
        best = max(v, best);  // a NaN gives `best` back
        here = add(here, step);
    }
    store(lanes, best);
    store(at, where);
    store(wrong, nan);
    int lane = 0;
    bool bad = wrong[0] != 0.0f;
    for (int j = 1; j < 16; ++j) {
        bad |= wrong[j] != 0.0f;
        if (lanes[j] > lanes[lane] || (lanes[j] == lanes[lane] && at[j] < at[lane])) lane = j;
    }
    return {lanes[lane], static_cast<int>(at[lane]), bad};
}

ChunkStats vocab_stats(const float* logits, int first, int count) {
    const float* x = logits + first;
    const Peak peak = peak_of(x, count);
    if (peak.nan || peak.max == INF) return {INF, first, 0.0f, 1};
    if (peak.max == -INF) return {-INF, first, 0.0f, 1};

    float lanes[16];
    V sum = zero();
    const V shift = set1(peak.max);
    int whole = count & ~15;
    for (int i = 0; i < whole; i += 16) sum = add(sum, exp(sub(load(x + i), shift)));
    if (whole < count) {
        V rest = exp(sub(load_part(x + whole, count - whole), shift));
        sum = add(sum, where_lanes(0, count - whole, rest, zero()));
    }
    store(lanes, sum);
    for (int half = 8; half; half >>= 1)
        for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    return {peak.max, first + peak.argmax, lanes[0], 0};
}

struct RowStats {
    float max;
    int argmax;
    bool bad;
    double lse;
};

inline RowStats merge_stats(const ChunkStats* chunks, int count) {
    RowStats row = {-INF, 0, false, 0.0};
    double s = 0.0;
    for (int i = 0; i < count; ++i) {
        const ChunkStats& c = chunks[i];
        if (c.bad && c.max != -INF) return {0.0f, 0, true, 0.0};
        if (c.max == -INF) continue;
        double m = row.max, cm = c.max;
        if (row.max == -INF) {
            s = c.sum;
        } else {
            double top = m > cm ? m : cm;
            s = __builtin_fma(static_cast<double>(c.sum), exp_double(cm - top), s * exp_double(m - top));
        }
        if (c.max > row.max) row.max = c.max, row.argmax = c.argmax;
    }
    row.bad = row.max == -INF;
    if (!row.bad) row.lse = row.max + log_double(s);
    return row;
}

// The `wanted` largest logits, ties by lower id; -1 and -inf where fewer are above -inf.
inline void top_logits(const float* logits, int vocab, int wanted, double lse, int32_t* ids, float* logprobs) {
    int found = 0;
    float last = -INF;  // what a logit must exceed to enter
    for (int i = 0; i < wanted; ++i) ids[i] = -1, logprobs[i] = -INF;
    if (wanted < 1) return;
    for (int start = 0; start < vocab; start += 64) {
        int end = vocab - start < 64 ? vocab : start + 64;
        int above = 0;
        for (int i = start; i < end; ++i) above += logits[i] > last;
        for (int i = start; above && i < end; ++i) {
            if (!(logits[i] > last)) continue;
            int place = found < wanted ? found++ : wanted - 1;
            for (; place && logits[i] > logprobs[place - 1]; --place) {
                ids[place] = ids[place - 1];
                logprobs[place] = logprobs[place - 1];
            }
            ids[place] = i;
            logprobs[place] = logits[i];
            if (found == wanted) last = logprobs[wanted - 1];
        }
    }
    for (int i = 0; i < found; ++i) logprobs[i] = static_cast<float>(logprobs[i] - lse);
}

// ---- filters ----

constexpr int GROUP = 64;              // tokens that share one maximum: 16 counters of Philox
constexpr double NO_MASS = -31.25;     // exp below this rounds to mass 0

// The scaled row in the scratch, padded with -inf to whole groups, and room for candidates.
struct Scaled {
    float* x;          // [groups * GROUP]
    float* group_max;  // [groups]
    float* candidate;  // [groups * GROUP]
    int64_t* mass;     // [groups * GROUP]
    int groups;
    float max;
};

// Which scaled logits may win: all above `lowest`, and those equal to it up to id `last_tie`.
struct Kept {
    float lowest;
    int last_tie;
};

inline Scaled scale_row(const float* logits, int vocab, float temperature, float scaled_max, void* scratch) {
    Scaled row;
    row.groups = (vocab + GROUP - 1) / GROUP;
    size_t padded_vocab = static_cast<size_t>(row.groups) * GROUP;
    row.mass = static_cast<int64_t*>(scratch);
    row.x = reinterpret_cast<float*>(row.mass + padded_vocab);
    row.candidate = row.x + padded_vocab;
    row.group_max = row.candidate + padded_vocab;
    row.max = scaled_max;
    const V divisor = set1(temperature), outside = set1(-INF);
    for (int g = 0; g < row.groups; ++g) {
        V top = outside;
        for (int i = g * GROUP; i < (g + 1) * GROUP; i += 16) {
            V v = outside;
            if (i < vocab) v = div(where_lanes(0, vocab - i, load_part(logits + i, vocab - i), outside), divisor);
            store(row.x + i, v);
            top = max(v, top);
        }
        float lanes[16];
        store(lanes, top);
        for (int half = 8; half; half >>= 1)
            for (int j = 0; j < half; ++j) lanes[j] = lanes[j] > lanes[j + half] ? lanes[j] : lanes[j + half];
        row.group_max[g] = lanes[0];
    }
    return row;
}

// Floats as unsigned numbers of the same order, and back.
inline uint32_t ordered(float x) {
    uint32_t u = bits_of(x);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
inline float unordered(uint32_t u) { return float_of(u & 0x80000000u ? u & 0x7fffffffu : ~u); }

inline int count_from(const float* x, int n, float lowest) {
    int count = 0;
    for (int i = 0; i < n; ++i) count += x[i] >= lowest;
    return count;
}

inline int64_t mass_from(const float* x, const int64_t* mass, int n, float lowest) {
    int64_t sum = 0;
    for (int i = 0; i < n; ++i) sum += x[i] >= lowest ? mass[i] : 0;
    return sum;
}

// The largest t in [low, high] with enough(t); enough(low) holds, and below a value where it holds it holds too.
template <class F> inline float largest_with(float low, float high, F enough) {
    uint32_t yes = ordered(low), no = ordered(high) + 1;
    while (no - yes > 1) {
        uint32_t middle = yes + (no - yes) / 2;
        (enough(unordered(middle)) ? yes : no) = middle;
    }
    return unordered(yes);
}

// Copies what is at least `lowest` into the candidates, ascending by id; returns how many.
inline int gather_from(const Scaled& row, float lowest) {
    int n = 0;
    for (int g = 0; g < row.groups; ++g) {
        if (!(row.group_max[g] >= lowest)) continue;
        for (int i = g * GROUP; i < (g + 1) * GROUP; ++i) {
            row.candidate[n] = row.x[i];
            n += row.x[i] >= lowest;
        }
    }
    return n;
}

// The k-th largest of the row (k at least 1, at most the row's length).
inline float kth_largest(const Scaled& row, int k) {
    float low = -INF;
    if (k <= row.groups)  // the k-th largest group maximum has at least k tokens from it on
        low = largest_with(-INF, row.max, [&](float t) { return count_from(row.group_max, row.groups, t) >= k; });
    int n = gather_from(row, low);
    return largest_with(low, row.max, [&](float t) { return count_from(row.candidate, n, t) >= k; });
}

inline int64_t mass_of(float x, float max) {
    double p = exp_double(static_cast<double>(x) - static_cast<double>(max));
    // The sum rounds to the integer, which is then the mantissa.
    return __builtin_bit_cast(int64_t, p * 0x1p44 + 0x1p52) - 0x4330000000000000;
}

inline int64_t total_mass(const Scaled& row, float lowest) {
    int64_t sum = 0;
    for (int g = 0; g < row.groups; ++g) {
        if (!(row.group_max[g] >= lowest) || row.group_max[g] - static_cast<double>(row.max) < NO_MASS) continue;
        for (int i = g * GROUP; i < (g + 1) * GROUP; ++i) {
            int64_t keep = row.x[i] >= lowest;
            sum += mass_of(row.x[i], row.max) & -keep;
        }
    }
    return sum;
}

// The id of tie number `count` (from 1) among the tokens equal to x.
inline int id_of_tie(const Scaled& row, float x, int64_t count) {
    for (int g = 0; g < row.groups; ++g) {
        if (!(row.group_max[g] >= x)) continue;
        for (int i = g * GROUP; i < (g + 1) * GROUP; ++i)
            if (row.x[i] == x && --count == 0) return i;
    }
    return row.groups * GROUP;
}

inline Kept keep_top_p(const Scaled& row, float lowest, float top_p) {
    double target = static_cast<double>(top_p) * static_cast<double>(total_mass(row, lowest));
    int64_t needed = static_cast<int64_t>(target);
    if (static_cast<double>(needed) < target || needed == 0) ++needed;
    // Everything that has mass is within 31.25 of the maximum, so the last round always finds enough.
    for (double depth = 4.0;; depth += depth) {
        float from = static_cast<float>(static_cast<double>(row.max) - depth);
        if (!(from > lowest)) from = lowest;
        int n = gather_from(row, from);
        int64_t sum = 0;
        for (int i = 0; i < n; ++i) sum += row.mass[i] = mass_of(row.candidate[i], row.max);
        if (sum < needed && from > lowest) continue;
        auto reaches = [&](float t) { return mass_from(row.candidate, row.mass, n, t) >= needed; };
        float border = largest_with(from, row.max, reaches);
        int64_t above = 0;
        for (int i = 0; i < n; ++i) above += row.candidate[i] > border ? row.mass[i] : 0;
        int64_t each = mass_of(border, row.max);
        if (each == 0) each = 1;
        return {border, id_of_tie(row, border, (needed - above + each - 1) / each)};
    }
}

inline Kept apply_filters(const Scaled& row, int vocab, const Sampling& wish) {
    float lowest = -INF;
    if (wish.min_p > 0.0f) {
        double least = static_cast<double>(row.max) + log_double(static_cast<double>(wish.min_p));
        lowest = static_cast<float>(least);
        if (static_cast<double>(lowest) < least) lowest = unordered(ordered(lowest) + 1);  // to the next float above
        if (lowest > row.max) lowest = row.max;
    }
    if (wish.top_k > 0 && wish.top_k < vocab) {
        float kth = kth_largest(row, wish.top_k);
        if (kth > lowest) lowest = kth;
    }
    if (wish.top_p < 1.0f) return keep_top_p(row, lowest, wish.top_p);
    return {lowest, row.groups * GROUP};
}

// ---- the draw ----

// The 64 words of noise of one group: Philox4x32-10 at 16 consecutive counters. Words are held in 64 bits, on which the
// widening products of every instruction set work.
inline void noise_words(const Sampling& wish, int group, uint32_t* words) {
    constexpr uint64_t mask = 0xffffffffu;
    uint64_t a[16], b[16], c[16], d[16], low_key = wish.seed & mask, high_key = wish.seed >> 32;
    for (int j = 0; j < 16; ++j) {
        a[j] = wish.place;
        b[j] = static_cast<uint64_t>(group) * 16 + static_cast<uint64_t>(j);
        c[j] = wish.child;
        d[j] = 0;
    }
    for (int round = 0; round < 10; ++round) {
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC unroll 1  // unrolled first, the loop would not be vectorised
#endif
        for (int j = 0; j < 16; ++j) {
            uint64_t p = 0xD2511F53u * a[j], q = 0xCD9E8D57u * c[j];
            a[j] = (q >> 32) ^ b[j] ^ low_key;
            c[j] = (p >> 32) ^ d[j] ^ high_key;
            b[j] = q & mask;
            d[j] = p & mask;
        }
        low_key = (low_key + 0x9E3779B9u) & mask;
        high_key = (high_key + 0xBB67AE85u) & mask;
    }
    for (int j = 0; j < 16; ++j) {
        words[4 * j] = static_cast<uint32_t>(a[j]);
        words[4 * j + 1] = static_cast<uint32_t>(b[j]);
        words[4 * j + 2] = static_cast<uint32_t>(c[j]);
        words[4 * j + 3] = static_cast<uint32_t>(d[j]);
    }
}

inline double gumbel(uint32_t word) {
    double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
    return -log_double(-log_double(1.0 - u));
}

struct Race {
    double score;
    int token;
};

// A token with logit x passes a score s only if g >= s - x; since E >= u, that needs u <= exp(x - s). So from a group's
// maximum follows the largest word that can still win; the slack covers every rounding, so no winner is skipped.
inline void race_group(const Scaled& row, const Kept& kept, const Sampling& wish, int group, Race& best) {
    double slack = 1e-6 + (best.score < 0.0 ? -best.score : best.score) * 0x1p-50;
    double lead = best.token < 0 ? 0.0 : row.group_max[group] - best.score + slack;
    if (lead < -23.0) return;  // the smallest u is 2^-33
    uint32_t highest = lead < 0.0 ? static_cast<uint32_t>(exp_double(lead) * 0x1p32) : 0xffffffffu;
    uint32_t words[GROUP];
    noise_words(wish, group, words);
    int hits = 0;
    for (int i = 0; i < GROUP; ++i) hits += words[i] <= highest;
    for (int i = 0; hits && i < GROUP; ++i) {
        int token = group * GROUP + i;
        float x = row.x[token];
        bool kept_here = x > kept.lowest || (x == kept.lowest && token <= kept.last_tie && x != -INF);
        if (words[i] > highest || !kept_here) continue;
        double score = static_cast<double>(x) + gumbel(words[i]);
        if (best.token < 0 || score > best.score || (score == best.score && token < best.token)) best = {score, token};
    }
}

inline int race(const Scaled& row, const Kept& kept, const Sampling& wish, int argmax) {
    Race best = {0.0, -1};
    race_group(row, kept, wish, argmax / GROUP, best);  // a good start prunes the rest
    for (int g = 0; g < row.groups; ++g)
        if (g != argmax / GROUP && row.group_max[g] >= kept.lowest) race_group(row, kept, wish, g, best);
    return best.token;
}

// ---- edits ----

// The edited row in the scratch, behind what scale_row lays out.
inline float* edit_row(const float* logits, int vocab, const Sampling& wish, Edits edits, void* scratch) {
    size_t whole = choose_scratch_bytes(vocab) - static_cast<size_t>((vocab + GROUP - 1) / GROUP * GROUP) * sizeof(float);
    float* row = reinterpret_cast<float*>(static_cast<uint8_t*>(scratch) + whole);
    const bool only_allowed = wish.flags & ONLY_ALLOWED;
    if (only_allowed)
        for (int i = 0; i < vocab; ++i) row[i] = -INF;
    else
        std::memcpy(row, logits, static_cast<size_t>(vocab) * sizeof(float));
    for (int i = 0; i < edits.count; ++i) {
        const Edit& edit = edits.first[i];
        if (only_allowed && !(edit.flags & ALLOWED)) continue;
        float x = logits[edit.token] + edit.bias;
        if (edit.flags & SEEN) x = x < 0.0f ? x * wish.repetition : x / wish.repetition;
        x -= wish.frequency * static_cast<float>(edit.count);
        if (edit.count > 0) x -= wish.presence;
        row[edit.token] = x == x ? x : -INF;
    }
    return row;
}

// The token drawn from a row whose largest logit is known.
inline int draw(const float* logits, int vocab, float max, int argmax, const Sampling& wish, void* scratch) {
    float scaled_max = max / wish.temperature;
    if (!(wish.temperature >= 1e-5f && scaled_max > -INF && scaled_max < INF)) return argmax;
    Scaled scaled = scale_row(logits, vocab, wish.temperature, scaled_max, scratch);
    return race(scaled, apply_filters(scaled, vocab, wish), wish, argmax);
}

inline Choice no_token(const Sampling& wish, int fault, int32_t* top_ids, float* top_logprobs) {
    for (int i = 0; i < wish.logprobs; ++i) top_ids[i] = -1, top_logprobs[i] = -INF;
    return {0, 0.0f, 0, fault};
}

Choice choose(const float* logits, int vocab, const ChunkStats* stats, const Sampling& wish, Edits edits, int32_t* top_ids,
              float* top_logprobs, void* scratch) {
    RowStats row = merge_stats(stats, (vocab + VOCAB_CHUNK - 1) / VOCAB_CHUNK);
    if (row.bad) return no_token(wish, FAULT_BAD_LOGITS, top_ids, top_logprobs);
    int token = wish.target;
    if (token < 0 && (edits.count || wish.flags & ONLY_ALLOWED)) {
        const float* edited = edit_row(logits, vocab, wish, edits, scratch);
        const Peak peak = peak_of(edited, vocab);
        if (peak.max == -INF) return no_token(wish, FAULT_NO_TOKEN, top_ids, top_logprobs);
        token = draw(edited, vocab, peak.max, peak.argmax, wish, scratch);
    } else if (token < 0) {
        token = draw(logits, vocab, row.max, row.argmax, wish, scratch);
    }
    Choice choice = {token, static_cast<float>(logits[token] - row.lse), 0, 0};
    if (wish.logprobs >= 0) {
        int larger = 0;
        float own = logits[token];
        for (int i = 0; i < vocab; ++i) larger += logits[i] > own;
        choice.rank = 1 + larger;
        top_logits(logits, vocab, wish.logprobs, row.lse, top_ids, top_logprobs);
    }
    return choice;
}
