// Products of a step: rows prepared, panels handed out to the workers, what is fused around them, and the head.
#include "step/step.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "step/trace.h"

namespace pelton {

namespace {

// Fewest panels a worker takes at a time: a microsecond or two of work, so that taking them costs little beside it.
int fewest_panels(size_t panel_bytes, int rows) {
    constexpr size_t LEAST_BYTES = size_t{32} << 10;
    return std::max(1, static_cast<int>(LEAST_BYTES / (panel_bytes * static_cast<size_t>(rows))));
}

}  // namespace

// Prepared rows as bf16, where the kernels want them.
uint16_t* Worker::rows16() { return reinterpret_cast<uint16_t*>(ready().rows16.data()); }

// A row of 8 bits in the buffers of the others, where stand all rows in order, all with the even ones in front, their scales: less
// than three bytes a number.
IntRow Worker::int_row(int rows, int width, int row) const {
    const size_t numbers = static_cast<size_t>(rows) * static_cast<size_t>(width), r = static_cast<size_t>(row);
    const size_t groups = static_cast<size_t>(int_groups(width / BLOCK));
    int8_t* fours = reinterpret_cast<int8_t*>(ready().rows.data());
    return {fours + r * static_cast<size_t>(width), fours + numbers + r * static_cast<size_t>(width),
            reinterpret_cast<float*>(fours + 2 * numbers) + r * groups,
            reinterpret_cast<int32_t*>(ready().sums.data()) + r * sums_of_row(width / BLOCK)};
}

IntRows Worker::int_rows(int rows, int width) const {
    const IntRow first = int_row(rows, width, 0);
    return {first.fours, first.eights, static_cast<size_t>(width), first.scales, static_cast<size_t>(int_groups(width / BLOCK)),
            first.sums, sums_of_row(width / BLOCK)};
}

// Panels that are handed out: of all matrices, or of pairs of them.
int Worker::product_panels(const OpRecord& op) const {
    const size_t matrices = op.activation >= 0 ? 1 : op.matrices.size();
    int panels = 0;
    for (size_t i = 0; i < matrices; ++i) panels += x.matrices_[static_cast<size_t>(op.matrices[i])].panels;
    return panels;
}

// Pairs of panels of each worker's first run: half of its share, and nothing where weights are not what takes the time.
int Worker::first_run(int pairs, int rows) const {
    constexpr int MOST_THREADS = 64;  // bits of Stage::firsts
    return rows <= MANY_ROWS && x.threads() <= MOST_THREADS ? pairs / (2 * x.threads()) : 0;
}

// Where this worker's first run of the products behind `op` begins; behind the last those of the next step.
void Worker::look_ahead(const OpRecord& op) {
    const OpRecord *first = x.ops_.data(), *next = &op;
    do next = next + 1 == first + x.ops_.size() ? first : next + 1;
    while (next->kind != Kind::linear && next->kind != Kind::head);
    const int rows = next->kind == Kind::head ? step.num_rows : step.num_tokens, own_run = first_run((product_panels(*next) + 1) / 2, rows);
    int panel = 2 * id * own_run;
    size_t which = 0;
    while (which + 1 < next->matrices.size() && panel >= x.matrices_[static_cast<size_t>(next->matrices[which])].panels)
        panel -= x.matrices_[static_cast<size_t>(next->matrices[which++])].panels;
    const Matrix& matrix = x.matrices_[static_cast<size_t>(next->matrices[which])];
    ahead = matrix.data + u(panel) * matrix.panel_bytes;
    ahead_bytes = std::min(AHEAD_BYTES, 2 * u(own_run) * matrix.panel_bytes / 1024 * 1024);
}

// Calls work(first, last) for runs of panels, once rows of the op's input are ready for them. A few rows each worker makes
// ready for itself, behind taking its first panels: that takes no longer than waiting for one that does it for all.
template <class F>
void Worker::products(const OpRecord& op, int rows, const int32_t* from, int panels, F work) {
    own = pieces_of(rows) == 1;
    if (!own) parallel(pieces_of(rows), [&](int piece) { prepare_rows(op, rows, from, piece); });
    bool prepared = !own;
    // In pairs, which kernels multiply together.
    const int least = (fewest_panels(x.matrices_[static_cast<size_t>(op.matrices[0])].panel_bytes, rows) + 1) / 2;
    look_ahead(op);
    guided((panels + 1) / 2, least, first_run((panels + 1) / 2, rows), [&](int first, int last) {
        if (!prepared) prepare_rows(op, rows, from, 0);
        prepared = true;
        if (own && first == 0) count_prepared(op, rows, 0);
        work(2 * first, std::min(2 * last, panels));
    });
}

// A piece of the rows of the op's input, normalised and rounded, as matmul reads them. `from`: which rows (null: all).
// Where each worker does it for itself, who has the first panels counts it.
void Worker::prepare_rows(const OpRecord& op, int rows, const int32_t* from, int piece) {
    int n = op.inputs[0].width, width = padded(n);
    auto any = [&](auto uses) {
        return std::any_of(op.matrices.begin(), op.matrices.end(), [&](int m) { return (x.matrices_[static_cast<size_t>(m)].*uses)(); });
    };
    bool sums = any(&Matrix::uses_sums), halves = any(&Matrix::uses_half_sums);
    const int last = std::min(rows, (piece + 1) * ROW_PIECE);
    for (int r = piece * ROW_PIECE; r < last; ++r) {
        if (op.int8) {
            prepare_int8(op, at(op.inputs[0], from ? from[r] : r), int_row(rows, width, r));
            continue;
        }
        float* out = ready().rows.floats() + static_cast<size_t>(r) * static_cast<size_t>(width);
        float* row_sums = sums ? ready().sums.floats() + static_cast<size_t>(r) * sums_of_row(width / BLOCK) : nullptr;
        x.kernels_.prepare(at(op.inputs[0], from ? from[r] : r), op.gain, op.eps, n, !x.exact_, out, row_sums, halves);
        if (ready().rows16.size()) x.kernels_.narrow(out, width, rows16() + static_cast<size_t>(r) * static_cast<size_t>(width));
    }
    if (!own) count_prepared(op, rows, piece);
}

void Worker::count_prepared(const OpRecord& op, int rows, int piece) {
    const int n = op.inputs[0].width, last = std::min(rows, (piece + 1) * ROW_PIECE);
    const uint64_t numbers = u(last - piece * ROW_PIECE) * u(n);
    count(op.kind, op.gain ? NORM_FLOPS * numbers : 0, numbers * 4 + (piece == 0 && op.gain ? u(n) * 4 : 0), 0);
}

// A copy of the row that no matrix of the op reads is not made.
void Worker::prepare_int8(const OpRecord& op, const float* from, IntRow to) {
    auto reads = [&](bool fours) {
        return std::any_of(op.matrices.begin(), op.matrices.end(), [&](int m) {
            return (layout(x.matrices_[static_cast<size_t>(m)].format).codes == Codes::int8) == fours;
        });
    };
    if (!reads(true)) to.fours = nullptr;
    if (!reads(false)) to.eights = nullptr;
    x.kernels_.prepare_int8(from, op.gain, op.eps, op.inputs[0].width, to);
}

// `rows`: how many are prepared in all. Weights count once, however many tiles of rows they are multiplied with.
void Worker::multiply(const OpRecord& op, const Matrix& matrix, const Part& part, int rows, float* out, size_t stride) {
    const int width = padded(matrix.cols);
    const size_t row = static_cast<size_t>(part.row), bytes = part.row ? 0 : static_cast<size_t>(part.panels) * matrix.panel_bytes;
    tally.weight_bytes += bytes;
    tally.formats[static_cast<size_t>(matrix.format)] += bytes;
    count(op.kind, 2 * u(part.rows) * u(width) * u(part.panels) * PANEL, bytes, 0);
    if (op.int8) {
        IntRows x8 = int_rows(rows, width);
        x8.fours += row * x8.stride;
        x8.eights += row * x8.stride;
        x8.scales += row * x8.scales_stride;
        x8.sums += row * x8.sums_stride;
        return x.kernels_.matmul_int8({&matrix, part.panel, part.panels, x8, part.rows, out, stride});
    }
    MatmulArgs args{&matrix, part.panel, ready().rows.floats() + row * u(width), u(width), ready().sums.floats() + row * sums_of_row(matrix.blocks),
                    sums_of_row(matrix.blocks), part.rows, out, stride, part.panels};
    if (ready().rows16.size()) {
        args.x16 = rows16() + row * u(width);
        args.x16_stride = u(width);
    }
    x.kernels_.matmul(args);
}

void Worker::linear(const OpRecord& op) {
    products(op, step.num_tokens, nullptr, product_panels(op), [&](int first, int last) {
        int start = 0;  // of the matrix among all panels
        for (size_t which = 0; first < last; ++which) {
            const int panels = x.matrices_[static_cast<size_t>(op.matrices[which])].panels, to = std::min(last, start + panels);
            if (first < to) linear_panels(op, which, first - start, to - first);
            start += panels;
            first = std::max(first, start);
        }
    });
}

// In tiles of as many rows and panels as leave their products in the L2 cache until they are used.
void Worker::linear_panels(const OpRecord& op, size_t which, int panel, int panels) {
    for (int row = 0; row < step.num_tokens; row += TILE_ROWS) {
        const int rows = std::min(TILE_ROWS, step.num_tokens - row), most = STRIP_FLOATS / PANEL / rows;
        for (int p = 0; p < panels; p += most) linear_part(op, which, {panel + p, std::min(most, panels - p), row, rows});
    }
}

void Worker::bias_strip(const OpRecord& op, size_t which, const Part& part, float* strip) {
    const float* bias = op.biases[which];
    if (!bias) return;
    const size_t stride = u(part.panels) * PANEL;
    bias += part.panel * PANEL;
    for (int r = 0; r < part.rows; ++r, strip += stride) x.kernels_.add(strip, bias, stride, strip);
    count(op.kind, u(part.rows) * stride, part.row ? 0 : stride * 4, 0);
}

// Some outputs of some rows, with what is fused behind the product: bias, gated activation, residual.
void Worker::linear_part(const OpRecord& op, size_t which, const Part& part) {
    const Matrix& matrix = x.matrices_[static_cast<size_t>(op.matrices[which])];
    const Slot& target = op.outputs[op.activation >= 0 ? 0 : which];
    const int first = part.panel * PANEL, rows = step.num_tokens;
    const size_t stride = u(part.panels) * PANEL, width = std::min(stride, u(matrix.rows - first));
    float* out = at(target, part.row) + first;
    count(op.kind, 0, 0, u(part.rows) * width * 4);
    if (op.activation < 0 && !op.residual && !op.biases[which] && width == stride) return multiply(op, matrix, part, rows, out, u(target.width));
    float* strip = scratch();
    multiply(op, matrix, part, rows, strip, stride);
    bias_strip(op, which, part, strip);
    if (op.activation >= 0) {
        float* up = strip + STRIP_FLOATS;
        multiply(op, x.matrices_[static_cast<size_t>(op.matrices[1])], part, rows, up, stride);
        bias_strip(op, 1, part, up);
        x.kernels_.gated(strip, up, u(part.rows) * stride, op.activation, strip);
        count(op.kind, (ACTIVATION_FLOPS + 1) * u(part.rows) * stride, 0, 0);
    }
    for (int r = 0; r < part.rows; ++r, out += target.width, strip += stride) {
        if (op.residual) x.kernels_.add(strip, at(op.inputs[1], part.row + r) + first, width, out);
        else std::memcpy(out, strip, width * 4);
    }
    if (op.residual) count(op.kind, u(part.rows) * width, u(part.rows) * width * 4, 0);
}

void Worker::head(const OpRecord& op) {
    for (int first = 0; first < step.num_rows; first += HEAD_ROWS) head_group(op, first, std::min(HEAD_ROWS, step.num_rows - first));
}

void Worker::head_group(const OpRecord& op, int first, int rows) {
    const Matrix& matrix = x.matrices_[static_cast<size_t>(op.matrices[0])];
    size_t stride = static_cast<size_t>(matrix.panels) * PANEL;
    float* logits = x.logits_.floats();
    const bool capped = op.scale != 1 || op.softcap != 0;
    const uint64_t cap_flops = (op.scale != 1 ? 1 : 0) + (op.softcap != 0 ? SOFTCAP_FLOPS : 0);
    products(op, rows, step.logit_rows + first, matrix.panels, [&](int from, int to) {
        const size_t width = u(to - from) * PANEL;
        float* panels = logits + from * PANEL;
        multiply(op, matrix, {from, to - from, 0, rows}, rows, panels, stride);
        for (int r = 0; capped && r < rows; ++r) x.kernels_.cap_logits(panels + u(r) * stride, width, op.scale, op.softcap);
        count(op.kind, cap_flops * u(rows) * width, 0, u(rows) * width * 4);
    });
    int chunks = (x.vocab_ + VOCAB_CHUNK - 1) / VOCAB_CHUNK;
    parallel(rows * chunks, [&](int i) {
        int row = i / chunks, from = i % chunks * VOCAB_CHUNK, n = std::min(VOCAB_CHUNK, x.vocab_ - from);
        x.stats_[static_cast<size_t>(i)] = x.kernels_.vocab_stats(logits + static_cast<size_t>(row) * stride, from, n);
        count(op.kind, CHOICE_FLOPS * u(n), u(n) * 4, 0);
    });
    parallel(rows, [&](int i) {
        int r = first + i;
        size_t place = static_cast<size_t>(r) * static_cast<size_t>(step.top), vocab = static_cast<size_t>(x.vocab_);
        const float* row = logits + static_cast<size_t>(i) * stride;
        for (int k = 0; k < step.top; ++k) {
            step.top_ids[place + static_cast<size_t>(k)] = -1;
            step.top_logprobs[place + static_cast<size_t>(k)] = -__builtin_inff();
        }
        Edits edits;
        if (step.edits) edits = {step.edits + step.edit_offsets[r], step.edit_offsets[r + 1] - step.edit_offsets[r]};
        Choice choice = x.kernels_.choose(row, x.vocab_, x.stats_.data() + i * chunks, step.sampling[r], edits, step.top_ids + place,
                                          step.top_logprobs + place, scratch());
        step.out_tokens[r] = choice.token;
        step.out_logprobs[r] = choice.logprob;
        step.out_ranks[r] = choice.rank;
        step.out_faults[r] = choice.fault;
        if (step.logits) std::memcpy(step.logits + static_cast<size_t>(r) * vocab, row, vocab * 4);
        if (step.trace) {
            Hash hash;
            hash.floats(row, vocab);
            // Two rows may be the same token's.
            std::atomic_ref<uint64_t>(traced(op)[step.logit_rows[r]]).store(hash.value(), std::memory_order_relaxed);
        }
    });
}

}  // namespace pelton
