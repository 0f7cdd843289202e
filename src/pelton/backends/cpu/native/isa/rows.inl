// Work on one row: gathering and preparing it, norms, activations, rotary positions, writing keys and values.
// What it is not: work on several rows; a row knows nothing of the others. Full vectors and tails do the same
// arithmetic, and every sum over a row is an order-1 sum.

// ---- the embedding gather ----

// Bits [at, at + bits) of element i of an array of 16-bit (or 32-bit) words.
template <class Word>
inline int bits_at(const uint8_t* words, int i, int at, int bits) {
    Word word;
    std::memcpy(&word, words + static_cast<size_t>(i) * sizeof(Word), sizeof(Word));
    return static_cast<int>(static_cast<uint32_t>(word) >> at & ((1u << bits) - 1u));
}

// The number that is stored for k in codes of less than a byte.
inline int stored_code(Codes kind, const uint8_t* codes, int k, int lane) {
    constexpr size_t nibbles = BLOCK / 2 * PANEL, crumbs = BLOCK / 4 * PANEL;
    const int word = k / 8 * PANEL + lane, in_word = k % 8;
    switch (kind) {
    case Codes::fives:
        return bits_at<uint32_t>(codes, word, 4 * in_word, 4) | bits_at<uint32_t>(codes + nibbles, lane, k, 1) << 4;
    case Codes::sixes:
        return bits_at<uint32_t>(codes, word, 4 * in_word, 4) | bits_at<uint16_t>(codes + nibbles, word, 2 * in_word, 2) << 4;
    case Codes::crumbs:
        return bits_at<uint16_t>(codes, word, 2 * in_word, 2);
    case Codes::threes:
        return bits_at<uint16_t>(codes, word, 2 * in_word, 2) | bits_at<uint32_t>(codes + crumbs, lane, k, 1) << 2;
    default:
        return bits_at<uint32_t>(codes, word, 4 * in_word, 4);
    }
}

// A stored weight or code; codes: of the K-block, k: its place there, lane: its output in the panel.
template <Format F>
inline float stored(const uint8_t* codes, int k, int lane) {
    constexpr const Layout& l = layout(F);
    if constexpr (l.codes == Codes::f32) {
        float x;
        std::memcpy(&x, codes + (k * PANEL + lane) * 4, 4);
        return x;
    } else if constexpr (l.codes == Codes::bf16) {
        return from_bf16(halves(codes)[(k / 2 * PANEL + lane) * 2 + k % 2]);
    } else if constexpr (l.codes == Codes::f16) {
        return from_f16(halves(codes)[k * PANEL + lane]);
    } else if constexpr (l.codes == Codes::int8) {
        return static_cast<float>(static_cast<int8_t>(codes[(k / 4 * PANEL + lane) * 4 + k % 4]));
    } else {
        const int code = stored_code(l.codes, codes, k, lane);
        return static_cast<float>(l.levels ? IQ4_LEVELS[code] : code - l.minus);
    }
}

// Scale number 0 or 1 of one output in K-block b; the numbers behind the scales are the minima.
template <Format F>
inline float stored_scale(const Matrix& m, const uint8_t* panel, int b, int number, int lane) {
    const uint8_t* block = block_at<F>(panel, b);
    if constexpr (layout(F).nested) {
        const float factor = static_cast<float>(static_cast<int8_t>(block[number * PANEL + lane]));
        return factor * from_f16(halves(head_at<F>(panel, b))[number / layout(F).scales * PANEL + lane]);
    }
    if constexpr (layout(F).span == 0) {
        float scale;
        std::memcpy(&scale, panel + blocks_bytes(F, m.blocks) + lane * 4, 4);
        return scale;
    }
    return from_f16(halves(layout(F).span > 1 ? head_at<F>(panel, b) : block)[number * PANEL + lane]);
}

// Where there are scales: scale * code (+ minimum) with a rounding after each operation, as program/formats.py decodes.
template <Format F>
inline void gather(const Matrix& m, int row, float scale, float* out) {
    constexpr const Layout& l = layout(F);
    const uint8_t* panel = m.data + static_cast<size_t>(row / PANEL) * m.panel_bytes;
    const int lane = row % PANEL;
    for (int first = 0; first < m.cols; first += BLOCK) {
        const uint8_t* block = block_at<F>(panel, first / BLOCK);
        float scales[2] = {1.0f, 1.0f}, minima[2] = {}; // of the halves
        for (int half = 0; half < 2 && l.scales; ++half) {
            const int number = l.scales == 2 ? half : 0;
            scales[half] = stored_scale<F>(m, panel, first / BLOCK, number, lane);
            if (l.minima)
                minima[half] = stored_scale<F>(m, panel, first / BLOCK, l.scales + number, lane);
        }
        const int count = m.cols - first < BLOCK ? m.cols - first : BLOCK;
        for (int k = 0; k < count; ++k) {
            float w = stored<F>(block + scale_bytes(F), k, lane);
            if (l.scales)
                w = scales[k / (BLOCK / 2)] * w;
            if (l.minima)
                w = w + minima[k / (BLOCK / 2)];
            out[first + k] = w * scale;
        }
    }
}

static void gather_row(const Matrix& m, int row, float scale, float* out) {
    by_format(m.format, [&](auto format) { gather<format>(m, row, scale, out); });
}

// ---- norms and preparation ----

// Order-1 sum of squares of one block of up to 32 numbers. What is missing counts as zero and changes no chain.
inline float block_of_squares(const float* x, int count) {
    float even = 0.0f, odd = 0.0f;
    int k = 0;
    for (; k + 2 <= count; k += 2) {
        even = std::fma(x[k], x[k], even);
        odd = std::fma(x[k + 1], x[k + 1], odd);
    }
    if (k < count)
        even = std::fma(x[k], x[k], even);
    return even + odd;
}

// 1 / sqrt(mean of squares + eps).
inline float inverse_rms(const float* x, float eps, int n) {
    float sum = 0.0f;
    for (int first = 0; first < n; first += BLOCK) {
        const int left = n - first;
        sum += block_of_squares(x + first, left < BLOCK ? left : BLOCK);
    }
    return 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
}

// Order-1 sum of `count` numbers, a block or half of one: fma(x, 1, chain) is a plain sum.
inline float block_sum(const float* x, int count) {
    float even = 0.0f, odd = 0.0f;
    for (int k = 0; k < count; k += 2) {
        even += x[k];
        odd += x[k + 1];
    }
    return even + odd;
}

static void prepare(const float* x, const float* gain, float eps, int n, bool round, float* out, float* sums,
                    bool halves) {
    const V inverse = set1(gain ? inverse_rms(x, eps, n) : 1.0f);
    const int width = padded(n);
    for (int i = 0; i < width; i += LANES) {
        const int left = n - i;
        V y = left > 0 ? load_part(x + i, left) : zero();
        if (gain)
            y = mul(mul(y, inverse), left > 0 ? load_part(gain + i, left) : zero());
        if (round)
            y = round_bf16(y);
        if (left < LANES)
            y = where_lanes(0, left, y, zero()); // 0 * infinity must not reach the padding
        store(out + i, y);
    }
    const int blocks = width / BLOCK;
    for (int b = 0; sums && b < blocks; ++b)
        sums[b] = block_sum(out + b * BLOCK, BLOCK);
    for (int i = 0; sums && halves && i < 2 * blocks; ++i)
        sums[blocks + i] = block_sum(out + i * (BLOCK / 2), BLOCK / 2);
}

static void rms_norm(const float* x, const float* gain, float eps, int n, float* out) {
    const V inverse = set1(inverse_rms(x, eps, n));
    for (int i = 0; i < n; i += LANES)
        store_part(out + i, mul(mul(load_part(x + i, n - i), inverse), load_part(gain + i, n - i)), n - i);
}

// Order-1 sum of n numbers, each taken less `mean` and then squared (SQUARES) or as it is.
template <bool SQUARES>
inline float sum_of(const float* x, float mean, int n) {
    float sum = 0.0f;
    for (int first = 0; first < n; first += BLOCK) {
        const int count = n - first < BLOCK ? n - first : BLOCK;
        float chains[2] = {0.0f, 0.0f};
        for (int k = 0; k < count; ++k) {
            const float d = x[first + k] - mean;
            chains[k % 2] = SQUARES ? std::fma(d, d, chains[k % 2]) : chains[k % 2] + x[first + k];
        }
        // What is missing is added as zeros, which makes a +0 of a -0 that a flushed sum may have left.
        if (count < BLOCK - 1)
            chains[0] += 0.0f;
        if (count < BLOCK)
            chains[1] += 0.0f;
        sum += chains[0] + chains[1];
    }
    return sum;
}

static void layer_norm(const float* x, const float* gain, const float* bias, float eps, int n, float* out) {
    const float mean = sum_of<false>(x, 0.0f, n) / static_cast<float>(n);
    const V centre = set1(mean);
    const V inverse = set1(1.0f / std::sqrt(sum_of<true>(x, mean, n) / static_cast<float>(n) + eps));
    for (int i = 0; i < n; i += LANES) {
        const int left = n - i;
        V y = mul(mul(sub(load_part(x + i, left), centre), inverse), load_part(gain + i, left));
        if (bias)
            y = add(y, load_part(bias + i, left));
        store_part(out + i, y, left);
    }
}

// ---- element-wise ----

// out[i] = f(a[i], b[i]), n elements of any number.
template <class F>
inline void each_pair(const float* a, const float* b, size_t n, float* out, F f) {
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        store(out + i, f(load(a + i), load(b + i)));
    const int left = static_cast<int>(n - i);
    if (left)
        store_part(out + i, f(load_part(a + i, left), load_part(b + i, left)), left);
}

// out[i] = f(x[i]).
template <class F>
inline void each_one(const float* x, size_t n, float* out, F f) {
    each_pair(x, x, n, out, [&](V a, V) { return f(a); });
}

static void add_rows(const float* x, const float* residual, size_t n, float* out) {
    each_pair(residual, x, n, out, [](V r, V a) { return add(r, a); });
}

// g / (1 + e^-g).
inline V silu(V g) {
    return div(g, add(set1(1.0f), exp(sub(zero(), g))));
}

// 0.5 g (1 + tanh u), u = sqrt(2 / pi) (g + 0.044715 g^3), in the equal form g / (1 + e^(-2u)), which loses no digits
// where tanh comes close to -1.
inline V gelu_tanh(V g) {
    V cubic = mul(mul(mul(g, g), g), set1(0.044715f));
    return div(g, add(set1(1.0f), exp(mul(add(g, cubic), set1(-1.59576912f)))));
}

static void gated(const float* gate, const float* up, size_t n, int activation, float* out) {
    if (activation == 0)
        each_pair(gate, up, n, out, [](V g, V u) { return mul(silu(g), u); });
    else
        each_pair(gate, up, n, out, [](V g, V u) { return mul(gelu_tanh(g), u); });
}

static void activate(const float* x, size_t n, int activation, float* out) {
    if (activation == 0)
        each_one(x, n, out, [](V a) { return silu(a); });
    else
        each_one(x, n, out, [](V a) { return gelu_tanh(a); });
}

static void cap_logits(float* logits, size_t n, float scale, float softcap) {
    each_one(logits, n, logits, [=](V x) { return mul(x, set1(scale)); });
    if (softcap != 0.0f)
        each_one(logits, n, logits, [=](V x) { return attend_cap(x, softcap); });
}

// ---- rotary positions ----

// sin and cos in fp64, error below 1e-15 for |x| up to 2^22: x = q * pi/2 + r in three parts of pi/2, Taylor series in
// r
// (|r| <= pi/4, first term left out below 1e-18). Scalar code with fma only: the same bits on every ISA.
inline void sine_cosine(double x, double& sine, double& cosine) {
    constexpr double magic = 0x1.8p52, two_over_pi = 0x1.45f306dc9c883p-1;
    constexpr double part[3] = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110};
    constexpr double sines[8] = {1.0 / 355687428096000, -1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800,
                                 1.0 / 362880,          -1.0 / 5040,          1.0 / 120,        -1.0 / 6};
    constexpr double cosines[9] = {-1.0 / 6402373705728000,
                                   1.0 / 20922789888000,
                                   -1.0 / 87178291200,
                                   1.0 / 479001600,
                                   -1.0 / 3628800,
                                   1.0 / 40320,
                                   -1.0 / 720,
                                   1.0 / 24,
                                   -0.5};
    const double shifted = std::fma(x, two_over_pi, magic), q = shifted - magic;
    double r = std::fma(-q, part[0], x);
    r = std::fma(-q, part[1], r);
    r = std::fma(-q, part[2], r);
    const double square = r * r;
    double s = sines[0], c = cosines[0];
    for (int i = 1; i < 8; ++i)
        s = std::fma(s, square, sines[i]);
    for (int i = 1; i < 9; ++i)
        c = std::fma(c, square, cosines[i]);
    s = std::fma(s * square, r, r);
    c = std::fma(c, square, 1.0);
    uint64_t bits;
    std::memcpy(&bits, &shifted, 8); // q modulo 4 in the lowest bits
    const bool swapped = bits & 1u;
    sine = swapped ? c : s;
    cosine = swapped ? s : c;
    if (bits & 2u)
        sine = -sine;
    if ((bits + 1) & 2u)
        cosine = -cosine;
}

static void rope_angles(int32_t position, const double* frequency, int n, double factor, float* out) {
    for (int i = 0; i < n; ++i) {
        double sine, cosine;
        sine_cosine(static_cast<double>(position) * frequency[i], sine, cosine);
        out[i] = static_cast<float>(cosine * factor);
        out[n + i] = static_cast<float>(sine * factor);
    }
}

// A pair (x1, x2) turns to (x1 cos - x2 sin, x2 cos + x1 sin): two products and their sum, each rounded, no fma, as the
// plain formula of the reference has it.
inline void rotate_halves(const float* x, const float* cos_sin, int n, float* out) {
    for (int j = 0; j < n; j += LANES) {
        const int left = n - j;
        const V a = load_part(x + j, left), b = load_part(x + n + j, left);
        const V c = load_part(cos_sin + j, left), s = load_part(cos_sin + n + j, left);
        store_part(out + j, sub(mul(a, c), mul(b, s)), left);
        store_part(out + n + j, add(mul(b, c), mul(a, s)), left);
    }
}

inline void rotate_neighbours(const float* x, const float* cos_sin, int n, float* out) {
    for (int j = 0; j < n; ++j) {
        const float a = x[2 * j], b = x[2 * j + 1], c = cos_sin[j], s = cos_sin[n + j];
        out[2 * j] = a * c - b * s;
        out[2 * j + 1] = b * c + a * s;
    }
}

static void rope(const float* x, const float* cos_sin, int n, int heads, int dim, bool interleaved, float* out) {
    for (int h = 0; h < heads; ++h, x += dim, out += dim) {
        if (interleaved)
            rotate_neighbours(x, cos_sin, n, out);
        else
            rotate_halves(x, cos_sin, n, out);
        if (out != x && dim > 2 * n)
            std::memcpy(out + 2 * n, x + 2 * n, static_cast<size_t>(dim - 2 * n) * sizeof(float));
    }
}

// ---- keys and values ----

static void kv_write(const KVView& kv, int32_t block, int place, int head, const float* k, const float* v) {
    uint8_t* layer = kv.pool + static_cast<size_t>(block) * kv.block_bytes + kv.layer_offset;
    uint8_t* keys = layer + static_cast<size_t>(head) * kv.head_bytes;
    uint8_t* values = keys + static_cast<size_t>(BLOCK) * static_cast<size_t>(kv.key_dim) * (kv.bf16 ? 2 : 4);
    if (!kv.bf16) {
        float* column = reinterpret_cast<float*>(keys) + place;
        for (int d = 0; d < kv.key_dim; ++d)
            column[d * BLOCK] = k[d];
        std::memcpy(values + static_cast<size_t>(place) * static_cast<size_t>(kv.value_dim) * 4, v,
                    static_cast<size_t>(kv.value_dim) * 4);
        return;
    }
    uint16_t* column = reinterpret_cast<uint16_t*>(keys) + place * 2;
    for (int d = 0; d < kv.key_dim; d += 2) {
        column[d * BLOCK] = to_bf16(k[d]);
        column[d * BLOCK + 1] = to_bf16(k[d + 1]);
    }
    uint16_t* row = reinterpret_cast<uint16_t*>(values) + place / 2 * kv.value_dim * 2 + place % 2;
    for (int d = 0; d < kv.value_dim; ++d)
        row[2 * d] = to_bf16(v[d]);
}

// ---- preparation with 8 bits ----

#if defined(PELTON_ISA_AVX512)
inline __m128i low_bytes(U q) { return _mm512_cvtepi32_epi8(q.v); }
#elif defined(PELTON_ISA_AVX2)
inline __m128i low_bytes(U q) {
    const __m256i words = _mm256_packs_epi32(q.a, q.b);  // 0-3 8-11 4-7 12-15
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    return _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
}
#endif
#if defined(PELTON_ISA_AVX512) || defined(PELTON_ISA_AVX2)
// The small integers of a K-block as bytes, in order and with the even ones of each eight first; the sums of its halves.
inline void store_bytes(U low, U high, int8_t* fours, int8_t* eights, int32_t* sums) {
    const __m256i bytes = _mm256_set_m128i(low_bytes(high), low_bytes(low));
    if (fours) _mm256_storeu_si256(reinterpret_cast<__m256i*>(fours), bytes);
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    if (eights)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(eights), _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(order)));
    const __m256i raised = _mm256_sad_epu8(_mm256_xor_si256(bytes, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    const __m256i halves = _mm256_add_epi64(raised, _mm256_srli_si256(raised, 8));
    sums[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(halves)) - 16 * 128;
    sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(halves, 1)) - 16 * 128;
}
#else
inline void store_bytes(U low, U high, int8_t* fours, int8_t* eights, int32_t* sums) {
    constexpr int order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    int32_t numbers[BLOCK];
    store(reinterpret_cast<float*>(numbers), floats(low));
    store(reinterpret_cast<float*>(numbers + LANES), floats(high));
    sums[0] = sums[1] = 0;
    for (int i = 0; i < BLOCK; ++i) {
        if (fours) fours[i] = static_cast<int8_t>(numbers[i]);
        if (eights) eights[i] = static_cast<int8_t>(numbers[i / 8 * 8 + order[i % 8]]);
        sums[i / LANES] += static_cast<int8_t>(numbers[i]);  // of a number that is not finite anything
    }
}
#endif

// Lanes i .. i + 15 of a row of n numbers, normed; zeros behind its end.
inline V normed_part(const float* x, const float* gain, V inverse, int i, int n) {
    const int left = n - i;
    if (left <= 0) return zero();
    V y = load_part(x + i, left);
    if (gain) y = mul(mul(y, inverse), load_part(gain + i, left));
    return left < LANES ? where_lanes(0, left, y, zero()) : y;
}

static float largest_lane(V x) {  // of magnitudes
#if defined(PELTON_ISA_AVX512)
    return _mm512_reduce_max_ps(x.v);
#else
    float lanes[LANES], largest = 0.0f;
    store(lanes, x);
    for (float lane : lanes) largest = lane > largest ? lane : largest;
    return largest;
#endif
}

static void prepare_int8(const float* x, const float* gain, float eps, int n, const IntRow& out) {
    constexpr int parts = INT_GROUP * BLOCK / LANES;
    const V inverse = set1(gain ? inverse_rms(x, eps, n) : 1.0f);
    const V magic = set1(12582912.0f);  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
    const int width = padded(n), blocks = width / BLOCK;
    V faults = zero();  // NaN where a number is not finite
    for (int group = 0, i = 0; i < width; ++group) {
        V y[parts], most = zero();
        const bool whole = n - i >= parts * LANES;
        for (int part = 0; part < parts; ++part) {
            const int at = i + part * LANES;
            if (!whole) y[part] = normed_part(x, gain, inverse, at, n);
            else y[part] = gain ? mul(mul(load(x + at), inverse), load(gain + at)) : load(x + at);
            most = max(floats(uand(bits(y[part]), uset1(0x7fffffffu))), most);
            faults = fma(y[part], zero(), faults);
        }
        const float largest = largest_lane(most), scale = largest / 127.0f;
        out.scales[group] = scale;
        const V factor = set1(scale != 0.0f ? 127.0f / largest : 0.0f);
        for (int part = 0; part < parts && i < width; part += 2, i += BLOCK) {
            auto whole_numbers = [&](V v) { return usub(bits(add(mul(v, factor), magic)), bits(magic)); };
            int32_t* halves = out.sums + blocks + i / LANES;
            store_bytes(whole_numbers(y[part]), whole_numbers(y[part + 1]), out.fours ? out.fours + i : nullptr,
                        out.eights ? out.eights + i : nullptr, halves);
            out.sums[i / BLOCK] = halves[0] + halves[1];
        }
    }
    float lanes[LANES];
    store(lanes, faults);
    bool finite = true;
    for (float lane : lanes) finite = finite && lane == lane;
    if (finite) return;
    for (int8_t* numbers : {out.fours, out.eights})
        if (numbers) std::memset(numbers, 0, static_cast<size_t>(width));
    std::memset(out.sums, 0, sums_of_row(blocks) * sizeof(int32_t));
    for (int group = 0; group < int_groups(blocks); ++group) out.scales[group] = float_of(0x7fc00000u);
}
