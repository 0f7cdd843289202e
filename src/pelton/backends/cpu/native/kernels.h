// The contract between the executable (exec.cpp) and the kernels: packed layouts, argument records and one table of
// functions per ISA. All kernels give the same bits on every ISA and for every grouping of rows (docs/numerics.md, order 1).
// A kernel works on the piece it is given, allocates nothing, and knows neither threads nor models.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pelton {

constexpr int PANEL = 16;         // output columns of a weight panel = lanes
constexpr int BLOCK = 32;         // K elements of one order-1 block; tokens of a KV block
constexpr int TILE = 64;          // indices of an attention tile
constexpr int CHUNK = 8 * TILE;   // indices of an attention chunk
constexpr int VOCAB_CHUNK = 4096; // logits of one partial logsumexp

// ---- weights -------------------------------------------------------------------------------------------------------
// A matrix [rows = outputs, cols = K] is packed in panels of 16 outputs; a panel is `blocks` = ceil(cols / 32) K-blocks,
// zero-padded in both directions; K ascends. A K-block of one panel holds its scales, its minima, then its weights or codes:
//   f32      [32 k][16] float
//   bf16     [16 pairs][16][2] bf16      k even, k odd together: the AMX layout
//   f16      [32 k][16] half
//   int8     [32 k][16] int8
//   nibbles  [4][16] uint32              bits 4 i .. 4 i + 3 of word g are k = 8 g + i
//   crumbs   [4][16] uint16              bits 2 i, 2 i + 1 of word g are k = 8 g + i
// A weight is scale * code (+ minimum); code = the stored number - `minus`, or the level it numbers in IQ4_LEVELS.
// Scales and minima are [16] half; two in a block are those of its halves. In a nested format they are [16] int8, to be
// multiplied with a half that 8 K-blocks share: each 8 have [16] half of scales (and [16] half of minima) in front.
enum class Codes { f32, bf16, f16, int8, nibbles, crumbs };
enum class Format : int { f32, bf16, f16, q8, q4, q4m, q8m, q4t, q4km, q8km, q4kt, q8kh, q4kh, q2khm };

struct Layout {
    const char* name;
    Codes codes;
    int minus = 0;
    bool levels = false;  // codes are looked up in IQ4_LEVELS
    int scales = 0;       // of a K-block and output: none, one, or one for each half
    bool minima = false;  // as many as scales
    bool nested = false;
};

// In the order of Format; behind it bytes of a K-block of one panel, with its share of what stands in front.
constexpr Layout LAYOUTS[] = {
    {.name = "f32", .codes = Codes::f32},                                                         // 2048
    {.name = "bf16", .codes = Codes::bf16},                                                       // 1024
    {.name = "f16", .codes = Codes::f16},                                                         // 1024
    {.name = "q8", .codes = Codes::int8, .scales = 1},                                            // 544
    {.name = "q4", .codes = Codes::nibbles, .minus = 8, .scales = 1},                             // 288
    {.name = "q4m", .codes = Codes::nibbles, .scales = 1, .minima = true},                        // 320
    {.name = "q8m", .codes = Codes::int8, .scales = 1, .minima = true},                           // 576
    {.name = "q4t", .codes = Codes::nibbles, .levels = true, .scales = 1},                        // 288
    {.name = "q4km", .codes = Codes::nibbles, .scales = 1, .minima = true, .nested = true},       // 296
    {.name = "q8km", .codes = Codes::int8, .scales = 1, .minima = true, .nested = true},          // 552
    {.name = "q4kt", .codes = Codes::nibbles, .levels = true, .scales = 1, .nested = true},       // 276
    {.name = "q8kh", .codes = Codes::int8, .scales = 2, .nested = true},                          // 548
    {.name = "q4kh", .codes = Codes::nibbles, .minus = 4, .scales = 2, .nested = true},           // 292
    {.name = "q2khm", .codes = Codes::crumbs, .scales = 2, .minima = true, .nested = true},       // 200
};
constexpr int NESTED_BLOCKS = 8;
constexpr int8_t IQ4_LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

constexpr const Layout& layout(Format format) { return LAYOUTS[static_cast<int>(format)]; }

constexpr size_t code_bytes(Codes codes) {
    constexpr size_t sizes[] = {2048, 1024, 1024, 512, 256, 128};
    return sizes[static_cast<int>(codes)];
}

// Of the scales and minima at the start of a K-block.
constexpr size_t scale_bytes(Format format) {
    const Layout& l = layout(format);
    return static_cast<size_t>(l.scales * (l.minima ? 2 : 1)) * PANEL * (l.nested ? 1 : 2);
}

constexpr size_t block_bytes(Format format) { return scale_bytes(format) + code_bytes(layout(format).codes); }

// Of the halves in front of each 8 K-blocks of a nested format.
constexpr size_t head_bytes(Format format) {
    return layout(format).nested ? static_cast<size_t>(layout(format).minima ? 2 : 1) * PANEL * 2 : 0;
}

constexpr size_t panel_bytes(Format format, int blocks) {
    const size_t count = static_cast<size_t>(blocks);
    return count * block_bytes(format) + (count + NESTED_BLOCKS - 1) / NESTED_BLOCKS * head_bytes(format);
}

struct Matrix {
    Format format;
    int rows, cols;
    int blocks;          // ceil(cols / 32); whole eights of a nested format
    int panels;          // ceil(rows / 16)
    size_t panel_bytes;
    const uint8_t* data; // 64-byte aligned
    bool uses_sums() const { return layout(format).minima; }
    bool uses_half_sums() const { return layout(format).minima && layout(format).scales == 2; }
};

// Columns of prepared rows: cols rounded up to a whole block.
inline int padded(int cols) { return (cols + BLOCK - 1) / BLOCK * BLOCK; }

// Of a prepared row: the sum of each K-block, then, two by two, the sums of their halves.
inline size_t sums_of_row(int blocks) { return 3 * static_cast<size_t>(blocks); }

// One prepared row: x[padded(cols)] fp32 (already rounded to bf16 in bf16 mode), zeros behind cols; and, where a format
// has minima, sums[sums_of_row(blocks)] = order-1 sums of x, those of halves only where a format has minima of halves.
struct MatmulArgs {
    const Matrix* matrix;
    int panel;             // which panel
    const float* x;        // [rows][x_stride]
    size_t x_stride;       // floats
    const float* sums;     // [rows][sums_stride] or null
    size_t sums_stride;
    int rows;
    float* out;            // [rows][out_stride], the panel's 16 columns at out[0..16) (all 16 are written)
    size_t out_stride;
};

// ---- attention -----------------------------------------------------------------------------------------------------
// A KV block of 32 tokens, in one layer, per KV head: K then V (the block's base pointer plus an offset for layer and head).
//   bf16: K [key_dim / 2][32 tokens][2],  V [32 tokens / 2][value_dim][2]
//   fp32: K [key_dim][32 tokens],         V [32 tokens][value_dim]
// key_dim and value_dim are multiples of 2; any value from 2 to 512 works.
struct KVView {
    uint8_t* pool;            // block b starts at pool + b * block_bytes
    size_t block_bytes;
    size_t layer_offset;      // of this layer within a block
    size_t head_bytes;        // 32 * (key_dim + value_dim) * element size; K of head h at h * head_bytes, V behind its K
    int key_dim, value_dim;
    bool bf16;
};

struct AttendArgs {
    KVView kv;
    const int32_t* table;     // the sequence's blocks
    const float* q;           // [rows][q_stride]: all query heads of the rows, as rope left them (not rounded)
    size_t q_stride;
    int rows;                 // query rows of one sequence, at consecutive indices
    int first_index;          // index of the first of them
    int kv_head, group;       // query heads kv_head * group .. + group - 1 read this KV head
    int window;               // 0: none
    float scale, softcap;     // softcap 0: none
    const float* slopes;      // [group]: added to a score is slope * (key index - query index); null: nothing
};

// State of an online softmax for one (row, query head): m, l, then value_dim sums. Row-major [rows][group][2 + value_dim].
inline size_t partial_floats(int value_dim) { return 2 + static_cast<size_t>(value_dim); }

// ---- the choice of a token -----------------------------------------------------------------------------------------
struct ChunkStats {           // of VOCAB_CHUNK logits
    float max;                // largest
    int argmax;               // lowest index that holds it
    float sum;                // sum of exp(x - max), order pinned in docs/numerics.md
    int bad;                  // 1 if a NaN or +infinity occurred, or every logit is -infinity
};

// One row's sampling record: mirrors SAMPLING in backends/backend.py byte for byte.
struct Sampling {
    uint64_t seed;
    float temperature;        // below 1e-5: greedy
    float top_p;              // 1: off
    float min_p;              // 0: off
    int32_t top_k;            // 0 or less: off
    uint32_t place;           // output index of the token to draw
    uint32_t child;           // which of n answers
    int32_t logprobs;         // how many top log-probabilities are wanted; -1: none at all
    int32_t flags;            // ONLY_ALLOWED
    float repetition;         // 1: off
    float frequency;          // 0: off
    float presence;           // 0: off
    int32_t target;           // -1: draw; else this token is reported and nothing is drawn
};
constexpr int32_t ONLY_ALLOWED = 1;  // tokens without an edit marked ALLOWED are at -inf

// One change to one token's logit before the choice: mirrors EDIT in backends/backend.py byte for byte.
struct Edit {
    int32_t token;
    float bias;               // added; -inf: banned
    int32_t count;            // how often the token was generated
    int32_t flags;            // SEEN, ALLOWED
};
constexpr int32_t SEEN = 1;     // the token occurs in the prompt or the answer: the repetition penalty holds
constexpr int32_t ALLOWED = 2;

// The edits of one row, at most one for each token.
struct Edits {
    const Edit* first = nullptr;
    int count = 0;
};

struct Choice {
    int32_t token;
    float logprob;            // of the token, from the raw logits
    int32_t rank;             // 1 + how many raw logits are larger
    int32_t fault;            // 0, or why there is no token
};
constexpr int32_t FAULT_BAD_LOGITS = 1;  // NaN or infinity among the raw logits
constexpr int32_t FAULT_NO_TOKEN = 2;    // the edits left none above -inf

// ---- the table of one ISA ------------------------------------------------------------------------------------------
struct Kernels {
    const char* name;

    // out[r][c] = order-1 product of row r with the panel's output c, in the codes form for q formats.
    void (*matmul)(const MatmulArgs&);

    // Row of a matrix as fp32: out[cols] = w * scale (the embedding gather; also reads tied heads).
    void (*gather_row)(const Matrix&, int row, float scale, float* out);

    // Prepares one row for matmul: optional RMS norm (gain null: none), optional rounding to bf16, zero padding, block sums.
    // n = cols. sums may be null; halves: the sums of half blocks too. Norm: y = (x * (1 / sqrt(mean + eps))) * gain,
    // mean = order-1 sum of squares / n.
    void (*prepare)(const float* x, const float* gain, float eps, int n, bool round, float* out, float* sums, bool halves);

    // The norm alone, n values, no padding.
    void (*rms_norm)(const float* x, const float* gain, float eps, int n, float* out);

    // y = ((x - mean) * (1 / sqrt(mean of (x - mean)^2 + eps))) * gain + bias; bias may be null.
    void (*layer_norm)(const float* x, const float* gain, const float* bias, float eps, int n, float* out);

    void (*add)(const float* x, const float* residual, size_t n, float* out);                        // residual + x
    void (*gated)(const float* gate, const float* up, size_t n, int activation, float* out);         // 0 silu, 1 gelu_tanh
    void (*activate)(const float* x, size_t n, int activation, float* out);

    // cos and sin of position * frequency[i] in fp64 by our own code, times factor, rounded to fp32: out[0..n) and out[n..2n).
    void (*rope_angles)(int32_t position, const double* frequency, int n, double factor, float* out);

    // Rotates `heads` heads of `dim` numbers each; the first 2n of a head turn, the rest pass through. out may equal x.
    void (*rope)(const float* x, const float* cos_sin, int n, int heads, int dim, bool interleaved, float* out);

    // One token's k and v of one KV head into its place (slot within the block). k[key_dim], v[value_dim] fp32.
    void (*kv_write)(const KVView&, int32_t block, int place, int head, const float* k, const float* v);

    // Partial state of one chunk (indices [chunk * 512, + 512)) for all rows and the head group, from m = -inf.
    void (*attend_chunk)(const AttendArgs&, int chunk, float* partial);
    // Merges the state of a later chunk into that of the earlier ones: into[count][2 + value_dim].
    void (*attend_merge)(float* into, const float* later, int count, int value_dim);
    // out[count][...] = sums / l, written at out + i * out_stride.
    void (*attend_finish)(const float* state, int value_dim, float* out);

    // In place: x * scale, then softcap * tanh(x / softcap) unless softcap is 0.
    void (*cap_logits)(float* logits, size_t n, float scale, float softcap);

    ChunkStats (*vocab_stats)(const float* logits, int first, int count);  // argmax counts from the row's start
    // Draws from a whole row of logits, given its chunks' stats; edits change what is drawn from, and nothing else.
    // top_ids/top_logprobs hold sampling.logprobs entries (highest first, ties by lower id).
    // scratch: choose_scratch_bytes(vocab), private to the call.
    Choice (*choose)(const float* logits, int vocab, const ChunkStats*, const Sampling&, Edits, int32_t* top_ids, float* top_logprobs,
                     void* scratch);
};

// Scratch of `choose`, aligned to 8 bytes: a row of edited logits behind what `Scaled` in isa/choose.inl lays out.
inline size_t choose_scratch_bytes(int vocab) {
    constexpr size_t group = 64;
    const size_t groups = (static_cast<size_t>(vocab) + group - 1) / group;
    return groups * group * (sizeof(int64_t) + 3 * sizeof(float)) + groups * sizeof(float);
}

const Kernels& kernels_portable();
#if defined(__x86_64__)
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();
#endif

// Floating-point control of one thread: denormals count as zero and are flushed; the former state returns at the end.
class FlushDenormals {
   public:
    FlushDenormals();
    ~FlushDenormals();
    FlushDenormals(const FlushDenormals&) = delete;
    FlushDenormals& operator=(const FlushDenormals&) = delete;

   private:
    uint64_t saved_;
};

}  // namespace pelton
