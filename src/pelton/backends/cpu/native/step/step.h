// One worker's way through a step: every worker runs the same op list, takes pieces of each stage from a shared counter
// and meets the others at the end of the stage.
#pragma once

#include <algorithm>
#include <atomic>

#include "step/exec.h"

namespace pelton {

constexpr int HEAD_ROWS = 32;    // logit rows that share a pass over the head's matrix

// What the cost rules (program/ops) count per element.
constexpr uint64_t NORM_FLOPS = 4, LAYER_NORM_FLOPS = 7, ACTIVATION_FLOPS = 20, TABLE_FLOPS = 60, SOFTMAX_FLOPS = 20,
                   SOFTCAP_FLOPS = 20, SLOPE_FLOPS = 2, CHOICE_FLOPS = 20;

// Up to so many rows reading weights takes much of the time. Pieces of steps with more take some hundred microseconds, and so do
// waits for them: a core that parks at each of them slows down.
constexpr int MANY_ROWS = 64;
constexpr uint64_t MANY_ROWS_SPIN_NS = 100'000;

constexpr size_t AHEAD_BYTES = size_t{64} << 10;  // of the next products' weights that a worker asks for while it waits, as measured

constexpr int ROW_PIECE = 4;  // rows a worker takes at a time in stages that go by rows

inline int pieces_of(int rows) { return (rows + ROW_PIECE - 1) / ROW_PIECE; }
inline uint64_t u(int n) { return static_cast<uint64_t>(n); }

constexpr int TILE_ROWS = 128;          // rows that a few panels are multiplied with at a time: both stay in the L2 cache
constexpr int STRIP_FLOATS = 512 * PANEL;  // products of such a tile, before what is fused behind them

// Rows [row, row + rows) of a step's products with panels [panel, panel + panels) of a matrix.
struct Part {
    int panel, panels, row, rows;
};

struct Worker {
    Executable& x;
    const Step step;  // a copy: the caller's is gone when a worker that comes late reads it
    int id;
    Tally& tally;
    size_t stage = 0;
    uint64_t since = now_ns();  // what came before stands in `tally`
    bool late = false;  // the step is over without this worker: what it points at may be gone
    bool own = false;  // this worker's own rows are those of the present products
    const uint8_t* ahead = nullptr;  // weights that this worker needs next
    size_t ahead_bytes = 0;          // still to be asked for

    void run();

   private:
    void compute(const OpRecord& op);
    template <class F>
    void parallel(int pieces, F work);
    template <class F>
    void guided(int pieces, int least, int own_run, F work);
    int product_panels(const OpRecord& op) const;
    int first_run(int pairs, int rows) const;
    void look_ahead(const OpRecord& op);
    void meet(const std::atomic<uint32_t>& done, uint32_t end);
    template <class F>
    void products(const OpRecord& op, int rows, const int32_t* from, int panels, F work);

    float* at(const Slot& slot, int row = 0) const;
    float* scratch() const;
    Work& count(Kind kind, uint64_t flops, uint64_t read, uint64_t written);

    void embed(const OpRecord& op);
    void norm(const OpRecord& op);
    void linear(const OpRecord& op);
    void linear_panels(const OpRecord& op, size_t which, int panel, int panels);
    void linear_part(const OpRecord& op, size_t which, const Part& part);
    void multiply(const OpRecord& op, const Matrix& matrix, const Part& part, int rows, float* out, size_t stride);
    IntRow int_row(int rows, int width, int row) const;
    IntRows int_rows(int rows, int width) const;
    void prepare_int8(const OpRecord& op, const float* from, IntRow to);
    void bias_strip(const OpRecord& op, size_t which, const Part& part, float* strip);
    void prepare_rows(const OpRecord& op, int rows, const int32_t* from, int piece);
    void count_prepared(const OpRecord& op, int rows, int piece);
    const Prepared& ready() const { return x.prepared_[own ? static_cast<size_t>(id) + 1 : 0]; }
    uint16_t* rows16();
    void elementwise(const OpRecord& op);
    void rope_table(const OpRecord& op);
    void rope(const OpRecord& op);
    void kv_write(const OpRecord& op);
    void rope_kv(const OpRecord& op);
    void store_token(const OpRecord& op, int token, const float* k, const float* v);
    KVView view(const OpRecord& op) const;
    void attend(const OpRecord& op);
    AttendArgs attend_args(const OpRecord& op, int sequence, int kv_head, const AttendRow* rows, int count) const;
    void attend_pass(const OpRecord& op, const AttendArgs& args, int first, int last, bool resume);
    void attend_shared(const OpRecord& op, const AttendItem& item);
    void attend_own(const OpRecord& op, const AttendItem& item);
    float* attend_chunk(const OpRecord& op, const AttendItem& item, int chunk, float* fresh, const uint8_t* tail);
    void attend_rows(const OpRecord& op, const AttendItem& item, const uint8_t* tail);
    void attend_tree(const OpRecord& op, const AttendItem& item);
    void attend_merge(const OpRecord& op, const AttendItem& item);
    void attend_out(const OpRecord& op, int token, int rows, int kv_head, const float* states);
    float* lse_of(const OpRecord& op, int token) const;
    void columns(const OpRecord& op);
    void column_chunk(const OpRecord& op, const Columns& wanted, int chunk, int kv_head);
    void head(const OpRecord& op);
    void head_group(const OpRecord& op, int first, int rows);
    void trace(const OpRecord& op);
    uint64_t* traced(const OpRecord& op) const;
};

// A stage is over when its pieces are done, not when every worker was there: one that was not running (another process
// had its core) holds up nobody unless it holds a piece. It catches up through the stages it missed, or is late.
template <class F>
void Worker::parallel(int pieces, F work) {
    if (late) return;
    Stage& at = x.stages_[stage++];
    const uint32_t total = static_cast<uint32_t>(pieces), end = at.begun + total;
    for (uint32_t i = at.taken.fetch_add(1, std::memory_order_relaxed); i < total; i = at.taken.fetch_add(1, std::memory_order_relaxed)) {
        work(static_cast<int>(i));
        if (at.done.fetch_add(1, std::memory_order_acq_rel) + 1 == end) at.done.notify_all();
    }
    meet(at.done, end);
}

// Pieces in runs [first, last). `own_run`: so many of each worker's first run, which is always the same so that it can be asked
// for ahead; 0: none. Then runs of what is left, ever shorter ones, `least` at least, so that workers of any speed end
// together; and last the first runs of those that did not come.
template <class F>
void Worker::guided(int pieces, int least, int own_run, F work) {
    if (late) return;
    Stage& at = x.stages_[stage++];
    const uint32_t total = static_cast<uint32_t>(pieces), end = at.begun + total, shortest = static_cast<uint32_t>(least);
    const uint32_t threads = static_cast<uint32_t>(x.threads()), run_of_each = static_cast<uint32_t>(own_run);
    const uint32_t shared = total - threads * run_of_each, parts = (run_of_each ? 2 : 8) * threads;
    auto take = [&](uint32_t first, uint32_t run) {
        work(static_cast<int>(first), static_cast<int>(first + run));
        if (at.done.fetch_add(run, std::memory_order_acq_rel) + run == end) at.done.notify_all();
    };
    auto take_first_run = [&](uint32_t of) {
        const uint64_t bit = uint64_t{1} << of;
        if (!(at.firsts.fetch_or(bit, std::memory_order_relaxed) & bit)) take(of * run_of_each, run_of_each);
    };
    const uint32_t self = static_cast<uint32_t>(id);
    if (run_of_each) take_first_run(self);
    for (uint32_t first = at.taken.load(std::memory_order_relaxed); first < shared;) {
        const uint32_t left = shared - first, run = std::min(left, std::max(shortest, left / parts));
        if (!at.taken.compare_exchange_weak(first, first + run, std::memory_order_relaxed)) continue;
        take(threads * run_of_each + first, run);
        first = at.taken.load(std::memory_order_relaxed);
    }
    for (uint32_t other = 1; run_of_each && other < threads; ++other) take_first_run((self + other) % threads);
    meet(at.done, end);
}

}  // namespace pelton
