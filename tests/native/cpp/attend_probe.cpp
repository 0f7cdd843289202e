// Doors through which tests/native/test_attend*.py reach the attention kernels of one ISA by ctypes.
// What it is not: part of the package. Denormals are flushed inside every call, as in the executable.
#include <vector>

#include "tables.h"

namespace {

const pelton::Kernels& attend_kernels(int isa) { return pelton::kernels_at(isa); }

// The call with its rows' states at partial [rows][group][floats].
struct Call {
    std::vector<pelton::AttendRow> rows;
    pelton::AttendArgs args;

    Call(const pelton::AttendArgs& given, float* partial, size_t floats) : rows(given.rows, given.rows + given.num_rows), args(given) {
        for (pelton::AttendRow& row : rows) row.state = partial, partial += static_cast<size_t>(given.group) * floats;
        args.rows = rows.data();
    }
};

}  // namespace

extern "C" {

void attend_probe_tiles(int isa, const pelton::AttendArgs* args, int first, int last, int resume, float* partial) {
    pelton::FlushDenormals guard;
    Call call(*args, partial, pelton::partial_floats(args->kv.value_dim));
    attend_kernels(isa).attend_tiles(call.args, first, last, resume != 0);
}

void attend_probe_chunk(int isa, const pelton::AttendArgs* args, int chunk, float* partial) {
    constexpr int tiles = pelton::CHUNK / pelton::TILE;
    attend_probe_tiles(isa, args, chunk * tiles, (chunk + 1) * tiles, 0, partial);
}

// lse [rows][group]; sums [64 * (last - first)].
void attend_probe_columns(int isa, const pelton::AttendArgs* args, int first, int last, float* lse, float* sums) {
    pelton::FlushDenormals guard;
    Call call(*args, lse, 1);
    attend_kernels(isa).attend_columns(call.args, first, last, sums);
}

void attend_probe_lse(int isa, const float* states, int count, int value_dim, float* out) {
    pelton::FlushDenormals guard;
    attend_kernels(isa).attend_lse(states, count, value_dim, out);
}

void attend_probe_merge(int isa, float* into, const float* later, int count, int value_dim) {
    pelton::FlushDenormals guard;
    attend_kernels(isa).attend_merge(into, later, count, value_dim);
}

void attend_probe_finish(int isa, const float* state, int value_dim, float* out) {
    pelton::FlushDenormals guard;
    attend_kernels(isa).attend_finish(state, value_dim, out);
}
}
