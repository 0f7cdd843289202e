// The planning of attention, once a step and KV group. What it costs: a sort of the sequences that may share something
// for each chunk that they share, and nothing that grows with the tokens.
#include "step/attend_plan.h"

#include <algorithm>
#include <cstring>
#include <tuple>

namespace pelton {

namespace {

void largest_first(std::vector<AttendItem>& items) {
    auto before = [](const AttendItem& a, const AttendItem& b) {
        if (a.size != b.size) return a.size > b.size;
        return std::tie(a.which, a.kv_head, a.chunk, a.from) < std::tie(b.which, b.kv_head, b.chunk, b.from);
    };
    if (!std::is_sorted(items.begin(), items.end(), before)) std::sort(items.begin(), items.end(), before);
}

}  // namespace

void AttendPlan::make(const AttendShape& shape, const AttendSequences& step) {
    shape_ = shape;
    for (auto* items : {&shared, &own, &merges}) items->clear();
    lanes.clear();
    sets.clear();
    rows.clear();
    parts.clear();
    set_lanes_.clear();
    add_lanes(step);
    share(step);
    keep_lanes();
    place_sets(step);
    add_shared();
    add_own();
    largest_first(shared);
    largest_first(own);
}

void AttendPlan::add_lanes(const AttendSequences& step) {
    int token = 0;
    for (int s = 0; s < step.count; token += step.counts[s++]) {
        const bool tree = step.branching && step.branching[s];
        for (int done = 0; done < step.counts[s]; done += ATTEND_ROWS) {
            AttendLane lane{};
            lane.sequence = s;
            lane.token = token + done;
            lane.rows = std::min(ATTEND_ROWS, step.counts[s] - done);
            lane.first_row = done;
            lane.tree = tree;
            lane.start = step.starts[s] + (tree ? 0 : done);
            const auto [low, high] = std::minmax_element(step.indices + lane.token, step.indices + lane.token + lane.rows);
            lane.lowest = lowest_seen(*low);
            lane.highest = *high;
            lane.first_chunk = lane.lowest / CHUNK;
            lane.chunks = lane.highest / CHUNK - lane.first_chunk + 1;
            lane.parts = parts.size();
            for (int c = 0; c < lane.chunks; ++c) parts.push_back({-1, (lane.first_chunk + c) * CHUNK_TILES});
            lanes.push_back(lane);
        }
    }
}

// The end of what a lane's rows see of a chunk.
int AttendPlan::end_tile(const AttendLane& lane, int chunk) const {
    return std::min((chunk + 1) * CHUNK_TILES, lane.highest / TILE + 1);
}

// Tiles of a chunk that some of its rows see and that no set has.
int AttendPlan::tiles_left(const AttendLane& lane, int chunk) const {
    return std::max(0, end_tile(lane, chunk) - std::max(part(lane, chunk).tile, lane.lowest / TILE));
}

// ---- who shares what -------------------------------------------------------------------------------------------------

void AttendPlan::share(const AttendSequences& step) {
    int first = INT32_MAX, last = -1, saved = 0;
    bool trees = false;
    for (const AttendLane& lane : lanes) {
        first = std::min(first, lane.first_chunk);
        last = std::max(last, lane.first_chunk + lane.chunks - 1);
        trees |= lane.tree;
    }
    if (lanes.size() < 2 && !trees) return;
    for (int chunk = first; chunk <= last; ++chunk) {
        find_members(step, chunk);
        if (members_.empty() && !shape_.window) break;  // who shares a later chunk shares those before it
        find_sets(chunk);
    }
    for (const AttendSet& set : sets) saved += (set.num_lanes - 1) * (set.last - set.first);
    if (saved >= SHARE_TILES || trees) return;
    for (const AttendLane& lane : lanes)
        for (int c = lane.first_chunk; c < lane.first_chunk + lane.chunks; ++c) part(lane, c).tile = c * CHUNK_TILES;
    sets.clear();
}

// Lanes that could share tiles of this chunk, those that do next to each other. Of a tree these are the tiles before its
// first token, which its rows share among themselves.
void AttendPlan::find_members(const AttendSequences& step, int chunk) {
    members_.clear();
    for (size_t i = 0; i < lanes.size(); ++i) {
        const AttendLane& lane = lanes[i];
        if (chunk < lane.first_chunk || chunk >= lane.first_chunk + lane.chunks) continue;
        if (!lane.tree && step.counts[lane.sequence] > SHARE_ROWS) continue;
        if (!lane.tree && !shape_.window && chunk > lane.first_chunk && part(lane, chunk - 1).tile < chunk * CHUNK_TILES) continue;
        const int whole = (lane.tree ? lane.start : lane.start + 1) / TILE;
        const int from = std::max(lane.lowest / TILE, chunk * CHUNK_TILES), to = std::min(whole, (chunk + 1) * CHUNK_TILES);
        if (from < to) members_.push_back({static_cast<int>(i), from, to, step.table(lane.sequence) + 2 * from + 1});
    }
    if (members_.size() < 2) return;
    std::sort(members_.begin(), members_.end(), [](const Member& a, const Member& b) {
        if (a.first != b.first) return a.first < b.first;
        const int size = 2 * (std::min(a.last, b.last) - a.first) - 1;
        const int order = std::memcmp(a.blocks, b.blocks, static_cast<size_t>(size) * sizeof(int32_t));
        return order ? order < 0 : a.last != b.last ? a.last > b.last : a.lane < b.lane;
    });
}

// Tiles from `first` on that two members can take in one pass. A block that a window hides from one of them may differ.
int AttendPlan::common(const Member& a, const Member& b) const {
    if (a.first != b.first) return 0;
    auto sees_first = [&](const Member& m) { return lanes[static_cast<size_t>(m.lane)].lowest / BLOCK <= 2 * m.first; };
    if (sees_first(a) && sees_first(b) && a.blocks[-1] != b.blocks[-1]) return 0;
    const int most = std::min(a.last, b.last) - a.first;
    for (int i = 0; i < 2 * most - 1; ++i)
        if (a.blocks[i] != b.blocks[i]) return (i + 1) / 2;
    return most;
}

// Neighbours form a set as long as that saves no less than leaving the next one out.
void AttendPlan::find_sets(int chunk) {
    for (size_t i = 0, end = 0; i < members_.size(); i = end) {
        Member leader = members_[i];  // the one that sees most at the start: its table holds for all
        int tiles = leader.last - leader.first;
        for (end = i + 1; end < members_.size(); ++end) {
            const Member& next = members_[end];
            const int both = std::min(tiles, common(leader, next)), count = static_cast<int>(end - i);
            if (!both || both * count < tiles * (count - 1)) break;
            if (count == 1 && end + 1 < members_.size() && common(next, members_[end + 1]) > both) break;
            const AttendLane &ours = lanes[static_cast<size_t>(leader.lane)], &theirs = lanes[static_cast<size_t>(next.lane)];
            tiles = both;
            if (theirs.lowest < ours.lowest) leader = next;
        }
        const AttendLane& lane = lanes[static_cast<size_t>(leader.lane)];
        if (end - i < 2 && !lane.tree) continue;
        sets.push_back({lane.sequence, leader.first, leader.first + tiles, 0, set_lanes_.size(), 0, static_cast<int>(end - i), 0});
        for (size_t m = i; m < end; ++m) {
            set_lanes_.push_back(members_[m].lane);
            part(lanes[static_cast<size_t>(members_[m].lane)], chunk).tile = leader.first + tiles;
        }
    }
}

// ---- where states stand ----------------------------------------------------------------------------------------------

// Gives lanes room for what is made in several pieces. One for which there is none takes all its tiles by itself.
void AttendPlan::keep_lanes() {
    size_t used = 0, pieces = 0;
    for (const AttendLane& lane : lanes) pieces += static_cast<size_t>(shape_.kv_heads * (lane.tree ? (lane.rows + TREE_ROWS - 1) / TREE_ROWS : 1));
    const bool few = shape_.threads > 1 && pieces < static_cast<size_t>(4 * shape_.threads);
    for (AttendLane& lane : lanes) {
        int kept = 0, left = 0;
        for (int c = lane.first_chunk; c < lane.first_chunk + lane.chunks; ++c) {
            kept += part(lane, c).tile > c * CHUNK_TILES;
            left += part(lane, c).tile < end_tile(lane, c);
        }
        lane.split = few && !lane.tree && lane.rows <= SPLIT_ROWS && left > 1;
        lane.slots = lane.split ? lane.chunks : kept;
        lane.stride = static_cast<size_t>(lane.rows * shape_.group) * shape_.state_floats;
        const size_t floats = lane.head_step() * static_cast<size_t>(shape_.kv_heads);
        const bool fits = used + floats <= shape_.room;
        lane.kept = used;
        if (fits) used += floats;
        else lane.slots = 0, lane.split = false;
        for (int c = lane.first_chunk, slot = 0; c < lane.first_chunk + lane.chunks; ++c) {
            AttendPart& at = part(lane, c);
            if (!fits) at.tile = c * CHUNK_TILES;
            else if (lane.split || at.tile > c * CHUNK_TILES) at.slot = slot++;
        }
    }
}

void AttendPlan::place_sets(const AttendSequences& step) {
    for (AttendSet& set : sets) {
        int before = -1;
        set.rows = rows.size();
        set.sequences = 0;
        for (int i = 0; i < set.num_lanes; ++i) {
            const AttendLane& lane = lanes[static_cast<size_t>(set_lanes_[set.lanes + static_cast<size_t>(i)])];
            if (!lane.slots) continue;
            set.sequences += lane.sequence != before;
            before = lane.sequence;
            const size_t slot = static_cast<size_t>(part(lane, set.first / CHUNK_TILES).slot);
            const size_t first = lane.kept + slot * lane.stride, floats = lane.stride / static_cast<size_t>(lane.rows);
            for (int r = 0; r < lane.rows; ++r)
                rows.push_back({lane.token + r, step.indices[lane.token + r], first + static_cast<size_t>(r) * floats, lane.head_step()});
        }
        set.count = static_cast<int>(rows.size() - set.rows);
        if (!shape_.window) continue;  // else the kernels want those first that see most at the start
        std::sort(rows.begin() + static_cast<ptrdiff_t>(set.rows), rows.end(), [](const AttendPlace& a, const AttendPlace& b) {
            return a.index != b.index ? a.index < b.index : a.token < b.token;
        });
    }
}

// ---- pieces of work --------------------------------------------------------------------------------------------------

void AttendPlan::add_shared() {
    for (size_t i = 0; i < sets.size(); ++i) {
        const int pieces = (sets[i].count + ATTEND_ROWS - 1) / ATTEND_ROWS, tiles = sets[i].last - sets[i].first;
        for (int piece = 0; piece < pieces; ++piece) {
            const int from = sets[i].count * piece / pieces, to = sets[i].count * (piece + 1) / pieces;
            for (int head = 0; head < shape_.kv_heads; ++head)
                shared.push_back({static_cast<int>(i), head, -1, from, to, int64_t{to - from} * tiles});
        }
    }
}

void AttendPlan::add_own() {
    for (size_t i = 0; i < lanes.size(); ++i) {
        const AttendLane& lane = lanes[i];
        const int which = static_cast<int>(i), step = lane.tree ? TREE_ROWS : lane.rows, end = lane.first_chunk + lane.chunks;
        int64_t tiles = 0;
        for (int c = lane.first_chunk; c < end; ++c) tiles += tiles_left(lane, c);
        for (int head = 0; head < shape_.kv_heads; ++head) {
            for (int from = 0; from < lane.rows && !lane.split; from += step) {
                const int to = std::min(lane.rows, from + step);
                own.push_back({which, head, -1, from, to, (to - from) * tiles});
            }
            if (!lane.split) continue;
            merges.push_back({which, head, -1, 0, lane.rows});
            for (int c = lane.first_chunk; c < end; ++c)
                if (part(lane, c).tile < end_tile(lane, c)) own.push_back({which, head, c, 0, lane.rows, int64_t{lane.rows} * tiles_left(lane, c)});
        }
    }
}

}  // namespace pelton
