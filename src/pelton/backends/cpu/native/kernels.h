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
//   int8     [8 fours][16][4] int8       four adjacent k of an output side by side, a 32-bit word
//   nibbles  [4][16] uint32              bits 4 i .. 4 i + 3 of word g are k = 8 g + i
//   fives    nibbles, then [16] uint32   bit k of a lane is bit 4 of code k
//   sixes    nibbles, then [4][16] uint16  bits 2 i, 2 i + 1 of word g are bits 4 and 5 of k = 8 g + i
//   crumbs   [4][16] uint16              bits 2 i, 2 i + 1 of word g are k = 8 g + i
//   threes   crumbs, then [16] uint32    bit k of a lane is bit 2 of code k
// A weight is scale * code (+ minimum); code = the stored number - `minus`, or the level it numbers in IQ4_LEVELS.
// Scales and minima are [16] half; two in a block are those of its halves. In a nested format they are [16] int8, to be
// multiplied with a half that 8 K-blocks share: each 8 have [16] half of scales (and [16] half of minima) in front.
// Where `span` K-blocks share a scale, each `span` have [16] half of scales (and [16] half of minima) in front instead; the
// last of a row may be fewer. Span 0: the whole row shares one, and the panel ends with [16] float of scales.
enum class Codes { f32, bf16, f16, int8, nibbles, fives, sixes, crumbs, threes };
enum class Format : int {
    f32, bf16, f16, q8, q4, q4m, q5, q5m, q4t, q4km, q5km, q4kt, q6kh, q3kh, q2khm, i8c, q8s2, q8s4, q4s2, q4s4, q4ms2, q4ms4
};

struct Layout {
    const char* name;
    Codes codes;
    int minus = 0;
    bool levels = false;  // codes are looked up in IQ4_LEVELS
    int scales = 0;       // of a K-block and output: none, one, or one for each half
    bool minima = false;  // as many as scales
    bool nested = false;
    int span = 1;         // K-blocks that share a scale and a minimum: 1, 2, 4; 0: all of the row
};

// In the order of Format; behind it bytes of a K-block of one panel, with its share of what stands in front.
constexpr Layout LAYOUTS[] = {
    {.name = "f32", .codes = Codes::f32},                                                         // 2048
    {.name = "bf16", .codes = Codes::bf16},                                                       // 1024
    {.name = "f16", .codes = Codes::f16},                                                         // 1024
    {.name = "q8", .codes = Codes::int8, .scales = 1},                                            // 544
    {.name = "q4", .codes = Codes::nibbles, .minus = 8, .scales = 1},                             // 288
    {.name = "q4m", .codes = Codes::nibbles, .scales = 1, .minima = true},                        // 320
    {.name = "q5", .codes = Codes::fives, .minus = 16, .scales = 1},                              // 352
    {.name = "q5m", .codes = Codes::fives, .scales = 1, .minima = true},                          // 384
    {.name = "q4t", .codes = Codes::nibbles, .levels = true, .scales = 1},                        // 288
    {.name = "q4km", .codes = Codes::nibbles, .scales = 1, .minima = true, .nested = true},       // 296
    {.name = "q5km", .codes = Codes::fives, .scales = 1, .minima = true, .nested = true},         // 360
    {.name = "q4kt", .codes = Codes::nibbles, .levels = true, .scales = 1, .nested = true},       // 276
    {.name = "q6kh", .codes = Codes::sixes, .minus = 32, .scales = 2, .nested = true},            // 420
    {.name = "q3kh", .codes = Codes::threes, .minus = 4, .scales = 2, .nested = true},            // 228
    {.name = "q2khm", .codes = Codes::crumbs, .scales = 2, .minima = true, .nested = true},       // 200
    {.name = "i8c", .codes = Codes::int8, .scales = 1, .span = 0},                                // 512, and 64 of a panel
    {.name = "q8s2", .codes = Codes::int8, .scales = 1, .span = 2},                               // 528
    {.name = "q8s4", .codes = Codes::int8, .scales = 1, .span = 4},                               // 520
    {.name = "q4s2", .codes = Codes::nibbles, .minus = 8, .scales = 1, .span = 2},                // 272
    {.name = "q4s4", .codes = Codes::nibbles, .minus = 8, .scales = 1, .span = 4},                // 264
    {.name = "q4ms2", .codes = Codes::nibbles, .scales = 1, .minima = true, .span = 2},           // 288
    {.name = "q4ms4", .codes = Codes::nibbles, .scales = 1, .minima = true, .span = 4},           // 272
};
constexpr int NESTED_BLOCKS = 8;
constexpr int8_t IQ4_LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

constexpr const Layout& layout(Format format) { return LAYOUTS[static_cast<int>(format)]; }

constexpr size_t code_bytes(Codes codes) {
    constexpr size_t sizes[] = {2048, 1024, 1024, 512, 256, 320, 384, 128, 192};
    return sizes[static_cast<int>(codes)];
}

// Of the scales and minima at the start of a K-block.
constexpr size_t scale_bytes(Format format) {
    const Layout& l = layout(format);
    return l.span == 1 ? static_cast<size_t>(l.scales * (l.minima ? 2 : 1)) * PANEL * (l.nested ? 1 : 2) : 0;
}

constexpr size_t block_bytes(Format format) { return scale_bytes(format) + code_bytes(layout(format).codes); }

// K-blocks that have halves in front of them together; 0: there are no such halves.
constexpr int head_blocks(Format format) {
    const Layout& l = layout(format);
    return l.nested ? NESTED_BLOCKS : l.span > 1 ? l.span : 0;
}

// Of these halves.
constexpr size_t head_bytes(Format format) {
    return head_blocks(format) ? static_cast<size_t>(layout(format).minima ? 2 : 1) * PANEL * 2 : 0;
}

// Of the first `blocks` K-blocks of a panel.
constexpr size_t blocks_bytes(Format format, int blocks) {
    const size_t count = static_cast<size_t>(blocks), group = static_cast<size_t>(head_blocks(format));
    return count * block_bytes(format) + (group ? (count + group - 1) / group * head_bytes(format) : 0);
}

constexpr size_t panel_bytes(Format format, int blocks) {
    return blocks_bytes(format, blocks) + (layout(format).span == 0 ? PANEL * sizeof(float) : 0);
}

struct Matrix {
    Format format;
    int rows, cols;
    int blocks;          // ceil(cols / 32); whole eights of a nested format
    int panels;          // ceil(rows / 16)
    size_t panel_bytes;
    const uint8_t* data; // 64-byte aligned
    bool values = false; // values form: a weight is scale * code (+ minimum), each rounded, and then a dense one
    bool exact = false;  // values are not rounded to bf16
    bool uses_sums() const { return layout(format).minima && !values; }
    bool uses_half_sums() const { return uses_sums() && layout(format).scales == 2; }
};

// Columns of prepared rows: cols rounded up to a whole block.
inline int padded(int cols) { return (cols + BLOCK - 1) / BLOCK * BLOCK; }

// Of a prepared row: the sum of each K-block, then, two by two, the sums of their halves.
inline size_t sums_of_row(int blocks) { return 3 * static_cast<size_t>(blocks); }

// One prepared row: x[padded(cols)] fp32 (already rounded to bf16 in bf16 mode), zeros behind cols; and, where a format
// has minima, sums[sums_of_row(blocks)] = order-1 sums of x, those of halves only where a format has minima of halves.
struct MatmulArgs {
    const Matrix* matrix;
    int panel;             // the first panel
    const float* x;        // [rows][x_stride]
    size_t x_stride;       // floats
    const float* sums;     // [rows][sums_stride] or null
    size_t sums_stride;
    int rows;
    float* out;            // [rows][out_stride], panel i's 16 columns at out[16 i..16 i + 16) (all 16 are written)
    size_t out_stride;
    int panels = 1;        // so many adjacent panels
    const uint16_t* x16 = nullptr; // x as Kernels::narrow makes it, [rows][x16_stride], where it is rounded; else null
    size_t x16_stride = 0;
};

// Room for what Kernels::expand gives of some K-blocks of a panel.
struct Expansion {
    uint16_t* codes;  // [blocks][16 pairs][16][2] bf16, the AMX layout: what x is multiplied with
    float* scales;    // of codes, [units][16] (a unit has one scale: a half block, a block or `span` blocks); span 0: [16]
    float* minima;    // likewise, where there are minima
};

// ---- products of whole numbers ---------------------------------------------------------------------------------------
// Rows that were rounded to 8 bits: whole numbers from -127 to 127, zeros behind cols. A group of columns, of which the last may
// be shorter, has a scale, which is the unit of its numbers; no unit of weights but a whole row reaches beyond a group.
// In `eights` each eight k have the even ones first: 0, 2, 4, 6, 1, 3, 5, 7. Formats of bytes read `fours`, narrower ones `eights`.
constexpr int INT_GROUP = 4;  // K-blocks of a group
constexpr int int_groups(int blocks) { return (blocks + INT_GROUP - 1) / INT_GROUP; }

struct IntRow {
    int8_t* fours;         // [padded(cols)], K ascending; null: not wanted
    int8_t* eights;        // likewise
    float* scales;         // [int_groups(blocks)]: largest magnitude / 127; all NaN where a number of the row is not finite: all are 0 then
    int32_t* sums;         // [sums_of_row(blocks)]: of each K-block, then, two by two, of their halves
};

struct IntRows {
    const int8_t* fours;   // [rows][stride]
    const int8_t* eights;  // [rows][stride]
    size_t stride;         // bytes
    const float* scales;   // [rows][scales_stride]
    size_t scales_stride;
    const int32_t* sums;   // [rows][sums_stride]
    size_t sums_stride;
};

// Room for what Kernels::expand_int8 gives of some K-blocks of a panel; scales and minima as in Expansion.
struct IntExpansion {
    int8_t* codes;         // [blocks][8 words][16][4]: with K in the order of `fours` or of `eights`
    float* scales;
    float* minima;
};

struct IntArgs {
    const Matrix* matrix;  // of codes
    int panel, panels;     // the first one, and so many adjacent ones
    IntRows x;
    int rows;
    float* out;            // [rows][out_stride], panel i's 16 columns at out[16 i..16 i + 16) (all 16 are written)
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

// One query row. Its state: of each query head of the call's group m, l, then value_dim sums.
struct AttendRow {
    const float* q;           // all its query heads, as rope left them (not rounded)
    float* state;             // [group][2 + value_dim]; for attend_columns its [group] LSEs
    int index;                // of its token: it sees key indices up to this one
};

struct AttendArgs {
    KVView kv;
    const int32_t* table;     // blocks by index / 32
    const AttendRow* rows;    // ascending by index; of any sequences that have these blocks where they see anything
    int num_rows;
    int kv_head, group;       // query heads kv_head * group .. + group - 1 read this KV head
    int window;               // 0: none
    float scale, softcap;     // softcap 0: none
    const float* slopes;      // [group]: added to a score is slope * (key index - query index); null: nothing
    const uint8_t* tail;      // if not null: from number `tail_block` on blocks are not the table's but stand here one behind
    int tail_block;           // the other, kv.head_bytes each (K, then V, of this layer and head)
};

// Floats of an online softmax's state for one (row, query head).
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

    // Moves the rows' states on over tiles [first, last) of one chunk, in order: from m = -inf, or, with `resume`, from where
    // the chunk's earlier tiles left them. A row that sees nothing of a tile skips it.
    void (*attend_tiles)(const AttendArgs&, int first, int last, bool resume);
    // Merges the state of a later chunk into that of the earlier ones: into[count][2 + value_dim].
    void (*attend_merge)(float* into, const float* later, int count, int value_dim);
    // out[count][...] = sums / l, written at out + i * out_stride.
    void (*attend_finish)(const float* state, int value_dim, float* out);
    // out[count] = m + log(l), -infinity where nothing was seen.
    void (*attend_lse)(const float* states, int count, int value_dim, float* out);
    // sums[64 * (last - first)] += exp(score - LSE) of each visible key of tiles [first, last), rows ascending, their query
    // heads ascending.
    void (*attend_columns)(const AttendArgs&, int first, int last, float* sums);

    // In place: x * scale, then softcap * tanh(x / softcap) unless softcap is 0.
    void (*cap_logits)(float* logits, size_t n, float scale, float softcap);

    ChunkStats (*vocab_stats)(const float* logits, int first, int count);  // argmax counts from the row's start
    // Draws from a whole row of logits, given its chunks' stats; edits change what is drawn from, and nothing else.
    // top_ids/top_logprobs hold sampling.logprobs entries (highest first, ties by lower id).
    // scratch: choose_scratch_bytes(vocab), private to the call.
    Choice (*choose)(const float* logits, int vocab, const ChunkStats*, const Sampling&, Edits, int32_t* top_ids, float* top_logprobs,
                     void* scratch);

    // Numbers that are bf16, as matmul reads them in MatmulArgs::x16; n is a multiple of 32. Null: it does not.
    void (*narrow)(const float* from, int n, uint16_t* to) = nullptr;
    // K-blocks [first, first + blocks) of a panel: bf16 weights, codes, or weights of the values form. `first` is a multiple
    // of 8. Not for fp32 and fp16, nor for the values form of an exact matrix.
    void (*expand)(const Matrix&, int panel, int first, int blocks, const Expansion&) = nullptr;

    // Products with rows that prepare_int8 made. In each group of x, for each unit (the codes that share a scale) ascending,
    // acc = fma(scale, sum of code * x, acc), then acc = fma(minimum, sum of x, acc); then out = fma(the group's scale, acc, out),
    // groups ascending. Where a row of codes has one scale, acc is the group's sum, and last out = out * scale. Sums are exact.
    void (*matmul_int8)(const IntArgs&) = nullptr;
    // As expand, with codes as bytes; gives what all codes have too much. Null: this ISA has other words.
    int (*expand_int8)(const Matrix&, int panel, int first, int blocks, const IntExpansion&) = nullptr;
    // As prepare without rounding to bf16, then rounded to 8 bits: a group's scale = its largest magnitude / 127, numbers x * (127 / largest)
    // to the nearest, ties to even; all 0 where the scale is.
    void (*prepare_int8)(const float* x, const float* gain, float eps, int n, const IntRow& out) = nullptr;
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
const Kernels& kernels_avx512_vnni();  // other integer products
const Kernels& kernels_avx512_bf16();  // other products of bf16
const Kernels& kernels_amx();  // where PELTON_HAS_AMX is defined
#elif defined(__aarch64__)
const Kernels& kernels_neon();
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
