// The Python face of the executable. What Python hands over is checked here; nothing behind this file checks it again.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <utility>

#include "available.h"
#include "pack/pack.h"
#include "probe/bind_probe.h"
#include "step/exec.h"
#include "step/step.h"

namespace nb = nanobind;
using namespace pelton;

namespace {

template <class T>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
using Ints = Array<const int32_t>;
using Bytes = Array<const uint8_t>;

void need(bool good, const char* what) {
    if (!good) throw std::invalid_argument(what);
}

// Names of the instruction sets that run here, best first.
std::vector<std::string> runnable_sets() {
    std::vector<std::string> names;
    for (const InstructionSet& set : instruction_sets())
        if (set.refusal.empty()) names.push_back(set.name);
    return names;
}

// (name, why it cannot run here, whether the CPU has it all the same) of the others.
std::vector<std::tuple<std::string, std::string, bool>> refused_sets() {
    std::vector<std::tuple<std::string, std::string, bool>> sets;
    for (const InstructionSet& set : instruction_sets())
        if (!set.refusal.empty()) sets.emplace_back(set.name, set.refusal, set.wanting);
    return sets;
}

Kind kind_of(const std::string& name) {
    for (size_t i = 0; i < KIND_NAMES.size(); ++i)
        if (name == KIND_NAMES[i]) return static_cast<Kind>(i);
    throw std::invalid_argument("unknown op kind " + name);
}

std::vector<Slot> slots(const std::vector<std::pair<size_t, int>>& pairs) {
    std::vector<Slot> out;
    for (auto [offset, width] : pairs) out.push_back({offset, width});
    return out;
}

std::vector<std::pair<size_t, int>> pairs_of(nb::handle list) {
    std::vector<std::pair<size_t, int>> out;
    for (nb::handle item : list) out.emplace_back(nb::cast<size_t>(item[0]), nb::cast<int>(item[1]));
    return out;
}

// An op from a dict of plain values; see pelton/backends/cpu/emit.py, which writes every key.
OpRecord op_from(nb::dict d, const std::vector<const float*>& vectors) {
    auto vector = [&](nb::handle id) { return nb::cast<int>(id) < 0 ? nullptr : vectors.at(nb::cast<size_t>(id)); };
    OpRecord op;
    op.kind = kind_of(nb::cast<std::string>(d["kind"]));
    op.inputs = slots(pairs_of(d["inputs"]));
    op.outputs = slots(pairs_of(d["outputs"]));
    op.matrices = nb::cast<std::vector<int>>(d["matrices"]);
    for (nb::handle id : d["biases"]) op.biases.push_back(vector(id));
    op.gain = vector(d["gain"]);
    op.eps = nb::cast<float>(d["eps"]);
    op.scale = nb::cast<float>(d["scale"]);
    op.softcap = nb::cast<float>(d["softcap"]);
    op.activation = nb::cast<int>(d["activation"]);
    op.residual = nb::cast<bool>(d["residual"]);
    op.int8 = nb::cast<bool>(d["int8"]);
    op.state = nb::cast<int>(d["state"]);
    op.layer = nb::cast<int>(d["layer"]);
    op.heads = nb::cast<int>(d["heads"]);
    op.kv_heads = nb::cast<int>(d["kv_heads"]);
    op.interleaved = nb::cast<bool>(d["interleaved"]);
    op.factor = nb::cast<double>(d["factor"]);
    op.frequencies = nb::cast<std::vector<double>>(d["frequencies"]);
    op.slopes = nb::cast<std::vector<float>>(d["slopes"]);
    return op;
}

int add_matrix(Executable& executable, const std::string& to, const std::string& from, Bytes raw, int rows, int cols,
               const std::optional<Ints>& order) {
    need(rows > 0 && cols > 0, "rows or cols");
    need(raw.size() == file_bytes(from, static_cast<size_t>(rows), static_cast<size_t>(cols)), "raw bytes and shape differ");
    if (order) {
        need(order->size() == static_cast<size_t>(rows), "row_order");
        for (size_t i = 0; i < order->size(); ++i) need(order->data()[i] >= 0 && order->data()[i] < rows, "row_order");
    }
    nb::gil_scoped_release release;
    return executable.add_matrix(format_of(to), from, raw.data(), rows, cols, order ? order->data() : nullptr);
}

nb::dict constants() {
    nb::dict out;
    out["panel"] = PANEL;
    out["block"] = BLOCK;
    out["tile"] = TILE;
    out["chunk"] = CHUNK;
    out["vocab_chunk"] = VOCAB_CHUNK;
    out["attend_rows"] = ATTEND_ROWS;
    out["head_rows"] = HEAD_ROWS;
    out["norm_flops"] = NORM_FLOPS;
    out["layer_norm_flops"] = LAYER_NORM_FLOPS;
    out["activation_flops"] = ACTIVATION_FLOPS;
    out["table_flops"] = TABLE_FLOPS;
    out["softmax_flops"] = SOFTMAX_FLOPS;
    out["softcap_flops"] = SOFTCAP_FLOPS;
    out["slope_flops"] = SLOPE_FLOPS;
    out["choice_flops"] = CHOICE_FLOPS;
    return out;
}

// Executable plus what only building needs.
struct Bound {
    Executable executable;
    std::vector<const float*> vectors;
    std::atomic_flag busy = ATOMIC_FLAG_INIT;

    Bound(const std::string& isa, const std::vector<int>& cores, int max_tokens, int max_rows, int vocab, bool exact)
        : executable(kernels_named(isa), cores, max_tokens, max_rows, vocab, exact) {}
};

// A step that would read or write outside of its memory must never reach the kernels.
// `blocks`: of all sequences together, in one row of `tables`.
void check(const Step& step, const Executable& executable, size_t blocks, int repeat) {
    need(step.num_tokens <= executable.max_tokens() && step.num_rows <= executable.max_rows(), "a step larger than compiled for");
    need(executable.allocated() || step.num_sequences == 0, "no KV blocks are allocated");
    for (int r = 0; r < step.num_rows; ++r) {
        need(step.sampling[r].logprobs <= step.top, "top outputs are narrower than logprobs");
        need(step.sampling[r].target < executable.vocab(), "a target outside of the vocabulary");
    }
    need(step.table_offsets[0] == 0 && step.table_offsets[step.num_sequences] == static_cast<int>(blocks), "table_offsets");
    int64_t tokens = 0;
    for (int s = 0; s < step.num_sequences; ++s) {
        int64_t blocks = step.table_offsets[s + 1] - step.table_offsets[s], end = int64_t{step.starts[s]} + step.counts[s] + repeat - 1;
        need(step.counts[s] > 0 && step.starts[s] >= 0, "counts and starts must be positive");
        need(end <= INT32_MAX - CHUNK, "an index beyond 32 bits");
        need(blocks >= 0, "table_offsets");
        for (const StateRecord& state : executable.states()) {
            need(blocks * BLOCK >= end, "a table is shorter than its sequence");
            const int64_t hidden = state.lowest_seen(step.starts[s]) / BLOCK;
            need(blocks - hidden <= state.blocks, "a table has more blocks than the pool");
        }
        tokens += step.counts[s];
    }
    need(tokens == step.num_tokens, "counts do not add up to the tokens");
    const int32_t* block = step.tables;
    for (const StateRecord& state : executable.states())
        for (const int32_t* end = block + blocks; block < end; ++block)
            need(*block >= 0 && *block < state.blocks, "a block outside of the pool");
    for (int t = 0; t < step.num_tokens; ++t)
        need(step.tokens[t] >= 0 && step.tokens[t] < executable.vocab(), "a token outside of the vocabulary");
    for (int r = 0; r < step.num_rows; ++r)
        need(step.logit_rows[r] >= 0 && step.logit_rows[r] < step.num_tokens, "a logit row outside of the step");
}

void check_edits(const Step& step, const Executable& executable, size_t num_edits) {
    need(step.edit_offsets[0] == 0 && step.edit_offsets[step.num_rows] == static_cast<int>(num_edits), "edit_offsets");
    for (int r = 0; r < step.num_rows; ++r) need(step.edit_offsets[r] <= step.edit_offsets[r + 1], "edit_offsets");
    for (size_t i = 0; i < num_edits; ++i) {
        need(step.edits[i].token >= 0 && step.edits[i].token < executable.vocab(), "an edit of a token outside of the vocabulary");
        need(step.edits[i].bias < __builtin_inff(), "an edit's bias must be a number below infinity");  // a NaN is not below
    }
}

// Of several steps only tokens and places move on: every sequence has one token, whose logits are wanted.
void check_repeat(const Step& step, const Repeat& repeat, size_t stops) {
    need(!step.trace && !step.logits && !step.timing, "several steps in one call give neither logits nor hashes nor times");
    need(!step.parents && !step.num_columns, "several steps in one call for rows that do not decode");
    need(step.num_tokens == step.num_rows && step.num_sequences == step.num_rows, "several steps in one call for rows that do not decode");
    need(repeat.stop_offsets[0] == 0 && repeat.stop_offsets[step.num_rows] == static_cast<int>(stops), "stop_offsets");
    for (int r = 0; r < step.num_rows; ++r) {
        need(step.logit_rows[r] == r && step.counts[r] == 1 && step.sampling[r].target < 0, "several steps in one call for rows that do not decode");
        need(repeat.stop_offsets[r] <= repeat.stop_offsets[r + 1], "stop_offsets");
    }
}

// Block 0 is where padding goes: no sequence's content is ever in it.
void check_block_ops(const Step& step, const Executable& executable) {
    const auto& states = executable.states();
    for (int i = 0; i < step.num_block_ops; ++i) {
        const BlockOp& op = step.block_ops[i];
        need(op.kind >= COPY_BLOCK && op.kind <= LOAD_BLOCK, "an unknown kind of block operation");
        need(op.group >= 0 && static_cast<size_t>(op.group) < states.size(), "a block operation on an unknown KV group");
        const StateRecord& state = states[static_cast<size_t>(op.group)];
        auto block = [&](int32_t id) { return id > 0 && id < state.blocks; };
        auto slot = [&](int32_t id) { return id >= 0 && id < state.slots; };
        need(op.kind == SCRUB_BLOCK || (op.kind == LOAD_BLOCK ? slot(op.source) : block(op.source)), "a block operation outside of the pool");
        need(op.kind == SAVE_BLOCK ? slot(op.target) : block(op.target), "a block operation outside of the pool");
    }
}

// A tree's rows stand behind their parents.
void check_parents(const Step& step) {
    int token = 0;
    for (int s = 0; s < step.num_sequences; token += step.counts[s++]) {
        bool chain = true;
        for (int i = 0; i < step.counts[s]; ++i) {
            const int parent = step.parents[token + i];
            need(parent >= -1 && parent < i, "a parent must stand before its child in the rows of the sequence, or be -1");
            chain &= parent == i - 1;
        }
        need(chain || step.counts[s] <= MAX_TREE, "a tree of more than 256 tokens");
    }
}

// (layer, first row, rows) each, and the arrays to add to.
std::vector<Columns> columns_of(const Step& step, const Executable& executable, const Ints& wanted, const std::vector<Array<float>>& sums) {
    need(wanted.size() == 3 * sums.size() && sums.size() <= MAX_COLUMNS, "column sums: at most 8 requests, an array for each");
    std::vector<Columns> requests;
    for (size_t i = 0; i < sums.size(); ++i) {
        const int32_t* it = wanted.data() + 3 * i;
        const OpRecord* op = executable.attend_op(it[0]);
        need(op, "column sums of a layer that is not there");
        int s = 0, token = 0;
        while (s < step.num_sequences && it[1] >= token + step.counts[s]) token += step.counts[s++];
        need(it[1] >= 0 && it[2] > 0 && s < step.num_sequences && it[2] <= token + step.counts[s] - it[1], "column sums: rows of one sequence of the step");
        for (int r = it[1]; step.parents && r < it[1] + it[2]; ++r)
            need(step.parents[r] == r - token - 1, "column sums of the rows of a tree");
        const size_t heads = static_cast<size_t>(executable.states()[static_cast<size_t>(op->state)].heads), width = sums[i].size() / heads;
        need(sums[i].size() == heads * width && width >= static_cast<size_t>(step.starts[s] + it[1] - token + it[2]),
             "column sums: an array [KV heads, keys] with room for all keys that the rows see");
        requests.push_back({it[0], it[1], it[2], s, sums[i].data(), width});
    }
    return requests;
}

// Returns how many steps were done, and the seconds that they took.
std::pair<int, double> run(Bound& bound, Ints tokens, Ints positions, Ints starts, Ints counts, Ints tables, Ints offsets, Ints logit_rows, Bytes sampling,
         Array<int32_t> out_ints, Array<float> out_logprobs, Array<int32_t> top_ids, Array<float> top_logprobs,
         std::optional<Array<float>> logits, std::optional<Bytes> edits, std::optional<Ints> edit_offsets, std::optional<Ints> block_ops,
         std::optional<Array<uint64_t>> trace, std::optional<Ints> parents, std::optional<Ints> columns, const std::vector<Array<float>>& sums,
         std::optional<Array<uint64_t>> timing, int repeat, std::optional<Ints> stops, std::optional<Ints> stop_offsets, int wake) {
    const size_t rows = logit_rows.size(), all = rows * static_cast<size_t>(std::max(repeat, 1));
    need(positions.size() == tokens.size(), "positions");
    need(starts.size() == counts.size() && offsets.size() == starts.size() + 1, "starts, counts or table_offsets");
    need(sampling.size() == rows * sizeof(Sampling), "sampling");
    need(out_ints.size() == 3 * all && out_logprobs.size() == all && top_ids.size() == top_logprobs.size(), "outputs");
    Step step{};
    step.tokens = tokens.data();
    step.positions = positions.data();
    step.starts = starts.data();
    step.counts = counts.data();
    step.tables = tables.data();
    step.table_offsets = offsets.data();
    step.logit_rows = logit_rows.data();
    step.sampling = reinterpret_cast<const Sampling*>(sampling.data());
    step.num_tokens = static_cast<int>(tokens.size());
    step.num_sequences = static_cast<int>(starts.size());
    step.num_rows = static_cast<int>(rows);
    step.out_tokens = out_ints.data();
    step.out_ranks = out_ints.data() + all;
    step.out_faults = out_ints.data() + 2 * all;
    step.out_logprobs = out_logprobs.data();
    step.top = all ? static_cast<int>(top_ids.size() / all) : 0;
    step.top_ids = top_ids.data();
    step.top_logprobs = top_logprobs.data();
    need(!logits || logits->size() == rows * static_cast<size_t>(bound.executable.vocab()), "logits");
    step.logits = logits ? logits->data() : nullptr;
    const size_t blocks = offsets.data()[starts.size()] < 0 ? 0 : static_cast<size_t>(offsets.data()[starts.size()]);
    need(tables.size() == blocks * bound.executable.states().size(), "tables do not fit table_offsets");
    check(step, bound.executable, blocks, std::max(repeat, 1));
    if (edits) {
        need(edits->size() % sizeof(Edit) == 0 && edit_offsets && edit_offsets->size() == rows + 1, "edits");
        step.edits = reinterpret_cast<const Edit*>(edits->data());
        step.edit_offsets = edit_offsets->data();
        check_edits(step, bound.executable, edits->size() / sizeof(Edit));
    }
    if (block_ops) {
        need(block_ops->size() % 4 == 0, "block_ops");
        step.block_ops = reinterpret_cast<const BlockOp*>(block_ops->data());
        step.num_block_ops = static_cast<int>(block_ops->size() / 4);
        check_block_ops(step, bound.executable);
    }
    need(!trace || trace->size() == bound.executable.ops() * tokens.size(), "trace");
    step.trace = trace ? trace->data() : nullptr;
    if (parents) {
        need(parents->size() == tokens.size(), "parents");
        step.parents = parents->data();
        check_parents(step);
    }
    std::vector<Columns> wanted;
    if (columns) {
        wanted = columns_of(step, bound.executable, *columns, sums);
        step.columns = wanted.data();
        step.num_columns = static_cast<int>(wanted.size());
    }
    need(!timing || timing->size() == 2 * bound.executable.ops(), "timing");
    step.timing = timing ? timing->data() : nullptr;
    const Repeat many{repeat, stops ? stops->data() : nullptr, stop_offsets ? stop_offsets->data() : nullptr, wake};
    if (repeat > 1) {
        need(stops && stop_offsets && stop_offsets->size() == rows + 1, "stops");
        check_repeat(step, many, stops->size());
    }
    if (bound.busy.test_and_set()) throw std::runtime_error("another thread is in the middle of a step of this executable");
    const uint64_t began = now_ns();
    int done = 1;
    {
        nb::gil_scoped_release release;
        if (repeat > 1) done = bound.executable.run_many(step, many);
        else bound.executable.run(step);
    }
    bound.busy.clear();
    return {done, static_cast<double>(now_ns() - began) * 1e-9};
}

nb::dict counters(const Bound& bound) {
    Tally total = bound.executable.total();
    nb::dict out;
    out["steps"] = bound.executable.steps();
    out["weight_bytes"] = total.weight_bytes;
    out["shared_tiles"] = total.shared_tiles;
    for (size_t i = 0; i < total.formats.size(); ++i)
        out[nb::str((std::string("weight_bytes:") + LAYOUTS[i].name).c_str())] = total.formats[i];
    out["worker_ns"] = total.ran_ns;
    out["wait_ns"] = total.waited_ns;
    for (size_t i = 0; i < KIND_NAMES.size(); ++i) {
        out[nb::str((std::string("flops:") + KIND_NAMES[i]).c_str())] = total.kinds[i].flops;
        out[nb::str((std::string("read:") + KIND_NAMES[i]).c_str())] = total.kinds[i].read;
        out[nb::str((std::string("written:") + KIND_NAMES[i]).c_str())] = total.kinds[i].written;
    }
    return out;
}

const StateRecord& group_at(const Bound& bound, int group) {
    const auto& states = bound.executable.states();
    if (group < 0 || static_cast<size_t>(group) >= states.size()) throw std::out_of_range("KV group");
    return states[static_cast<size_t>(group)];
}

uint8_t* block_at(const Bound& bound, int group, int id) {
    const StateRecord& state = group_at(bound, group);
    if (id < 0 || id >= state.blocks) throw std::out_of_range("block");
    return state.block(id);
}

void allocate(Bound& bound, const std::vector<int>& blocks) {
    need(blocks.size() == bound.executable.states().size(), "a number of blocks for each KV group");
    for (int count : blocks) need(count > 0, "at least one block for each KV group");
    bound.executable.allocate(blocks);
}

void reserve(Bound& bound, const std::vector<int>& slots) {
    need(slots.size() == bound.executable.states().size(), "a number of host slots for each KV group");
    for (int count : slots) need(count >= 0, "no fewer than no host slots");
    bound.executable.reserve(slots);
}

// A view of memory that lives as long as the executable and is not reserved or allocated again.
using View = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

View slot_view(Bound& bound, int group, int id) {
    const StateRecord& state = group_at(bound, group);
    if (id < 0 || id >= state.slots) throw std::out_of_range("host slot");
    return View(state.slot(id), {state.block_bytes}, nb::find(bound));
}

View block_view(Bound& bound, int group, int id) { return View(block_at(bound, group, id), {group_at(bound, group).block_bytes}, nb::find(bound)); }

std::vector<size_t> block_bytes_of(const Bound& bound) {
    std::vector<size_t> sizes;
    for (const StateRecord& state : bound.executable.states()) sizes.push_back(state.block_bytes);
    return sizes;
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Native executable of the CPU backend.";
    m.attr("SAMPLING_BYTES") = sizeof(Sampling);
    m.attr("EDIT_BYTES") = sizeof(Edit);
    m.attr("CONSTANTS") = constants();
    m.attr("PACK_LAYOUT") = PELTON_PACK_LAYOUT;
    m.def("instruction_sets", &runnable_sets, "Instruction sets of this processor and build, best first.");
    m.def("refused_instruction_sets", &refused_sets, "(name, why it cannot run here, whether the CPU has it all the same) of the others.");
    bind_probe(m);
    nb::class_<Bound>(m, "Executable")
        .def(nb::init<const std::string&, const std::vector<int>&, int, int, int, bool>(), nb::arg("isa"), nb::arg("cores"),
             nb::arg("max_tokens"), nb::arg("max_rows"), nb::arg("vocab"), nb::arg("exact"))
        .def("add_matrix",
             [](Bound& b, const std::string& to, const std::string& from, Bytes raw, int rows, int cols, std::optional<Ints> order) {
                 return add_matrix(b.executable, to, from, raw, rows, cols, order);
             }, nb::arg("to"), nb::arg("source"), nb::arg("raw"), nb::arg("rows"), nb::arg("cols"), nb::arg("order").none())
        .def("add_packed",
             [](Bound& b, const std::string& to, int rows, int cols, int file, size_t offset, size_t bytes) {
                 need(rows > 0 && cols > 0 && bytes == packed_bytes(format_of(to), rows, cols), "packed bytes and shape differ");
                 return b.executable.add_packed(format_of(to), rows, cols, file, offset);
             },
             nb::arg("to"), nb::arg("rows"), nb::arg("cols"), nb::arg("file"), nb::arg("offset"), nb::arg("bytes"))
        .def("use_values", [](Bound& b, size_t matrix) {
            need(matrix < b.executable.matrices(), "an unknown matrix");
            b.executable.use_values(matrix);
        })
        .def("packed_matrix",
             [](Bound& b, size_t matrix) {
                 need(matrix < b.executable.matrices(), "an unknown matrix");
                 const Memory& memory = b.executable.packed(static_cast<int>(matrix));
                 return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(memory.data(), {memory.size()}, nb::find(b));
             },
             nb::arg("matrix"))
        .def("add_vector", [](Bound& b, Array<const float> values) {
            b.vectors.push_back(b.executable.add_vector(values.data(), values.size()));
            return b.vectors.size() - 1;
        })
        .def("add_state", [](Bound& b, int layers, int heads, int key_dim, int value_dim, int window) {
            need(layers > 0 && heads > 0 && key_dim > 0 && value_dim > 0 && window >= 0, "a KV group's geometry");
            return b.executable.add_state(layers, heads, key_dim, value_dim, window);
        })
        .def("add_op", [](Bound& b, nb::dict op) { b.executable.add_op(op_from(op, b.vectors)); })
        .def("finish", [](Bound& b, size_t arena_floats) { b.executable.finish(arena_floats); })
        .def("allocate", &allocate)
        .def("reserve", &reserve)
        .def("slot_view", &slot_view)
        .def("block_view", &block_view)
        .def("run", &run, nb::arg("tokens"), nb::arg("positions"), nb::arg("starts"), nb::arg("counts"), nb::arg("tables"), nb::arg("offsets"),
             nb::arg("logit_rows"), nb::arg("sampling"), nb::arg("out_ints"), nb::arg("out_logprobs"), nb::arg("top_ids"),
             nb::arg("top_logprobs"), nb::arg("logits").none(), nb::arg("edits").none() = nb::none(), nb::arg("edit_offsets").none() = nb::none(),
             nb::arg("block_ops").none() = nb::none(), nb::arg("trace").none() = nb::none(), nb::arg("parents").none() = nb::none(),
             nb::arg("columns").none() = nb::none(), nb::arg("sums") = std::vector<Array<float>>(),
             nb::arg("timing").none() = nb::none(), nb::arg("repeat") = 1, nb::arg("stops").none() = nb::none(),
             nb::arg("stop_offsets").none() = nb::none(), nb::arg("wake") = -1)
        .def("counters", &counters)
        .def("copy_block", [](Bound& b, int group, int from, int to) {
            block_at(b, group, from), block_at(b, group, to);
            b.executable.copy_block(group, from, to);
        })
        .def("scrub_block", [](Bound& b, int group, int id) {
            block_at(b, group, id);
            b.executable.scrub_block(group, id);
        })
        .def("read_block", [](Bound& b, int group, int id) {
            return nb::bytes(reinterpret_cast<const char*>(block_at(b, group, id)), group_at(b, group).block_bytes);
        })
        .def("write_block", [](Bound& b, int group, int id, nb::bytes data) {
            need(data.size() == group_at(b, group).block_bytes, "block size");
            std::memcpy(block_at(b, group, id), data.c_str(), data.size());
        })
        .def_prop_ro("block_bytes", &block_bytes_of)
        .def_prop_ro("held_bytes", [](const Bound& b) { return b.executable.held_bytes(); })
        .def_prop_ro("moved_ns", [](const Bound& b) { return b.executable.moved_ns(); })
        .def_prop_ro("working_bytes", [](const Bound& b) { return b.executable.working_bytes(); })
        .def_prop_ro("num_ops", [](const Bound& b) { return b.executable.ops(); });
}
