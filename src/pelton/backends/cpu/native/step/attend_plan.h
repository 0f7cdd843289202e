// How the attention of one KV group is cut into pieces of work in a step: which rows share which tiles, which chunks of
// a sequence go to several threads, and where the states of those that meet later stand. What it is not: it computes
// nothing and sees no K and no V. Invariant: whatever it decides, a row's tiles are taken in ascending order within each
// chunk and its chunks are merged in order, so that no decision changes a bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace pelton {

constexpr int ATTEND_ROWS = 64;  // query rows that share a pass over KV blocks
constexpr int SPLIT_ROWS = 4;    // query rows up to which chunks of one sequence are worth spreading over threads
constexpr int SHARE_ROWS = 8;    // query rows of one sequence up to which passes are worth sharing; more make good use of a block by themselves
constexpr int SHARE_TILES = 4;   // reads of tiles that sharing must save in a step, or it is not worth its stage
constexpr int TREE_ROWS = 16;    // rows of a tree that are a piece of work
constexpr int MAX_TREE = 256;    // rows of a tree
constexpr int MAX_COLUMNS = 8;   // requests for column sums in a step
constexpr int KEPT_STATES = 4096;  // states of (row, chunk) that there is room for beside those of split chunks
constexpr int CHUNK_TILES = CHUNK / TILE;

// What stays the same from step to step.
struct AttendShape {
    int window, kv_heads, group;
    size_t state_floats;  // of one (row, query head)
    int threads;
    size_t room;          // floats for states that meet later
};

// The step's sequences; `indices` [tokens] on each row's own path, `branching` [sequences]: rows that form no chain.
struct AttendSequences {
    int count;
    const int32_t *starts, *counts, *indices, *table_offsets, *tables;
    const uint8_t* branching;
    const int32_t* table(int sequence) const { return tables + table_offsets[sequence]; }
};

// One chunk of a lane: the slot where its state stands (-1: nowhere yet) and the first tile that is not in it.
struct AttendPart {
    int slot, tile;
};

// Rows of one sequence that go together. Their states of kept chunks stand at [kv head][slot][row][group].
struct AttendLane {
    int sequence, token, rows;
    int first_row, start;              // place of the first row in its sequence; of a tree, start: the index where it begins
    int lowest, highest;               // indices that some row sees
    int first_chunk, chunks;
    bool tree, split;                  // split: each chunk is a piece of work
    size_t parts;                      // place of the first of `chunks`
    int slots;
    size_t kept, stride;               // place of the first slot; floats of a slot
    size_t head_step() const { return static_cast<size_t>(slots) * stride; }
};

// One row of a set: where its state of KV head 0 stands, and how far behind it those of the next heads.
struct AttendPlace {
    int token, index;
    size_t state, head_step;
};

// Rows that take tiles [first, last) of one chunk in one pass, by the table of one of their sequences.
struct AttendSet {
    int sequence, first, last;
    size_t rows, lanes;  // places of its first row and lane
    int count, num_lanes, sequences;
};

// A piece of work: rows [from, to) of a set or lane for one KV head; of a lane one chunk, or all (-1).
struct AttendItem {
    int which, kv_head, chunk, from, to;
    int64_t size = 0;  // (row, tile) pairs that meet in it
};

class AttendPlan {
   public:
    void make(const AttendShape& shape, const AttendSequences& step);
    const AttendShape& shape() const { return shape_; }
    const AttendPart& part(const AttendLane& lane, int chunk) const {
        return parts[lane.parts + static_cast<size_t>(chunk - lane.first_chunk)];
    }

    // To be carried out one list after the other; items of a list in any order, the largest first: so workers end together.
    std::vector<AttendItem> shared, own, merges;
    std::vector<AttendLane> lanes;
    std::vector<AttendSet> sets;
    std::vector<AttendPlace> rows;
    std::vector<AttendPart> parts;

   private:
    // A lane in one chunk: tiles [first, last) that all its rows see whole, but for what a window hides at the start.
    struct Member {
        int lane, first, last;
        const int32_t* blocks;  // from the second block of tile `first` on
    };
    void add_lanes(const AttendSequences& step);
    void share(const AttendSequences& step);
    void find_members(const AttendSequences& step, int chunk);
    void find_sets(int chunk);
    int common(const Member& a, const Member& b) const;
    void keep_lanes();
    void place_sets(const AttendSequences& step);
    void add_shared();
    void add_own();
    AttendPart& part(const AttendLane& lane, int chunk) { return parts[lane.parts + static_cast<size_t>(chunk - lane.first_chunk)]; }
    int end_tile(const AttendLane& lane, int chunk) const;
    int tiles_left(const AttendLane& lane, int chunk) const;
    int lowest_seen(int index) const { return shape_.window && index >= shape_.window ? index - shape_.window + 1 : 0; }

    AttendShape shape_{};
    std::vector<Member> members_;
    std::vector<int> set_lanes_;  // of all sets
};

}  // namespace pelton
